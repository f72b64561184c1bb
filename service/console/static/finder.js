// The dialog that finds a stream by a part of its id, from any page.

import { get } from "./api.js";
import { idFilter, searched } from "./controls.js";
import { byId, fill, h } from "./dom.js";
import { plural } from "./format.js";
import { problem } from "./problems.js";
import { linkTo } from "./row.js";
import { later } from "./soon.js";

const MOST = 8;
const TYPING_MS = 200;

export class Finder {
  constructor() {
    this.box = byId("find");
    this.input = byId("find-text");
    this.list = h("ul", {});
    this.counted = h("p", { class: "note", role: "status" });
    this.typing = later(() => this.search(), TYPING_MS);
    this.asked = new AbortController();
    fill(byId("find-results"), this.counted, this.list);
    this.input.addEventListener("input", this.typing.ask);
    byId("find-form").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.first();
    });
    this.list.addEventListener("click", () => this.box.close());
    byId("find-close").addEventListener("click", () => this.box.close());
  }

  open() {
    this.input.value = "";
    this.box.showModal();
    this.input.focus();
    this.search();
  }

  async search() {
    this.asked.abort();
    this.asked = new AbortController();
    const { signal } = this.asked;
    const text = this.input.value.trim();
    try {
      const page = await get("v1/overview", { ...idFilter(text), limit: MOST, labels: 0 }, signal);
      const links = page.streams.map((/** @type {any} */ each) =>
        h("li", {}, h("a", { href: linkTo(each.stream), class: "id" }, each.stream)));
      fill(this.list, links);
      const more = page.total > MOST ? `, the first ${MOST}` : "";
      this.counted.textContent = `${plural(page.total, "stream")}${text ? ` ${searched(text)}` : ""}${more}`;
    } catch (error) {
      if (!signal.aborted) fill(this.list, problem(error));
    }
  }

  /** Enter opens the first of what was found. */
  async first() {
    this.typing.stop();
    await this.search();
    const link = this.list.querySelector("a");
    if (link) link.click();
  }
}
