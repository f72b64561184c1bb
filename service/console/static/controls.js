// Fields of forms, and the search for ids that lists share.

import { h } from "./dom.js";

/** A control under its label. @param {string} text @param {HTMLElement} control */
export const field = (text, control) =>
  h("div", { class: "field" }, h("label", { for: control.id }, text), control);

/** What of an id is searched for: `^` stands for its beginning. @param {string} text */
export const idFilter = (text) =>
  text.startsWith("^") ? { prefix: text.slice(1) } : { contains: text };

/** Whether an id is found. @param {string} stream @param {string} text */
export const finds = (stream, text) =>
  text.startsWith("^") ? stream.startsWith(text.slice(1)) : stream.includes(text);

/** A search as words. @param {string} text */
export const searched = (text) =>
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
