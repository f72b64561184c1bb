// One stream: its chart, its events, what if, its settings.

import { pathOf, send } from "./api.js";
import { Chart } from "./chart.js";
import { announce, card, fill, h, pairs } from "./dom.js";
import { EventList } from "./eventlist.js";
import { factsOf, headline } from "./facts.js";
import { Followed } from "./follow.js";
import { count, plural, sentence, setting } from "./format.js";
import { Live } from "./live.js";
import { problem } from "./problems.js";
import { drawing } from "./series.js";
import { beliefTable, observationTable } from "./tables.js";
import { WhatIf } from "./whatif.js";

const CLOCK_MS = 1000; // how long ago something was is said anew
const WINDOWS = [100, 200, 500, 1000, 2000];

/**
 * @param {HTMLElement} main @param {string} name @param {URLSearchParams} query
 * @param {import("./events.js").Feed} feed @returns {import("./main.js").View}
 */
export function showStream(main, name, query, feed) {
  const page = new StreamPage(main, name, Number(query.get("window")) || 500, feed);
  page.wanted = query.get("at");
  return { title: name, nav: "streams", close: () => page.close() };
}

class StreamPage {
  /**
   * @param {HTMLElement} main @param {string} name @param {number} wanted
   * @param {import("./events.js").Feed} feed
   */
  constructor(main, name, wanted, feed) {
    this.name = name;
    this.data = new Followed(name, WINDOWS.includes(wanted) ? wanted : 500);
    this.tried = /** @type {any} */ (null);
    this.output = 0;
    this.following = true;
    this.begun = false;
    this.wanted = /** @type {string|null} */ (null); // a position to show at first
    this.chart = new Chart(name, () => this.drawn());
    this.chart.onZoom = () => this.chart.draw();
    this.events = new EventList(name, { show: (at) => this.find(at), judged: () => this.judged() });
    this.whatIf = new WhatIf(
      this.data,
      (tried) => this.overlay(tried),
      () => this.live.refresh(),
    );
    this.facts = h("dl", { class: "facts" });
    this.trouble = h("div", {});
    this.note = h("div", { class: "note", id: "belief-note" });
    this.tables = h("div", { class: "tables" });
    this.settings = h("div", {});
    this.outputs = h("span", {});
    this.older = h("div", { class: "note", role: "status" }); // why a position is not shown
    this.window = /** @type {HTMLSelectElement} */ (
      h("select", { id: "window", change: () => this.resize(Number(this.window.value)) })
    );
    this.body = h("div", {}, ...this.parts());
    fill(main, headline(name, this.facts), this.trouble, this.body);
    this.data.onChange = (event) => announce(`${name}: ${sentence(event)}`);
    this.live = new Live(this.data, feed, {
      drawn: () => this.shown(),
      trouble: (error) => this.inTrouble(error),
    });
    this.clock = window.setInterval(() => this.begun && this.drawFacts(), CLOCK_MS);
  }

  parts() {
    return [
      h(
        "section",
        { class: "card", "aria-label": "Chart" },
        this.toolbar(),
        this.chart.element,
        this.older,
        this.note,
        h(
          "details",
          { class: "alternative", toggle: () => this.drawTables() },
          h("summary", {}, "View as tables"),
          this.tables,
        ),
      ),
      h(
        "div",
        { class: "uneven" },
        card("Events", this.events.element),
        card("What if", this.whatIf.element),
      ),
      card("Settings", this.settings),
    ];
  }

  toolbar() {
    const shown = this.window;
    for (const n of WINDOWS)
      shown.append(
        h("option", { value: String(n), selected: n === this.data.wanted }, `last ${count(n)}`),
      );
    const follow = h(
      "button",
      {
        type: "button",
        id: "follow",
        click: () => {
          this.following = !this.following;
          follow.textContent = this.following ? "Pause" : "Follow";
          if (this.following) this.live.resume();
          else this.live.pause();
        },
      },
      "Pause",
    );
    return h(
      "div",
      { class: "toolbar" },
      h("label", { for: "window" }, "Show"),
      shown,
      this.outputs,
      follow,
      h("button", { type: "button", click: () => this.chart.reset() }, "Reset zoom"),
    );
  }

  /** Where nothing is known of the stream there is nothing but why. @param {any|null} error */
  inTrouble(error) {
    fill(this.trouble, error ? problem(error, () => this.live.resume()) : null);
    this.body.hidden = Boolean(error) && !this.begun;
  }

  /** There is something new. */
  shown() {
    if (!this.begun) this.begin();
    this.draw();
    if (this.wanted) this.find(Number(this.wanted));
    this.wanted = null;
  }

  begin() {
    this.begun = true;
    this.body.hidden = false;
    this.whatIf.begin();
    this.chooseOutput(this.data.summary.y_dim ?? 1);
    this.computeBeliefs();
  }

  /** @param {number} outputs */
  chooseOutput(outputs) {
    if (outputs < 2) return;
    const choice = h(
      "select",
      {
        id: "output",
        change: () => {
          this.output = Number(/** @type {HTMLSelectElement} */ (choice).value);
          this.chart.draw();
        },
      },
      Array.from({ length: outputs }, (_, i) => h("option", { value: String(i) }, String(i))),
    );
    fill(this.outputs, h("label", { for: "output" }, "Label dimension "), choice);
  }

  /** Beliefs are not stored with the history: those of before this page are of a rerun. */
  async computeBeliefs() {
    const { seq, settings } = this.data.summary;
    if (!Math.min(seq, settings.history)) return;
    fill(this.note, "Computing earlier beliefs...");
    try {
      const answer = await send("POST", pathOf(this.name, "/what-if"), {
        beliefs: this.data.wantedBeliefs,
      });
      this.data.fillBeliefs(answer);
      fill(
        this.note,
        "Beliefs from before this page was opened come from a rerun under the current settings.",
      );
      this.chart.draw();
    } catch (error) {
      fill(
        this.note,
        problem(error, () => this.computeBeliefs()),
      );
    }
  }

  draw() {
    this.drawFacts();
    this.chart.draw();
    const found = [...this.data.events, ...this.data.anomalies];
    this.events.draw(found, this.data.observations, this.data.summary.seq);
    this.events.drawRegimes(this.data.segmentation, this.data.hindsight);
    this.drawTables();
    const rows = Object.entries(this.data.summary.settings).map(([key, value]) => [
      key,
      setting(value, key),
    ]);
    const text = JSON.stringify(this.data.summary.settings);
    if (this.settings.dataset.shown !== text) fill(this.settings, pairs(rows));
    this.settings.dataset.shown = text;
  }

  drawFacts() {
    fill(this.facts, factsOf(this.data.summary, this.data.belief));
  }

  drawTables() {
    if (!this.tables.closest("details")?.hasAttribute("open") || !this.data.summary) return;
    fill(
      this.tables,
      observationTable(this.data.observations, this.output),
      beliefTable(this.data.belief),
    );
  }

  drawn() {
    const { observations, events, anomalies, beliefs, summary } = this.data;
    const shown = {
      observations,
      events,
      alarms: anomalies,
      alarm: summary?.settings.anomaly_alarm ?? null,
      threshold: summary?.settings.false_alarm_every ?? null,
      beliefs,
      output: this.output,
      tried: this.tried,
      regimeStart: summary?.regime_start ?? null,
    };
    return drawing(shown, this.chart.range(), this.chart.width);
  }

  /** @param {any} tried */
  overlay(tried) {
    this.tried = tried;
    this.chart.draw();
  }

  /** Show a position, in the smallest window that has it. @param {number} at */
  async find(at) {
    fill(this.older);
    if (at < this.first) {
      const window = WINDOWS.find((n) => n > this.data.end - at);
      if (window) await this.resize(window);
    }
    if (at < this.first) {
      const last = plural(this.data.observations.length, "observation");
      fill(this.older, `Observation ${at} is older than what can be shown: the last ${last}.`);
    }
    this.show(at);
  }

  /** Position of the first observation shown. */
  get first() {
    return this.data.observations[0]?.seq ?? 0;
  }

  /** @param {number} at */
  show(at) {
    const { first } = this;
    const size = Math.max(20, Math.min(60, this.data.end - at));
    if (at >= first)
      this.chart.zoom(Math.max(first, at - size), Math.min(this.data.end, at + size));
    this.chart.element.scrollIntoView({ block: "center" });
  }

  /** A verdict corrects the belief by a rerun: what is shown of it is no more. */
  async judged() {
    await this.data.corrected();
    this.draw();
    this.computeBeliefs();
  }

  /** @param {number} wanted */
  async resize(wanted) {
    this.window.value = String(wanted);
    try {
      await this.data.resize(wanted);
      this.draw();
      this.chart.reset();
      this.computeBeliefs();
    } catch (error) {
      fill(
        this.trouble,
        problem(error, () => this.resize(wanted)),
      );
    }
  }

  close() {
    this.live.close();
    window.clearInterval(this.clock);
    this.chart.close();
  }
}
