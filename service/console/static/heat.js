// Beliefs over run lengths as a heat map, by their logarithm.

import { colour } from "./theme.js";

const ROWS = 140; // of the heat map at most: longer run lengths are put together
const FLOOR = -4; // log10 of the least probability that has a colour

/** @param {Map<number, any>} beliefs @param {number[]} seqs @param {string} axis @param {boolean} scale */
export function heat(beliefs, seqs, axis, scale) {
  const longest = Math.max(
    1,
    ...seqs.flatMap((seq) => beliefs.get(seq)?.run_length.slice(-1) ?? []),
  );
  const step = Math.max(1, Math.ceil((longest + 1) / ROWS)),
    rows = Math.ceil((longest + 1) / step);
  const z = Array.from({ length: rows }, () => new Array(seqs.length).fill(null));
  seqs.forEach((seq, column) => {
    const belief = beliefs.get(seq);
    if (!belief) return;
    const sums = new Array(rows).fill(0);
    belief.run_length.forEach(
      (/** @type {number} */ r, /** @type {number} */ i) =>
        (sums[Math.floor(r / step)] += belief.probability[i]),
    );
    sums.forEach((sum, row) => (z[row][column] = sum > 10 ** FLOOR ? Math.log10(sum) : null));
  });
  const bar = {
    title: { text: "probability", side: "right" },
    thickness: 10,
    len: 0.27,
    y: 0,
    yanchor: "bottom",
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
