// How the page of a stream is kept up to date: by one connection, and reads that follow what it says.

import { pathOf } from "./api.js";
import { soon } from "./soon.js";

const MERGE_MS = 100; // observations that come one by one are drawn ten times a second at most
const DETAILS_MS = 1000; // what they do not say, the belief and the list of changes, is asked for
const RESUME_MS = 60000; // after a longer absence the page is read anew: much may have come
const REFUSED = [0, 401, 403, 404, 422]; // a read would be refused as well

export class Live {
  /**
   * @param {import("./follow.js").Followed} data @param {import("./events.js").Feed} feed
   * @param {{drawn: () => void, trouble: (error: any|null) => void}} page
   */
  constructor(data, feed, page) {
    this.data = data;
    this.feed = feed;
    this.page = page;
    this.connected = false;
    this.merging = soon(() => this.merge(), { apartMs: MERGE_MS }, (error) => this.said(error));
    this.details = soon(() => this.more(), { apartMs: DETAILS_MS }, (error) => this.said(error));
    this.follow();
  }

  follow() {
    const take = (/** @type {string} */ kind) => (/** @type {any} */ found) => {
      this.data.take(kind, found);
      this.merging.ask();
    };
    this.feed.follow({
      path: pathOf(this.data.stream, "/observations/live"),
      query: { state: true, detail: "full" },
      on: { observation: take("observation"), state: take("state"), gap: take("gap") },
      opened: (resumed) => this.opened(resumed),
      failed: (error) => this.failed(error),
      resumeMs: RESUME_MS,
    });
  }

  /** What came while this page was away is sent; without a place to resume it is read. @param {boolean} resumed */
  opened(resumed) {
    this.connected = true;
    if (!resumed) this.data.begin();
    this.page.trouble(null);
    this.merging.ask();
  }

  /** @param {any} error */
  failed(error) {
    this.connected = false;
    this.page.trouble(error);
    if (REFUSED.includes(error.status)) return;
    this.data.loaded = false; // read, as nothing is told
    this.merging.ask();
  }

  /** Without a connection its own error is shown. @param {any|null} error */
  said(error) {
    if (this.connected) this.page.trouble(error);
  }

  async merge() {
    if (!(await this.data.step())) return;
    this.page.drawn();
    if (this.data.behind) this.details.ask();
  }

  async more() {
    await this.data.details();
    this.page.drawn();
  }

  /** Read everything again. */
  refresh() {
    this.data.loaded = false;
    this.merging.ask();
  }

  pause() {
    this.connected = false;
    this.feed.rest(true);
  }

  resume() {
    this.feed.connect();
  }

  close() {
    this.merging.stop();
    this.details.stop();
  }
}
