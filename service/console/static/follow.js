// What is known of one stream, and how it is kept up to date.

import { get, pathOf, send } from "./api.js";

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
    this.events = /** @type {any[]} */ ([]); // changes
    this.anomalies = /** @type {any[]} */ ([]);
    this.segmentation = /** @type {any[]} */ ([]);
    this.hindsight = /** @type {any} */ (null); // how far the segmentation is one in hindsight
    this.beliefs = /** @type {Map<number, any>} */ (new Map());
    this.belief = /** @type {any} */ (null); // as of now, whole
    this.rerun = 0; // how often beliefs were forgotten, which a rerun computes
    this.ahead = /** @type {any} */ (null); // forecast of the next observation
    this.loaded = false; // whether everything was read; what comes then is added
    this.next = 0; // position of the observation to come
    this.came = /** @type {{kind: string, data: any}[]} */ ([]); // and is to be taken in
    this.told = ""; // of events, when they were last read
    this.more = false; // observations that came since the belief was read
    this.onChange = (/** @type {any} */ _) => {}; // of an event that is new, or in another state
    this.turn = /** @type {Promise<boolean>} */ (Promise.resolve(false));
  }

  /** Position after the last observation shown. */
  get end() {
    const last = this.observations[this.observations.length - 1];
    return last ? last.seq + 1 : 0;
  }

  /** Whether there is something to read that messages do not say. */
  get behind() {
    return this.more || this.awaits || this.told !== this.said;
  }

  /** Whether the segmentation in hindsight is being computed. */
  get awaits() {
    return this.hindsight?.status === "pending";
  }

  /** What the summary says of events. */
  get said() {
    const { event, last_event, last_anomaly } = this.summary ?? {};
    return JSON.stringify([event, last_event, last_anomaly]);
  }

  /** Everything is to be read anew. */
  forget() {
    this.observations = [];
    this.beliefs = new Map();
    this.rerun += 1;
    this.belief = null;
    this.loaded = false;
  }

  /** Messages begin anew: what came before is not of them. */
  begin() {
    this.came = [];
    this.loaded = false;
  }

  /** Show more, or fewer. @param {number} wanted */
  resize(wanted) {
    return this.inTurn(() => {
      this.wanted = wanted;
      this.forget();
      return this.merge();
    });
  }

  /** Forget what was believed, and read it again: somebody corrected it. */
  corrected() {
    return this.inTurn(async () => {
      this.beliefs = new Map();
      this.rerun += 1;
      await Promise.all([this.readEvents(true), this.readBelief()]);
      return true;
    });
  }

  /** A message came. @param {string} kind @param {any} data */
  take(kind, data) {
    this.came.push({ kind, data });
  }

  /** Take in what came, and read what was never read; whether anything is new. */
  step() {
    return this.inTurn(() => this.merge());
  }

  /** Read what messages do not say; observations are taken in meanwhile. */
  async details() {
    const { more, said } = this;
    // Hindsight that was being computed is there soon after.
    if (this.awaits || this.told !== said) await this.readEvents(false, true);
    this.told = said;
    if (!more) return;
    this.more = false; // until another comes
    try {
      await Promise.all([this.readBelief(), this.readAhead()]);
    } catch (error) {
      this.more = true;
      throw error;
    }
  }

  /** One reading at a time: two would add the same observations. @param {() => Promise<boolean>} ask */
  inTurn(ask) {
    const asked = this.turn.then(ask);
    this.turn = asked.catch(() => false);
    return asked;
  }

  /** @returns {Promise<boolean>} */
  async merge() {
    let news = !this.loaded;
    if (!this.loaded) await this.load();
    for (const { kind, data } of this.came.splice(0)) news = this.one(kind, data) || news;
    this.observations.splice(0, Math.max(0, this.observations.length - this.wanted));
    return news;
  }

  /** @param {string} kind @param {any} data @returns {boolean} */
  one(kind, data) {
    if (kind === "state") {
      this.summary = data;
      return true;
    }
    const at = kind === "gap" ? data.end : data.seq;
    if (at < this.next || (kind === "gap" && at === this.next)) return false; // known already
    if (at > this.next) this.observations = []; // a gap is not filled
    if (kind === "observation") this.observations.push(data);
    this.next = kind === "gap" ? at : at + 1;
    this.more = true;
    return true;
  }

  async load() {
    const summary = await get(pathOf(this.stream));
    if (this.summary && summary.created !== this.summary.created) this.forget(); // made anew
    this.summary = summary;
    await this.readObservations();
    // In this order: the belief would wait for hindsight, which reading events may begin.
    await Promise.all([this.readBelief(), this.readAhead()]);
    await this.readEvents();
    this.told = this.said;
    this.more = false;
    this.loaded = true;
  }

  async readObservations() {
    const path = pathOf(this.stream, "/history");
    const found = [];
    let start = Math.max(0, this.summary.seq - this.wanted);
    for (;;) {
      const page = await get(path, { start, limit: Math.min(PAGE, this.wanted), detail: "full" });
      found.push(...page.observations);
      this.next = page.seq;
      if (page.next === null || !page.observations.length) break;
      start = page.next;
    }
    this.observations = found;
  }

  /**
   * @param {boolean} [expected] whether the change was announced already
   * @param {boolean} [wait] for hindsight; the page is drawn first
   */
  async readEvents(expected = false, wait = false) {
    const found = await get(pathOf(this.stream, "/changepoints"), { wait, kind: "all", state: ["confirmed", "suspected", "withdrawn"] });
    const before = [...this.events, ...this.anomalies];
    const known = new Map(before.map((each) => [keyOf(each), stateOf(each)]));
    const changed = found.events.filter(
      (/** @type {any} */ each) => known.get(keyOf(each)) !== stateOf(each),
    );
    const strange = (/** @type {any} */ each) => each.kind === "anomaly";
    this.events = found.events.filter((/** @type {any} */ each) => !strange(each));
    this.anomalies = found.events.filter(strange);
    this.segmentation = found.segmentation;
    this.hindsight = found.hindsight;
    if (this.loaded && !expected) changed.forEach(this.onChange);
  }

  /** Forecast the next value; of some streams none can be made, such as of those with inputs. */
  async readAhead() {
    const { warming_up, x_dim, seq } = this.summary;
    if (warming_up || x_dim || !seq) return;
    const body = { quantiles: [0.05, 0.5, 0.95] };
    const answer = await send("POST", pathOf(this.stream, "/predictions"), body).catch(() => null);
    this.ahead = answer?.predictions[0] ?? null;
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

/** @param {any} event ids are of a kind */
const keyOf = (event) => `${event.kind} ${event.id}`;

/** @param {any} event */
const stateOf = (event) => `${event.state} ${event.start}`;

/** @param {any} answer of what-if @returns {Map<number, any>} */
export function beliefsOf(answer) {
  return new Map((answer.beliefs ?? []).map((/** @type {any} */ each) => [each.seq, each]));
}
