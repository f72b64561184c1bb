// Changes of all streams: which, when, how big, how sure, and what changed.

import { get } from "./api.js";
import { choice, field, finds, idFilter, idSearch } from "./controls.js";
import { fill, h } from "./dom.js";
import { count, direction, moment, percent, plural } from "./format.js";
import { Pager } from "./pager.js";
import { poll, problem } from "./problems.js";
import { START, badge, linkTo, streamLink } from "./row.js";
import { soon } from "./soon.js";
import { firstSteps } from "./streams.js";
import { BINS, Timeline } from "./timeline.js";

const PAGE = 25; // each change is explained once, which takes some ms
const EVERY_MS = 10000; // the last hour moves on, even where nothing changes
const NEWS_MS = 1500; // changes in between are shown together
const TYPING_MS = 300;
const SPANS = { "1h": "last hour", "24h": "last day", "7d": "last week", all: "all retained" };
const STATES = {
  "": "not withdrawn",
  confirmed: "confirmed",
  suspected: "suspected",
  withdrawn: "withdrawn",
  all: "any state",
};
const SORTS = { time: "newest", size: "largest", probability: "most certain start" };
const HEADS = ["Stream", "Time", "Change", START.head, "What changed", "State"];
const DEFAULTS = { span: "24h", state: "", model: "", q: "", size: "", sure: "", sort: "time" };

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
    this.between = /** @type {string[]|null} */ (null); // since and until of a bar
    if (query.get("since") && query.get("until"))
      this.between = [query.get("since") ?? "", query.get("until") ?? ""];
    this.fields = this.controls({ ...DEFAULTS, ...Object.fromEntries(query) });
    this.asked = new AbortController();
    this.typing = 0;
    this.shown = "";
    this.counted = h("p", { id: "count", class: "note", role: "status" }, "Loading changes.");
    this.trouble = h("div", {});
    this.within = h("div", { class: "toolbar", hidden: true });
    this.timeline = new Timeline((since, until) => this.narrow([since, until]));
    this.body = h("tbody", { role: "rowgroup" });
    this.empty = h("div", { class: "empty", hidden: true });
    this.pager = new Pager("Pages of changes", PAGE, () => this.again());
    fill(main, ...this.parts());
    this.models();
    this.polling = poll(() => this.read(), EVERY_MS, (error) =>
      fill(this.trouble, error ? problem(error, () => this.again()) : null),
    );
    // A failure is the polling's to show, and to try again.
    this.news = soon(async () => this.polling.now(), NEWS_MS, () => {});
    const changed = (/** @type {any} */ found) =>
      finds(found.stream, this.fields.q.value.trim()) && this.news.ask();
    feed.follow({ path: "v1/events", query: {}, on: { changepoint: changed, gap: () => this.again() } });
  }

  /** @param {Record<string, string>} given */
  controls(given) {
    const changed = () => this.filter();
    const typed = () => {
      window.clearTimeout(this.typing);
      this.typing = window.setTimeout(changed, TYPING_MS);
    };
    const number = (/** @type {string} */ id, /** @type {string} */ step, /** @type {string|null} */ max) =>
      h("input", { type: "number", id, min: "0", max, step, value: given[id], input: typed });
    const spanned = () => this.narrow(null);
    return /** @type {Record<string, HTMLInputElement|HTMLSelectElement>} */ ({
      span: choice("span", SPANS, given.span, spanned),
      state: choice("state", STATES, given.state, changed),
      model: choice("model", { "": "any", ...(given.model && { [given.model]: given.model }) }, given.model, changed),
      q: idSearch(given.q, typed),
      size: number("size", "0.5", null),
      sure: number("sure", "any", "1"),
      sort: choice("sort", SORTS, given.sort, changed),
    });
  }

  parts() {
    const { span, state, model, q, size, sure, sort } = this.fields;
    const heads = HEADS.map((head) =>
      h("th", { scope: "col", role: "columnheader", title: head === START.head ? START.about : null }, head),
    );
    return [
      h("div", { class: "headline" }, h("h1", {}, "Changes"), this.counted),
      this.trouble,
      h(
        "section",
        { class: "card", "aria-label": "Filters and timeline" },
        h(
          "div",
          { class: "filters" },
          field("Time", span),
          field("State", state),
          field("Model", model),
          field("Stream id", q),
          field("Size, sd or more", size),
          field(`${START.head} or more`, sure),
          field("First", sort),
        ),
        this.within,
        this.timeline.element,
      ),
      h(
        "section",
        { class: "card flush", "aria-label": "List of changes" },
        h(
          "table",
          { class: "changes", role: "table" },
          h("caption", { class: "unseen" }, "Changes of all streams"),
          h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
          this.body,
        ),
        this.empty,
        this.pager.element,
      ),
    ];
  }

  /** Names to choose from. Without them, as with a key that may not read them, there is “any”. */
  async models() {
    const { models } = await get("v1/models").catch(() => ({ models: [] }));
    const select = /** @type {HTMLSelectElement} */ (this.fields.model);
    for (const { name } of models)
      if (name !== select.value) select.append(h("option", { value: name }, name));
  }

  /** Filters as the address has them, without defaults. */
  get chosen() {
    const given = Object.entries(this.fields).map(([name, field]) => [name, field.value.trim()]);
    return Object.fromEntries(
      given.filter(([name, value]) => value !== DEFAULTS[/** @type {keyof typeof DEFAULTS} */ (name)]),
    );
  }

  /** Filters as the service takes them. */
  get query() {
    const { span, state, model, q, size, sure, sort } = this.fields;
    const [since, until] = this.between ?? [span.value === "all" ? null : span.value, null];
    return {
      since,
      until,
      state: state.value === "" ? ["confirmed", "suspected"] : state.value === "all" ? [] : state.value,
      model: model.value,
      ...idFilter(q.value.trim()),
      min_size: size.value,
      min_probability: sure.value,
      sort: sort.value,
    };
  }

  /** @param {string[]|null} between since and until; null: what is chosen as time */
  narrow(between) {
    this.between = between;
    this.filter();
  }

  filter() {
    const [since, until] = this.between ?? [];
    const text = new URLSearchParams({ ...this.chosen, ...(since && { since, until }) }).toString();
    history.replaceState(null, "", text ? `#/changes?${text}` : "#/changes");
    this.pager.reset();
    this.again();
  }

  /** Read at once; what is being read is of other filters. */
  again() {
    this.asked.abort();
    this.polling.now();
  }

  async read() {
    this.asked = new AbortController();
    const { signal } = this.asked;
    const query = { ...this.query, cursor: this.pager.cursor, limit: PAGE, bins: BINS };
    const page = await get("v1/changes", query, signal).catch((error) => {
      if (signal.aborted) return null;
      throw error;
    });
    if (!page || signal.aborted) return;
    this.draw(page);
    this.empty.hidden = page.total > 0;
    if (page.total) return;
    const { total } = await get("v1/changes", { limit: 1, explain: false }, signal).catch(() => ({}));
    if (!signal.aborted) fill(this.empty, this.nothing(total));
  }

  /** @param {any} page */
  draw(page) {
    const text = JSON.stringify(page.changes);
    if (text !== this.shown) {
      const focused = document.activeElement?.getAttribute("data-change");
      fill(this.body, page.changes.map(row));
      const same = focused && this.body.querySelector(`[data-change="${CSS.escape(focused)}"]`);
      if (same) /** @type {HTMLElement} */ (same).focus();
    }
    this.shown = text;
    this.pager.draw(page.changes.length, page.total, page.cursor);
    this.timeline.draw(page.timeline);
    const streams = new Set(page.changes.map((/** @type {any} */ each) => each.stream)).size;
    const whole = page.total === page.changes.length && page.total;
    const said = plural(page.total, "change") + (whole ? ` of ${plural(streams, "stream")}` : "");
    if (this.counted.textContent !== said) this.counted.textContent = said;
    this.within.hidden = !this.between;
    if (this.between)
      fill(
        this.within,
        `From ${moment(this.between[0])} to ${moment(this.between[1])}`,
        h("button", { type: "button", class: "small", click: () => this.narrow(null) }, "Show the whole time"),
      );
  }

  /** What to do where there is nothing. @param {number|undefined} retained changes of any kind */
  nothing(retained) {
    if (retained === 0) return firstSteps("No stream has changed yet. Changes come from observations:");
    const all = () => {
      for (const [name, field] of Object.entries(this.fields))
        field.value = { ...DEFAULTS, span: "all", state: "all" }[name] ?? "";
      this.narrow(null);
    };
    const other = retained ? ` ${count(retained)} are retained in all.` : "";
    return [
      h("p", {}, `No change fits these filters.${other}`),
      h("button", { type: "button", click: all }, "Show all retained changes"),
    ];
  }

  close() {
    this.polling.stop();
    this.news.stop();
    this.asked.abort();
    window.clearTimeout(this.typing);
  }
}

/** @param {any} found a change */
function row(found) {
  const at = `${linkTo(found.stream)}?at=${found.start}`;
  const name = found.link
    ? streamLink(found.stream, at, { "data-change": `${found.stream} ${found.id}` })
    : [streamLink(found.stream, null), h("span", { class: "note block" }, "deleted")];
  const cells = [
    [moment(found.confirmed_time ?? found.suspected_time), h("span", { class: "note block" }, `observation ${count(found.start)}`)],
    direction(found) || "–",
    h("span", { title: START.about }, percent(found.probability)),
    found.explanation?.text ?? "–",
    badge(found.state),
  ];
  return h(
    "tr",
    { role: "row" },
    h("th", { scope: "row", role: "rowheader" }, name),
    cells.map((cell, i) => h("td", { role: "cell", "data-label": HEADS[i + 1] }, cell)),
  );
}
