// The charts of one stream: values with what changed and the forecast, evidence, run-length belief.

import { layout } from "./chart.js";
import { count, digitsOf, moment, number, percent, plural, once } from "./format.js";
import { depth, heat } from "./heat.js";
import { evidenceLines, exclusions, notes, regimes, remembered, ticks } from "./marks.js";
import { one } from "./pictures.js";
import { nameOf } from "./regimes.js";
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
const AHEAD = 0.06; // of the width, for what is forecast
const HEIGHTS = { values: 380, values_narrow: 280, evidence: 170, belief: 240 };

/** What the charts are drawn from. @typedef {{
 *   observations: any[], events: any[], alarms: any[], alarm: number|null, threshold: number|null,
 *   beliefs: Map<number, any>, output: number, lead: any|null, ahead: any|null,
 *   tried: {answer: any, beliefs: Map<number, any>}|null, regimeStart: number|null,
 *   names: Map<number, string|null>}} Shown names: of remembered regimes, as they are now */

/** Forecast of an observation: low, middle, high. @param {any} seen @param {number} output */
export function forecast(seen, output) {
  const held = seen?.predictive;
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

/** Of the values, and of the forecast where it is not much wider. @param {Shown} shown */
function span(shown) {
  const sorted = (/** @type {(number|null)[]} */ all) =>
    /** @type {number[]} */ (all.filter((each) => each !== null)).sort((a, b) => a - b);
  const y = sorted(shown.observations.map((each) => one(each.y, shown.output)));
  const low = sorted(shown.observations.map((each) => forecast(each, shown.output)[0]));
  const high = sorted(shown.observations.map((each) => forecast(each, shown.output)[2]));
  if (!y.length) return null;
  const from = Math.min(y[0], low[Math.floor(EXTREME * low.length)] ?? y[0]);
  const to = Math.max(y[y.length - 1], high[Math.ceil((1 - EXTREME) * high.length) - 1] ?? y[0]);
  const edge = 0.08 * (to - from) || 1;
  return [from - edge, to + edge];
}

const seqsOf = (/** @type {Shown} */ shown) => shown.observations.map((each) => each.seq);

/** All that is shown, and room for what is forecast. @param {number[]} seqs @param {boolean} ahead */
export function whole(seqs, ahead) {
  const [first, last] = [seqs[0] ?? 0, seqs[seqs.length - 1] ?? 1];
  return [first - 0.5, last + 0.5 + (ahead ? Math.max(2, AHEAD * (last - first)) : 0)];
}

/** What the charts share: margins, and an axis that ends where the observations do.
 * @param {Shown} shown @param {[number, number]|null} range @param {number} width in pixels */
function frame(shown, range, width) {
  const narrow = width < NARROW;
  const seqs = seqsOf(shown);
  return {
    hovermode: "x unified",
    dragmode: "zoom",
    showlegend: false,
    margin: { l: narrow ? 44 : 58, r: narrow ? 8 : 72, t: 8, b: 44 },
    xaxis: {
      range: range ?? whole(seqs, shown.ahead !== null),
      autorange: false,
      hoverformat: ",d",
      showgrid: false,
      ...ticks(shown, range ?? whole(seqs, shown.ahead !== null), width),
    },
  };
}

/**
 * Values, levels of regimes, the interval of the start, the forecast.
 * @param {Shown} shown @param {[number, number]|null} range @param {number} width in pixels
 */
export function valuesDrawing(shown, range, width) {
  const narrow = width < NARROW;
  const seqs = seqsOf(shown);
  const excluded = exclusions(shown);
  const band = remembered(shown);
  const described = {
    ...frame(shown, range, width),
    height: narrow ? HEIGHTS.values_narrow : HEIGHTS.values,
    yaxis: {
      range: span(shown),
      autorange: false,
      exponentformat: "e",
      minexponent: 8, // up to there every digit: 1,000,000.1 and 1,000,000.3 are two ticks
      separatethousands: true,
    },
    shapes: [...excluded.shapes, ...regimes(shown, seqs), ...band.shapes],
    annotations: [...excluded.words, ...(narrow ? [] : band.words), ...notes(shown, seqs, narrow)],
  };
  return { data: valueTraces(shown, seqs), layout: layout(described), says: words(shown) };
}

/** @param {Shown} shown @param {number[]} seqs */
function valueTraces(shown, seqs) {
  const bands = shown.observations.map((each) => forecast(each, shown.output));
  const next = forecast(shown.ahead, shown.output);
  const x = [...seqs];
  if (shown.ahead) {
    x.push(whole(seqs, true)[1]); // to the rim
    bands.push(next);
  }
  const y = shown.observations.map((each) => one(each.y, shown.output));
  const digits = Math.max(6, digitsOf(y));
  const strange = anomalies(shown);
  const times = shown.observations.map((each) => moment(each.time));
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  const many = seqs.length > 400;
  const chances = shown.observations.find((each) => each.predictive)?.predictive.probabilities;
  const expected = !chances ? "forecast" : chances.length === 2 ? "P(1)" : "most probable class";
  return [
    { ...edge, y: bands.map((b) => b[0]) },
    { ...edge, y: bands.map((b) => b[2]), fill: "tonexty", fillcolor: colour("band"), name: "forecast, 90 %" },
    {
      x,
      y: bands.map((b) => b[1]),
      mode: "lines",
      name: expected,
      line: { color: colour("past"), width: 1, dash: "dot" },
      hovertemplate: `%{y:.${digits}~g}`,
    },
    {
      x: seqs,
      y,
      customdata: times,
      mode: chances ? "markers" : many ? "lines" : "lines+markers",
      name: "value",
      line: { color: colour("value"), width: many ? 0.8 : 1 },
      marker: { size: many ? 2.5 : 3, color: colour("value") },
      hovertemplate: `%{y:.${digits}~g}  %{customdata}`,
    },
    {
      x: strange.map((each) => each.seq),
      y: strange.map((each) => one(each.y, shown.output)),
      mode: "markers+text",
      name: "anomaly",
      text: strange.map(() => "outlier"),
      textposition: "middle right",
      textfont: { color: colour("quiet"), size: 12 },
      cliponaxis: false,
      hoverinfo: "skip",
      marker: { symbol: "diamond-open", size: 10, color: colour("ink"), line: { width: 1.5 } },
    },
  ];
}

/**
 * Evidence of a change, on a logarithmic scale.
 * @param {Shown} shown @param {[number, number]|null} range @param {number} width in pixels
 */
export function evidenceDrawing(shown, range, width) {
  const seqs = seqsOf(shown);
  const described = {
    ...frame(shown, range, width),
    height: HEIGHTS.evidence,
    yaxis: {
      type: "log",
      range: [0, Math.log10(highest(shown))],
      tickformat: "~s",
      dtick: 2, // powers of ten
      fixedrange: true,
    },
    ...evidenceLines(shown),
  };
  const last = shown.observations[shown.observations.length - 1];
  const says = `Evidence that the regime has changed since the last confirmed change: now ${once(last?.evidence)}.`;
  return { data: evidence(shown, seqs), layout: layout(described), says };
}

/** @param {Shown} shown @param {number[]} seqs */
function evidence(shown, seqs) {
  const top = highest(shown);
  const within = (/** @type {(number|null)[]} */ values) =>
    values.map((each) => (each === null ? null : Math.min(Math.max(each, 1), top)));
  const was = shown.observations.map((each) => each.evidence);
  const traces = /** @type {any[]} */ ([
    {
      x: seqs,
      y: within(was),
      customdata: was.map(once),
      mode: "lines",
      name: "evidence",
      line: { color: colour("value"), width: 1 },
      hovertemplate: "%{customdata}",
    },
  ]);
  if (!shown.tried) return traces;
  const { first, evidence: series } = shown.tried.answer;
  const tried = seqs.map((seq) => series?.[seq - first] ?? null);
  traces.push({
    x: seqs,
    y: within(tried),
    customdata: tried.map(once),
    mode: "lines",
    name: "evidence, what if",
    line: { color: colour("tried"), width: 2, dash: "dash" },
    hovertemplate: "%{customdata}",
  });
  return traces;
}

/** Evidence at the top of the chart. @param {Shown} shown */
const highest = (shown) => (shown.threshold === null ? HIGHEST : BEYOND * shown.threshold);

/**
 * Beliefs over run lengths, as they were and as they would have been.
 * @param {Shown} shown @param {[number, number]|null} range @param {number} width in pixels
 */
export function beliefDrawing(shown, range, width) {
  const narrow = width < NARROW;
  const seqs = seqsOf(shown);
  const data = [heat(shown.beliefs, seqs, "y", !narrow)];
  const described = /** @type {any} */ ({
    ...frame(shown, range, width),
    height: HEIGHTS.belief * (shown.tried ? 2 : 1),
    yaxis: { domain: [shown.tried ? 0.55 : 0, 1], title: { text: "run length" }, ...depth(shown.beliefs, seqs) },
  });
  if (shown.tried) {
    data.push(heat(shown.tried.beliefs, seqs, "y2", false));
    described.yaxis2 = { domain: [0, 0.45], title: { text: "what if" }, ...depth(shown.tried.beliefs, seqs) };
  }
  return { data, layout: layout(described), says: "Run-length belief after each observation." };
}

/** The chart in words. @param {Shown} shown */
export function words(shown) {
  const { observations: seen, events, regimeStart } = shown;
  if (!seen.length) return "No observations to show.";
  const last = seen[seen.length - 1];
  const [low, , high] = forecast(last, shown.output);
  const digits = digitsOf(seen.map((each) => one(each.y, shown.output)));
  const changes = events.filter((each) => each.state === "confirmed");
  const parts = [
    `Observations ${count(seen[0].seq)} to ${count(last.seq)}.`,
    `Last value ${number(one(last.y, shown.output), digits)}` +
      (low === null ? "." : `, forecast ${number(low, digits)} to ${number(high, digits)}.`),
    `${plural(changes.length, "confirmed change")}` +
      (changes.length ? `, the last at ${count(changes[changes.length - 1].start)}.` : "."),
    `Probability that the regime has changed since: ${percent(last.changed_probability)}.`,
    `Evidence of that: ${once(last.evidence)} observations.`,
  ];
  if (shown.threshold !== null) parts.push(`A change is confirmed at ${once(shown.threshold)}.`);
  if (regimeStart !== null)
    parts.push(`The current regime most probably began at ${count(regimeStart)}.`);
  if (last.regime?.id) parts.push(`In ${nameOf({ ...last.regime, name: shown.names.get(last.regime.id) ?? last.regime.name })}, which is remembered.`);
  const excluded = seen.filter((each) => each.excluded).length;
  if (excluded) parts.push(`${plural(excluded, "observation")} excluded from learning.`);
  const strange = anomalies(shown).length;
  if (strange) parts.push(strange > 1 ? `${count(strange)} anomalies.` : "1 anomaly.");
  return parts.join(" ");
}
