// Other settings tried on what is retained, and shown beside what was.

import { get, pathOf, send } from "./api.js";
import { choice, field } from "./controls.js";
import { announce, fill, h, table } from "./dom.js";
import { beliefsOf } from "./follow.js";
import { count, number, plural } from "./format.js";
import { problem } from "./problems.js";
import { badge } from "./row.js";

const HAZARD = { min: -4, max: -0.3, step: 0.01 }; // log10
const OUTLIERS = { min: 0, max: 0.3, step: 0.001 };

/** A slider with its number; `value` is what both say. */
class Control {
  /**
   * @param {string} id @param {string} label @param {string} about
   * @param {{min: number, max: number, step: number}} scale of the slider
   * @param {{to: (value: number) => number, from: (at: number) => number}} how values to slider places and back
   */
  constructor(id, label, about, scale, how) {
    const said = `${id}-about`;
    this.slider = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "range",
        id: `${id}-slider`,
        ...scale,
        "aria-label": `${label}, slider`,
        "aria-describedby": said,
        input: () => this.choose(how.from(Number(this.slider.value))),
      })
    );
    this.number = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "number",
        id,
        min: "0",
        max: "1",
        step: "any",
        placeholder: "as now",
        "aria-describedby": said,
        input: () => this.choose(null),
        blur: () => this.settle(),
      })
    );
    this.how = how;
    this.present = /** @type {number|null} */ (null);
    this.chosen = false;
    this.element = h(
      "div",
      { class: "control" },
      h("label", { for: id }, label),
      this.slider,
      this.number,
      h("p", { class: "note", id: said }, about),
    );
  }

  get value() {
    return Number(this.number.value);
  }

  /** Take what somebody chose. @param {number|null} value null: what the number says, if anything */
  choose(value) {
    if (value !== null) this.show(value);
    else if (this.number.value) this.place();
    this.chosen = this.number.value !== "";
  }

  /** What is so now. @param {number} value */
  suggest(value) {
    this.present = value;
    if (document.activeElement !== this.number) this.settle();
  }

  /** Say what is so, unless somebody chose otherwise. */
  settle() {
    if (!this.chosen && this.present !== null) this.show(this.present);
  }

  /** @param {number} value */
  show(value) {
    this.number.value = String(Number(value.toPrecision(3)));
    this.place();
  }

  place() {
    this.slider.value = String(this.how.to(this.value));
    this.slider.setAttribute("aria-valuetext", this.number.value);
  }
}

export class WhatIf {
  /**
   * @param {import("./follow.js").Followed} data
   * @param {(tried: any) => void} overlay null: nothing @param {() => void} applied
   */
  constructor(data, overlay, applied) {
    this.data = data;
    this.overlay = overlay;
    this.applied = applied;
    this.tried = /** @type {any} */ (null);
    this.begun = (/** @type {null} */ _) => {};
    this.known = new Promise((resolve) => (this.begun = resolve)); // what a rerun is compared with
    this.hazard = new Control(
      "hazard",
      "Hazard",
      "Probability that the regime changes at a step; 0.01: once per 100 steps.",
      HAZARD,
      { to: (value) => Math.log10(Math.max(value, 1e-9)), from: (at) => 10 ** at },
    );
    this.outliers = new Control(
      "outlier-rate",
      "Outlier rate",
      "Share of values that belong to no regime.",
      OUTLIERS,
      { to: (value) => value, from: (at) => at },
    );
    const number = (/** @type {string} */ id, /** @type {any} */ limits) =>
      /** @type {HTMLInputElement} */ (h("input", { type: "number", id, placeholder: "as now", ...limits }));
    this.model = choice("tried-model", { "": "as now" }, "", () => {});
    // One rule confirms: who fills in one leaves the other.
    this.confirmAt = number("false-alarm-every", {
      min: "10",
      max: "1e12",
      step: "any",
      input: () => (this.after.value = ""),
    });
    this.after = number("confirm-after", {
      min: "1",
      step: "1",
      input: () => (this.confirmAt.value = ""),
    });
    this.result = h("div", { "aria-live": "polite", id: "what-if-result" });
    this.run = h("button", { type: "submit", class: "primary" }, "Rerun");
    this.element = h(
      "div",
      {},
      h(
        "p",
        { class: "note" },
        "Reruns the retained history under other settings, for comparison. The stream is not changed.",
      ),
      h(
        "form",
        {
          id: "what-if",
          submit: (/** @type {Event} */ event) => (event.preventDefault(), this.ask()),
        },
        this.hazard.element,
        this.outliers.element,
        h(
          "div",
          { class: "fields" },
          field("Model", this.model),
          field("Confirm at evidence of 1 in", this.confirmAt),
          field("Confirm after, observations", this.after),
        ),
        h(
          "div",
          { class: "buttons" },
          this.run,
          h("button", { type: "button", click: () => this.reset() }, "Reset"),
        ),
      ),
      this.result,
    );
  }

  /** Begin with what the last observation met. */
  async begin() {
    this.begun(null);
    const { settings, model } = this.data.summary;
    const last = this.data.observations[this.data.observations.length - 1];
    let hazard = last?.hazard ?? settings.hazard;
    const [name, version] = model.split("@");
    if (hazard === null && version) {
      // An artifact may state one; streams of other models learn theirs.
      const found = await get(`v1/models/${encodeURIComponent(name)}`).catch(() => null);
      hazard = found?.versions.find(
        (/** @type {any} */ each) => each.version === version,
      )?.hazard;
    }
    if (this.model.childElementCount === 1) this.listModels();
    if (typeof hazard === "number") this.hazard.suggest(hazard); // else "as now"
    this.outliers.suggest(last?.outlier_rate ?? settings.outlier_rate ?? 0.01);
  }

  async listModels() {
    const { models } = await get("v1/models").catch(() => ({ models: [] }));
    for (const { name, error } of models)
      if (!error) this.model.append(h("option", { value: name }, name));
  }

  reset() {
    this.tried = null;
    this.overlay(null);
    fill(this.result);
    this.hazard.chosen = this.outliers.chosen = false;
    this.model.value = this.confirmAt.value = this.after.value = "";
    this.begin();
  }

  /** What somebody chose; the rest is as now. */
  get settings() {
    const { hazard, outliers, confirmAt, after } = this;
    return {
      ...(hazard.chosen && { hazard: hazard.value }),
      ...(outliers.chosen && { outlier_rate: outliers.value }),
      ...(confirmAt.value && { false_alarm_every: Number(confirmAt.value) }),
      ...(after.value && { confirm_after: Number(after.value) }),
    };
  }

  async ask() {
    this.run.setAttribute("aria-disabled", "true");
    try {
      await this.known;
      const { settings } = this; // once: the fields may change before the answer comes
      const model = this.model.value;
      const body = {
        settings: { ...settings, ...(model && { model }) },
        series: true,
        beliefs: this.data.wantedBeliefs,
      };
      const answer = await send("POST", pathOf(this.data.stream, "/what-if"), body);
      this.tried = { answer, beliefs: beliefsOf(answer), settings, model };
      this.overlay(this.tried);
      fill(this.result, this.compared(answer));
    } catch (error) {
      fill(this.result, problem(error));
    } finally {
      this.run.removeAttribute("aria-disabled");
    }
  }

  /** @param {any} answer */
  compared(answer) {
    const better = (answer.mean_log_score ?? NaN) - (answer.present_mean_log_score ?? NaN);
    const difference = !Number.isFinite(better)
      ? ""
      : Math.abs(better) < 5e-4
        ? "no difference"
        : `${better > 0 ? "better" : "worse"} by ${number(Math.abs(better), 2)} nats per observation`;
    const kept = answer.events.filter((/** @type {any} */ each) => each.state !== "withdrawn");
    const was = this.data.events.filter(
      (each) => each.state !== "withdrawn" && each.start >= answer.first,
    );
    const rows = kept.map((/** @type {any} */ each) => [
      badge(each.state),
      count(each.start),
      count(each.suspected_at),
      between(each),
    ]);
    return [
      h(
        "p",
        {},
        h(
          "strong",
          {},
          `Mean log score ${number(answer.mean_log_score)}, was ${number(answer.present_mean_log_score)}`,
        ),
        difference ? `: ${difference}, over ${plural(answer.compared, "observation")}.` : ".",
      ),
      h("p", {}, `${plural(kept.length, "changepoint")}, previously ${was.length}.`),
      rows.length
        ? table(
            "Changepoints under these settings",
            ["State", "Began at", "Suspected", "Interval of the start"],
            rows,
            { numbers: [1, 2, 3] },
          )
        : null,
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", click: () => this.apply() }, "Apply these settings"),
      ),
    ];
  }

  async apply() {
    try {
      const { settings, model } = this.tried; // whatever the fields say by now
      if (model) await send("POST", pathOf(this.data.stream, "/model"), { model });
      if (Object.keys(settings).length) await send("PUT", pathOf(this.data.stream), settings);
      announce("Settings changed.");
      fill(
        this.result,
        h("p", {}, "The stream now uses these settings. Earlier answers are unchanged."),
      );
      this.applied();
    } catch (error) {
      fill(this.result, problem(error));
    }
  }
}

/** Where a change began. @param {any} event */
const between = ({ earliest, latest }) =>
  earliest === null || earliest === undefined ? "–" : `${count(earliest)} to ${count(latest)}`;
