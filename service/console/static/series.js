// The chart of one stream: labels with their forecast, evidence of a change, run-length belief.

import { layout } from "./chart.js";
import { count, digitsOf, direction, moment, number, percent, plural, rarely } from "./format.js";
import { depth, heat } from "./heat.js";
import { lines, notes, ticks } from "./marks.js";
import { colour } from "./theme.js";

/** A constant of the service, which its page has. @param {string} name */
const constant = (name) =>
  Number(document.querySelector(`meta[name=moca-${name}]`)?.getAttribute("content"));
const STRANGE = constant("anomaly-alarm"); // that is marked, of a stream that has no alarm
const SILENCE = constant("alarm-silence"); // observations after a mark without another
const EXTREME = 0.03; // share of forecasts at each end that may be out of sight
const NARROW = 560; // pixels
const BEYOND = 100; // times the evidence that confirms a change: the highest shown
const HIGHEST = 1e6; // evidence shown where none confirms a change

/** What the chart is drawn from. @typedef {{
 *   observations: any[], events: any[], alarms: any[], alarm: number|null, threshold: number|null,
 *   beliefs: Map<number, any>, output: number,
 *   tried: {answer: any, beliefs: Map<number, any>}|null, regimeStart: number|null}} Shown */

/** @param {any} value @param {number} output @returns {number|null} */
export const one = (value, output) =>
  Array.isArray(value) ? (value[output] ?? null) : (value ?? null);

/** Forecast of an observation: low, middle, high. @param {any} seen @param {number} output */
export function forecast(seen, output) {
  const held = seen.predictive;
  if (!held) return [null, null, null];
  if (held.probabilities) {
    const p = held.probabilities;
    return [null, p.length === 2 ? p[1] : p.indexOf(Math.max(...p)), null];
  }
  const of = (/** @type {string} */ level) => one(held.quantiles?.[level], output);
  return [of("0.05"), of("0.5") ?? one(held.mean, output), of("0.95")];
}

/**
 * Observations that are unusual for the stream, the first of each run: those that alarms were of,
 * and those that the same rule finds while the stream has none. @param {Shown} shown
 */
export function anomalies(shown) {
  const first = shown.observations[0]?.seq ?? 0;
  let last = Math.max(-Infinity, ...shown.alarms.map((each) => each.id).filter((at) => at < first));
  return shown.observations.filter((seen) => {
    const marked = (seen.anomaly ?? 0) >= (shown.alarm ?? STRANGE) && seen.seq - last >= SILENCE;
    if (marked) last = seen.seq;
    return marked;
  });
}

/** Of the labels, and of the forecast where it is not much wider. @param {Shown} shown */
function span(shown) {
  const known = (/** @type {(number|null)[]} */ all) =>
    /** @type {number[]} */ (all.filter((each) => each !== null)).sort((a, b) => a - b);
  const y = known(shown.observations.map((each) => one(each.y, shown.output)));
  const low = known(shown.observations.map((each) => forecast(each, shown.output)[0]));
  const high = known(shown.observations.map((each) => forecast(each, shown.output)[2]));
  if (!y.length) return null;
  const from = Math.min(y[0], low[Math.floor(EXTREME * low.length)] ?? y[0]);
  const to = Math.max(y[y.length - 1], high[Math.ceil((1 - EXTREME) * high.length) - 1] ?? y[0]);
  const edge = 0.08 * (to - from) || 1;
  return [from - edge, to + edge];
}

/**
 * @param {Shown} shown @param {[number, number]|null} range
 * @param {number} width of the page's chart, in pixels
 */
export function drawing(shown, range, width) {
  const narrow = width < NARROW;
  const seqs = shown.observations.map((each) => each.seq);
  const data = [
    ...labels(shown, seqs),
    ...evidence(shown, seqs),
    heat(shown.beliefs, seqs, "y3", !narrow),
  ];
  if (shown.tried) data.push(heat(shown.tried.beliefs, seqs, "y4", false));
  const panels = shown.tried
    ? [
        [0.62, 1],
        [0.46, 0.56],
        [0.24, 0.4],
        [0, 0.17],
      ]
    : [
        [0.52, 1],
        [0.34, 0.46],
        [0, 0.27],
      ];
  const said = /** @type {any} */ ({
    height: shown.tried ? 780 : 640,
    hovermode: "x unified",
    uirevision: "kept",
    dragmode: "zoom",
    showlegend: !narrow,
    margin: { l: narrow ? 44 : 58, r: 16, t: 34, b: 40 },
    xaxis: {
      domain: [0, 1],
      anchor: panels.length > 3 ? "y4" : "y3",
      hoverformat: ",d",
      ...ticks(shown.observations, range, width),
    },
    yaxis: {
      domain: panels[0],
      range: span(shown),
      autorange: false,
      exponentformat: "e",
      minexponent: 8, // up to there every digit: 1,000,000.1 and 1,000,000.3 are two ticks
      separatethousands: true,
    },
    yaxis2: {
      domain: panels[1],
      type: "log",
      range: [0, Math.log10(highest(shown))],
      tickformat: "~s",
      dtick: 2, // powers of ten
      fixedrange: true,
    },
    yaxis3: { domain: panels[2], ...depth(shown.beliefs, seqs) },
    shapes: lines(shown, seqs),
    annotations: notes(shown, seqs, panels, width),
  });
  if (shown.tried) said.yaxis4 = { domain: panels[3], ...depth(shown.tried.beliefs, seqs) };
  return { data, layout: layout(said), says: words(shown) };
}

/** @param {Shown} shown @param {number[]} seqs */
function labels(shown, seqs) {
  const bands = shown.observations.map((each) => forecast(each, shown.output));
  const y = shown.observations.map((each) => one(each.y, shown.output));
  const digits = Math.max(6, digitsOf(y));
  const strange = anomalies(shown);
  const times = shown.observations.map((each) => moment(each.time));
  const edge = { x: seqs, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  const many = seqs.length > 400,
    chances = shown.observations.find((each) => each.predictive)?.predictive.probabilities;
  const expected = !chances ? "forecast" : chances.length === 2 ? "P(1)" : "most probable class";
  return [
    { ...edge, y: bands.map((b) => b[0]) },
    {
      ...edge,
      y: bands.map((b) => b[2]),
      fill: "tonexty",
      fillcolor: colour("band"),
      name: "forecast, 90 %",
      showlegend: bands.some((b) => b[0] !== null),
    },
    {
      x: seqs,
      y: bands.map((b) => b[1]),
      mode: "lines",
      name: expected,
      line: { color: colour("forecast"), width: 1.4, dash: "dot" },
      hovertemplate: `%{y:.${digits}~g}`,
    },
    {
      x: seqs,
      y,
      customdata: times,
      mode: chances ? "markers" : "lines+markers",
      name: "label",
      line: { color: colour("label"), width: many ? 0.8 : 1.3 },
      marker: { size: many ? 2.5 : 4.5, color: colour("label") },
      hovertemplate: `%{y:.${digits}~g}  %{customdata}`,
    },
    {
      x: strange.map((each) => each.seq),
      y: strange.map((each) => one(each.y, shown.output)),
      mode: "markers",
      name: "anomaly",
      showlegend: strange.length > 0,
      hoverinfo: "skip",
      marker: { symbol: "diamond-open", size: 12, color: colour("anomaly"), line: { width: 2 } },
    },
  ];
}

/** @param {Shown} shown @param {number[]} seqs */
function evidence(shown, seqs) {
  const top = highest(shown);
  const within = (/** @type {(number|null)[]} */ values) =>
    values.map((each) => (each === null ? null : Math.min(Math.max(each, 1), top)));
  const was = shown.observations.map((each) => each.evidence);
  const found = /** @type {any[]} */ ([
    {
      x: seqs,
      y: within(was),
      customdata: was.map(rarely),
      yaxis: "y2",
      mode: "lines",
      name: "evidence",
      fill: "tozeroy",
      fillcolor: colour("changed-fill"),
      line: { color: colour("changed"), width: 1.5 },
      showlegend: false,
      hovertemplate: "%{customdata}",
    },
  ]);
  if (!shown.tried) return found;
  const { first, evidence: series } = shown.tried.answer;
  const tried = seqs.map((seq) => series?.[seq - first] ?? null);
  found.push({
    x: seqs,
    y: within(tried),
    customdata: tried.map(rarely),
    yaxis: "y2",
    mode: "lines",
    name: "evidence, what if",
    line: { color: colour("tried"), width: 2, dash: "dash" },
    hovertemplate: "%{customdata}",
  });
  return found;
}

/** Evidence at the top of the chart. @param {Shown} shown */
const highest = (shown) => (shown.threshold === null ? HIGHEST : BEYOND * shown.threshold);

/** The chart in words. @param {Shown} shown */
export function words(shown) {
  const { observations: seen, events, regimeStart } = shown;
  if (!seen.length) return "No observations to show.";
  const last = seen[seen.length - 1],
    [low, , high] = forecast(last, shown.output);
  const digits = digitsOf(seen.map((each) => one(each.y, shown.output)));
  const changes = events.filter((each) => each.state === "confirmed");
  const parts = [
    `Observations ${count(seen[0].seq)} to ${count(last.seq)}.`,
    `Last label ${number(one(last.y, shown.output), digits)}` +
      (low === null ? "." : `, forecast ${number(low, digits)} to ${number(high, digits)}.`),
    `${plural(changes.length, "confirmed change")}` +
      (changes.length
        ? `, the last at ${count(changes[changes.length - 1].start)} ${direction(changes[changes.length - 1])}`.trim() +
          "."
        : "."),
    `Probability that the regime has changed since: ${percent(last.changed_probability)}.`,
    `Evidence of that: ${rarely(last.evidence)} observations.`,
  ];
  if (shown.threshold !== null) parts.push(`A change is confirmed at ${rarely(shown.threshold)}.`);
  if (regimeStart !== null)
    parts.push(`The current regime most probably began at ${count(regimeStart)}.`);
  const strange = anomalies(shown).length;
  if (strange) parts.push(strange > 1 ? `${count(strange)} anomalies.` : "1 anomaly.");
  return parts.join(" ");
}
