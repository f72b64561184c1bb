// Parts of a page that answer in a line while they are closed, and are drawn once they are open.

import { h } from "./dom.js";

export class Fold {
  /** @param {string} title @param {HTMLElement} content @param {() => void} [draw] it, where it is open */
  constructor(title, content, draw = () => {}) {
    this.answer = h("span", {});
    this.draw = () => this.open && draw();
    this.element = /** @type {HTMLDetailsElement} */ (
      h(
        "details",
        { class: "fold", toggle: () => this.draw() },
        h("summary", {}, h("b", {}, title), this.answer),
        h("div", { class: "folded" }, content),
      )
    );
  }

  get open() {
    return this.element.open;
  }

  /** Draw it, and say in a line what it answers. @param {string} text */
  say(text) {
    if (this.answer.textContent !== text) this.answer.textContent = text;
    this.draw();
  }
}
