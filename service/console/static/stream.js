// One stream: its sentence, its chart, and folds with what is behind it.

import { pathOf, send } from "./api.js";
import { Chart } from "./chart.js";
import { announce, fill, h, pairs } from "./dom.js";
import { EventList } from "./eventlist.js";
import { factsOf, rulesOf } from "./facts.js";
import { Fold } from "./folds.js";
import { Followed } from "./follow.js";
import { count, dayOf, moment, once, percent, plural, setting, standing } from "./format.js";
import { showTogether } from "./incidents.js";
import { Live } from "./live.js";
import { changedOutput, one } from "./pictures.js";
import { problem } from "./problems.js";
import { RegimeList, nameOf } from "./regimes.js";
import { beliefDrawing, evidenceDrawing, valuesDrawing, whole } from "./series.js";
import { beliefTable, observationTable } from "./tables.js";
import { headingParts, leadOf, placeOf, refill, subject, timeOf, verdictText } from "./verdict.js";
import { WhatIf } from "./whatif.js";

const CLOCK_MS = 1000; // how long ago something was is said anew
const WINDOWS = [100, 200, 500, 1000, 2000];
const FEWEST = 20; // observations on both sides of a position that is shown
const MOST = 60;
const DATED = "2024-05-01 00:00".length; // of a moment that is not a whole day
const SOME = 2; // evidence from which there is any

/**
 * @param {HTMLElement} main @param {string} name @param {URLSearchParams} query
 * @param {import("./events.js").Feed} feed @returns {import("./main.js").View}
 */
export function showStream(main, name, query, feed) {
  const page = new StreamPage(main, name, query, feed);
  return { title: name, nav: "streams", close: () => page.close() };
}

class StreamPage {
  /**
   * @param {HTMLElement} main @param {string} name @param {URLSearchParams} query
   * @param {import("./events.js").Feed} feed
   */
  constructor(main, name, query, feed) {
    const wanted = Number(query.get("window"));
    this.name = name;
    this.data = new Followed(name, WINDOWS.includes(wanted) ? wanted : 500);
    this.at = query.get("at") === null ? null : Number(query.get("at")); // start that the page is about
    this.range = /** @type {[number, number]|null} */ (null); // that is shown; null: everything
    this.found = false; // whether the position of the address was shown
    this.tried = /** @type {any} */ (null);
    this.chosen = /** @type {number|null} */ (null); // output; null: the one that changed
    this.choice = /** @type {HTMLSelectElement|null} */ (null);
    this.following = true;
    this.begun = false;
    this.values = this.chart(valuesDrawing, "Values");
    this.evidence = this.chart(evidenceDrawing, "Evidence");
    this.belief = this.chart(beliefDrawing, "Run-length belief");
    this.events = new EventList(name, { show: (at) => this.find(at), judged: () => this.judged() });
    this.regimes = new RegimeList(name, () => this.values.draw());
    this.whatIf = new WhatIf(
      this.data,
      (tried) => this.overlay(tried),
      () => this.live.refresh(),
    );
    this.subject = h("span", { class: "subject" }, name);
    this.heading = h("span", {});
    this.verdict = h("p", { id: "verdict" });
    this.feedback = h("div", { class: "do" });
    this.facts = h("div", {});
    this.trouble = h("div", {});
    this.note = h("div", { class: "note", id: "belief-note" });
    this.table = h("div", { class: "tables" });
    this.starts = h("div", {});
    this.settings = h("div", {});
    this.outputs = h("span", { class: "buttons" });
    this.older = h("div", { class: "note", role: "status" }); // why a position is not shown
    this.together = h("div", { class: "together", hidden: true });
    this.windows = h("div", { class: "seg", role: "group", "aria-label": "Observations shown" });
    this.reset = h("button", { type: "button", hidden: true, click: () => this.zoom(null) }, "Reset zoom");
    this.folds = this.makeFolds();
    this.body = h("div", {}, ...this.parts());
    this.head = h(
      "div",
      { class: "head" },
      h("div", {}, h("h1", {}, this.subject, this.heading), this.verdict),
      this.feedback,
    );
    fill(main, h("p", { class: "crumb" }, h("a", { href: "#/" }, "Changes"), " / ", h("a", { href: "#/streams" }, "Streams")), this.head, this.trouble, this.body);
    this.body.hidden = true;
    this.data.onChange = (event) => announce(`${name}: ${event.sentence}, ${standing(event)}`);
    this.live = new Live(this.data, feed, {
      drawn: () => this.shown(),
      trouble: (error) => this.inTrouble(error),
    });
    this.clock = window.setInterval(() => this.begun && this.folds.settings.draw(), CLOCK_MS);
  }

  /** @param {typeof valuesDrawing} drawing @param {string} title */
  chart(drawing, title) {
    const chart = new Chart(`${title} of ${this.name}`, () => drawing(this.drawn(), this.range, chart.width));
    chart.onZoom = (range) => this.zoom(range);
    return chart;
  }

  makeFolds() {
    const list = h("div", {}, this.events.element);
    const facts = h("div", {}, this.facts, h("h2", {}, "Settings"), this.settings);
    const download = h("button", { type: "button", click: () => this.download() }, "Download as CSV");
    return {
      evidence: new Fold("Evidence over time", this.evidence.element, () => this.evidence.draw()),
      start: new Fold("Where it began", this.starts, () => fill(this.starts, beliefTable(this.data.belief, this.data.observations))),
      earlier: new Fold("All changes", list),
      regimes: new Fold("Remembered regimes", this.regimes.element, () => this.listRegimes()),
      whatIf: new Fold("What if", this.whatIf.element),
      belief: new Fold("Run-length belief", h("div", {}, this.belief.element, this.note), () => this.openBelief()),
      settings: new Fold("Settings and model", facts, () => this.drawSettings()),
      values: new Fold("Values as a table", h("div", {}, download, this.table), () =>
        fill(this.table, observationTable(this.data.observations, this.output))),
    };
  }

  parts() {
    for (const n of WINDOWS)
      this.windows.append(
        h("button", { type: "button", "data-window": n, click: () => this.resize(n) }, count(n)),
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
    return [
      h(
        "div",
        { class: "bar" },
        h("div", { class: "buttons" }, this.windows, this.outputs, follow, this.reset),
        h("span", { class: "note" }, "shaded: 90 % of what was forecast one observation ahead"),
      ),
      this.values.element,
      this.older,
      this.together,
      h("div", { class: "folds" }, Object.values(this.folds).map((fold) => fold.element)),
    ];
  }

  /** Where nothing is known of the stream there is nothing but why. @param {any|null} error */
  inTrouble(error) {
    const unknown = error?.status === 404 && !this.begun;
    if (unknown) {
      fill(this.heading, "There is no such stream");
      fill(this.verdict, "It appears here with its first observation. The ", h("a", { href: "#/streams" }, "list of streams"), " has those that exist.");
    }
    fill(this.trouble, error && !unknown ? problem(error, () => this.live.resume()) : null);
    this.body.hidden = !this.begun;
  }

  /** There is something new. */
  shown() {
    if (!this.begun) this.begin();
    this.draw();
    if (this.at !== null && !this.found) this.find(this.at, false);
    this.found = true;
  }

  begin() {
    this.begun = true;
    this.body.hidden = false;
    this.whatIf.begin();
    this.chooseOutput(this.data.summary.y_dim ?? 1);
  }

  /** @param {number} outputs */
  chooseOutput(outputs) {
    if (outputs < 2) return;
    const choice = h(
      "select",
      {
        id: "output",
        change: () => {
          this.chosen = Number(choice.value);
          this.drawCharts();
        },
      },
      Array.from({ length: outputs }, (_, i) => h("option", { value: String(i) }, String(i + 1))),
    );
    this.choice = choice;
    fill(this.outputs, h("label", { for: "output" }, "Output "), choice);
  }

  /** Beliefs are not stored with the history: those of before this page are of a rerun. */
  openBelief() {
    this.belief.draw();
    if (this.note.dataset.of === String(this.data.rerun)) return;
    this.note.dataset.of = String(this.data.rerun);
    this.computeBeliefs();
  }

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
      this.belief.draw();
    } catch (error) {
      fill(
        this.note,
        problem(error, () => this.computeBeliefs()),
      );
    }
  }

  get lead() {
    return leadOf(this.data.events, this.at);
  }

  /** The output that is shown: of the change that the page is about, unless another was chosen. */
  get output() {
    return this.chosen ?? changedOutput(this.lead?.explanation);
  }

  draw() {
    const { summary, observations, events, anomalies, segmentation, hindsight } = this.data;
    const { lead } = this;
    refill(this.subject, subject(this.name, summary));
    refill(this.heading, headingParts(summary, lead, observations));
    const time = lead && timeOf(observations, lead.start);
    const dated = !time || dayOf(time) === "Today" || moment(time).length < DATED;
    const day = dated ? "" : `${dayOf(time)}. `;
    refill(this.verdict, [day + verdictText(summary, lead, observations)]);
    this.head.dataset.state = lead?.state ?? "steady";
    this.drawLead(lead);
    for (const button of this.windows.children)
      button.setAttribute("aria-pressed", String(Number(button.getAttribute("data-window")) === this.data.wanted));
    this.drawCharts();
    this.events.draw([...events, ...anomalies], observations, summary.seq);
    this.events.drawRegimes(segmentation, hindsight);
    this.answerFolds();
  }

  /** @param {any|null} lead */
  drawLead(lead) {
    const text = JSON.stringify([lead?.id, lead?.state, lead?.verdict, lead?.excluded]);
    if (this.feedback.dataset.of === text) return;
    this.feedback.dataset.of = text;
    fill(this.feedback, lead ? this.events.buttons(lead) : null);
    showTogether(this.together, this.name, lead);
  }

  drawCharts() {
    if (this.choice) this.choice.value = String(this.output);
    this.values.draw();
    this.folds.evidence.draw();
    if (this.folds.belief.open) this.belief.draw();
    this.folds.values.draw();
  }

  /** The lines of the closed folds. */
  answerFolds() {
    const { summary, observations, belief, events, anomalies, beliefs } = this.data;
    const threshold = summary.settings.false_alarm_every;
    const rule = threshold === null ? "" : `; confirmed from ${once(threshold)}`;
    this.folds.evidence.say(`${summary.evidence >= SOME ? `now ${once(summary.evidence)}` : "none now"}${rule}`);
    const [first, second] = [...(belief?.belief ?? [])].sort((a, b) => b.probability - a.probability);
    const start = (/** @type {any} */ each) => `${placeOf(observations, each.start)} with ${percent(each.probability)}`;
    // A regime that was explained anew since, as by a trend, may reach back beyond its change.
    const lead = this.lead;
    const beyond = first && lead?.state === "confirmed" && first.start < Math.min(lead.earliest ?? lead.start, lead.start);
    const starts = [first, second].filter(Boolean).map(start).join(", ");
    this.folds.start.say(beyond ? `by now one regime, from ${start(first)}` : starts || "no belief yet");
    const confirmed = events.filter((each) => each.state === "confirmed").length;
    const withdrawn = events.filter((each) => each.state === "withdrawn").length;
    const hidden = withdrawn ? `; ${plural(withdrawn, "suspicion")} withdrawn, hidden` : "";
    const strange = anomalies.length ? `; ${plural(anomalies.length, "anomaly", "anomalies")}` : "";
    this.folds.earlier.say(`${count(confirmed)} confirmed${strange}${hidden}`);
    this.folds.regimes.element.hidden = !summary.settings.regimes;
    this.folds.regimes.say(summary.regime?.id ? `now ${nameOf(summary.regime)}, with ${percent(summary.regime.probability)}` : "now in a new one");
    this.folds.whatIf.say("run the retained history again under other settings; nothing is stored");
    this.folds.belief.say(`heat map of the last ${plural(Math.min(observations.length, Math.max(beliefs.size, this.data.wantedBeliefs)), "observation")}`);
    this.folds.settings.say(rulesOf(summary));
    this.folds.values.say(`${plural(observations.length, "observation")}, CSV`);
  }

  /** Others are remembered, or another one is on, once a change is confirmed. */
  listRegimes() {
    const { summary } = this.data;
    this.regimes.refresh(JSON.stringify([summary.last_event?.id, summary.regime?.id, this.output]), this.output);
  }

  drawSettings() {
    const { summary, belief } = this.data;
    if (!summary) return;
    fill(this.facts, factsOf(summary, belief));
    const text = JSON.stringify(summary.settings);
    if (this.settings.dataset.shown === text) return;
    this.settings.dataset.shown = text;
    fill(this.settings, pairs(Object.entries(summary.settings).map(([key, value]) => [key, setting(value, key)])));
  }

  drawn() {
    const { observations, events, anomalies, beliefs, summary, ahead } = this.data;
    return {
      observations,
      events,
      alarms: anomalies,
      alarm: summary?.settings.anomaly_alarm ?? null,
      threshold: summary?.settings.false_alarm_every ?? null,
      beliefs,
      output: this.output,
      lead: this.lead,
      ahead: observations.length ? ahead : null,
      tried: this.tried,
      regimeStart: summary?.regime_start ?? null,
      names: this.regimes.names,
    };
  }

  /** What is shown, as a file. */
  download() {
    const rows = this.data.observations.map((seen) => [seen.seq, seen.time ?? "", one(seen.y, this.output) ?? "", seen.evidence ?? ""]);
    const text = [["seq", "time", "value", "evidence"], ...rows].map((row) => row.join(",")).join("\n");
    const href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
    h("a", { href, download: `${this.name}.csv` }).click();
    URL.revokeObjectURL(href);
  }

  /** @param {any} tried */
  overlay(tried) {
    this.tried = tried;
    if (tried) this.folds.evidence.element.open = true;
    this.drawCharts();
  }

  /** Show a part of the time in all charts. @param {[number, number]|null} range null: everything */
  zoom(range) {
    this.range = range && this.clipped(range);
    this.reset.hidden = this.range === null;
    this.drawCharts();
  }

  /** Within what is shown: beyond it there is nothing. @param {[number, number]} range @returns {[number, number]|null} */
  clipped([from, to]) {
    const { ahead, observations } = this.drawn();
    const [first, last] = whole(observations.map((each) => each.seq), ahead !== null);
    if (from <= first && to >= last) return null;
    return [Math.max(from, first), Math.min(to, last)];
  }

  /** Show a position, in the smallest window that has it. @param {number} at @param {boolean} [scroll] */
  async find(at, scroll = true) {
    fill(this.older);
    if (at < this.first) {
      const window = WINDOWS.find((n) => n > this.data.end - at);
      if (window) await this.resize(window);
    }
    if (at < this.first) {
      const last = plural(this.data.observations.length, "observation");
      fill(this.older, `Observation ${at} is older than what can be shown: the last ${last}.`);
    } else {
      const size = Math.max(FEWEST, Math.min(MOST, this.data.end - at));
      this.zoom([at - size, at + size]);
    }
    if (scroll) this.values.element.scrollIntoView({ block: "center" });
  }

  /** Position of the first observation shown. */
  get first() {
    return this.data.observations[0]?.seq ?? 0;
  }

  /** A verdict corrects the belief by a rerun: what is shown of it is no more. */
  async judged() {
    await this.data.corrected();
    this.draw();
  }

  /** @param {number} wanted */
  async resize(wanted) {
    try {
      await this.data.resize(wanted);
      this.range = null;
      this.reset.hidden = true;
      this.draw();
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
    for (const chart of [this.values, this.evidence, this.belief]) chart.close();
  }
}
