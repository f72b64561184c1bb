// A stream in facts: what its belief is now, and by which rules.

import { h } from "./dom.js";
import { ago, alarms, count, number, once, percent, plural } from "./format.js";
import { nameOf } from "./regimes.js";

/** @param {any} summary @param {any} belief as of now */
export function factsOf(summary, belief) {
  const regime =
    summary.regime_start === null
      ? "–"
      : plural(summary.seq - summary.awaited.length - summary.regime_start, "observation");
  const state = summary.event ? "suspected" : summary.warming_up ? "warming up" : "steady";
  return [
    fact("Current regime", regime),
    fact("P(changed)", percent(summary.changed_probability)),
    fact("Evidence", once(summary.evidence)),
    fact("P(recent change)", percent(belief?.recent_change_probability)),
    fact("State", state),
    fact("Observations", count(summary.seq)),
    fact("Mean log score", number(summary.mean_log_score, 3)),
    fact("Model", h("a", { href: `#/models/${summary.model.split("@")[0]}` }, summary.model)),
    fact("Updated", ago(summary.updated)),
    ...(summary.regime
      ? [fact("Known regime", `${nameOf(summary.regime)}, ${percent(summary.regime.probability)}`)]
      : []),
    ...(summary.alarm_period ? [fact("False alarms", alarms(summary.alarm_period))] : []),
    ...(summary.season ? [fact("Season", periods(summary.season.periods))] : []),
  ];
}

/** The rules in one line. @param {any} summary */
export function rulesOf(summary) {
  const { settings, season, model } = summary;
  const rule = settings.confirm_after
    ? `confirms after ${plural(settings.confirm_after, "observation")}`
    : `one false alarm in ${count(settings.false_alarm_every)} observations`;
  return `${model}, ${rule}, ${season ? `season ${periods(season.periods)}` : "no season"}`;
}

/** @param {number[]} numbers */
const periods = (numbers) => `every ${numbers.map(count).join(" and ")} observations`;

/** @param {string} name @param {any} value */
const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
