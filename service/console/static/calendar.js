// The page of the calendar: planned windows, in which streams learn nothing and confirm nothing.

import { get, send } from "./api.js";
import { choice, field } from "./controls.js";
import { announce, fill, h, marked, section, table } from "./dom.js";
import { moment, plural } from "./format.js";
import { problem } from "./problems.js";
import { soon } from "./soon.js";

/** @param {string} time */
const minute = (time) => moment(time).replace(/:00$/, "");
const EVERY_MS = 30000;
const REPEATS = { "": "once", "FREQ=DAILY": "every day", "FREQ=WEEKLY": "every week", "FREQ=MONTHLY": "every month", "FREQ=YEARLY": "every year" };
const HEADS = ["Window", "When", "Streams", h("span", { class: "unseen" }, "Remove")];

/**
 * @param {HTMLElement} main @param {import("./events.js").Feed} feed
 * @returns {import("./main.js").View}
 */
export function showCalendar(main, feed) {
  feed.pause();
  const asked = new AbortController();
  const place = h("div", {}, h("p", { class: "empty" }, "Loading."));
  const trouble = h("div", {});
  const heading = h("h1", {}, "Calendar");
  let shown = "";

  async function read() {
    const year = new Date(Date.now() + 366 * 86_400_000).toISOString();
    const calendar = await get("v1/calendar", { until: year }, asked.signal);
    const text = JSON.stringify(calendar);
    if (asked.signal.aborted || text === shown) return;
    shown = text;
    const { windows } = calendar;
    heading.textContent = windows.length ? plural(windows.length, "planned window") : "No planned windows";
    fill(place, windows.length ? section("Windows", list(calendar)) : null);
  }

  /** @param {any} calendar */
  function list({ windows, times }) {
    const rows = windows.map((/** @type {any} */ each) => {
      const next = times.find((/** @type {any} */ time) => time.window === each.name);
      return [
        [h("b", {}, each.name), each.note ? h("span", { class: "note block" }, each.note) : null],
        [
          next ? `next ${minute(next.start)} to ${minute(next.end)}` : "not within a year",
          h("span", { class: "note block" }, `${each.start.replace("T", " ")} to ${each.end.replace("T", " ")} in ${each.time_zone}, `, REPEATS[/** @type {keyof typeof REPEATS} */ (each.repeat)] ?? each.repeat),
        ],
        each.match.length ? each.match.map((/** @type {string} */ one) => h("code", { class: "block" }, one)) : "all",
        h("button", { type: "button", "aria-label": `Remove window ${each.name}`, click: () => change("DELETE", each.name, undefined, "removed") }, "Remove"),
      ];
    });
    return table("Windows, by name", HEADS, rows, { unseenCaption: true });
  }

  /** @param {string} method @param {string} name @param {any} body @param {string} done */
  async function change(method, name, body, done) {
    try {
      await send(method, `v1/calendar/${encodeURIComponent(name)}`, body);
      fill(trouble);
      announce(`Window ${name} ${done}.`);
      polling.now();
      return true;
    } catch (error) {
      fill(trouble, problem(error));
      return false;
    }
  }

  const input = (/** @type {string} */ id, /** @type {any} */ props = {}) => /** @type {HTMLInputElement} */ (h("input", { id, autocomplete: "off", ...props }));
  const name = input("window-name", { required: true, maxlength: 100, pattern: "[A-Za-z0-9._\\-]+", placeholder: "backups" });
  const start = input("window-start", { type: "datetime-local", required: true });
  const end = input("window-end", { type: "datetime-local", required: true });
  const zone = input("window-zone", { required: true, value: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" });
  const repeat = choice("window-repeat", REPEATS, "", () => {});
  const match = input("window-match", { spellcheck: "false", placeholder: '{job="db"}' });
  const note = input("window-note", { maxlength: 500 });
  const form = h(
    "form",
    {
      submit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        const selector = match.value.trim();
        const body = { start: start.value, end: end.value, time_zone: zone.value.trim(), repeat: repeat.value, match: selector ? [selector] : [], note: note.value.trim() };
        if (await change("PUT", name.value.trim(), body, "set")) /** @type {HTMLFormElement} */ (form).reset();
      },
    },
    h(
      "div",
      { class: "fields" },
      field("Name", name),
      field("From, local time", start),
      field("To, local time", end),
      field("Time zone", zone),
      field("Repeated", repeat),
      field("Streams with tags; empty: all", match),
      field("Note", note),
    ),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Set window")),
  );
  fill(
    main,
    h("div", { class: "head" }, h("div", {}, heading, h("p", {}, "In a planned window streams learn nothing and confirm no change: the regime before it goes on."))),
    trouble,
    place,
    section("Set a window", form, h("p", { class: "note apart" }, marked("A name that exists is replaced. `moca calendar set` has rules such as FREQ=WEEKLY;BYDAY=SA,SU, too."))),
  );
  const polling = soon(read, { everyMs: EVERY_MS }, (error) => fill(trouble, error ? problem(error, () => polling.now()) : null));
  return {
    title: "Calendar",
    nav: "calendar",
    close() {
      polling.stop();
      asked.abort();
    },
  };
}
