// Changepoints and anomalies of one stream, with feedback on changepoints.

import { pathOf, send } from "./api.js";
import { sentenceParts, wordsOf } from "./changerow.js";
import { announce, fill, h, refill } from "./dom.js";
import { brief, count, plural, standing } from "./format.js";
import { problem } from "./problems.js";
import { badge } from "./row.js";

const HEADS = ["State", "Began", "What changed", "Interval of the start", "Confirmed", "Feedback"];
const SHOWN = 100;
const SHOWN_STARTS = 20;
const KINDS = { all: "changes and anomalies", change: "changes", anomaly: "anomalies" };

/** Whether an event is folded away: what somebody gave feedback on stays. @param {any} event */
const folds = (event) => event.state === "withdrawn" && event.verdict === null;

export class EventList {
  /**
   * @param {string} stream
   * @param {{show: (at: number) => void, judged: () => Promise<void>}} does
   */
  constructor(stream, does) {
    this.stream = stream;
    this.does = does;
    this.shown = "";
    this.unfolded = false;
    this.trouble = h("div", {});
    this.body = h("tbody", { role: "rowgroup" });
    this.none = h("p", { class: "empty" }, "None yet.");
    this.kind = h(
      "select",
      { id: "kind", change: () => this.redraw() },
      Object.entries(KINDS).map(([kind, words]) => h("option", { value: kind }, words)),
    );
    this.redraw = () => {};
    this.cut = h("p", { class: "note", hidden: true }, `Showing the newest ${SHOWN}.`);
    this.regimes = h("p", { class: "note", id: "regimes" });
    this.input = h("input", {
      id: "missed",
      type: "number",
      min: "1",
      step: "1",
      required: true,
      inputmode: "numeric",
    });
    const heads = HEADS.map((head) => h("th", { scope: "col", role: "columnheader" }, head));
    this.element = h(
      "div",
      {},
      this.trouble,
      h("div", { class: "buttons" }, h("label", { for: "kind" }, "List"), this.kind),
      h(
        "div",
        { class: "scroll", role: "region", "aria-label": "List of events", tabindex: "0" },
        h(
          "table",
          { class: "events", role: "table" },
          h("caption", { class: "unseen" }, "Events, newest first"),
          h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
          this.body,
        ),
      ),
      this.none,
      this.cut,
      this.regimes,
      this.form(),
    );
  }

  form() {
    return h(
      "form",
      {
        class: "inline",
        submit: (/** @type {Event} */ event) => {
          event.preventDefault();
          const start = Number(/** @type {HTMLInputElement} */ (this.input).value);
          this.say("POST", "/changepoints", { start }, `change at ${start} reported`);
        },
      },
      h("label", { for: "missed" }, "Report a missed change at observation"),
      this.input,
      h("button", { type: "submit" }, "Report"),
    );
  }

  /** @param {any[]} all events @param {any[]} observations @param {number} seq */
  draw(all, observations, seq) {
    this.redraw = () => this.draw(all, observations, seq);
    const kind = /** @type {HTMLSelectElement} */ (this.kind).value;
    // A change is listed where it was first seen, as an anomaly is.
    const events = all
      .filter((event) => kind === "all" || event.kind === kind)
      .sort((a, b) => a.suspected_at - b.suspected_at || a.id - b.id);
    this.input.setAttribute("max", String(Math.max(1, seq - 1)));
    const text = kind + JSON.stringify(events) + (observations[0]?.seq ?? "");
    if (text === this.shown) return; // buttons keep the focus
    this.shown = text;
    this.none.hidden = events.length > 0;
    this.cut.hidden = events.length <= SHOWN;
    const first = observations[0]?.seq ?? 0;
    const timeAt = (/** @type {number} */ at) => brief(observations[at - first]?.time);
    const newest = events.reverse();
    const rows = (/** @type {any[]} */ some) =>
      some.slice(0, SHOWN).map((event) => this.row(event, timeAt));
    const withdrawn = newest.filter(folds);
    refill(
      this.body,
      rows(newest.filter((event) => !folds(event))),
      withdrawn.length ? this.fold(withdrawn.length) : null,
      this.unfolded ? rows(withdrawn) : null,
    );
  }

  /** The line that withdrawn changes are behind. @param {number} n */
  fold(n) {
    const flip = () => {
      this.unfolded = !this.unfolded;
      this.shown = "";
      this.redraw();
    };
    const text = `${this.unfolded ? "Hide" : "Show"} ${plural(n, "withdrawn change")}`;
    const button = h(
      "button",
      { type: "button", class: "link", "data-focus": "fold", "aria-expanded": String(this.unfolded), click: flip },
      text,
    );
    return h("tr", { role: "row" }, h("td", { role: "cell", colspan: HEADS.length }, button));
  }

  /** @param {any[]} segmentation @param {any} hindsight */
  drawRegimes(segmentation, hindsight) {
    this.regimes.hidden = !segmentation.length;
    const starts = segmentation.slice(1).map((each) => count(each.start));
    const shown = starts.slice(-SHOWN_STARTS).join(", ");
    const more = starts.length > SHOWN_STARTS ? "…, " : "";
    const result = starts.length ? `regimes begin at ${more}${shown}` : "a single regime";
    const computed = hindsight?.seq ?? null;
    const kind =
      computed === null
        ? "Best segmentation, online"
        : `Best segmentation, in hindsight up to observation ${count(computed - 1)}`;
    const waits = hindsight?.status === "pending" ? " Hindsight is being computed." : "";
    this.regimes.textContent = `${kind}: ${result}.${waits}`;
  }

  /** @param {any} event @param {(at: number) => string} timeAt */
  row(event, timeAt) {
    const strange = event.kind === "anomaly";
    const name = strange ? `anomaly-${event.id}` : String(event.id);
    const at = (/** @type {number|null} */ seq) =>
      seq === null || strange ? "–" : [timeAt(seq) || count(seq)];
    const begun = h(
      "button",
      {
        type: "button",
        class: "link",
        "data-focus": `show-${name}`,
        title: "Show in the chart",
        click: () => this.does.show(event.start),
      },
      strange ? `at ${count(event.start)}` : `#${event.id} at ${count(event.start)}`,
    );
    const cells = [
      badge(standing(event)),
      [begun, h("span", { class: "note block" }, timeAt(event.start))],
      [
        sentenceParts(event),
        h("span", { class: "note block" }, wordsOf(event).more),
        event.excluded ? h("span", { class: "note block" }, "Excluded from learning.") : null,
      ],
      event.coverage ? `${count(event.earliest)} to ${count(event.latest)}` : "–",
      at(event.confirmed_at),
      strange ? "–" : h("span", { class: "buttons" }, this.buttons(event, "list-")),
    ];
    return h(
      "tr",
      { role: "row", "data-event": name, "data-kind": event.kind },
      cells.map((cell, i) => h("td", { role: "cell", "data-label": HEADS[i] }, cell)),
    );
  }

  /** Feedback on a change: whether it was one. @param {any} event @param {string} [place] tells buttons apart */
  buttons(event, place = "") {
    const button = (/** @type {boolean} */ change, /** @type {string} */ word) =>
      h(
        "button",
        {
          type: "button",
          "data-focus": `${place}${change ? "yes" : "no"}-${event.id}`,
          "aria-pressed": String(event.verdict === change),
          "aria-label": `${word}: event ${event.id}, ${event.sentence}`,
          click: () =>
            this.say("PUT", `/changepoints/${event.id}`, { change }, `event ${event.id}: ${word}`),
        },
        event.verdict === change ? `✓ ${word}` : word,
      );
    return [button(true, "Real change"), button(false, "No change"), event.state === "confirmed" ? this.exclusion(event, place) : null];
  }

  /** Whether what followed a change was not normal: the regime before it goes on. @param {any} event @param {string} place */
  exclusion(event, place) {
    const excluded = !event.excluded;
    const done = `event ${event.id}: ${excluded ? "excluded from learning" : "counts again"}`;
    return h(
      "button",
      {
        type: "button",
        "data-focus": `${place}exclude-${event.id}`,
        "aria-pressed": String(event.excluded),
        "aria-label": `Not normal: event ${event.id}, ${event.sentence}`,
        title: "Exclude from learning what followed, up to the next change: the regime before goes on",
        click: () => this.say("POST", "/exclusions", { event: event.id, excluded }, done),
      },
      event.excluded ? "✓ Not normal" : "Not normal",
    );
  }

  /** @param {string} method @param {string} path @param {any} body @param {string} done */
  async say(method, path, body, done) {
    this.element.setAttribute("aria-busy", "true");
    try {
      await send(method, pathOf(this.stream, path), body);
      fill(this.trouble);
      await this.does.judged();
      announce(`Saved: ${done}.`);
    } catch (error) {
      fill(this.trouble, problem(error));
    } finally {
      this.element.removeAttribute("aria-busy");
    }
  }
}
