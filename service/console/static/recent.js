// Live changepoints and anomalies, newest first.

import { announce, fill, h } from "./dom.js";
import { brief, count, direction, sentence, standing } from "./format.js";
import { badge, linkTo, streamLink } from "./row.js";

const SHOWN = 12;
const EVERY_MS = 250; // a thousand changes a second are drawn as seldom as four

export class Recent {
  constructor() {
    this.list = h("ol", { class: "recent" });
    const now = brief(new Date().toISOString());
    this.none = h("p", { class: "note" }, `None since this page was opened at ${now}.`);
    this.element = h(
      "aside",
      { class: "card", "aria-labelledby": "recent-title" },
      h("h2", { id: "recent-title" }, "Live events"),
      this.none,
      this.list,
    );
    this.newest = /** @type {import("./events.js").Raised[]} */ ([]);
    this.timer = 0;
  }

  /** @param {import("./events.js").Raised} found */
  add(found) {
    this.newest.unshift(found);
    this.newest.length = Math.min(SHOWN, this.newest.length);
    if (found.event.state === "confirmed") announce(`${found.stream}: ${sentence(found.event)}`);
    this.timer ||= window.setTimeout(() => this.draw(), EVERY_MS);
  }

  draw() {
    this.timer = 0;
    this.none.hidden = true;
    const focused = document.activeElement?.getAttribute("data-recent");
    fill(this.list, this.newest.map(item));
    if (!focused) return;
    /** @type {HTMLElement|null} */ (
      this.list.querySelector(`[data-recent="${CSS.escape(focused)}"]`)
    )?.focus();
  }

  close() {
    window.clearTimeout(this.timer);
  }
}

/** @param {import("./events.js").Raised} found */
function item({ stream, event, time, at }) {
  const where = ` at ${count(event.start)} ${direction(event)} · ${brief(time ?? at)}`;
  const known = `${stream} ${event.id} ${standing(event)} ${event.start}`;
  const link = streamLink(stream, linkTo(stream), { "data-recent": known });
  return h("li", {}, badge(standing(event)), " ", link, h("span", { class: "note" }, where));
}
