// DOM elements, and announcements for screen readers.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. Text is always text: nothing here reads markup.
 * @param {string} tag
 * @param {Record<string, any>} [props] attributes; functions listen to the event of that name
 * @param {...(Node|string|number|null|undefined|false|Array<any>)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/**
 * Make an SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...any} children
 * @returns {any}
 */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** @param {any} element @param {Record<string, any>} props @param {any[]} children */
function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter(shown).map(asNode));
  return element;
}

const shown = (/** @type {any} */ child) =>
  child !== null && child !== undefined && child !== false;
const asNode = (/** @type {any} */ child) => (child instanceof Node ? child : String(child));

/** @param {Element} element @param {...any} children */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter(shown).map(asNode));
}

/** As `fill`; the element of the same `data-focus` keeps the focus. @param {Element} element @param {...any} children */
export function refill(element, ...children) {
  const focused = document.activeElement?.getAttribute("data-focus");
  fill(element, ...children);
  if (focused)
    /** @type {HTMLElement|null} */ (
      element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)
    )?.focus();
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

const PAUSE_MS = 2500; // between announcements: a burst must not talk for minutes
let newest = "", // what is to be said next, and how much else there was
  more = 0;
let timer = 0;

/**
 * Say something to screen readers; much at once is summed up.
 * @param {string} text
 */
export function announce(text) {
  more += newest ? 1 : 0;
  newest = text;
  if (timer) return;
  speak();
  timer = window.setTimeout(function next() {
    timer = newest ? window.setTimeout(next, PAUSE_MS) : 0;
    speak();
  }, PAUSE_MS);
}

function speak() {
  if (!newest) return;
  const said = h("p", {}, newest + (more ? ` And ${more} more.` : ""));
  newest = "";
  more = 0;
  const region = byId("announce");
  region.append(said);
  while (region.childElementCount > 5) region.firstElementChild.remove();
}

/**
 * A table with a caption.
 * @param {string} caption @param {any[]} heads @param {any[][]} rows
 * @param {{unseenCaption?: boolean, numbers?: number[]}} [how] numbers: columns to the right
 */
export function table(caption, heads, rows, how = {}) {
  const kind = (/** @type {number} */ i) => (how.numbers?.includes(i) ? "number" : null);
  return h(
    "div",
    { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h(
      "table",
      {},
      h("caption", { class: how.unseenCaption ? "unseen" : null }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((each, i) => h("th", { scope: "col", class: kind(i) }, each)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((cell, i) => h("td", { class: kind(i) }, cell)),
          ),
        ),
      ),
    ),
  );
}

/** Names and what they stand for. @param {any[][]} rows @param {string} [more] classes */
export function pairs(rows, more = "") {
  const parts = rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
  return h("dl", { class: `pairs ${more}`.trim() }, parts);
}

/** Text in which `names` are marked. @param {string} text */
export function marked(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** @param {string} title @param {...any} children */
export function section(title, ...children) {
  const id = `section-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h(
    "section",
    { class: "section", "aria-labelledby": id },
    h("h2", { id }, title),
    ...children,
  );
}
