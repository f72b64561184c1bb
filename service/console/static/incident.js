// The page of an incident: its members on one axis, what they share, what is outside, how it came to light.

import { get, send } from "./api.js";
import { intervalOf, keyOf, timeAt, unitOf, wordsOf } from "./changerow.js";
import { announce, fill, h, svg, table } from "./dom.js";
import { clock, count, dayOf, lasting, number, plural } from "./format.js";
import { byKind, chanceOf, commonOf, sharedParts, tagsOf, titleOf, whenOf } from "./incidents.js";
import { roundTimes } from "./marks.js";
import { AROUND, curves, levels, linesOf } from "./pictures.js";
import { problem } from "./problems.js";
import { linkTo, streamLink } from "./row.js";
import { soon } from "./soon.js";

const EVERY_MS = 10000;
const WIDTH = 480;
const HEIGHT = 44;
const FOOT = 8; // pixels below the values, for the interval of each member
const LABELS = 5; // times above the members
const NEAR_S = 3600;
const NEAREST = 3; // other changes that are named

/**
 * @param {HTMLElement} main @param {string} id @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showIncident(main, id, feed) {
  const place = h("div", {}, h("p", { class: "empty" }, "Loading."));
  const trouble = h("div", {});
  const crumb = h("span", {}, "Incident");
  let shown = "";
  const asked = new AbortController();
  fill(main, h("p", { class: "crumb" }, h("a", { href: "#/" }, "Changes"), " / ", crumb), trouble, place);

  async function read() {
    const incident = await get(`v1/incidents/${encodeURIComponent(id)}`, { around: AROUND }, asked.signal);
    const near = await nearest(incident);
    const text = JSON.stringify([incident, near]);
    if (asked.signal.aborted || text === shown) return;
    shown = text;
    crumb.textContent = `Incident ${clock(incident.start_time)}`;
    fill(place, ...parts(incident, near, exclusion(incident)));
  }

  /** The button by which it is excluded from learning, or counts again. @param {any} incident */
  function exclusion(incident) {
    const all = incident.changes.every((/** @type {any} */ each) => each.excluded);
    const click = async (/** @type {any} */ event) => {
      event.target.disabled = true;
      try {
        const answer = await send("POST", `v1/incidents/${encodeURIComponent(id)}/exclusions`, { excluded: !all });
        const failed = answer.failed.map((/** @type {any} */ each) => each.stream).join(", ");
        fill(trouble, failed ? problem({ problem: { title: "Some streams are as they were", detail: failed } }) : null);
        announce(all ? "The incident counts again." : "The incident is excluded from learning.");
        polling.now();
      } catch (error) {
        fill(trouble, problem(error));
      } finally {
        event.target.disabled = false;
      }
    };
    const title = "Exclude from learning what followed in each stream, up to its next change: the regimes before go on";
    return h("button", { type: "button", "aria-pressed": String(all), title, click }, all ? "✓ Not normal" : "Not normal");
  }

  /** Changes that began about then, and are no part of it. @param {any} incident */
  async function nearest(incident) {
    const at = (/** @type {string} */ time, /** @type {number} */ by) => new Date(Date.parse(time) + 1000 * by).toISOString();
    const query = { since: at(incident.earliest_time, -NEAR_S), until: at(incident.updated_time, NEAR_S), state: ["confirmed", "suspected"], limit: 100 };
    const page = await get("v1/changes", query, asked.signal);
    const members = new Set(incident.changes.map(keyOf));
    return page.changes.filter((/** @type {any} */ each) => each.link && !members.has(keyOf(each))).slice(0, NEAREST);
  }

  const polling = soon(read, { everyMs: EVERY_MS }, (error) => {
    if (asked.signal.aborted) return;
    if (error?.status === 404 && !shown) fill(place, ...gone());
    else fill(trouble, error ? problem(error, () => polling.now()) : null);
  });
  feed.follow({ path: "v1/events", query: {}, on: { changepoint: () => polling.ask(), gap: () => polling.ask() } });
  return {
    title: "Incident",
    nav: "changes",
    close() {
      polling.stop();
      asked.abort();
    },
  };
}

/** @param {string} when one moment, or two */
const within = (when) => (when.includes("–") ? `between ${when.replace("–", " and ")}` : `at ${when}`);

function gone() {
  const list = h("a", { href: "#/" }, "list of changes");
  return [h("h1", {}, "There is no such incident"), h("p", {}, "Its changes are not retained any more, or were withdrawn. The ", list, " has those that are.")];
}

/** @param {any} incident @param {any[]} near @param {HTMLElement} exclusion */
function parts(incident, near, exclusion) {
  const movers = sharedParts(incident);
  const day = dayOf(incident.start_time);
  const long = lasting((Date.now() - Date.parse(incident.start_time)) / 1000);
  const { rose, fell, spread } = byKind(incident.changes);
  const directions = [[rose, "rose"], [fell, "fell"], [spread, "changed in spread"]]
    .filter(([some]) => some.length)
    .map(([some, word]) => `${count(some.length)} ${word}`)
    .join(", ");
  return [
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, `${titleOf(incident)} at ${clock(incident.start_time)}`),
        h("p", {}, `${day}, ${within(whenOf(incident))}, ${long} ago. By chance ${chanceOf(incident)} of the fleet.`),
        h("p", {}, movers.length ? [movers, ". "] : null, directions ? `${directions}.` : null),
      ),
      h("div", { class: "buttons" }, exclusion),
    ),
    h(
      "div",
      { class: "two" },
      h("div", {}, ...multiples(incident)),
      h("aside", { "aria-label": "What they share, and what is outside" }, shared(incident), outside(incident, near), log(incident)),
    ),
  ];
}

/** The members below one another, on one axis of time. @param {any} incident */
function multiples(incident) {
  const { changes } = incident;
  const prefix = commonOf(changes.map((/** @type {any} */ each) => each.stream));
  const sent = changes
    .flatMap((/** @type {any} */ each) => each.around?.times ?? [])
    .filter(Boolean)
    .map((/** @type {string} */ time) => Date.parse(time));
  const timed = sent.length > 1;
  const from = timed ? sent.reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.min(a, b)) : -AROUND;
  const to = timed ? sent.reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b)) : AROUND;
  const x = (/** @type {number} */ at) => ((at - from) / (to - from || 1)) * WIDTH;
  const ends = timed ? [Date.parse(incident.earliest_time), Date.parse(incident.latest_time)] : [0, 0];
  const grid = timed ? roundTimes(from, to, LABELS) : [];
  const label = (/** @type {number} */ at, /** @type {string} */ text, /** @type {string|null} */ kind) => {
    const span = h("span", { class: kind }, text);
    span.style.left = `${(100 * x(at)) / WIDTH}%`;
    return span;
  };
  const clear = (/** @type {number} */ at) => Math.abs(x(at) - x((ends[0] + ends[1]) / 2)) > WIDTH / 10;
  const axis = { x, ends, grid, timed };
  return [
    h(
      "div",
      { class: "times", "aria-hidden": "true" },
      grid.filter(clear).map((at) => label(at, clock(new Date(at).toISOString()), null)),
      label((ends[0] + ends[1]) / 2, timed ? whenOf(incident) : "start", "key"),
    ),
    h("ol", { class: "multiples" }, changes.map((/** @type {any} */ change) => multiple(change, prefix, axis))),
    h("p", { class: "note" }, "Each stream on its own scale, the largest change first. Bars at the foot: the start as one stream alone shows it."),
  ];
}

/** @param {any} change @param {string} prefix @param {any} axis */
function multiple(change, prefix, axis) {
  const { what, numbers } = wordsOf(change);
  const alone = intervalOf(change);
  return h(
    "li",
    { class: `multiple ${change.state}` },
    h(
      "div",
      {},
      h("h2", {}, h("a", { href: `${linkTo(change.stream)}?at=${change.start}`, class: "row-link", title: change.stream }, change.stream.slice(prefix.length))),
      h("p", { class: "note" }, what),
    ),
    h("figure", { role: "img", "aria-label": `${change.stream}: ${what}` }, change.around ? picture(change, axis) : null),
    h("div", { class: "end" }, h("b", {}, numbers), unitOf(change, change.tags.unit), alone ? h("p", { class: "note" }, `alone ${alone}`) : null),
  );
}

/** @param {any} change @param {any} axis */
function picture(change, { x, ends, grid, timed }) {
  const { values, first } = change.around;
  const at = (/** @type {number} */ seq) => {
    const time = timeAt(change, Math.min(Math.max(seq, first), first + values.length - 1));
    return timed && time ? x(Date.parse(time)) : timed ? null : x(seq - change.start);
  };
  const last = first + values.length - 1;
  const lines = linesOf(change, first - change.start, last - change.start);
  const reach = [...lines.past, ...lines.now].flatMap((line) => [line.at(line.from), line.at(line.to)]);
  const all = [...values.filter((/** @type {any} */ each) => each !== null), ...reach];
  const low = Math.min(...all);
  const span = Math.max(...all) - low || 1;
  const y = (/** @type {number} */ value) => HEIGHT - FOOT - 2 - ((value - low) / span) * (HEIGHT - FOOT - 4);
  const points = values.flatMap((/** @type {any} */ value, /** @type {number} */ i) => {
    const place = at(first + i);
    return place === null ? [] : [[place, value === null ? null : y(value)]];
  });
  const own = [change.earliest, change.latest].map((seq) => (seq === null ? null : at(seq)));
  return svg(
    "svg",
    { class: "drawn", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none", "aria-hidden": "true" },
    grid.map((/** @type {number} */ time) => svg("path", { class: "grid", d: `M${x(time).toFixed(1)} 0V${HEIGHT}` })),
    svg("rect", { class: "interval", x: x(ends[0]) - 2, y: 0, width: x(ends[1]) - x(ends[0]) + 4, height: HEIGHT }),
    curves(points, change.start - first),
    levels(lines, (by) => at(change.start + by) ?? 0, y),
    own[0] === null || own[1] === null ? null : svg("path", { class: "own", d: `M${own[0] - 2} ${HEIGHT - 2}H${own[1] + 2}` }),
  );
}

/** @param {any} incident */
function shared(incident) {
  const rows = incident.movers.map((/** @type {any} */ mover) => [
    tagsOf(mover),
    `${count(mover.changed)} of ${count(mover.streams)}`,
    number(mover.expected, 2),
  ]);
  return h(
    "section",
    {},
    h("h2", {}, "What they share"),
    rows.length
      ? table("Tags with an unlikely share of the changed streams", ["Tag", "Changed", "Expected"], rows, { unseenCaption: true, numbers: [1, 2] })
      : h("p", { class: "note" }, "No tag stands out: the streams have none in common, or none that others lack."),
  );
}

/** @param {any} incident @param {any[]} near */
function outside(incident, near) {
  const rows = incident.movers
    .filter((/** @type {any} */ mover) => mover.streams > mover.changed)
    .map((/** @type {any} */ mover) => [`others of ${tagsOf(mover)}`, count(mover.streams - mover.changed)]);
  rows.push(["all other streams", count(Math.max(0, incident.fleet - incident.streams))]);
  const names = near.flatMap((each, i) => {
    const time = each.start_time ? ` ${clock(each.start_time)}` : "";
    return [i ? ", " : "", streamLink(each.stream), ` ${each.state}${time}`];
  });
  return h(
    "section",
    {},
    h("h2", {}, "What is outside"),
    table("Streams that did not change with them", ["Streams", "Unchanged then"], rows, { unseenCaption: true, numbers: [1] }),
    names.length ? h("p", { class: "note" }, "Near it, no part of it: ", names, ".") : null,
  );
}

/** @param {any} incident */
function log(incident) {
  const by = (/** @type {string} */ name) => [...incident.changes].filter((each) => each[name]).sort((a, b) => Date.parse(a[name]) - Date.parse(b[name]));
  // A suspicion from before, of a stream that joined, is none of this incident.
  const began = Date.parse(incident.earliest_time);
  const [suspected] = by("suspected_time").filter((each) => Date.parse(each.suspected_time) >= began);
  const confirmed = by("confirmed_time");
  const last = confirmed[confirmed.length - 1];
  const rows = [[clock(incident.start_time), "most probable start"]];
  if (suspected) rows.push([clock(suspected.suspected_time), `first suspicion, ${suspected.stream}`]);
  if (confirmed.length) rows.push([clock(confirmed[0].confirmed_time), `first confirmed, ${confirmed[0].stream}`]);
  if (last && confirmed.length > 1) rows.push([clock(last.confirmed_time), `${plural(incident.streams, "stream")}, the last: ${last.stream}`]);
  return h("section", {}, h("h2", {}, "How it came to light"), table("Steps in time", ["Time", "What"], rows, { unseenCaption: true }));
}
