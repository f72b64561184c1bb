// Chart data as tables.

import { h, table } from "./dom.js";
import { count, digitsOf, moment, number, percent, once } from "./format.js";
import { one } from "./pictures.js";
import { forecast } from "./series.js";

const NEWEST = 50;
const BELIEVED = 12;

/** @param {any[]} observations @param {number} output */
export function observationTable(observations, output) {
  const digits = Math.max(6, digitsOf(observations.map((seen) => one(seen.y, output))));
  const rows = observations
    .slice(-NEWEST)
    .reverse()
    .map((seen) => {
      const [low, middle, high] = forecast(seen, output);
      return [
        count(seen.seq),
        moment(seen.time),
        number(one(seen.y, output), digits),
        number(low, digits),
        number(middle, digits),
        number(high, digits),
        number(seen.log_score, 3),
        percent(seen.changed_probability),
        once(seen.evidence),
        seen.run_length ? count(seen.run_length.map) : "–",
      ];
    });
  const heads = [
    "Observation",
    "Time",
    "Value",
    "5 %",
    "50 %",
    "95 %",
    "Log score",
    "P(changed)",
    "Evidence",
    "Run length",
  ];
  return table(
    `The newest ${Math.min(NEWEST, observations.length)} observations, newest first`,
    heads,
    rows,
    { numbers: [0, 2, 3, 4, 5, 6, 7, 8, 9] },
  );
}

/** @param {any} belief @param {any[]} observations */
export function beliefTable(belief, observations) {
  if (!belief?.belief.length) return h("p", { class: "note" }, "No belief yet.");
  const top = [...belief.belief].sort((a, b) => b.probability - a.probability).slice(0, BELIEVED);
  const rows = top.map((each) => [
    count(each.run_length),
    count(each.start),
    moment(observations[each.start - (observations[0]?.seq ?? 0)]?.time),
    percent(each.probability),
  ]);
  return table(
    `The ${rows.length} most probable current run lengths`,
    ["Run length", "Regime began at", "Time", "Probability"],
    rows,
    { numbers: [0, 1, 3] },
  );
}
