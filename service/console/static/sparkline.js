// Last labels as a small line; a missing label is a gap.

import { svg } from "./dom.js";
import { digitsOf, number, plural } from "./format.js";

const WIDTH = 140,
  HEIGHT = 32,
  EDGE = 3;

/**
 * @param {(number|null)[]} labels
 * @param {number} inRegime how many of the last ones are of the present regime
 */
export function sparkline(labels, inRegime) {
  const known = /** @type {number[]} */ (labels.filter((each) => each !== null));
  const low = Math.min(...known),
    high = Math.max(...known),
    span = high - low || 1;
  const x = (/** @type {number} */ i) =>
    EDGE + (i / Math.max(1, labels.length - 1)) * (WIDTH - 2 * EDGE);
  const y = (/** @type {number} */ value) =>
    high === low ? HEIGHT / 2 : HEIGHT - EDGE - ((value - low) / span) * (HEIGHT - 2 * EDGE);
  const change = labels.length - inRegime;
  const parts = [];
  if (known.length && change > 0 && change < labels.length) {
    const at = (x(change) + x(change - 1)) / 2;
    parts.push(svg("path", { class: "spark-change", d: `M${at} 0V${HEIGHT}` }));
  }
  parts.push(
    svg("path", { class: "spark-before", d: line(labels, 0, Math.min(labels.length, change + 1)) }),
  );
  parts.push(
    svg("path", { class: "spark-now", d: line(labels, Math.max(0, change), labels.length) }),
  );
  const last = labels.length - 1;
  if (last >= 0 && labels[last] !== null) {
    parts.push(
      svg("circle", {
        class: "spark-last",
        cx: x(last),
        cy: y(/** @type {number} */ (labels[last])),
        r: 2.4,
      }),
    );
  }
  return svg(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      width: WIDTH,
      height: HEIGHT,
      role: "img",
      "aria-label": said(known, low, high),
    },
    ...parts,
  );

  /** @param {(number|null)[]} values @param {number} from @param {number} to */
  function line(values, from, to) {
    let path = "",
      pen = "M";
    for (let i = from; i < to; i++) {
      const value = values[i];
      if (value === null) pen = "M";
      else {
        path += `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      }
    }
    return path || "M0 0";
  }
}

/** @param {number[]} known @param {number} low @param {number} high */
function said(known, low, high) {
  if (!known.length) return "no labels yet";
  const digits = digitsOf(known);
  return (
    `last ${plural(known.length, "label")}, from ${number(low, digits)} to ` +
    `${number(high, digits)}, now ${number(known[known.length - 1], digits)}`
  );
}
