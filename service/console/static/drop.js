// A CSV file that is dropped on the page, or chosen, becomes streams: looked at first, then posted.
// The service reads it, as `moca replay` does.

import { address, get, pathOf, request, retryMs, send } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { count, plural } from "./format.js";
import { problem } from "./problems.js";
import { streamLink } from "./row.js";

const AT_ONCE = 500; // observations of one request
const LISTED = 8; // streams that are named
const REFUSED = [400, 413, 422]; // statuses of what is wrong with a file

/** A file that cannot become streams; the message says what to do. */
class BadFile extends Error {}

/** @typedef {{y: any, x?: number[], time?: string}} Observation */
/** @typedef {Map<string, Observation[]>} Streams observations by id, in order */

/** @param {HTMLElement} target of drops @param {() => void} done something was posted */
export function csvDrop(target, done) {
  const place = h("div", { "aria-live": "polite" });
  const input = /** @type {HTMLInputElement} */ (
    h("input", { type: "file", id: "csv", accept: ".csv,text/csv,.tsv,.txt", class: "unseen", change: () => take(input.files?.[0]) })
  );
  const element = h("div", { class: "import" }, input, h("label", { for: "csv", class: "button" }, "Add streams from CSV"));
  const over = (/** @type {DragEvent} */ event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // or the browser opens the file
    target.classList.add("dropping");
  };
  const leave = () => target.classList.remove("dropping");
  const drop = (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    leave();
    take(event.dataTransfer?.files[0]);
  };
  target.addEventListener("dragover", over);
  target.addEventListener("dragleave", leave);
  target.addEventListener("drop", drop);
  let closed = false;

  /** @param {File|undefined} file */
  async function take(file) {
    if (!file) return;
    input.value = ""; // the same file may be chosen again
    try {
      const { streams, notices } = await read(file);
      await refuseThoseThere([...streams.keys()]);
      offer(streams, notices);
    } catch (error) {
      fill(place, error instanceof BadFile ? refusal(file.name, error.message) : problem(error));
    }
  }

  /** @param {Streams} streams @param {string[]} notices */
  function offer(streams, notices) {
    const names = [...streams.keys()];
    const rows = [...streams.values()].reduce((sum, each) => sum + each.length, 0);
    const more = names.length > LISTED ? ` and ${count(names.length - LISTED)} more` : "";
    const timed = streams.get(names[0])?.[0].time ? " Times without a zone are read as UTC." : "";
    const create = h("button", { type: "button", class: "primary", click: () => post(streams) }, `Create ${plural(names.length, "stream")}`);
    fill(
      place,
      h(
        "section",
        { class: "section", "aria-label": "Streams from CSV" },
        h("p", {}, `${plural(rows, "observation")} of ${names.slice(0, LISTED).join(", ")}${more}.${timed}`),
        notices.map((notice) => h("p", {}, `${notice}.`)),
        h("div", { class: "buttons" }, create, h("button", { type: "button", click: () => fill(place) }, "Cancel")),
      ),
    );
    create.focus();
  }

  /** @param {Streams} streams */
  async function post(streams) {
    const said = h("p", { class: "note", role: "status" });
    fill(place, h("section", { class: "section" }, said));
    try {
      let n = 0;
      for (const [stream, observations] of streams) {
        said.textContent = `Posting ${stream}, ${count(++n)} of ${count(streams.size)}.`;
        for (let i = 0; i < observations.length && !closed; i += AT_ONCE)
          await patiently(stream, observations.slice(i, i + AT_ONCE));
        if (closed) return announce(`Stopped at stream ${stream}: the page was left.`);
      }
    } catch (error) {
      fill(place, problem(error));
      return;
    }
    const links = [...streams.keys()].slice(0, LISTED).flatMap((stream) => [streamLink(stream), " "]);
    fill(place, h("section", { class: "section" }, h("p", {}, `Created ${plural(streams.size, "stream")}: `, links)));
    announce(`Created ${plural(streams.size, "stream")}.`);
    done();
  }

  return {
    element,
    place,
    close() {
      closed = true;
      target.removeEventListener("dragover", over);
      target.removeEventListener("dragleave", leave);
      target.removeEventListener("drop", drop);
    },
  };
}

/** @param {File} file @returns {Promise<{streams: Streams, notices: string[]}>} */
async function read(file) {
  const name = file.name.replace(/\.[^.]*$/, "").slice(0, 100);
  const init = { method: "POST", headers: { "Content-Type": "text/csv" }, body: file };
  let answer;
  try {
    answer = await (await request(address("v1/files", { name }), init)).json();
  } catch (error) {
    const { status, problem: refused } = /** @type {any} */ (error);
    if (!REFUSED.includes(status)) throw error;
    const why = refused.errors?.map((/** @type {any} */ each) => each.detail).join("; ");
    throw new BadFile(`${why ?? refused.detail}.`);
  }
  const streams = /** @type {Streams} */ (new Map());
  for (const [stream, { y, x, time }] of Object.entries(answer.streams))
    streams.set(
      stream,
      y.map((/** @type {any} */ label, /** @type {number} */ i) => ({
        y: label,
        ...(x && { x: x[i] }),
        ...(time && { time: time[i] }),
      })),
    );
  return { streams, notices: answer.notices };
}

/** Post, as often as the service is busy. @param {string} stream @param {any[]} observations */
async function patiently(stream, observations) {
  for (;;) {
    try {
      await send("POST", pathOf(stream, "/observations"), observations);
      return;
    } catch (error) {
      const { status } = /** @type {any} */ (error);
      if (status !== 429) throw error; // it was refused whole: nothing is posted twice
      await new Promise((resolve) => setTimeout(resolve, retryMs(error) || 1000));
    }
  }
}

/** Observations are not added to a stream that somebody else has. @param {string[]} names */
async function refuseThoseThere(names) {
  for (const name of names) {
    const { streams } = await get("v1/streams", { prefix: name, limit: 1 });
    if (streams[0]?.stream === name)
      throw new BadFile(`There is a stream “${name}” already: rename the file or its column, or delete that stream.`);
  }
}

/** @param {string} name @param {string} why */
const refusal = (name, why) =>
  h("div", { class: "problem", role: "alert" }, h("strong", {}, `Cannot read ${name}`), h("p", {}, why));
