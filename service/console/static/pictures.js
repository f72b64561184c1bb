// Drawings in lists: values around a start with what changed, many at once, last values.

import { svg } from "./dom.js";
import { digitsOf, number, plural } from "./format.js";

export const AROUND = 60; // observations on both sides of a start
const WIDTH = 320;
const EDGE = 2; // pixels that lines stay away from the rim
const LEVELS = ["mean", "rate"]; // that are a line

/** The output that a change is of; 0: of none by itself. @param {any} explanation */
export const changedOutput = (explanation) => (explanation?.kind === "share" ? 0 : (explanation?.output ?? 0));

/** The number of one output. @param {any} value of a label, or of several @param {number} output @returns {number|null} */
export const one = (value, output) =>
  Array.isArray(value) ? (value[output] ?? null) : (value ?? null);

/** @typedef {{from: number, to: number, at: (x: number) => number}} Line a line from one x to another */

/** Map numbers to heights of a drawing. @param {number[]} values @param {number} height */
function scaleOf(values, height) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const span = high - low;
  if (!(span > 0)) return () => height / 2;
  return (/** @type {number} */ value) => height - EDGE - ((value - low) / span) * (height - 2 * EDGE);
}

/** A path through points; a value that is missing is a gap. @param {[number, number|null][]} points */
export function pathOf(points) {
  let path = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y === null) pen = "M";
    else {
      path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    }
  }
  return path || "M0 0";
}

/**
 * Lines of what changed, before and after a start: a level, two standard deviations on both sides
 * of it, or a slope; x counts observations from the start.
 * @param {any} change @param {number} first @param {number} last x that is shown
 * @returns {{past: Line[], now: Line[]}}
 */
export function linesOf(change, first, last) {
  const { before, after, explanation } = change;
  const kind = explanation?.kind;
  const level = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ y) =>
    ({ from, to, at: () => y });
  const output = changedOutput(explanation);
  const outputOf = (/** @type {any} */ side) =>
    side && { mean: one(side.mean, output), sd: one(side.sd, output), count: side.count };
  const sides = [
    { side: outputOf(before), from: first, to: 0, slope: explanation?.before, middle: -1 },
    { side: outputOf(after), from: 0, to: last, slope: explanation?.after, middle: 1 },
  ];
  const [past, now] = sides.map(({ side, from, to, slope, middle }) => {
    if (!Number.isFinite(side?.mean)) return [];
    if (kind === "spread" && Number.isFinite(side.sd))
      return [-2, 2].map((sds) => level(from, to, side.mean + sds * side.sd));
    if (kind === "slope" && Number.isFinite(slope)) {
      const centre = (middle * side.count) / 2;
      const reach = [Math.max(from, -side.count), Math.min(to, side.count)]; // further on nothing was fitted
      return [{ from: reach[0], to: reach[1], at: (/** @type {number} */ x) => side.mean + slope * (x - centre) }];
    }
    return LEVELS.includes(kind) ? [level(from, to, side.mean)] : [];
  });
  return { past, now };
}

/**
 * Two paths through points: those before a place are paler, and the last of them leads to the others.
 * @param {[number, number|null][]} points @param {number} split how many come before
 */
export function curves(points, split) {
  const before = Math.min(points.length, Math.max(0, split));
  return [
    svg("path", { class: "values past", d: pathOf(points.slice(0, before)) }),
    svg("path", { class: "values", d: pathOf(points.slice(Math.max(0, before - 1))) }),
  ];
}

/** What changed, as lines. @param {{past: Line[], now: Line[]}} lines @param {(x: number) => number} x @param {(y: number) => number} y */
export function levels({ past, now }, x, y) {
  const drawn = (/** @type {Line} */ line, /** @type {string} */ kind) =>
    svg("path", { class: kind, d: pathOf([[x(line.from), y(line.at(line.from))], [x(line.to), y(line.at(line.to))]]) });
  return [past.map((line) => drawn(line, "level")), now.map((line) => drawn(line, "level new"))];
}

/** Values around the start of a change, and what changed. @param {any} change @param {number} height */
export function changePicture(change, height) {
  const { values, first } = change.around;
  const from = first - change.start;
  const last = from + values.length - 1;
  const lines = linesOf(change, -AROUND, Math.max(last, 1));
  const ends = [...lines.past, ...lines.now].flatMap((line) => [line.at(line.from), line.at(line.to)]);
  const y = scaleOf([...values.filter((/** @type {any} */ each) => each !== null), ...ends], height);
  const x = (/** @type {number} */ at) => ((AROUND + at) * WIDTH) / (2 * AROUND);
  const points = values.map((/** @type {any} */ value, /** @type {number} */ i) =>
    [x(from + i), value === null ? null : y(value)]);
  return svg(
    "svg",
    { class: "drawn", viewBox: `0 0 ${WIDTH} ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true" },
    interval(change, x, height),
    curves(points, -from),
    levels(lines, x, y),
  );
}

/** The interval of a start. @param {any} change @param {(at: number) => number} x @param {number} height */
function interval(change, x, height) {
  if (change.earliest === null || change.earliest === undefined) return null;
  const from = Math.max(x(change.earliest - change.start), 0);
  const to = Math.min(x(change.latest - change.start + 1), WIDTH);
  return svg("rect", { class: "interval", x: from, y: 0, width: Math.max(0, to - from), height });
}

/** A picture in words. @param {any} change */
export function pictureText(change) {
  const before = Math.max(0, change.start - change.around.first);
  const after = change.around.values.length - before;
  return `${change.stream}: ${plural(before, "observation")} before the start, ${after} after`;
}

/**
 * All changes of an incident over one another, each in its own standard deviations.
 * @param {any[]} changes with values around their starts @param {number} height
 */
export function togetherPicture(changes, height) {
  const shown = changes.filter(({ around, before }) => around && before && before.sd > 0);
  const scaled = shown.map((change) => ({
    from: change.around.first - change.start,
    values: change.around.values.map((/** @type {any} */ value) =>
      value === null ? null : (value - change.before.mean) / change.before.sd),
    size: change.after?.mean === undefined ? 0 : (change.after.mean - change.before.mean) / change.before.sd,
    spread: change.explanation?.kind === "spread" ? change.after?.sd / change.before.sd : NaN,
  }));
  const all = scaled.flatMap(({ values }) => values).filter((value) => value !== null).sort((a, b) => a - b);
  const cut = Math.floor(all.length / 500); // a few outliers are no scale for all
  const y = scaleOf(all.slice(cut, all.length - cut || undefined), height);
  const x = (/** @type {number} */ at) => ((AROUND + at) * WIDTH) / (2 * AROUND);
  const mean = (/** @type {number[]} */ some) => some.reduce((sum, each) => sum + each, 0) / some.length;
  const wider = scaled.map(({ spread }) => spread).filter((each) => each > 0);
  const levels = scaled.filter(({ spread }) => !(spread > 0)).map(({ size }) => size);
  const means = [levels.filter((size) => size > 0), levels.filter((size) => size < 0)].filter((some) => some.length).map(mean);
  if (wider.length) means.push(2 * mean(wider), -2 * mean(wider));
  const past = [...(levels.length ? [0] : []), ...(wider.length ? [2, -2] : [])];
  return svg(
    "svg",
    { class: "drawn many", viewBox: `0 0 ${WIDTH} ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "interval", x: x(-1), y: 0, width: (2 * WIDTH) / (2 * AROUND), height }),
    scaled.map(({ from, values }) => {
      const points = values.map((/** @type {any} */ value, /** @type {number} */ i) =>
        [x(from + i), value === null ? null : y(value)]);
      return curves(points, -from);
    }),
    past.map((level) => svg("path", { class: "level", d: pathOf([[0, y(level)], [x(0), y(level)]]) })),
    means.map((level) => svg("path", { class: "level new", d: pathOf([[x(0), y(level)], [WIDTH, y(level)]]) })),
  );
}

/**
 * Last values of a stream; those of the present regime are darker.
 * @param {(number|null)[]} values @param {number} inRegime how many of the last ones @param {number} width
 * @param {number} height
 */
export function recentPicture(values, inRegime, width, height) {
  const present = /** @type {number[]} */ (values.filter((value) => value !== null));
  const y = scaleOf(present, height);
  const points = /** @type {[number, number|null][]} */ (
    values.map((value, i) => [(i * width) / Math.max(1, values.length - 1), value === null ? null : y(value)])
  );
  return svg(
    "svg",
    { class: "drawn", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": inText(present) },
    curves(points, values.length - inRegime),
  );
}

/** @param {number[]} present */
function inText(present) {
  if (!present.length) return "no values yet";
  const digits = digitsOf(present);
  const low = number(Math.min(...present), digits);
  const high = number(Math.max(...present), digits);
  return `last ${plural(present.length, "value")}, from ${low} to ${high}, now ${number(present[present.length - 1], digits)}`;
}
