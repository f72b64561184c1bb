// A stream in a line of facts, below its name.

import { h } from "./dom.js";
import { ago, alarms, count, number, percent, plural, rarely } from "./format.js";
import { badge, probability } from "./row.js";

/** @param {any} summary @param {any} belief as of now */
export function factsOf(summary, belief) {
  const regime =
    summary.regime_start === null
      ? "–"
      : plural(summary.seq - summary.awaited.length - summary.regime_start, "observation");
  const state = summary.event ? badge("suspected") : summary.warming_up ? "warming up" : "steady";
  const recent = belief?.recent_change_probability;
  return [
    fact("Current regime", regime),
    fact("P(changed)", probability(summary.changed_probability)),
    fact("Evidence", rarely(summary.evidence)),
    fact("P(recent change)", percent(recent)),
    fact("State", state),
    fact("Observations", count(summary.seq)),
    fact("Mean log score", number(summary.mean_log_score, 3)),
    fact("Model", h("a", { href: `#/models/${summary.model.split("@")[0]}` }, summary.model)),
    fact("Updated", ago(summary.updated)),
    ...(summary.regime
      ? [fact("Typical regime", `${summary.regime.name}, ${percent(summary.regime.probability)}`)]
      : []),
    ...(summary.alarm_period ? [fact("False alarms", alarms(summary.alarm_period))] : []),
    ...(summary.season ? [fact("Season", periods(summary.season.periods))] : []),
  ];
}

/** @param {string} name @param {HTMLElement} facts */
export const headline = (name, facts) =>
  h(
    "div",
    { class: "headline" },
    h("p", { class: "crumb" }, h("a", { href: "#/" }, "Streams"), " /"),
    h("h1", {}, name),
    facts,
  );

/** @param {number[]} found */
const periods = (found) => `every ${found.map(count).join(" and ")} observations`;

/** @param {string} name @param {any} value */
const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
