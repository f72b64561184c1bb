// A stream in facts: what its belief is now, and by which rules.

import { h, pairs } from "./dom.js";
import { ago, alarms, count, number, once, percent, plural } from "./format.js";
import { nameOf } from "./regimes.js";

/** @param {any} summary @param {any} belief as of now */
export function factsOf(summary, belief) {
  const regime =
    summary.regime_start === null
      ? "–"
      : plural(summary.seq - summary.awaited.length - summary.regime_start, "observation");
  const state = summary.event ? "suspected" : summary.warming_up ? "warming up" : "steady";
  const rows = [
    ["Current regime", regime],
    ["P(changed)", percent(summary.changed_probability)],
    ["Evidence", once(summary.evidence)],
    ["P(recent change)", percent(belief?.recent_change_probability)],
    ["State", state],
    ["Observations", count(summary.seq)],
    ["Mean log score", number(summary.mean_log_score, 3)],
    ["Model", h("a", { href: `#/models/${summary.model.split("@")[0]}` }, summary.model)],
    ["Updated", ago(summary.updated)],
  ];
  if (summary.regime) rows.push(["Known regime", `${nameOf(summary.regime)}, ${percent(summary.regime.probability)}`]);
  if (summary.alarm_period) rows.push(["False alarms", alarms(summary.alarm_period)]);
  if (summary.season) rows.push(["Season", periods(summary.season.periods)]);
  return pairs(rows, "facts");
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
