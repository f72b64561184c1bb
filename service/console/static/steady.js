// Streams that are quiet: their last values in small, in the order of ids.

import { h } from "./dom.js";
import { count, digitsOf, number, plural } from "./format.js";
import { recentPicture } from "./pictures.js";
import { linkTo } from "./row.js";

export const STEADY = 32; // that are shown
const WIDTH = 72;
const HEIGHT = 20;

/** @param {any} overview @param {any[]} quiet streams of it @param {number} total how many are quiet */
export function steadyParts(overview, quiet, total) {
  const shown = quiet.slice(0, STEADY);
  if (!shown.length) return [];
  const all = overview.total > shown.length ? `All ${plural(overview.total, "stream")}` : "Streams in detail";
  return [
    h(
      "div",
      {},
      h("h2", { id: "steady" }, `${count(Math.max(total, shown.length))} steady`),
      h("span", { class: "note" }, "last values"),
    ),
    h(
      "ul",
      {},
      shown.map(({ stream, labels }) =>
        h(
          "li",
          {},
          h("a", { href: linkTo(stream), title: stream }, stream),
          recentPicture(labels, 0, WIDTH, HEIGHT),
          h("span", {}, number(labels[labels.length - 1], digitsOf(labels) - 1)),
        ),
      ),
    ),
    h("a", { href: "#/streams" }, all),
  ];
}
