// How many false alarms and what delay a threshold comes to, as simulated.

import { Chart, layout } from "./chart.js";
import { card, h, table } from "./dom.js";
import { count, number, percent } from "./format.js";
import { colour } from "./theme.js";

/** @param {any} found @param {Chart[]} charts */
export function sensitivityParts(found, charts) {
  const curve = found.curves[0],
    points = curve.points;
  const alarms = new Chart("False alarms by threshold", () => ({
    data: [
      {
        x: points.map((/** @type {any} */ each) => each.threshold),
        y: points.map((/** @type {any} */ each) => each.false_alarms_per_1000),
        error_y: {
          type: "data",
          symmetric: false,
          thickness: 1,
          width: 3,
          array: points.map((/** @type {any} */ p) => p.high - p.false_alarms_per_1000),
          arrayminus: points.map((/** @type {any} */ p) => p.false_alarms_per_1000 - p.low),
        },
        mode: "lines+markers",
        line: { color: colour("changed"), width: 1.8 },
        hovertemplate: "%{y:.3~g} per 1,000",
      },
    ],
    layout: layout({
      height: 280,
      showlegend: false,
      xaxis: { title: { text: "threshold of changed_probability" } },
      yaxis: { type: "log", title: { text: "false alarms per 1,000" } },
    }),
    says: `False alarms per 1,000 observations fall from ${number(points[0].false_alarms_per_1000)} at a threshold of ${number(points[0].threshold, 2)} to ${number(points[points.length - 1].false_alarms_per_1000)} at ${number(points[points.length - 1].threshold, 6)}.`,
  }));
  const shifts = points[0].delays.map((/** @type {any} */ each) => each.shift);
  const dashes = ["solid", "dash", "dot"],
    marks = ["circle", "square", "diamond"];
  const delays = new Chart("Delay by false alarms", () => ({
    data: shifts.map((/** @type {number} */ shift, /** @type {number} */ i) => ({
      x: points.map((/** @type {any} */ each) => each.false_alarms_per_1000),
      y: points.map((/** @type {any} */ each) => each.delays[i].median),
      mode: "lines+markers",
      name: `shift of ${shift} sd`,
      line: {
        dash: dashes[i % 3],
        width: 1.6,
        color: colour(["label", "forecast", "tried"][i % 3]),
      },
      marker: { symbol: marks[i % 3], size: 6 },
    })),
    layout: layout({
      height: 280,
      margin: { l: 54, r: 16, t: 40, b: 44 },
      xaxis: { type: "log", autorange: "reversed", title: { text: "false alarms per 1,000" } },
      yaxis: { rangemode: "tozero", title: { text: "median delay, observations" } },
    }),
    says: "Fewer false alarms mean a longer delay; larger shifts are detected sooner. See the table for the numbers.",
  }));
  charts.push(alarms, delays);
  const rows = points.map((/** @type {any} */ each) => [
    number(each.threshold, 5),
    number(each.false_alarms_per_1000, 3),
    ...each.delays.map(
      (/** @type {any} */ d) => `${number(d.median, 3)} (${percent(d.detected)} found)`,
    ),
  ]);
  return card(
    "Sensitivity",
    h(
      "p",
      { class: "note" },
      `Simulated over ${count(found.simulated.observations)} observations at a hazard of ${number(typeof curve.hazard === "number" ? curve.hazard : NaN)}. The stream setting sensitivity takes its threshold from this curve.`,
    ),
    h("div", { class: "halves" }, alarms.element, delays.element),
    h(
      "details",
      {},
      h("summary", {}, "View as table"),
      table(
        "False alarms and median delays by threshold",
        [
          "Threshold",
          "False alarms per 1,000",
          ...shifts.map((/** @type {number} */ s) => `Delay, ${s} sd`),
        ],
        rows,
        { numbers: [0, 1, 2, 3, 4] },
      ),
    ),
  );
}
