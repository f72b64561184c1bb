// A change as a row: when it began, what changed, values around its start, how rare that is by chance.

import { h } from "./dom.js";
import { ago, between, capital, clock, count, digitsOf, lasting, number, once } from "./format.js";
import { AROUND, changePicture, pictureText } from "./pictures.js";
import { linkTo, streamLink } from "./row.js";

const HEIGHT = 44;
const LOW = 28; // of a suspicion
const MEASURED = ["mean", "spread"]; // kinds whose numbers have the unit of the values
const ARRIVAL = "00:00".length; // of a time that is not exact to the second
const FEW = 4; // values that tell how far apart they are
const PLAIN = 10; // values of a regime that show what it shares with another
const ALIKE = 1.3; // factor up to which a spread is as before
const NEAR = 0.5; // standard deviations up to which a mean is

/** The words of an event: what changed, from what to what, and what else. @param {any} event */
export function wordsOf(event) {
  const [sentence, ...more] = event.sentence.split("; ");
  const [what, ...numbers] = sentence.split(", ");
  return { what: capital(what), numbers: numbers.join(", "), more: more.join("; ") };
}

/** Those words as a heading has them. @param {any} event @param {string} [unit] of the values */
export function sentenceParts(event, unit = "") {
  const { what, numbers } = wordsOf(event);
  return numbers ? [`${what}, `, h("span", { class: "from-to" }, numbers + unitOf(event, unit))] : [what];
}

/** What did not change, of mean and spread, where that is plain. @param {any} event */
export function unchanged({ before, after, explanation }) {
  if (!(after?.count >= PLAIN) || !(before?.count >= PLAIN) || !(before.sd > 0) || !(after.sd > 0)) return "";
  const ratio = after.sd / before.sd;
  if (explanation?.kind === "mean" && ratio < ALIKE && ratio > 1 / ALIKE) return "spread unchanged";
  const moved = Math.abs(after.mean - before.mean) / Math.min(after.sd, before.sd);
  const near = explanation?.kind === "spread" && moved < NEAR;
  return near ? `mean unchanged at ${number(before.mean, digitsOf([before.mean, before.mean + before.sd]) - 1)}` : "";
}

/** The unit of the values, where the numbers of a change are in it. @param {any} event @param {string|undefined} unit */
export const unitOf = (event, unit) =>
  unit && MEASURED.includes(event.explanation?.kind) ? ` ${unit}` : "";

/** Time of an observation of those around the start, if it was sent with one. @param {any} change @param {number} at */
export const timeAt = (change, at) => change.around?.times[at - change.around.first] ?? null;

/** When a change began; about then, where its time is that of the arrival. @param {any} change */
function startText(change) {
  if (!change.start_time) return `at ${count(change.start)}`;
  const time = clock(change.start_time);
  return change.start_arrived ? `≈ ${time.slice(0, ARRIVAL)}` : time;
}

/** The interval in which it began, in time or in observations. @param {any} change */
export function intervalOf(change) {
  if (change.earliest === null || change.earliest === undefined) return "";
  const from = timeAt(change, change.earliest);
  const to = timeAt(change, change.latest);
  if (from && to) return between(from, to);
  const { earliest, latest } = change;
  return earliest === latest ? `at ${count(earliest)}` : `${count(earliest)}–${count(latest)}`;
}

/** Seconds from one observation to the next. @param {any} change */
function paceOf(change) {
  const times = change.around?.times ?? [];
  const sent = times.filter(Boolean);
  if (sent.length < FEW) return null;
  return (Date.parse(sent[sent.length - 1]) - Date.parse(sent[0])) / 1000 / (sent.length - 1);
}

/** How often chance is as strong somewhere among all streams. @param {any} change @param {number} streams */
function inFleet(change, streams) {
  const { evidence } = change;
  const pace = paceOf(change);
  if (!evidence || !streams || !(pace > 0)) return null;
  return h("span", {}, `fleet: every ${lasting((evidence / streams) * pace)}`);
}

/** @param {any} change @param {number} streams how many there are @returns {HTMLElement} */
export function changeRow(change, streams) {
  const at = `${linkTo(change.stream)}?at=${change.start}`;
  const more = wordsOf(change).more || unchanged(change);
  const suspected = change.state === "suspected";
  const raised = suspected ? ` ${ago(change.suspected_time)}` : "";
  const link = { href: at, class: "row-link", "data-focus": keyOf(change) };
  return h(
    "li",
    { class: `change ${change.state}`, "data-change": keyOf(change) },
    h(
      "div",
      { class: "since" },
      h("i", { class: "dot", "aria-hidden": "true" }),
      h("b", {}, startText(change)),
      h("span", {}, intervalOf(change)),
    ),
    h(
      "div",
      { class: "what" },
      h("h2", {}, h(change.link ? "a" : "span", change.link ? link : {}, sentenceParts(change, change.tags.unit))),
      h(
        "p",
        {},
        streamLink(change.stream, null),
        change.state === "confirmed" ? null : [" · ", h("span", { class: "tag" }, capital(change.state)), raised],
        more && !suspected ? ` · ${more}` : "",
        change.link ? "" : " · deleted",
      ),
    ),
    change.around
      ? h("figure", { role: "img", "aria-label": pictureText(change) }, changePicture(change, suspected ? LOW : HEIGHT))
      : h("figure", {}),
    h("div", { class: "chance" }, h("b", {}, once(change.evidence)), inFleet(change, streams)),
  );
}

/** @param {any} change */
export const keyOf = (change) => `${change.stream} ${change.id}`;

/** What the columns are, above the rows. */
export function columnHeads() {
  return h(
    "div",
    { class: "columns", "aria-hidden": "true" },
    h("span", {}, "Start, interval"),
    h("span", {}, "What changed"),
    h("span", { class: "axis" }, h("span", {}, `${AROUND} before`), h("span", {}, "start"), h("span", {}, `${AROUND} after`)),
    h("span", {}, "As strong by chance"),
  );
}
