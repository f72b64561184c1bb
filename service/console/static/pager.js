// Pages of a list that is read by cursors.

import { fill, h } from "./dom.js";
import { count } from "./format.js";

export class Pager {
  /** @param {string} of what @param {number} size of a page @param {() => void} turned */
  constructor(of, size, turned) {
    this.of = of;
    this.size = size;
    this.turned = turned;
    this.reset();
    this.next = /** @type {string|null} */ (null);
    this.back = h("button", { type: "button", click: () => this.turn(-1) }, "← Previous");
    this.on = h("button", { type: "button", click: () => this.turn(1) }, "Next →");
    this.where = h("span", {});
    this.element = h("nav", { class: "pager", "aria-label": `Pages of ${of}` }, this.back, this.where, this.on);
    // Before a page is there neither does anything.
    disable(this.back, true);
    disable(this.on, true);
  }

  /** Begin with the first page. */
  reset() {
    this.cursors = /** @type {(string|null)[]} */ ([null]); // where each page up to this one begins
  }

  get cursor() {
    return this.cursors[this.cursors.length - 1];
  }

  /** @param {number} shown rows @param {number} total @param {string|null} next cursor */
  draw(shown, total, next) {
    this.next = next;
    const first = (this.cursors.length - 1) * this.size + 1;
    fill(this.where, shown ? `${count(first)}–${count(first + shown - 1)} of ${count(total)} ${this.of}` : "0");
    disable(this.back, this.cursors.length === 1);
    disable(this.on, next === null);
  }

  /** @param {number} step */
  turn(step) {
    if (step > 0 && this.next !== null) this.cursors.push(this.next);
    else if (step < 0 && this.cursors.length > 1) this.cursors.pop();
    else return;
    this.turned();
  }
}

/** Focus stays where it is: a button that is disabled would lose it. */
function disable(/** @type {HTMLElement} */ button, /** @type {boolean} */ no) {
  button.setAttribute("aria-disabled", String(no));
}
