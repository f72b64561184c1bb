// Beliefs over run lengths as a heat map, by their logarithm.

import { colour } from "./theme.js";

const ROWS = 140; // of the heat map at most: longer run lengths are put together
const MOST_MISSED = 50; // observations between two beliefs that are drawn on from the first
const FLOOR = -4; // log10 of the least probability that has a colour

/**
 * A belief for each column. Observations that came faster than the page asks have none of their own:
 * up to a few are drawn as the belief before, grown by the observations since.
 * @param {Map<number, any>} beliefs @param {number[]} seqs @returns {(any|null)[]}
 */
function columns(beliefs, seqs) {
  const following = new Array(seqs.length).fill(Infinity); // seq of the next belief that is known
  for (let i = seqs.length - 2; i >= 0; i--) {
    following[i] = beliefs.has(seqs[i + 1]) ? seqs[i + 1] : following[i + 1];
  }
  let last = NaN; // seq of the one before
  return seqs.map((seq, i) => {
    if (beliefs.has(seq)) last = seq;
    if (last === seq) return beliefs.get(seq);
    if (!(following[i] - last <= MOST_MISSED)) return null;
    const { run_length, probability } = beliefs.get(last);
    const since = seq - last;
    return { run_length: run_length.map((/** @type {number} */ r) => r + since), probability };
  });
}

/** @param {Map<number, any>} beliefs @param {number[]} seqs */
const longestOf = (beliefs, seqs) =>
  Math.max(1, ...seqs.flatMap((seq) => beliefs.get(seq)?.run_length.slice(-1) ?? []));

/**
 * What keeps the axis there: the plotting code fails on a map without a single number.
 * @param {number[]} seqs @param {string} axis
 */
const nothing = (seqs, axis) => ({
  x: seqs,
  y: seqs.map(() => -1), // below what the axis shows
  yaxis: axis,
  mode: "lines",
  hoverinfo: "skip",
  showlegend: false,
});

/** The axis of run lengths. @param {Map<number, any>} beliefs @param {number[]} seqs */
export const depth = (beliefs, seqs) => ({
  range: [-0.5, 1.02 * longestOf(beliefs, seqs) + 1],
  autorange: false,
  fixedrange: true,
});

/**
 * @param {Map<number, any>} beliefs @param {number[]} seqs @param {string} axis
 * @param {boolean} scale whether it has the scale of colours beside it
 */
export function heat(beliefs, seqs, axis, scale) {
  if (!seqs.some((seq) => beliefs.has(seq))) return nothing(seqs, axis);
  const longest = longestOf(beliefs, seqs);
  const step = Math.max(1, Math.ceil((longest + 1) / ROWS)),
    rows = Math.ceil((longest + 1) / step);
  const z = Array.from({ length: rows }, () => new Array(seqs.length).fill(null));
  columns(beliefs, seqs).forEach((belief, column) => {
    if (!belief) return;
    const sums = new Array(rows).fill(0);
    belief.run_length.forEach(
      (/** @type {number} */ r, /** @type {number} */ i) =>
        (sums[Math.min(rows - 1, Math.floor(r / step))] += belief.probability[i]),
    );
    sums.forEach((sum, row) => (z[row][column] = sum > 10 ** FLOOR ? Math.log10(sum) : null));
  });
  const bar = {
    title: { text: "probability", side: "right" },
    thickness: 10,
    len: 0.9,
    outlinewidth: 0,
    tickvals: [-4, -3, -2, -1, 0],
    ticktext: ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
  };
  return {
    type: "heatmap",
    x: seqs,
    y: z.map((_, row) => row * step),
    z,
    yaxis: axis,
    zmin: FLOOR,
    zmax: 0,
    colorscale: heatColours(),
    showscale: scale,
    colorbar: bar,
    hovertemplate: "run length %{y}: 10^%{z:.1f}<extra></extra>",
    name: "belief",
    xgap: 0,
  };
}

const heatColours = () => [0, 0.25, 0.5, 0.75, 1].map((at, i) => [at, colour(`heat-${i}`)]);
