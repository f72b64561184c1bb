// What the service tells by itself, over server-sent events. Not by EventSource, which cannot send a key.

import { address, request, retryMs } from "./api.js";

const FIRST_MS = 1000;
const LONGEST_MS = 30000;
const HIDDEN_MS = 20000; // a tab nobody looks at gives its connection back; it resumes later
const SILENCE_MS = 60000; // without even a heartbeat: the other end is gone

/** @typedef {{stream: string, model: string, event: any, time: string|null, at: string}} Raised */

/**
 * What a page follows. on: what each kind of message does. opened, failed: of each connection.
 * resumeMs: after a longer absence it begins anew, rather than with all that was missed.
 * @typedef {{
 *   path: string, query: Record<string, any>, on: Record<string, (data: any) => void>,
 *   opened?: (resumed: boolean) => void, failed?: (error: any) => void, resumeMs?: number
 * }} Wanted
 */

/** One connection at a time, resumed where it was lost. A browser has six for one service. */
export class Feed {
  /** @param {(state: string) => void} onState connecting, live, paused, lost, refused, none */
  constructor(onState) {
    this.onState = onState;
    this.wanted = /** @type {Wanted|null} */ (null);
    this.cursor = "";
    this.held = false; // whether somebody wants no connection for now
    this.left = 0; // when the last connection was given back
    this.stopping = /** @type {AbortController|null} */ (null);
    this.round = 0;
    let hiding = 0;
    document.addEventListener("visibilitychange", () => {
      window.clearTimeout(hiding);
      if (document.hidden) hiding = window.setTimeout(() => this.rest(this.held), HIDDEN_MS);
      else if (this.wanted && !this.stopping && !this.held) this.connect();
    });
  }

  /** Follow something, from now on. @param {Wanted} wanted */
  follow(wanted) {
    const same =
      this.wanted?.path === wanted.path &&
      JSON.stringify(this.wanted.query) === JSON.stringify(wanted.query);
    this.wanted = wanted;
    if (this.stopping && same && !wanted.opened) return;
    this.cursor = "";
    this.connect();
  }

  /** Follow nothing. */
  pause() {
    this.wanted = null;
    this.rest();
    this.onState("none");
  }

  /** Give the connection back for now. @param {boolean} [held] until `connect` is called */
  rest(held = false) {
    if (this.stopping) this.left = Date.now();
    this.held = held;
    this.stopping?.abort();
    this.stopping = null;
    this.onState("paused");
  }

  /** Connect at once, and go on where it was. */
  connect() {
    if (!this.wanted) return;
    this.held = false;
    const resting = this.stopping === null;
    if (resting && Date.now() - this.left > (this.wanted.resumeMs ?? Infinity)) this.cursor = "";
    this.stopping?.abort();
    this.stopping = new AbortController();
    this.run(this.wanted, this.stopping.signal, ++this.round);
  }

  /** @param {Wanted} wanted @param {AbortSignal} signal @param {number} round */
  async run(wanted, signal, round) {
    let pause = FIRST_MS;
    let failure = "lost";
    while (round === this.round && !signal.aborted) {
      this.onState("connecting");
      try {
        /** @type {Record<string, string>} */
        const given = this.cursor ? { "Last-Event-ID": this.cursor } : {};
        const response = await request(address(wanted.path, wanted.query), {
          headers: { Accept: "text/event-stream", ...given },
          signal,
        });
        this.onState("live");
        failure = "lost";
        pause = FIRST_MS;
        this.wanted?.opened?.(this.cursor !== "");
        await this.read(response, signal);
      } catch (error) {
        if (signal.aborted) return;
        const { status } = /** @type {any} */ (error);
        failure = failureOf(status);
        if (status === 409) this.cursor = ""; // of what is there no more
        pause = Math.max(pause, retryMs(error));
        if (status !== undefined) this.wanted?.failed?.(error);
      }
      if (signal.aborted) return;
      this.onState(failure);
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(2 * pause, LONGEST_MS);
    }
  }

  /** @param {Response} response @param {AbortSignal} signal */
  async read(response, signal) {
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    let text = "",
      silence = 0;
    try {
      for (;;) {
        silence = window.setTimeout(() => reader.cancel(), SILENCE_MS);
        const { done, value } = await reader.read();
        window.clearTimeout(silence);
        if (done || signal.aborted) return;
        text += decoder.decode(value, { stream: true });
        const blocks = text.split("\n\n");
        text = blocks.pop() ?? "";
        blocks.forEach((block) => this.take(block));
      }
    } finally {
      window.clearTimeout(silence);
    }
  }

  /** @param {string} block one message, or comments with a cursor */
  take(block) {
    let kind = "message",
      data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) this.cursor = line.slice(4);
      else if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (kind === "end") this.cursor = "";
    if (data) this.wanted?.on[kind]?.(JSON.parse(data));
  }
}

/** What a connection that came to nothing is shown as. @param {number|undefined} status 0: there was no answer */
function failureOf(status) {
  if (!status) return "lost";
  if (status === 404) return "absent";
  return status < 500 ? "refused" : "error";
}
