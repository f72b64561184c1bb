// The list of streams: one page of it is read and kept up to date.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { count, plural } from "./format.js";
import { poll, problem } from "./problems.js";
import { Recent } from "./recent.js";
import { HEADS, Row } from "./row.js";

const PAGE = 25;
const EVERY_MS = 4000;
const TYPING_MS = 250;
const SOON_MS = 700; // an event is followed by a look at the page, many by one

/**
 * @param {HTMLElement} main @param {URLSearchParams} query @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showStreams(main, query, feed) {
  let prefix = query.get("prefix") ?? "";
  let cursors = /** @type {(string|null)[]} */ ([null]); // where each page up to this one begins
  let next = /** @type {string|null} */ (null);
  let asked = new AbortController();
  let typing = 0,
    soon = 0;
  const rows = /** @type {Map<string, Row>} */ (new Map());

  const search = h("input", {
    type: "search",
    id: "search",
    value: prefix,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "pump-",
    maxlength: "200",
    input: typed,
    "aria-describedby": "count",
  });
  const counted = h("p", { id: "count", class: "note", role: "status" });
  const trouble = h("div", {});
  const body = h("tbody", { role: "rowgroup" });
  const empty = h("div", { class: "empty", hidden: true });
  const back = h("button", { type: "button", click: () => turn(-1) }, "← Previous");
  const on = h("button", { type: "button", click: () => turn(1) }, "Next →");
  const where = h("span", {});
  const recent = new Recent();

  fill(
    main,
    h(
      "div",
      { class: "headline" },
      h("h1", {}, "Streams"),
      h(
        "div",
        { class: "search" },
        h("label", { for: "search" }, "Filter by id prefix"),
        search,
      ),
      counted,
    ),
    trouble,
    h(
      "div",
      { class: "with-side" },
      h(
        "section",
        { class: "card flush", "aria-label": "List of streams" },
        h(
          "table",
          { class: "streams", role: "table" },
          h("caption", { class: "unseen" }, "Streams by id, refreshed every few seconds"),
          h(
            "thead",
            { role: "rowgroup" },
            h(
              "tr",
              { role: "row" },
              HEADS.map((head) => h("th", { scope: "col", role: "columnheader" }, head)),
            ),
          ),
          body,
        ),
        empty,
        h("nav", { class: "pager", "aria-label": "Pages of streams" }, back, where, on),
      ),
      recent.element,
    ),
  );

  const polling = poll(read, EVERY_MS, (error) =>
    fill(trouble, error ? problem(error, () => polling.now()) : null),
  );
  follow();
  document.addEventListener("keydown", toSearch);

  function follow() {
    const on = { changepoint: raised, anomaly: raised, gap: () => polling.now() };
    feed.follow({ path: "v1/events", query: { prefix, kind: "all" }, on });
  }

  async function read() {
    asked.abort();
    asked = new AbortController();
    const cursor = cursors[cursors.length - 1];
    const mine = asked.signal;
    const page = await get("v1/overview", { prefix, cursor, limit: PAGE, labels: 40 }, mine).catch(
      (error) => {
        if (mine.aborted) return null; // another page was asked for meanwhile
        throw error;
      },
    );
    if (page && !mine.aborted) draw(page);
  }

  /** @param {any} page */
  function draw(page) {
    next = page.cursor;
    const wanted = page.streams.map((/** @type {any} */ each) => {
      const row = rows.get(each.stream) ?? new Row(each.stream);
      rows.set(each.stream, row.update(each));
      return row.element;
    });
    for (const [stream, row] of rows) if (!wanted.includes(row.element)) rows.delete(stream);
    if (
      wanted.length !== body.childElementCount ||
      wanted.some((/** @type {any} */ row, /** @type {number} */ i) => row !== body.children[i])
    ) {
      body.replaceChildren(...wanted);
    }
    const first = (cursors.length - 1) * PAGE + 1,
      last = first + page.streams.length - 1;
    fill(
      where,
      page.streams.length ? `${count(first)}–${count(last)} of ${count(page.total)}` : "0",
    );
    say(`${plural(page.total, "stream")}${prefix ? ` with prefix “${prefix}”` : ""}`);
    disable(back, cursors.length === 1);
    disable(on, next === null);
    empty.hidden = page.total > 0;
    fill(empty, prefix ? `No stream with prefix “${prefix}”.` : nothing());
  }

  /** @param {string} text */
  function say(text) {
    if (counted.textContent !== text) counted.textContent = text;
  }

  /** @param {number} step */
  function turn(step) {
    if (step > 0 && next !== null) cursors.push(next);
    else if (step < 0 && cursors.length > 1) cursors.pop();
    else return;
    asked.abort();
    polling.now();
  }

  function typed() {
    window.clearTimeout(typing);
    typing = window.setTimeout(() => {
      prefix = /** @type {HTMLInputElement} */ (search).value.trim();
      cursors = [null];
      history.replaceState(null, "", prefix ? `#/?prefix=${encodeURIComponent(prefix)}` : "#/");
      asked.abort();
      polling.now();
      follow();
    }, TYPING_MS);
  }

  /** @param {KeyboardEvent} event */
  function toSearch(event) {
    const typingElsewhere =
      event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
    if (event.key !== "/" || typingElsewhere || event.ctrlKey || event.metaKey || event.altKey)
      return;
    event.preventDefault();
    search.focus();
  }

  /** @param {import("./events.js").Raised} found */
  function raised(found) {
    recent.add(found);
    const row = rows.get(found.stream);
    if (!row) return;
    if (!soon) row.flash(); // one at a time: many at once are no help to the eye
    soon ||= window.setTimeout(() => ((soon = 0), polling.now()), SOON_MS);
  }

  return {
    title: "Streams",
    nav: "streams",
    close() {
      polling.stop();
      asked.abort();
      window.clearTimeout(typing);
      window.clearTimeout(soon);
      recent.close();
      document.removeEventListener("keydown", toSearch);
    },
  };
}

/** Focus stays where it is: a button that is disabled would lose it. */
function disable(/** @type {HTMLElement} */ button, /** @type {boolean} */ no) {
  button.setAttribute("aria-disabled", String(no));
}

function nothing() {
  return h(
    "div",
    {},
    h("p", {}, "No streams yet. The first observation creates one:"),
    h(
      "pre",
      {},
      `curl ${location.origin}/v1/streams/pump-7/observations \\\n  -H 'content-type: application/json' -d '{"y": 10.2}'`,
    ),
  );
}
