// A stream's page in a sentence: what changed and since when, or that it is steady.

import { sentenceParts, unchanged, wordsOf } from "./changerow.js";
import { fill, h } from "./dom.js";
import { between, capital, clock, count, lasting, once, percent, plural } from "./format.js";

/** The change that a page is about: the one that was asked for, else the last that was not withdrawn.
 * @param {any[]} events @param {number|null} wanted its start */
export function leadOf(events, wanted) {
  const asked = events.find((event) => event.start === wanted);
  if (asked) return asked;
  const standing = events.filter((event) => event.state !== "withdrawn");
  return standing.sort((a, b) => a.start - b.start)[standing.length - 1] ?? null;
}

/** Time of an observation, where it was sent with one. @param {any[]} observations @param {number} at */
export const timeOf = (observations, at) => observations[at - (observations[0]?.seq ?? 0)]?.time ?? null;

/** A position as a time, or as a number. @param {any[]} observations @param {number} at */
export function placeOf(observations, at) {
  const time = timeOf(observations, at);
  return time ? clock(time) : `observation ${count(at)}`;
}

/** The heading. @param {any} summary @param {any|null} lead @param {any[]} observations */
export function headingParts(summary, lead, observations) {
  if (lead) return [...sentenceParts(lead, summary.settings.tags?.unit), `, at ${placeOf(observations, lead.start)}`];
  if (summary.warming_up) return ["Warming up: no alarms yet"];
  return [summary.seq ? `Steady for ${plural(summary.seq, "observation")}` : "No observations yet"];
}

/** What stands below it. @param {any} summary @param {any|null} lead @param {any[]} observations */
export function verdictText(summary, lead, observations) {
  if (!lead)
    return summary.seq && !summary.warming_up
      ? `Evidence of a change now: by chance ${once(summary.evidence)} observations.`
      : "";
  const parts = [];
  const { earliest, latest, coverage } = lead;
  if (coverage) {
    const [from, to] = [timeOf(observations, earliest), timeOf(observations, latest)];
    const where = from && to ? between(from, to) : `observations ${count(earliest)}–${count(latest)}`;
    const words = where.includes("–") ? `Between ${where.replace("–", " and ")}` : `At ${where}`;
    parts.push(`${words} (${percent(coverage)}).`);
  }
  if (lead.evidence !== null) parts.push(`By chance ${once(lead.evidence)} observations.`);
  const more = wordsOf(lead).more || unchanged(lead);
  if (more) parts.push(`${capital(more)}.`);
  if (lead.excluded) parts.push("Excluded from learning: the regime before goes on.");
  if (lead.state === "withdrawn") parts.push(lead.verdict === false ? "You said that it was no change." : "Withdrawn since.");
  else if (lead.state === "suspected") parts.push(`Suspected at ${placeOf(observations, lead.suspected_at)}.`);
  else parts.push(`Confirmed at ${placeOf(observations, lead.confirmed_at)}${since(summary, lead, observations)}.`);
  return parts.join(" ");
}

/** How long it has been quiet. @param {any} summary @param {any} lead @param {any[]} observations */
function since(summary, lead, observations) {
  if (summary.event || summary.last_event?.id !== lead.id) return "";
  const last = observations[observations.length - 1];
  const from = timeOf(observations, lead.start);
  const long = from && last?.time ? lasting((Date.parse(last.time) - Date.parse(from)) / 1000) : "";
  return `; steady since, for ${long || plural(summary.seq - lead.start, "observation")}`;
}

/** The name of a stream, and its tags. @param {string} name @param {any} summary */
export function subject(name, summary) {
  const tags = Object.entries(summary?.settings.tags ?? {});
  return [name, tags.map(([tag, value]) => h("span", { class: "tags" }, `${tag}=${value}`))];
}

/** @param {HTMLElement} element @param {any[]} parts filled only where they differ: a status is read out */
export function refill(element, parts) {
  const draft = h("div", {}, parts);
  if (draft.innerHTML !== element.innerHTML) fill(element, ...draft.childNodes);
}
