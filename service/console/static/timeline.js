// Changes counted over time: a bar for each interval, which narrows the list to it.

import { fill, h } from "./dom.js";
import { count, moment, plural } from "./format.js";

export const BINS = 48;

export class Timeline {
  /** @param {(since: string, until: string) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.bars = h("div", { class: "bars", role: "group", keydown: (/** @type {KeyboardEvent} */ e) => this.move(e) });
    this.ends = h("div", { class: "ends note" });
    this.element = h("div", { class: "timeline", hidden: true }, this.bars, this.ends);
    this.shown = "";
    this.at = 0; // the bar that the Tab key goes to
  }

  /** @param {any} found counts of each interval; null: no change fits */
  draw(found) {
    this.element.hidden = !found;
    const text = JSON.stringify(found?.confirmed) + JSON.stringify(found?.other) + minute(found);
    if (!found || text === this.shown) return; // bars keep the focus
    this.shown = text;
    const focused = this.bars.contains(document.activeElement);
    const begin = Date.parse(found.since);
    const width = (Date.parse(found.until) - begin) / found.confirmed.length;
    const edge = (/** @type {number} */ i) => new Date(begin + i * width).toISOString();
    const most = Math.max(...found.confirmed.map((/** @type {number} */ n, /** @type {number} */ i) => n + found.other[i]));
    this.at = Math.min(this.at, found.confirmed.length - 1);
    fill(
      this.bars,
      found.confirmed.map((/** @type {number} */ n, /** @type {number} */ i) =>
        this.bar(i, [n, found.other[i]], most, edge(i), edge(i + 1)),
      ),
    );
    const total = [...found.confirmed, ...found.other].reduce((a, b) => a + b, 0);
    this.bars.setAttribute(
      "aria-label",
      `${plural(total, "change")} over time, at most ${count(most)} in an interval; a bar shows its changes`,
    );
    fill(
      this.ends,
      h("span", {}, moment(found.since)),
      h("span", { class: "legend" }, h("i", { class: "confirmed" }), " confirmed ", h("i", { class: "other" }), ` suspected or withdrawn · tallest bar: ${count(most)}`),
      h("span", {}, moment(found.until)),
    );
    if (focused) this.focus(this.at);
  }

  /** @param {number} i @param {number[]} counts @param {number} most @param {string} since @param {string} until */
  bar(i, counts, most, since, until) {
    const [confirmed, other] = counts;
    const words = `${moment(since)} to ${moment(until)}: ${count(confirmed)} confirmed, ${count(other)} other`;
    const part = (/** @type {string} */ kind, /** @type {number} */ n) => {
      const box = h("span", { class: kind });
      box.style.height = `${((100 * n) / most).toFixed(1)}%`;
      return n ? box : null;
    };
    return h(
      "button",
      {
        type: "button",
        title: words,
        "aria-label": words,
        "aria-disabled": String(confirmed + other === 0),
        tabindex: i === this.at ? "0" : "-1",
        click: () => confirmed + other && this.choose(since, until),
      },
      part("other", other),
      part("confirmed", confirmed),
    );
  }

  /** Arrows go from bar to bar: with Tab there would be too many stops. @param {KeyboardEvent} event */
  move(event) {
    const last = this.bars.childElementCount - 1;
    const to = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || to < 0 || to > last) return;
    event.preventDefault();
    this.bars.children[this.at].setAttribute("tabindex", "-1");
    this.focus(to);
  }

  /** @param {number} i */
  focus(i) {
    this.at = i;
    const bar = /** @type {HTMLElement} */ (this.bars.children[i]);
    bar.setAttribute("tabindex", "0");
    bar.focus();
  }
}

/** A last hour moves on with each reading: drawn again once a minute, or when counts differ. */
const minute = (/** @type {any} */ found) => found && Math.floor(Date.parse(found.until) / 60000);
