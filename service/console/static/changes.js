// The first page: how many streams changed, which, since when, what of them, and who is quiet.

import { get } from "./api.js";
import { changeRow, columnHeads, keyOf } from "./changerow.js";
import { ChangeFilter } from "./filter.js";
import { announce, fill, h, refill } from "./dom.js";
import { clock, count, dated, dayOf, inWords, lasting, plural } from "./format.js";
import { incidentRow, readIncidents } from "./incidents.js";
import { Pager } from "./pager.js";
import { AROUND } from "./pictures.js";
import { problem } from "./problems.js";
import { linkTo, streamLink } from "./row.js";
import { soon } from "./soon.js";
import { STEADY, steadyParts } from "./steady.js";
import { firstSteps } from "./streams.js";

const PAGE = 25; // each change is explained once, which takes some ms
const EVERY_MS = 10000; // the last hour moves on, even where nothing changes
const NEWS_MS = 1500; // changes in between are shown together
const READING = 120; // pixels from the top from which on somebody reads: no row moves then
const MANY = 10; // suspected changes that are behind one line
const NONE = { total: 0, streams: 0, changes: [] };

/**
 * @param {HTMLElement} main @param {URLSearchParams} query @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showChanges(main, query, feed) {
  const page = new ChangesPage(main, query, feed);
  return { title: "Changes", nav: "changes", close: () => page.close() };
}

class ChangesPage {
  /** @param {HTMLElement} main @param {URLSearchParams} query @param {import("./events.js").Feed} feed */
  constructor(main, query, feed) {
    this.filter = new ChangeFilter(query, () => this.filtered());
    this.asked = new AbortController();
    this.shown = ""; // rows that are drawn, as text
    this.keys = /** @type {Set<string>} */ (new Set()); // of the changes that are drawn
    this.held = /** @type {any} */ (null); // what was read while somebody reads below the top
    this.unfolded = false; // suspected changes
    this.title = h("h1", { id: "answer" }, "Changes");
    this.context = h("p", { id: "context", role: "status" }, "Loading.");
    this.trouble = h("div", {});
    this.waiting = h("button", { type: "button", class: "waiting", hidden: true, click: () => this.catchUp() });
    this.list = h("ol", { "aria-label": "Changes" });
    this.heads = h("div", {});
    this.steady = h("section", { class: "steady", "aria-labelledby": "steady", hidden: true });
    this.empty = h("div", { class: "empty", hidden: true });
    this.pager = new Pager("changes", PAGE, () => this.again());
    fill(
      main,
      h("div", { class: "head" }, h("div", {}, this.title, this.context), h("div", { class: "do" }, this.filter.parts)),
      this.trouble,
      this.waiting,
      h("div", { class: "changes" }, this.heads, this.list),
      this.empty,
      this.pager.element,
      this.steady,
      keysLine(),
    );
    const when = { apartMs: NEWS_MS, everyMs: EVERY_MS };
    this.polling = soon(() => this.read(), when, (error) => {
      if (error && !this.shown) this.context.textContent = "";
      fill(this.trouble, error ? problem(error, () => this.again()) : null);
    });
    const changed = (/** @type {any} */ raised) => {
      if (raised.event.state === "confirmed") announce(`${raised.stream}: ${raised.event.sentence}`);
      this.polling.ask();
    };
    feed.follow({ path: "v1/events", query: {}, on: { changepoint: changed, gap: () => this.again() } });
    this.scrolled = () => this.held && !this.reading && this.catchUp();
    window.addEventListener("scroll", this.scrolled, { passive: true });
  }

  filtered() {
    const text = this.filter.address;
    history.replaceState(null, "", text ? `#/?${text}` : "#/");
    this.pager.reset();
    this.shown = "";
    this.again();
  }

  /** Read at once; what is being read is of other filters. */
  again() {
    this.asked.abort();
    this.polling.now();
  }

  get reading() {
    return window.scrollY > READING;
  }

  async read() {
    this.asked = new AbortController();
    const { signal } = this.asked;
    try {
      const found = await this.ask(signal);
      if (!signal.aborted) this.take(found);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  /** Everything that the page shows. @param {AbortSignal} signal */
  async ask(signal) {
    const { filter, pager } = this;
    const query = filter.query;
    const first = pager.cursor === null;
    const counted = (/** @type {string} */ state) =>
      get("v1/changes", { ...query, state, limit: 1 }, signal);
    const [page, confirmed, suspected, overview, incidents] = await Promise.all([
      get("v1/changes", { ...query, cursor: pager.cursor, limit: PAGE, around: AROUND }, signal),
      counted("confirmed"),
      counted("suspected"),
      get("v1/overview", { ...filter.ids, limit: 3 * STEADY, labels: 48 }, signal),
      filter.plain ? readIncidents(filter.span, signal) : null,
    ]);
    const ever = filter.plain && filter.span ? await get("v1/changes", { state: "confirmed", limit: 1 }, signal) : NONE;
    const last = confirmed.total ? null : (ever.changes[0] ?? null);
    return { page, confirmed, suspected, overview, incidents, first, last, earlier: ever.total - confirmed.total };
  }

  /** Show what was read; not while somebody reads, whose rows would move. @param {any} found */
  take(found) {
    const keys = found.page.changes.map(keyOf);
    const added = keys.filter((/** @type {string} */ key) => !this.keys.has(key)).length;
    if (this.shown && this.reading && added) {
      this.held = found;
      this.waiting.hidden = false;
      this.waiting.textContent = plural(added, "new change");
      return;
    }
    this.draw(found);
  }

  /** Show what waited, from the top. */
  catchUp() {
    const found = this.held;
    this.held = null;
    this.waiting.hidden = true;
    if (!found) return;
    window.scrollTo(0, 0);
    this.draw(found);
  }

  /** @param {any} found */
  draw(found) {
    const { page, overview, incidents, first } = found;
    const rows = new Set((incidents?.shown ?? []).map((/** @type {any} */ each) => each.id));
    const single = page.changes.filter((/** @type {any} */ each) => !rows.has(each.incident));
    const together = first ? (incidents?.shown ?? []) : [];
    this.keys = new Set(page.changes.map(keyOf));
    const text = JSON.stringify([single, together, overview.total, this.unfolded]);
    if (text !== this.shown) this.rows(single, together, overview.total);
    this.shown = text;
    this.pager.draw(page.changes.length, page.total, page.cursor);
    this.pager.element.hidden = page.cursor === null && first;
    this.say(found);
    this.steady.hidden = !first || !overview.total || !this.filter.usual;
    if (!this.steady.hidden) fill(this.steady, steadyParts(overview, this.quiet(found), this.steadyCount(found)));
    this.empty.hidden = overview.total > 0 && (page.total > 0 || this.filter.plain);
    if (!this.empty.hidden) fill(this.empty, this.nothing(overview.total));
  }

  /** Streams that changed or may have. @param {any} found */
  changed({ page, confirmed, suspected }) {
    return Math.max(page.streams, confirmed.streams, suspected.streams);
  }

  /** Streams of the overview that neither changed nor may have. @param {any} found */
  quiet({ page, incidents, overview }) {
    const changes = [...page.changes, ...(incidents?.shown ?? []).flatMap((/** @type {any} */ each) => each.changes)];
    const changed = new Set(changes.map((each) => each.stream));
    const listed = page.cursor === null; // else others have changes on later pages
    return overview.streams.filter(
      (/** @type {any} */ each) => !changed.has(each.stream) && !each.event && (listed || !each.last_event),
    );
  }

  /** How many streams are steady; counted where all of them and of their changes are there. @param {any} found */
  steadyCount(found) {
    const { page, overview } = found;
    if (page.cursor === null && overview.streams.length === overview.total) return this.quiet(found).length;
    return Math.max(0, overview.total - this.changed(found));
  }

  /** @param {any[]} single @param {any[]} together incidents @param {number} streams */
  rows(single, together, streams) {
    const suspected = single.filter((each) => each.state === "suspected");
    const folds = suspected.length >= MANY && !this.unfolded;
    const rows = [
      ...single
        .filter((each) => !folds || each.state !== "suspected")
        .map((change) => ({ time: change.start_time, element: changeRow(change, streams) })),
      ...together.map((incident) => ({ time: incident.start_time, element: incidentRow(incident) })),
    ];
    if (this.filter.newest) rows.sort((a, b) => Date.parse(b.time ?? 0) - Date.parse(a.time ?? 0));
    const parts = [];
    let day = "";
    for (const { time, element } of rows) {
      const named = this.filter.newest && time ? dayOf(time) : "";
      if (named && named !== day) parts.push(h("li", { class: "day" }, named));
      day = named || day;
      parts.push(element);
    }
    fill(this.heads, parts.length ? columnHeads() : null);
    refill(this.list, folds ? this.fold(suspected.length) : null, parts);
  }

  /** @param {number} n */
  fold(n) {
    const unfold = () => {
      this.unfolded = true;
      this.again();
    };
    return h("li", { class: "change suspected" }, h("span", {}), h("button", { type: "button", click: unfold }, `Show ${plural(n, "suspected change")}`));
  }

  /** The heading, and what it is to be compared with. @param {any} found */
  say(found) {
    const { page, confirmed, suspected, overview, incidents, last, earlier } = found;
    const { filter } = this;
    const streams = overview.total;
    const many = confirmed.streams;
    const largest = incidents?.shown.reduce((/** @type {any} */ a, /** @type {any} */ b) => (a && a.streams >= b.streams ? a : b), null);
    let answer;
    if (!streams && !page.total) answer = filter.plain ? "No streams yet" : `No stream ${filter.words}`;
    else if (!filter.usual) answer = `${plural(page.total, "change")} of ${plural(page.streams, "stream")} ${filter.words}`;
    else if (!many) answer = `Nothing changed ${filter.when}`;
    else answer = `${count(many)} of ${plural(Math.max(streams, many), "stream")}${filter.among} changed ${filter.when}`;
    if (largest && many && filter.usual) answer += `, ${inWords(largest.streams)} of them at ${clock(largest.start_time)}`;
    if (this.title.textContent !== answer) this.title.textContent = answer;
    const quiet = this.steadyCount(found);
    const parts = [];
    if (suspected.streams) parts.push(`${count(suspected.streams)} suspected, `);
    if (quiet < streams || suspected.streams) parts.push(`${count(quiet)} steady.`);
    else if (streams) parts.push(streams === 1 ? "The stream is steady." : `All ${plural(streams, "stream")} are steady.`);
    const rate = incidents?.fleet.false_alarms_per_day;
    if (rate > 0) parts.push(` By chance one false alarm in ${lasting(86400 / rate)}, over all streams.`);
    if (last) {
      const time = last.start_time;
      const when = time ? `${dated(time)}, ` : "";
      parts.push(` Last change: ${when}`, streamLink(last.stream, last.link && linkTo(last.stream)), `, ${last.sentence}.`);
    }
    // A file of the past is posted today.
    if (earlier > 0) parts.push(" ", h("a", { href: "#/?span=all" }, `Show ${plural(earlier, "earlier change")}`));
    fill(this.context, filter.usual ? parts : null);
  }

  /** What to do where there is nothing. @param {number} streams */
  nothing(streams) {
    if (!streams && this.filter.plain) return firstSteps("The first observation creates a stream:");
    return [
      h("p", {}, "No change fits these filters."),
      h("button", { type: "button", click: () => this.filter.reset() }, "Reset the filters"),
    ];
  }

  close() {
    this.polling.stop();
    this.asked.abort();
    this.filter.close();
    window.removeEventListener("scroll", this.scrolled);
  }
}

function keysLine() {
  const key = (/** @type {string} */ name) => h("kbd", {}, name);
  return h(
    "p",
    { class: "keys note" },
    h("span", {}, key("j"), " ", key("k"), " next, previous"),
    h("span", {}, key("enter"), " open"),
    h("span", {}, key("/"), " find a stream"),
    h("span", {}, key("f"), " filter"),
  );
}
