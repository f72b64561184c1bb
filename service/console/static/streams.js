// The list of streams: one page of it is read and kept up to date.

import { get } from "./api.js";
import { choice, field, finds, idFilter, idSearch, searched } from "./controls.js";
import { fill, h } from "./dom.js";
import { csvDrop } from "./drop.js";
import { plural } from "./format.js";
import { Pager } from "./pager.js";
import { problem } from "./problems.js";
import { HEADS, Row } from "./row.js";
import { later, soon } from "./soon.js";

const PAGE = 25;
const EVERY_MS = 4000;
const TYPING_MS = 250;
const SORTS = { id: "by id", changed_probability: "highest P(changed)", change: "newest change" };
const SOON_MS = 700; // an event is followed by a look at the page, many by one

/**
 * @param {HTMLElement} main @param {URLSearchParams} query @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showStreams(main, query, feed) {
  const prefix = query.get("prefix"); // of links that are older than the search anywhere
  let wanted = prefix ? `^${prefix}` : (query.get("q") ?? "");
  let asked = new AbortController();
  const rows = /** @type {Map<string, Row>} */ (new Map());

  const typing = later(filter, TYPING_MS);
  const search = idSearch(wanted, typing.ask);
  const sort = choice("sort", SORTS, query.get("sort") ?? "id", filter);
  const counted = h("h1", { id: "count" }, "Streams");
  const trouble = h("div", {});
  const body = h("tbody", { role: "rowgroup" });
  const empty = h("div", { class: "empty", hidden: true });
  const pager = new Pager("streams", PAGE, again);

  const csv = csvDrop(main, again);
  fill(
    main,
    h(
      "div",
      { class: "head" },
      counted,
      h("div", { class: "do buttons-of-list" }, field("Search ids", search), field("First", sort), csv.element),
    ),
    csv.place,
    trouble,
    h(
      "table",
      { class: "streams", role: "table" },
      h("caption", { class: "unseen" }, "Streams, refreshed every few seconds"),
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
    pager.element,
  );

  const polling = soon(read, { apartMs: SOON_MS, everyMs: EVERY_MS }, (error) =>
    fill(trouble, error ? problem(error, () => polling.now()) : null),
  );
  follow();

  function follow() {
    const on = { changepoint: raised, anomaly: raised, gap: () => polling.now() };
    feed.follow({ path: "v1/events", query: { prefix: idFilter(wanted).prefix, kind: "all" }, on });
  }

  async function read() {
    asked.abort();
    asked = new AbortController();
    const mine = asked.signal;
    const order = { ...idFilter(wanted), sort: sort.value, cursor: pager.cursor };
    const page = await get("v1/overview", { ...order, limit: PAGE, labels: 40 }, mine).catch(
      (error) => {
        if (mine.aborted) return null; // another page was asked for meanwhile
        throw error;
      },
    );
    if (page && !mine.aborted) draw(page);
  }

  /** @param {any} page */
  function draw(page) {
    const found = page.streams.map((/** @type {any} */ each) => {
      const row = rows.get(each.stream) ?? new Row(each.stream);
      rows.set(each.stream, row.update(each));
      return row.element;
    });
    for (const [stream, row] of rows) if (!found.includes(row.element)) rows.delete(stream);
    if (
      found.length !== body.childElementCount ||
      found.some((/** @type {any} */ row, /** @type {number} */ i) => row !== body.children[i])
    ) {
      const focused = /** @type {HTMLElement|null} */ (document.activeElement);
      const held = focused && body.contains(focused);
      body.replaceChildren(...found);
      if (held) focused.focus(); // an order by probability moves rows
    }
    pager.draw(page.streams.length, page.total, page.cursor);
    const text = `${plural(page.total, "stream")}${wanted ? ` ${searched(wanted)}` : ""}`;
    if (counted.textContent !== text) counted.textContent = text;
    empty.hidden = page.total > 0;
    fill(empty, wanted ? `No stream ${searched(wanted)}.` : firstSteps("No streams yet. The first observation creates one:"));
  }

  /** Read at once; what is being read is of another page. */
  function again() {
    asked.abort();
    polling.now();
  }

  function filter() {
    wanted = search.value.trim();
    const chosen = { ...(wanted && { q: wanted }), ...(sort.value !== "id" && { sort: sort.value }) };
    const text = new URLSearchParams(chosen).toString();
    history.replaceState(null, "", text ? `#/streams?${text}` : "#/streams");
    pager.reset();
    again();
    follow();
  }

  /** @param {import("./events.js").Raised} found */
  function raised(found) {
    if (finds(found.stream, wanted) && rows.has(found.stream)) polling.ask();
  }

  return {
    title: "Streams",
    nav: "streams",
    close() {
      polling.stop();
      asked.abort();
      typing.stop();
      csv.close();
    },
  };
}

/** What to do where there is nothing yet. @param {string} why */
export function firstSteps(why) {
  const call = `curl ${location.origin}/v1/streams/pump-7/observations \\\n  -H 'content-type: application/json' -d '{"y": 10.2}'`;
  return h("div", {}, h("p", {}, why), h("pre", {}, call));
}
