// Changes of several streams that began together: as a row of the list, and on the pages of their streams.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { between, clock, count, lasting, number, plural } from "./format.js";
import { AROUND, togetherPicture } from "./pictures.js";
import { linkTo } from "./row.js";

const MOST = 5; // incidents of a list that are read with their changes
const FRESH_MS = 60000; // how long values around their starts count, where nothing else is new
const HEIGHT = 96;
const LISTED = 100; // changes of a stream among which its own is looked for
const NAMED = 12; // members that a row names
const DAY_S = 86400;
const CLEAR = 3; // characters that ids have to share to be named by them

/** @param {string} id */
export const incidentLink = (id) => `#/incidents/${encodeURIComponent(id)}`;

const kept = /** @type {Map<string, {text: string, at: number, detail: any}>} */ (new Map());

/** An incident with its changes and the values around their starts. @param {any} incident @param {AbortSignal} signal */
async function detailed(incident, signal) {
  const text = JSON.stringify(incident);
  const last = kept.get(incident.id);
  if (last?.text === text && Date.now() - last.at < FRESH_MS) return last.detail;
  const detail = await get(`v1/incidents/${encodeURIComponent(incident.id)}`, { around: AROUND }, signal);
  kept.set(incident.id, { text, at: Date.now(), detail });
  return detail;
}

/** The last incidents with their changes, and the fleet. @param {string|null} since @param {AbortSignal} signal */
export async function readIncidents(since, signal) {
  const page = await get("v1/incidents", { since, limit: MOST }, signal);
  const shown = await Promise.all(page.incidents.map((/** @type {any} */ each) => detailed(each, signal)));
  return { fleet: page.fleet, shown };
}

/** What all ids begin with, up to a separator. @param {string[]} ids */
export function commonOf(ids) {
  let end = 0;
  while (ids.length > 1 && end < ids[0].length && ids.every((id) => id[end] === ids[0][end])) end++;
  const shared = ids[0].slice(0, end).replace(/[^.:/_-]*$/, "");
  return shared.length >= CLEAR ? shared : "";
}

/** @param {any} incident */
export function titleOf(incident) {
  const shared = commonOf(incident.changes.map((/** @type {any} */ each) => each.stream));
  const name = shared.replace(/[.:/_-]+$/, "");
  return `${plural(incident.streams, "stream")}${name ? ` of ${name}` : ""} changed together`;
}

/** A mover's tag, of a combination all of them. @param {any} mover */
export const tagsOf = (mover) =>
  Object.entries({ [mover.tag]: mover.value, ...mover.others }).map(([tag, value]) => `${tag}=${value}`).join(" and ");

/** Changes by what a word says of them. @param {any[]} changes @returns {{rose: any[], fell: any[], spread: any[], other: any[]}} */
export function byKind(changes) {
  const spread = changes.filter((each) => each.explanation?.kind === "spread");
  const rest = changes.filter((each) => !spread.includes(each));
  const of = (/** @type {string} */ direction) => rest.filter((each) => each.direction === direction);
  return { spread, rose: of("up"), fell: of("down"), other: rest.filter((each) => !["up", "down"].includes(each.direction)) };
}

/** What the streams have in common. @param {any} incident */
export function sharedParts(incident) {
  const parts = incident.movers.slice(0, 2).map((/** @type {any} */ mover) => {
    const whole = mover.changed === mover.streams ? "all " : "";
    const numbers = `${count(mover.changed)} of ${count(mover.streams)}, ${number(mover.expected, 2)} expected`;
    return [whole, h("b", {}, tagsOf(mover)), `: ${numbers}`];
  });
  return parts.flatMap((/** @type {any[]} */ part, /** @type {number} */ i) => (i ? ["; ", ...part] : part));
}

/** How rarely independent streams would show the like. @param {any} incident */
export const chanceOf = (incident) => `once in ${lasting(DAY_S / Math.max(incident.by_chance.per_day, 1e-300))}`;

/** @param {any} incident */
export const whenOf = (incident) => between(incident.earliest_time, incident.latest_time);

/** In standard deviations, of a spread its factor, as its sentence has it. @param {any} change */
function sizeOf(change) {
  const { explanation } = change;
  const size = ["mean", "spread"].includes(explanation?.kind) ? explanation.size : change.size;
  return typeof size === "number" ? number(Math.abs(size), 2) : "";
}

/** @param {any} incident with its changes @returns {HTMLElement} */
export function incidentRow(incident) {
  const { changes } = incident;
  const shared = commonOf(changes.map((/** @type {any} */ each) => each.stream));
  const member = (/** @type {any} */ change) =>
    h(
      "li",
      {},
      h("a", { href: `${linkTo(change.stream)}?at=${change.start}` }, change.stream.slice(shared.length)),
      " ",
      h("span", {}, sizeOf(change)),
    );
  const side = (/** @type {string} */ word, /** @type {any[]} */ some) => {
    if (!some.length) return null;
    const more = some.length > NAMED ? h("li", {}, h("span", {}, `and ${count(some.length - NAMED)} more`)) : null;
    return [h("dt", {}, word), h("dd", {}, h("ul", {}, some.slice(0, NAMED).map(member), more))];
  };
  const { rose, fell, spread, other } = byKind(changes);
  const movers = sharedParts(incident);
  const text = `${plural(changes.length, "stream")} in their own standard deviations, ${AROUND} observations before and after`;
  return h(
    "li",
    { class: "change incident confirmed", "data-incident": incident.id },
    h(
      "div",
      { class: "since" },
      h("i", { class: "dot", "aria-hidden": "true" }),
      h("b", {}, clock(incident.start_time)),
      h("span", {}, whenOf(incident)),
    ),
    h(
      "div",
      { class: "what" },
      h("h2", {}, h("a", { href: incidentLink(incident.id), class: "row-link", "data-focus": incident.id }, titleOf(incident))),
      movers.length ? h("p", { class: "movers" }, movers) : null,
      h("dl", { class: "members" }, side("Rose, sd", rose), side("Fell, sd", fell), side("Spread, ×", spread), side("Changed", other)),
    ),
    h("figure", { role: "img", "aria-label": text }, togetherPicture(changes, HEIGHT)),
    h("div", { class: "chance" }, h("b", {}, chanceOf(incident)), h("span", {}, "of the fleet")),
  );
}

/**
 * On the page of a stream: which incident its change is part of, with which others.
 * @param {HTMLElement} place @param {string} stream @param {any|null} lead
 */
export async function showTogether(place, stream, lead) {
  place.hidden = true;
  if (lead?.state !== "confirmed") return;
  const query = { prefix: stream, state: "confirmed", limit: LISTED };
  const page = await get("v1/changes", query).catch(() => ({ changes: [] }));
  const own = page.changes.find((/** @type {any} */ each) => each.stream === stream && each.id === lead.id);
  if (!own?.incident) return;
  const incident = await get(`v1/incidents/${encodeURIComponent(own.incident)}`).catch(() => null);
  if (!incident) return;
  const shared = commonOf(incident.changes.map((/** @type {any} */ each) => each.stream));
  const others = incident.changes.filter((/** @type {any} */ each) => each.stream !== stream);
  const link = h("a", { href: incidentLink(incident.id) }, `incident of ${plural(incident.streams, "stream")}`);
  const names = others.slice(0, NAMED).map((/** @type {any} */ each) =>
    h("a", { href: `${linkTo(each.stream)}?at=${each.start}` }, each.stream.slice(shared.length)));
  fill(place, h("b", {}, "Part of an ", link), h("span", { class: "note" }, "with"), names);
  place.hidden = false;
}
