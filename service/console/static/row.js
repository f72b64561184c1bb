// One row of the list of streams, and the parts that other pages share.

import { fill, h } from "./dom.js";
import { ago, alarms, brief, count, digitsOf, direction, number, percent, rarely, sign } from "./format.js";
import { sparkline } from "./sparkline.js";

export const HEADS = [
  "Stream",
  "Recent labels",
  "Last label",
  "Current regime",
  "P(changed)",
  "Last change",
  "State",
  "Model",
];

/** @param {string} stream */
export const linkTo = (stream) => `#/streams/${encodeURIComponent(stream)}`;

// The number of an event that is not how sure the change is; see docs/events.md.
export const START = {
  head: "P(start here)",
  about:
    "Probability that a regime starts at exactly this observation. Where neighbours compete it is small, even for a change that is certain.",
};
const LONGEST = 36; // characters of an id that are shown

/** An id, cut in the middle where it is long: beginnings and ends tell ids apart. @param {string} id */
function short(id) {
  const half = (LONGEST - 1) / 2;
  const letters = [...id];
  return letters.length <= LONGEST
    ? id
    : `${letters.slice(0, Math.ceil(half)).join("")}…${letters.slice(-Math.floor(half)).join("")}`;
}

/**
 * An id that leads to its stream. @param {string} stream @param {string|null} [href] null: nowhere
 * @param {Record<string, string>} [more]
 */
export function streamLink(stream, href = linkTo(stream), more = {}) {
  const text = short(stream);
  const whole = text === stream ? {} : { title: stream, "aria-label": stream };
  return href === null
    ? h("span", { title: stream, class: "id" }, text)
    : h("a", { href, class: "id", ...whole, ...more }, text);
}

/** @param {string} state */
export function badge(state) {
  return h(
    "span",
    { class: "badge", "data-state": state },
    h("span", { "aria-hidden": "true" }, sign(state)),
    ` ${state}`,
  );
}

/** One row; what has not changed is left alone. */
export class Row {
  /** @param {string} stream */
  constructor(stream) {
    this.cells = HEADS.slice(1).map((head) => h("td", { role: "cell", "data-label": head }));
    const name = h(
      "th",
      { scope: "row", role: "rowheader" },
      streamLink(stream),
    );
    // Roles are said: laid out as cards, elements of tables would lose theirs.
    this.element = h("tr", { role: "row" }, name, this.cells);
    this.shown = "";
    this.labels = "";
  }

  /** @param {any} found a stream at a glance */
  update(found) {
    const { labels, ...rest } = found;
    const [spark, ...cells] = this.cells;
    const drawn = JSON.stringify([labels, found.regime_length]);
    if (drawn !== this.labels) fill(spark, sparkline(labels, found.regime_length ?? labels.length));
    this.labels = drawn;
    const known = JSON.stringify(rest) + ago(found.updated);
    if (known === this.shown) return this;
    this.shown = known;
    const contents = [
      number(labels[labels.length - 1], digitsOf(labels)),
      regime(found),
      [
        probability(found.changed_probability),
        h("span", { class: "note block", title: confirmed(found) }, rarely(found.evidence)),
      ],
      change(found),
      state(found),
      h("a", { href: `#/models/${found.model.split("@")[0]}` }, found.model),
    ];
    cells.forEach((cell, i) => fill(cell, contents[i]));
    return this;
  }

  flash() {
    this.element.classList.remove("flash");
    void this.element.offsetWidth; // begins the animation anew
    this.element.classList.add("flash");
  }
}

/** @param {any} found */
function regime(found) {
  return found.regime_length === null
    ? "–"
    : [
        h("strong", {}, count(found.regime_length)),
        h("span", { class: "note" }, ` of ${count(found.seq)}`),
      ];
}

/** @param {number|null} value */
export function probability(value) {
  if (value === null) return "–";
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span", {}));
  /** @type {HTMLElement} */ (bar.firstElementChild).style.width = `${(100 * value).toFixed(1)}%`;
  return h("span", { class: "with-bar" }, percent(value), bar);
}

/** @param {any} found */
const confirmed = (found) =>
  found.alarm_period ? `false alarms: ${alarms(found.alarm_period)}` : "";

/** @param {any} found */
function change(found) {
  const last = found.last_event;
  if (!last) return h("span", { class: "note" }, "none");
  const when = last.time ? `confirmed ${brief(last.time)}` : "";
  return [
    h("span", { class: "line" }, `at ${count(last.start)} ${direction(last)}`),
    h("span", { class: "note line" }, when),
  ];
}

/** @param {any} found */
function state(found) {
  const word = found.event
    ? badge("suspected")
    : h(
        "span",
        { class: "badge", "data-state": found.warming_up ? "warming" : "quiet" },
        found.warming_up ? "… warming up" : "● steady",
      );
  return [word, h("span", { class: "note block" }, ago(found.updated))];
}
