// What is known of one stream, and how it is kept up to date.

import { get, pathOf } from "./api.js";

const PAGE = 1000; // observations that one call answers at most
const BELIEFS = 500; // that are kept, and that one rerun answers at most

/** One stream as the page has it. */
export class Followed {
  /** @param {string} stream @param {number} wanted observations shown */
  constructor(stream, wanted) {
    this.stream = stream;
    this.wanted = wanted;
    this.summary = /** @type {any} */ (null);
    this.observations = /** @type {any[]} */ ([]);
    this.events = /** @type {any[]} */ ([]);
    this.segmentation = /** @type {any[]} */ ([]);
    this.beliefs = /** @type {Map<number, any>} */ (new Map());
    this.belief = /** @type {any} */ (null); // as of now, whole
    this.stale = true; // whether events are to be read again
    this.turn = /** @type {Promise<boolean>} */ (Promise.resolve(false));
  }

  /** Position of the observation to come, of those shown. */
  get end() {
    const last = this.observations[this.observations.length - 1];
    return last ? last.seq + 1 : 0;
  }

  /** Everything is to be read anew. */
  forget() {
    this.observations = [];
    this.beliefs = new Map();
    this.belief = null;
    this.stale = true;
  }

  /** Show more, or fewer. @param {number} wanted */
  resize(wanted) {
    return this.inTurn(() => {
      this.wanted = wanted;
      this.forget();
      return this.read();
    });
  }

  /** Forget what was believed, and read it again: somebody corrected it. */
  corrected() {
    return this.inTurn(() => {
      this.beliefs = new Map();
      this.belief = null;
      this.stale = true;
      return this.read();
    });
  }

  /** Read what came since; whether anything did. @returns {Promise<boolean>} */
  step() {
    return this.inTurn(() => this.read());
  }

  /** One reading at a time: two would add the same observations. @param {() => Promise<boolean>} ask */
  inTurn(ask) {
    const asked = this.turn.then(ask);
    this.turn = asked.catch(() => false);
    return asked;
  }

  /** @returns {Promise<boolean>} */
  async read() {
    const summary = await get(pathOf(this.stream));
    const before = this.summary;
    this.summary = summary;
    const applied = summary.seq - summary.awaited.length;
    if (applied < this.end) this.forget(); // made anew under the same id
    const came = await this.more();
    const event = JSON.stringify([summary.event, summary.last_event]);
    const changed = !before || event !== JSON.stringify([before.event, before.last_event]);
    if (this.stale || changed) await this.readEvents();
    if (came || !this.belief) await this.readBelief();
    return came || changed || JSON.stringify(before) !== JSON.stringify(summary);
  }

  /** @returns {Promise<boolean>} */
  async more() {
    const path = pathOf(this.stream, "/history");
    let came = false;
    let start = this.observations.length ? this.end : Math.max(0, this.summary.seq - this.wanted);
    if (this.summary.seq - start > this.wanted) {
      // far behind: a gap is not filled
      this.observations = [];
      start = this.summary.seq - this.wanted;
    }
    for (;;) {
      const page = await get(path, { start, limit: Math.min(PAGE, this.wanted) });
      came ||= page.observations.length > 0;
      this.observations.push(...page.observations);
      if (page.next === null || !page.observations.length) break;
      start = page.next;
    }
    this.observations.splice(0, Math.max(0, this.observations.length - this.wanted));
    return came;
  }

  async readEvents() {
    const found = await get(pathOf(this.stream, "/changepoints"));
    this.events = found.events;
    this.segmentation = found.segmentation;
    this.stale = false;
  }

  async readBelief() {
    const found = await get(pathOf(this.stream, "/run-length"));
    this.belief = found;
    if (found.seq === null || !found.belief.length) return;
    this.beliefs.set(found.seq, {
      run_length: found.belief.map((/** @type {any} */ each) => each.run_length),
      probability: found.belief.map((/** @type {any} */ each) => each.probability),
    });
    for (const seq of this.beliefs.keys()) {
      if (this.beliefs.size <= 2 * BELIEFS && seq >= (this.observations[0]?.seq ?? 0)) break;
      this.beliefs.delete(seq);
    }
  }

  /** Take in beliefs that a rerun found; those that were seen live stay. @param {any} answer */
  fillBeliefs(answer) {
    const found = beliefsOf(answer);
    this.beliefs = new Map([...new Map([...found, ...this.beliefs])].sort((a, b) => a[0] - b[0]));
  }

  /** How many beliefs a rerun is asked for. */
  get wantedBeliefs() {
    return Math.min(BELIEFS, this.wanted);
  }
}

/** @param {any} answer of what-if @returns {Map<number, any>} */
export function beliefsOf(answer) {
  return new Map((answer.beliefs ?? []).map((/** @type {any} */ each) => [each.seq, each]));
}
