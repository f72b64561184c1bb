// Changepoint events as they are raised. Not by EventSource, which cannot send a key.

import { address, request, retryMs } from "./api.js";

const FIRST_MS = 1000;
const LONGEST_MS = 30000;
const HIDDEN_MS = 20000; // a tab nobody looks at gives its connection back; it resumes later

/** @typedef {{stream: string, model: string, event: any, time: string|null, at: string}} Raised */

/** One connection, resumed where it was lost. */
export class Feed {
  /** @param {(state: string) => void} onState connecting, live, paused, lost */
  constructor(onState) {
    this.onState = onState;
    this.filters = /** @type {Record<string, any>} */ ({});
    this.onEvent = (/** @type {Raised} */ _) => {};
    this.onGap = () => {};
    this.cursor = "";
    this.stopping = /** @type {AbortController|null} */ (null);
    this.round = 0;
    let hiding = 0;
    document.addEventListener("visibilitychange", () => {
      window.clearTimeout(hiding);
      if (document.hidden) hiding = window.setTimeout(() => this.pause(), HIDDEN_MS);
      else if (!this.stopping) this.connect();
    });
  }

  /**
   * Follow what fits the filters, from now on.
   * @param {Record<string, any>} filters @param {(raised: Raised) => void} onEvent
   * @param {() => void} [onGap] events were lost: what is shown is to be read again
   */
  follow(filters, onEvent, onGap = () => {}) {
    this.onEvent = onEvent;
    this.onGap = onGap;
    if (this.stopping && JSON.stringify(filters) === JSON.stringify(this.filters)) return;
    this.filters = filters;
    this.cursor = "";
    this.connect();
  }

  /** Give the connection back; `follow` makes another. */
  pause() {
    this.stopping?.abort();
    this.stopping = null;
    this.onState("paused");
  }

  connect() {
    this.stopping?.abort();
    this.stopping = new AbortController();
    this.run(this.stopping.signal, ++this.round);
  }

  /** @param {AbortSignal} signal @param {number} round */
  async run(signal, round) {
    let pause = FIRST_MS;
    while (round === this.round && !signal.aborted) {
      this.onState("connecting");
      try {
        /** @type {Record<string, string>} */
        const given = this.cursor ? { "Last-Event-ID": this.cursor } : {};
        const url = address("v1/events", this.filters);
        const response = await request(url, {
          headers: { Accept: "text/event-stream", ...given },
          signal,
        });
        this.onState("live");
        pause = FIRST_MS;
        await this.read(response, signal);
      } catch (error) {
        if (signal.aborted) return;
        pause = Math.max(pause, retryMs(error));
      }
      if (signal.aborted) return;
      this.onState("lost");
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(2 * pause, LONGEST_MS);
    }
  }

  /** @param {Response} response @param {AbortSignal} signal */
  async read(response, signal) {
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split("\n\n");
      text = blocks.pop() ?? "";
      blocks.forEach((block) => this.take(block));
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
    if (kind === "changepoint") this.onEvent(JSON.parse(data));
    else if (kind === "gap") this.onGap();
  }
}
