// The page for an unknown address.

import { fill, h } from "./dom.js";

/**
 * @param {HTMLElement} main @param {string} address @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showMissing(main, address, feed) {
  feed.pause();
  const link = (/** @type {string} */ href, /** @type {string} */ text) => h("a", { href }, text);
  fill(
    main,
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, "There is no such page"),
        h("p", {}, "Nothing is at ", h("code", {}, address), ". There are the pages ", link("#/", "Changes"), ", ", link("#/streams", "Streams"), ", ", link("#/models", "Models"), ", ", link("#/calendar", "Calendar"), " and ", link("#/api", "API"), "."),
      ),
    ),
  );
  return { title: "No such page", nav: "", close() {} };
}
