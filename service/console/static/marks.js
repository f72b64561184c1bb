// What is marked in the charts of a stream: levels of regimes, intervals of starts, times.

import { between, brief, digitsOf, number, once } from "./format.js";
import { linesOf, one } from "./pictures.js";
import { colourOf, nameOf } from "./regimes.js";
import { colour } from "./theme.js";

const TICK = 105; // pixels that a date and a time want
const LETTER = 8; // and a letter of the start's
const FOOT = 0.03; // of the height, for the band of remembered regimes
const LABELLED = 0.08; // share of the observations from which on a part of it has its name
const CRAMPED = 0.3; // share of a narrow chart that words on a level need

/** @param {any[]} events @param {number[]} seqs */
const within = (events, seqs) =>
  events
    .filter((each) => each.state !== "withdrawn" && each.start > seqs[0] && each.start <= seqs[seqs.length - 1])
    .sort((a, b) => a.start - b.start);

/** Of the change that the page is about all is in its colour; of others nothing. @param {any} event @param {any} lead */
const tone = (event, lead) => (event.id === lead?.id ? event.state : "quiet");

/** Whether the same of the values changed twice. @param {any} first @param {any} second */
const alike = (first, second) =>
  first.explanation?.kind === second.explanation?.kind &&
  (first.explanation?.output ?? null) === (second.explanation?.output ?? null);

/** @param {import("./series.js").Shown} shown @param {number[]} seqs */
export function regimes(shown, seqs) {
  const events = within(shown.events, seqs);
  const last = seqs[seqs.length - 1];
  const lines = events.map((event, i) => {
    const before = i ? events[i - 1].start - event.start : seqs[0] - event.start;
    const after = (events[i + 1]?.start ?? last) - event.start;
    return linesOf(event, before, after);
  });
  const shapes = events.flatMap((event, i) => {
    const named = event.explanation?.output ?? null;
    if (named !== null && event.explanation?.kind !== "share" && named !== shown.output) return [band(event, shown.lead)];
    const line = (/** @type {any} */ from, /** @type {import("./pictures.js").Line} */ each, name = "quiet", dashed = false) => ({
      type: "line",
      x0: from.start + each.from - 0.5,
      x1: from.start + each.to - 0.5,
      y0: each.at(each.from),
      y1: each.at(each.to),
      line: { color: colour(name), width: 2, dash: dashed ? "dash" : "solid" },
    });
    // What is before the first one; of the others that is the level after the one before.
    const old = i && alike(events[i - 1], event) ? [] : lines[i].past;
    // The change that ended a regime has its level by all of it; of the one that the page is about words name its own.
    const next = events[i + 1];
    const whole = next && event.id !== shown.lead?.id && alike(event, next) ? lines[i + 1].past : [];
    return [
      band(event, shown.lead),
      ...old.map((each) => line(event, each)),
      ...(whole.length
        ? whole.map((each) => line(next, each))
        : lines[i].now.map((each) => line(event, each, tone(event, shown.lead), event.state === "suspected"))),
    ];
  });
  const tried = within(shown.tried?.answer.events ?? [], seqs).map((each) => ({
    type: "line",
    x0: each.start - 0.5,
    x1: each.start - 0.5,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: colour("tried"), width: 1.6, dash: "dashdot" },
  }));
  return [...shapes, ...tried];
}

/** A box over observations, as high as the chart. @param {string} name @param {number} from @param {number} to @param {any} more */
const box = (name, from, to, more) => ({
  type: "rect",
  name,
  x0: from - 0.5,
  x1: to + 0.5,
  yref: "paper",
  y0: 0,
  y1: 1,
  line: { width: 0 },
  ...more,
});

/**
 * Observations that follow on each other with the same of something: where it is, and the last one's.
 * @param {any[]} observations @param {(seen: any) => any} of null: nothing @param {string} name that tells it apart
 */
function runsOf(observations, of, name) {
  const runs = /** @type {{from: number, to: number, is: any}[]} */ ([]);
  for (const seen of observations) {
    const is = of(seen);
    if (!is) continue;
    const last = runs[runs.length - 1];
    if (last && last.to === seen.seq - 1 && last.is[name] === is[name]) Object.assign(last, { to: seen.seq, is });
    else runs.push({ from: seen.seq, to: seen.seq, is });
  }
  return runs;
}

/**
 * Observations that are excluded from learning, by runs with the window that they were in.
 * @param {import("./series.js").Shown} shown
 */
export function exclusions(shown) {
  const runs = runsOf(shown.observations, (seen) => seen.excluded, "window");
  const line = { color: colour("edge"), width: 1, dash: "dot" };
  const shapes = runs.map(({ from, to }) => box("excluded", from, to, { layer: "below", fillcolor: colour("sunk"), line }));
  const words = runs.map(({ from, to, is: { window } }) =>
    note(window ?? "excluded", "quiet", { x: (from + to) / 2, y: 0, yref: "paper", yanchor: "bottom" }),
  );
  return { shapes, words };
}

/**
 * Remembered regimes that the stream was in: a band at the foot of the chart, with their names.
 * @param {import("./series.js").Shown} shown
 */
export function remembered(shown) {
  const runs = runsOf(shown.observations, ({ regime }) => (regime?.id ? regime : null), "id");
  const shapes = runs.map(({ from, to, is }) => box("regime", from, to, { y1: FOOT, fillcolor: colour(colourOf(is.id)) }));
  const long = runs.filter(({ from, to }) => to - from + 1 >= LABELLED * shown.observations.length);
  const words = long.map(({ from, to, is: { id, name } }) => {
    const text = nameOf({ id, name: shown.names.has(id) ? shown.names.get(id) : name });
    return note(text, "quiet", { x: (from + to) / 2, y: FOOT, yref: "paper", yanchor: "bottom" });
  });
  return { shapes, words };
}

/** The interval of a start, or the start alone. @param {any} event @param {any} lead */
function band(event, lead) {
  const name = tone(event, lead);
  const fillcolor = colour(name === "quiet" ? "band" : `${name}-tint`);
  return box("start", event.earliest ?? event.start, event.latest ?? event.start, { layer: "below", fillcolor });
}

/** The evidence that confirms a change, as a line with its words. @param {import("./series.js").Shown} shown */
export function evidenceLines(shown) {
  if (shown.threshold === null) return {};
  const line = {
    type: "line",
    xref: "paper",
    x0: 0,
    x1: 1,
    y0: shown.threshold, // as it is on a logarithmic axis, too
    y1: shown.threshold,
    line: { color: colour("quiet"), width: 1, dash: "dash" },
  };
  const text = note(`confirmed from ${once(shown.threshold)}`, "quiet", {
    xref: "paper",
    x: 0,
    xanchor: "left",
    y: Math.log10(shown.threshold), // as annotations have it
    yanchor: "bottom",
  });
  return { shapes: [line], annotations: [text] };
}

/** @param {string} text @param {string} name of its colour @param {any} place */
const note = (text, name, place) => ({
  text,
  showarrow: false,
  font: { color: colour(name), size: 12 },
  ...place,
});

/** The interval of the start, below the axis; null: there is none. @param {import("./series.js").Shown} shown */
function beginning({ lead, observations }) {
  const first = observations[0]?.seq;
  if (!lead || lead.start <= first || lead.state === "withdrawn") return null;
  const [from, to] = [lead.earliest ?? lead.start, lead.latest ?? lead.start];
  const times = [from, to].map((at) => observations[at - first]?.time);
  return times[0] && times[1] ? { x: (from + to) / 2, text: between(times[0], times[1]) } : null;
}

/** Words on the levels, in place of a legend. @param {import("./series.js").Shown} shown @param {number[]} seqs @param {boolean} narrow */
export function notes(shown, seqs, narrow) {
  const { lead } = shown;
  const digits = digitsOf([one(lead?.before?.mean, shown.output), one(lead?.after?.mean, shown.output)]);
  const parts = [];
  if (lead && lead.start > seqs[0]) {
    const level = (/** @type {any} */ side, /** @type {string} */ when, /** @type {string} */ name, /** @type {any} */ place) => {
      const mean = one(side?.mean, shown.output);
      const sd = one(side?.sd, shown.output);
      if (mean === null) return;
      const spread = sd === null ? "" : `± ${number(sd, 2)}`;
      const { kind } = lead.explanation ?? {};
      const slope = kind === "slope" ? lead.explanation[side === lead.before ? "before" : "after"] : null;
      const value = slope !== null ? `slope ${number(slope, 2)}` : kind === "spread" ? spread : number(mean, digits);
      const more = value === spread || slope !== null || narrow || !spread ? "" : `, ${spread}`;
      parts.push(note(`${value} ${when}${more}`, name, { y: 1, yref: "paper", yanchor: "top", bgcolor: colour("page"), ...place }));
    };
    level(lead.before, "before", "ink", { x: lead.start - 0.5, xanchor: "right", xshift: -8 });
    // Where there is no room on the right it ends with the chart, below the other.
    const last = seqs[seqs.length - 1];
    const cramped = narrow && lead.start > last - CRAMPED * (last - seqs[0]);
    const place = cramped ? { x: 1, xref: "paper", xanchor: "right", yshift: -14 } : { x: lead.start - 0.5, xanchor: "left", xshift: 12 };
    level(lead.after, "since", lead.state === "withdrawn" ? "quiet" : lead.state, place);
  }
  const begun = beginning(shown);
  if (begun) parts.push(note(`<b>${begun.text}</b>`, lead.state, { x: begun.x, y: 0, yref: "paper", yanchor: "top", yshift: -4, bgcolor: colour("page") }));
  const ahead = shown.ahead?.predictive?.quantiles;
  const low = one(ahead?.["0.05"], shown.output);
  const high = one(ahead?.["0.95"], shown.output);
  if (low !== null && high !== null && !narrow) {
    const places = digitsOf([low, high]);
    const words = `next<br>${number(low, Math.min(4, places))}–<br>${number(high, Math.min(4, places))}`;
    parts.push(note(words, "quiet", { xref: "paper", x: 1, xanchor: "left", xshift: 8, y: one(ahead["0.5"], shown.output), align: "left" }));
  }
  for (const each of within(shown.tried?.answer.events ?? [], seqs))
    parts.push(note(`what if: ${each.state}`, "tried", { x: each.start - 0.5, xanchor: "left", xshift: 4, y: 0, yref: "paper", yanchor: "bottom" }));
  return parts;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const GAP = 2; // letters between two labels
// Steps between times that one reads easily.
const STEPS = [1000, 5000, 15_000, 30_000, ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 7, 14].map((n) => n * DAY)];

/**
 * Times in place of positions where there are any, but for those too near to that of the start.
 * @param {import("./series.js").Shown} shown @param {[number, number]} range @param {number} width in pixels
 */
export function ticks(shown, range, width) {
  const seen = shown.observations;
  if (seen.length < 2 || !seen.every((each) => each.time))
    return { title: { text: "observation" }, tickmode: "auto" };
  const first = seen[0].seq;
  const from = Math.max(0, Math.ceil(range[0]) - first);
  const to = Math.min(seen.length - 1, Math.floor(range[1]) - first);
  const most = Math.max(2, Math.floor(width / TICK));
  const begun = beginning(shown);
  const letter = (LETTER * (range[1] - range[0])) / width;
  const left = round(seen.slice(from, to + 1).map((each) => Date.parse(each.time)), most)
    .map((i) => ({ at: first + from + i, text: brief(seen[from + i].time).replace(/:00$/, "") }))
    .filter(({ at, text }) => !begun || Math.abs(at - begun.x) > ((longest(text) + begun.text.length) / 2 + GAP) * letter);
  return {
    tickmode: "array",
    tickangle: 0,
    tickvals: left.map((tick) => tick.at),
    ticktext: inFull(left.map((tick) => tick.text)),
  };
}

/** Round times between two. @param {number} from @param {number} to in ms @param {number} most */
export function roundTimes(from, to, most) {
  const step = STEPS.find((each) => (to - from) / each <= most);
  if (!step) return [];
  const zone = new Date(from).getTimezoneOffset() * MINUTE;
  const times = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) times.push(at);
  return times;
}

/** Which of some times are the first after round ones; of times too far apart for that every so many.
 * @param {number[]} times @param {number} most */
function round(times, most) {
  const span = times[times.length - 1] - times[0];
  const step = STEPS.find((each) => span / each <= most);
  if (!step) {
    const every = Math.max(1, Math.ceil(times.length / most));
    return times.map((_, i) => i).filter((i) => i % every === 0);
  }
  const zone = new Date(times[0]).getTimezoneOffset() * MINUTE;
  const slot = (/** @type {number} */ time) => Math.floor((time - zone) / step);
  return times.map((_, i) => i).filter((i) => (i ? slot(times[i]) > slot(times[i - 1]) : (times[0] - zone) % step === 0));
}

/** Letters of the longest line. @param {string} text */
const longest = (text) => Math.max(...text.split(" ").map((line) => line.length));

/** Dates and clocks below one another: of a day its date once, of first days of years the years. @param {string[]} texts */
const inFull = (texts) => {
  if (texts.every((text) => text.endsWith("-01-01"))) return texts.map((text) => text.slice(0, 4));
  return texts.map((text, i) => {
    const [date, clock] = text.split(" ");
    return clock && texts[i - 1]?.startsWith(date) ? clock : text.replace(" ", "<br>");
  });
};
