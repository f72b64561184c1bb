// What is marked in the chart of a stream: changes, titles, times.

import { brief, rarely, sign } from "./format.js";
import { colour } from "./theme.js";

const TICK = 105; // pixels that a date and a time want
const LONG_TITLE = 500; // pixels that it takes
const MARK = 120; // pixels of "✓ #16 confirmed"
const DASHES = { confirmed: "solid", suspected: "dash", withdrawn: "dot" };

/** @param {import("./series.js").Shown} shown @param {number[]} seqs */
export function lines(shown, seqs) {
  const line = (
    /** @type {any} */ each,
    /** @type {string} */ name,
    /** @type {number} */ from,
  ) => ({
    type: "line",
    x0: each.start - 0.5,
    x1: each.start - 0.5,
    y0: from,
    y1: 1,
    yref: "paper",
    line: {
      color: colour(name),
      width: each.state === "confirmed" ? 2 : 1.2,
      dash: DASHES[/** @type {keyof typeof DASHES} */ (each.state)],
    },
  });
  const tried = shown.tried?.answer.events ?? [];
  return [
    ...(shown.threshold === null ? [] : [alarm(shown.threshold)]),
    ...within(shown.events, seqs).map((each) => line(each, `state-${each.state}`, 0)),
    ...within(tried, seqs)
      .filter((each) => each.state !== "withdrawn")
      .map((each) => ({
        ...line(each, "tried", 0.46),
        line: { color: colour("tried"), width: 1.6, dash: "dashdot" },
      })),
  ];
}

/** The evidence that confirms a change. @param {number} threshold */
const alarm = (threshold) => ({
  type: "line",
  xref: "paper",
  x0: 0,
  x1: 1,
  yref: "y2",
  y0: threshold, // as it is on a logarithmic axis, too
  y1: threshold,
  line: { color: colour("quiet"), width: 1, dash: "dash" },
});

/** @param {any[]} events @param {number[]} seqs */
const within = (events, seqs) =>
  events.filter((each) => each.start > seqs[0] && each.start <= seqs[seqs.length - 1]);

/** Whether another change follows too soon for the whole text beside the line.
 * @param {any} event @param {any[]} all @param {number} room observations that it takes */
const crowded = (event, all, room) =>
  all.some((each) => each.start > event.start && each.start < event.start + room);

/**
 * @param {import("./series.js").Shown} shown @param {number[]} seqs @param {number[][]} panels
 * @param {number} width of the chart, in pixels
 */
export function notes(shown, seqs, panels, width) {
  const room = (seqs.length * MARK) / Math.max(width, MARK);
  const titles = [
    "",
    (width < LONG_TITLE ? "Evidence" : "Evidence that the regime has changed") +
      (shown.threshold === null ? "" : ` · confirmed at ${rarely(shown.threshold)}, dashed`),
    "Run-length belief",
    "Run-length belief, what if",
  ];
  const heads = panels
    .map(([, top], i) => ({
      text: titles[i],
      x: 0,
      xref: "paper",
      xanchor: "left",
      y: top,
      yref: "paper",
      yanchor: "bottom",
      showarrow: false,
      font: { color: colour("ink"), size: 12 },
    }))
    .slice(1);
  const marks = within(shown.events, seqs)
    .filter((each) => each.state !== "withdrawn")
    .map((each, i, all) => ({
      text: `${sign(each.state)} #${each.id}${crowded(each, all, room) ? "" : ` ${each.state}`}`,
      x: each.start - 0.5,
      xanchor: "left",
      xshift: 3,
      y: 1,
      yref: "paper",
      yanchor: "top",
      showarrow: false,
      font: { color: colour(`state-${each.state}`), size: 11 },
      bgcolor: colour("surface"),
      opacity: 0.9,
    }));
  const tried = within(shown.tried?.answer.events ?? [], seqs)
    .filter((each) => each.state !== "withdrawn")
    .map((each) => ({
      text: `what if: ${each.state}`,
      x: each.start - 0.5,
      xanchor: "left",
      xshift: 3,
      y: panels[0][0],
      yref: "paper",
      yanchor: "bottom",
      showarrow: false,
      font: { color: colour("tried"), size: 11 },
      bgcolor: colour("surface"),
      opacity: 0.9,
    }));
  return [...heads, ...marks, ...tried];
}

/**
 * Times in place of positions where there are any.
 * @param {any[]} seen @param {[number, number]|null} range @param {number} width in pixels
 */
export function ticks(seen, range, width) {
  if (seen.length < 2 || !seen.every((each) => each.time))
    return { title: { text: "observation" }, tickmode: "auto" };
  const first = seen[0].seq,
    last = seen[seen.length - 1].seq;
  const from = Math.max(first, Math.ceil(range?.[0] ?? first)),
    to = Math.min(last, Math.floor(range?.[1] ?? last));
  const step = Math.max(1, Math.round(((to - from) * TICK) / Math.max(width, 3 * TICK)));
  const at = [];
  for (let seq = from; seq <= to; seq += step) at.push(seq);
  return {
    tickmode: "array",
    tickangle: 0,
    tickvals: at,
    ticktext: at.map((seq) => short(brief(seen[seq - first]?.time))),
  };
}

/** @param {string} text a year says enough where it is the first of January */
const short = (text) => (text.endsWith("-01-01") ? text.slice(0, 4) : text.replace(" ", "<br>"));
