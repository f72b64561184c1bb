// One row of the list of streams, and the parts that other pages share.

import { fill, h } from "./dom.js";
import { ago, alarms, count, dated, digitsOf, number, once, percent, sign } from "./format.js";
import { recentPicture } from "./pictures.js";

export const HEADS = [
  "Stream",
  "Recent values",
  "Last value",
  "Current regime",
  "P(changed)",
  "Last change",
  "State",
  "Model",
];
const WIDTH = 140; // of a picture
const HEIGHT = 28;
const LONGEST = 36; // characters of an id that are shown

/** @param {string} stream */
export const linkTo = (stream) => `#/streams/${encodeURIComponent(stream)}`;

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
      streamLink(stream, linkTo(stream), { class: "id row-link" }),
    );
    // Roles are said: laid out as cards, elements of tables would lose theirs.
    this.element = h("tr", { role: "row" }, name, this.cells);
    this.shown = "";
    this.labels = "";
  }

  /** @param {any} glance a stream at a glance */
  update(glance) {
    const { labels, ...other } = glance;
    const [picture, ...cells] = this.cells;
    const drawn = JSON.stringify([labels, glance.regime_length]);
    if (drawn !== this.labels)
      fill(picture, recentPicture(labels, glance.regime_length ?? labels.length, WIDTH, HEIGHT));
    this.labels = drawn;
    const text = JSON.stringify(other) + ago(glance.updated);
    if (text === this.shown) return this;
    this.shown = text;
    const contents = [
      number(labels[labels.length - 1], digitsOf(labels)),
      regime(glance),
      [
        percent(glance.changed_probability),
        h("span", { class: "note block", title: rule(glance) }, once(glance.evidence)),
      ],
      change(glance),
      state(glance),
      h("a", { href: `#/models/${glance.model.split("@")[0]}` }, glance.model),
    ];
    cells.forEach((cell, i) => fill(cell, contents[i]));
    return this;
  }
}

/** @param {any} glance */
function regime(glance) {
  return glance.regime_length === null
    ? "–"
    : [count(glance.regime_length), h("span", { class: "note" }, ` of ${count(glance.seq)}`)];
}

/** @param {any} glance */
const rule = (glance) => (glance.alarm_period ? `false alarms: ${alarms(glance.alarm_period)}` : "");

/** @param {any} glance */
function change(glance) {
  const last = glance.last_event;
  if (!last) return h("span", { class: "note" }, "none");
  const when = last.start_time ? dated(last.start_time) : `at ${count(last.start)}`;
  return [last.sentence, h("span", { class: "note block" }, when)];
}

/** @param {any} glance */
function state(glance) {
  const word = glance.event ? badge("suspected") : glance.warming_up ? "warming up" : "steady";
  return [word, h("span", { class: "note block" }, ago(glance.updated))];
}
