// Which changes are listed: a time beside one button with everything else behind it.

import { get } from "./api.js";
import { choice, field, idFilter, searched } from "./controls.js";
import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { later } from "./soon.js";

const TYPING_MS = 300;
const SPANS = { "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", all: "All retained" };
const WHEN = { "1h": "in the last hour", "24h": "in 24 hours", "7d": "in 7 days", all: "so far" };
const STATES = {
  "": "confirmed and suspected",
  confirmed: "confirmed",
  suspected: "suspected",
  withdrawn: "withdrawn",
  all: "any state",
};
const EVERY_STATE = ["confirmed", "suspected", "withdrawn"];
const SORTS = { time: "the newest", size: "the largest", evidence: "the clearest" };
const DEFAULTS = { span: "24h", state: "", q: "", size: "", evidence: "", model: "", sort: "time" };
const TAG = /^\s*([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*"?([^",]*)"?\s*$/;

/** A selector by tags, where a text is one: `region=eu, service=pay`. @param {string} text */
export function selectorOf(text) {
  if (text.startsWith("{")) return text;
  const parts = text.split(",").map((part) => TAG.exec(part));
  if (!text || parts.some((part) => part === null)) return null;
  return `{${parts.map((part) => `${part?.[1]}${part?.[2]}${JSON.stringify(part?.[3])}`).join(",")}}`;
}

export class ChangeFilter {
  /** @param {URLSearchParams} query of the address @param {() => void} changed */
  constructor(query, changed) {
    const begun = { ...DEFAULTS, ...Object.fromEntries(query) };
    const typing = later(changed, TYPING_MS);
    this.changed = changed;
    this.close = typing.stop;
    const text = (/** @type {string} */ id, /** @type {Record<string, any>} */ props) =>
      h("input", { id, value: begun[/** @type {keyof typeof begun} */ (id)], input: typing.ask, ...props });
    this.fields = /** @type {Record<string, HTMLInputElement|HTMLSelectElement>} */ ({
      span: choice("span", SPANS, begun.span, changed),
      state: choice("state", STATES, begun.state, changed),
      q: text("q", { type: "search", placeholder: "region=eu, or pay, or ^eu.", autocomplete: "off", spellcheck: "false", maxlength: "200" }),
      size: text("size", { type: "number", min: "0", step: "0.5", placeholder: "any, in sd" }),
      evidence: text("evidence", { type: "number", min: "1", step: "any", placeholder: "any, once in …" }),
      model: choice("model", { "": "any", ...(begun.model && { [begun.model]: begun.model }) }, begun.model, changed),
      sort: choice("sort", SORTS, begun.sort, changed),
    });
    const { span, state, q, size, evidence, model, sort } = this.fields;
    this.hidden = h("span", { class: "note", role: "status" });
    this.button = h("summary", { class: "button" }, "Filter ", h("kbd", {}, "f"));
    this.parts = [
      h("label", { for: "span", class: "unseen" }, "Time"),
      span,
      h(
        "details",
        { class: "filter", toggle: () => this.opened() },
        this.button,
        h(
          "div",
          { class: "pop", role: "group", "aria-label": "Filter" },
          field("State", state),
          field("Tags or id", q),
          field("Size from", size),
          field("Chance from", evidence),
          field("Model", model),
          field("First", sort),
          h("div", { class: "end" }, this.hidden, h("button", { type: "button", click: () => this.reset() }, "Reset")),
        ),
      ),
    ];
  }

  /** Filters that differ from the usual ones, as the address has them. */
  get chosen() {
    const values = Object.entries(this.fields).map(([name, control]) => [name, control.value.trim()]);
    return Object.fromEntries(
      values.filter(([name, value]) => value !== DEFAULTS[/** @type {keyof typeof DEFAULTS} */ (name)]),
    );
  }

  get address() {
    return new URLSearchParams(this.chosen).toString();
  }

  /** Whether the list is of all streams' changes: of any time, in any order. */
  get plain() {
    return Object.keys(this.chosen).every((name) => name === "span" || name === "sort");
  }

  /** Whether it is of all changes that were not withdrawn, of some streams. */
  get usual() {
    return Object.keys(this.chosen).every((name) => ["span", "sort", "q"].includes(name));
  }

  get newest() {
    return this.fields.sort.value === "time";
  }

  get span() {
    const { value } = this.fields.span;
    return value === "all" ? null : value;
  }

  get text() {
    return this.fields.q.value.trim();
  }

  /** Which ids, as lists of streams take them: they know no tags. */
  get ids() {
    return this.text && selectorOf(this.text) === null ? idFilter(this.text) : {};
  }

  /** Filters as the service takes them. */
  get query() {
    const { state, size, evidence, model, sort } = this.fields;
    const match = selectorOf(this.text);
    return {
      since: this.span,
      state: state.value === "" ? ["confirmed", "suspected"] : state.value === "all" ? EVERY_STATE : state.value,
      model: model.value,
      ...(match === null ? this.ids : { match }),
      min_size: size.value,
      min_evidence: evidence.value,
      sort: sort.value,
    };
  }

  /** Of which streams, in words. */
  get among() {
    if (!this.text) return "";
    return selectorOf(this.text) === null ? ` ${searched(this.text)}` : "";
  }

  get when() {
    return WHEN[/** @type {keyof typeof WHEN} */ (this.fields.span.value)];
  }

  /** All of it in words. */
  get words() {
    const { state, size, evidence, model } = this.fields;
    return [
      state.value && state.value !== "all" ? state.value : "",
      this.text ? searched(this.text) : "",
      size.value ? `of ${size.value} sd or more` : "",
      evidence.value ? `once in ${evidence.value} or more` : "",
      model.value ? `by ${model.value}` : "",
      this.when,
    ]
      .filter(Boolean)
      .join(", ");
  }

  reset() {
    for (const [name, control] of Object.entries(this.fields))
      control.value = DEFAULTS[/** @type {keyof typeof DEFAULTS} */ (name)];
    this.changed();
  }

  /** Names to choose from, and what is left out. Without them, as with a key that may not read them, there is “any”. */
  async opened() {
    const select = /** @type {HTMLSelectElement} */ (this.fields.model);
    const withdrawn = { since: this.span, state: "withdrawn", limit: 1 };
    const [{ models }, page] = await Promise.all([
      get("v1/models").catch(() => ({ models: [] })),
      get("v1/changes", withdrawn).catch(() => null),
    ]);
    const there = new Set([...select.options].map((option) => option.value));
    for (const { name } of models) if (!there.has(name)) select.append(h("option", { value: name }, name));
    const folded = page && !this.fields.state.value ? `${plural(page.total, "withdrawn suspicion")} hidden` : "";
    fill(this.hidden, page?.total ? folded : "");
  }
}
