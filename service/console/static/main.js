// Which page is shown, and what all pages share.

import { forgetKey, hasKey, reconsider } from "./api.js";
import { showCalendar } from "./calendar.js";
import { byId, fill } from "./dom.js";
import { Feed } from "./events.js";
import { showChanges } from "./changes.js";
import { Finder } from "./finder.js";
import { showIncident } from "./incident.js";
import { setUpKeys } from "./keys.js";
import { showMissing } from "./missing.js";
import { showModel, showModels } from "./models.js";
import { problem } from "./problems.js";
import { showReference } from "./reference.js";
import { showStream } from "./stream.js";
import { showStreams } from "./streams.js";
import { setUpTheme } from "./theme.js";

/** @typedef {{title: string, nav: string, close: () => void}} View */

const FEED_WORDS = {
  connecting: "connecting",
  live: "live",
  paused: "paused",
  lost: "connection lost, retrying",
  absent: "no such stream, asking again",
  refused: "refused, asking again",
  error: "server error, retrying",
  none: "", // a page without a subscription
};
const feed = new Feed((state) => {
  const shown = byId("feed");
  shown.dataset.state = state;
  shown.hidden = state === "none";
  shown.textContent = FEED_WORDS[/** @type {keyof typeof FEED_WORDS} */ (state)];
});
let view = /** @type {View|null} */ (null);
let first = true;

/** What the address asks for: `#/streams/ID?window=200`. */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/");
  return { page, name: decoded(rest.join("/")), query: new URLSearchParams(query) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @returns {View} */
function open() {
  const main = byId("main");
  const { page, name, query } = route();
  if (page === "incidents" && name) return showIncident(main, name, feed);
  if (page === "streams" && name) return showStream(main, name, query, feed);
  if (page === "streams") return showStreams(main, query, feed);
  if (page === "models" && name) return showModel(main, name, feed);
  if (page === "models") return showModels(main, feed);
  if (page === "calendar") return showCalendar(main, feed);
  if (page === "api") return showReference(main, feed);
  if (page === "") return showChanges(main, query, feed);
  return showMissing(main, `#/${page}`, feed);
}

function show() {
  if (location.hash === "#main") return; // the skip link, where scripts came too late
  reconsider();
  view?.close();
  try {
    view = open();
  } catch (error) {
    fill(byId("main"), problem(error));
    throw error;
  }
  document.title = `${view.title} · MOCA console`;
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.getAttribute("data-nav") === view.nav) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first) {
    window.scrollTo(0, 0);
    byId("main").focus({ preventScroll: true });
  }
  first = false;
}

setUpTheme(document.querySelectorAll("[data-theme-button]"));
byId("where").textContent = location.host;
byId("key").hidden = !hasKey();
byId("key").addEventListener("click", () => {
  forgetKey();
  byId("key").hidden = true;
  feed.connect();
  show();
});
byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  byId("main").focus();
});
const finder = new Finder();
byId("finder").addEventListener("click", () => finder.open());
setUpKeys(() => finder.open());
window.addEventListener("hashchange", show);
show();
