// Pages of a list that is read by cursors, and the search for ids that lists share.

import { fill, h } from "./dom.js";
import { count } from "./format.js";

export class Pager {
  /** @param {string} label @param {number} size of a page @param {() => void} turned */
  constructor(label, size, turned) {
    this.size = size;
    this.turned = turned;
    this.reset();
    this.next = /** @type {string|null} */ (null);
    this.back = h("button", { type: "button", click: () => this.turn(-1) }, "← Previous");
    this.on = h("button", { type: "button", click: () => this.turn(1) }, "Next →");
    this.where = h("span", {});
    this.element = h("nav", { class: "pager", "aria-label": label }, this.back, this.where, this.on);
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
    fill(this.where, shown ? `${count(first)}–${count(first + shown - 1)} of ${count(total)}` : "0");
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

/** What of an id is searched for: `^` stands for its beginning. @param {string} text */
export const idFilter = (text) =>
  text.startsWith("^") ? { prefix: text.slice(1) } : { contains: text };

/** Whether an id is found. @param {string} stream @param {string} text */
export const finds = (stream, text) =>
  text.startsWith("^") ? stream.startsWith(text.slice(1)) : stream.includes(text);

/** A search as words. @param {string} text */
export const inWords = (text) =>
  text.startsWith("^") ? `beginning with “${text.slice(1)}”` : `with “${text}”`;

/** The field of the search. @param {string} value @param {() => void} typed */
export function idSearch(value, typed) {
  const input = h("input", {
    type: "search",
    id: "search",
    value,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "pump, or ^pump-",
    title: "Text anywhere in the id; ^ for its beginning",
    maxlength: "200",
    input: typed,
    "aria-describedby": "count",
  });
  return /** @type {HTMLInputElement} */ (input);
}

/** @param {string} id @param {Record<string, string>} words by value @param {string} chosen @param {() => void} change */
export function choice(id, words, chosen, change) {
  const options = Object.entries(words).map(([value, text]) =>
    h("option", { value, selected: value === chosen }, text),
  );
  return /** @type {HTMLSelectElement} */ (h("select", { id, change }, options));
}
