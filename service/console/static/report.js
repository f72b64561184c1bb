// A training report: the numbers that were published with a model.

import { Chart, layout } from "./chart.js";
import { h, pairs, section, table } from "./dom.js";
import { count, number, percent, plural, setting } from "./format.js";
import { colour } from "./theme.js";

/** @param {any} report @param {Chart[]} charts @returns {any[]} */
export function reportParts(report, charts) {
  return [
    section(
      "Training report",
      h(
        "div",
        { class: "halves" },
        h("div", {}, metrics(report), untrained(report), calibration(report.calibration)),
        h("div", {}, history(report, charts), environment(report)),
      ),
    ),
    section(
      "Configuration",
      h(
        "details",
        {},
        h("summary", {}, "Full training configuration"),
        pairs(flat(report.configuration)),
      ),
    ),
  ];
}

/** @param {any} estimate */
const interval = (estimate) =>
  estimate ? `${number(estimate.mean)} (${number(estimate.low)} to ${number(estimate.high)})` : "–";

/** @param {any} report */
function metrics(report) {
  const rows = report.metrics.map((/** @type {any} */ each) => [
    each.name,
    interval(each.estimate),
    each.unit,
    count(each.estimate.count),
    "–",
  ]);
  for (const each of report.comparisons ?? []) {
    rows.push([
      `${each.method}: ${each.metric}`,
      interval(each.estimate),
      "",
      count(each.estimate.count),
      interval(each.difference),
    ]);
  }
  return table(
    "On test sequences, with 95 % intervals",
    ["Metric", "Estimate", "Unit", "Sequences", "Model minus baseline"],
    rows,
    { numbers: [3] },
  );
}

/** @param {any} report */
function untrained(report) {
  const rows = (report.untrained ?? []).map((/** @type {any} */ each) => [
    each.method,
    interval(each.estimate),
    interval(each.difference),
  ]);
  return rows.length
    ? table(
        "Built-in models on held-out data: log score in nats an observation, more is better",
        ["Model", "Log score", "This model minus it"],
        rows,
      )
    : null;
}

/** @param {any} found */
function calibration(found) {
  if (!found) return null;
  const rows = (found.coverage ?? []).map((/** @type {[number, number]} */ [level, share]) => [
    percent(level),
    `${(100 * share).toFixed(1)} %`,
  ]);
  const said = [
    found.pit_distance === null || found.pit_distance === undefined
      ? ""
      : `PITs are ${number(found.pit_distance, 2)} from uniform (Kolmogorov-Smirnov).`,
    found.class_error === null || found.class_error === undefined
      ? ""
      : `Expected calibration error ${number(found.class_error, 2)}.`,
  ]
    .filter(Boolean)
    .join(" ");
  return h(
    "div",
    {},
    rows.length
      ? table("Calibration: share of values inside central intervals", ["Level", "Inside"], rows, {
          numbers: [0, 1],
        })
      : null,
    said ? h("p", { class: "note" }, said) : null,
  );
}

/** @param {any} report @param {Chart[]} charts */
function history(report, charts) {
  const seen = report.history ?? [];
  const name = ["nll", "accuracy"].find((each) =>
    seen.some((/** @type {any} */ one) => each in one),
  );
  if (!name || seen.length < 2) return null;
  const chart = new Chart("Validation", () => ({
    data: [
      {
        x: seen.map((/** @type {any} */ each) => each.iteration),
        y: seen.map((/** @type {any} */ each) => each[name]),
        mode: "lines+markers",
        line: { color: colour("value"), width: 1.6 },
        marker: { size: 4 },
        hovertemplate: "%{y:.4f}",
        name,
      },
    ],
    layout: layout({
      height: 260,
      showlegend: false,
      hovermode: "x unified",
      xaxis: { title: { text: "iteration" } },
      yaxis: { title: { text: name === "nll" ? "validation NLL, nats" : "validation accuracy" } },
    }),
    says: `Validation ${name} from ${number(seen[0][name])} at iteration ${seen[0].iteration} to ${number(seen[seen.length - 1][name])} at ${seen[seen.length - 1].iteration}.`,
  }));
  charts.push(chart);
  return h("div", {}, h("h3", {}, "Validation during training"), chart.element);
}

/** @param {any} report */
function environment(report) {
  const found = report.environment;
  return h(
    "p",
    { class: "note" },
    `Trained in ${number(found.wall_time_s, 3)} s on ${found.device}, torch ${found.torch}, seed ${found.seed}; ` +
      `data ${String(report.data_digest).slice(0, 19)}; ${plural((report.history ?? []).length, "validation")}.`,
  );
}

/** @param {any} value @param {string} [name] @returns {[string, string][]} */
function flat(value, name = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value))
    return [[name, value === null ? "–" : setting(value)]];
  return Object.entries(value).flatMap(([key, each]) => flat(each, name ? `${name}.${key}` : key));
}
