"""How well models predict: log score, calibration, pruned mass, run lengths."""

from __future__ import annotations

from moca_grafana.limits import above, below, within
from moca_grafana.page import Page
from moca_grafana.panels import Panel, Query, What, buckets, buckets_over_time, lines, number

MODEL = 'model=~"$model"'


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "moca-quality",
        "MOCA: model quality",
        "Log score, calibration (PIT), pruned mass and run lengths, by model.",
        {"Now": _now(), "Log score": _scores(), "Calibration": _pit(), "Belief": _belief()},
        by_model=True,
    )


def _now() -> list[Panel]:
    rate = What("Steps", "Filtered observations per second.", "suffix: /s", below(0.01, 0.001))
    score = What(
        "Log score",
        "Mean log predictive density per label in 30 minutes, all selected models.",
        "suffix: nats",
        below(-5, -10),
    )
    coverage = What(
        "In the 90 % interval",
        "Share of labels between the 5 % and 95 % quantiles; the model furthest from 0.9.",
        "percentunit",
        within(0.85, 0.95, 0.03),
    )
    middle = What(
        "Mean PIT",
        "0.5 if calibrated; the model furthest from it.",
        "none",
        within(0.45, 0.55, 0.03),
    )
    pruned = What(
        "Pruned mass, mean",
        "Mean pruned probability mass per step in 30 minutes; the worst model.",
        "none",
        above(2e-3, 0.02),
    )
    faults = What(
        "Numerical faults",
        "Steps discarded in the last hour; each is a defect.",
        "short",
        above(1, 2),
    )
    mean = (
        f"(sum(rate(moca_log_score_positive_nats_total{{{MODEL}}}[30m]))"
        f" - sum(rate(moca_log_score_negative_nats_total{{{MODEL}}}[30m])))"
        f" / (sum(rate(moca_log_score_nats_count{{{MODEL}}}[30m])) > 0)"
    )
    return [
        number(rate, f"sum(moca:steps:rate5m{{{MODEL}}})"),
        number(score, mean, 2),
        number(coverage, _furthest("moca:pit:coverage90_1h", 0.9), 3),
        number(middle, _furthest("moca:pit:mean1h", 0.5), 3),
        number(pruned, f"max(moca:pruned_mass:mean30m{{{MODEL}}})"),
        number(faults, "sum(increase(moca_numerical_faults_total[1h]))", 0),
    ]


def _furthest(record: str, ideal: float) -> str:
    """The value that is furthest from where it should be."""
    series = f"{record}{{{MODEL}}}"
    gap = f"topk(1, abs({series} - {ideal}))"
    return f"max({series} and on (model) {gap})"


def _quantile(share: str, name: str) -> str:
    rates = f"sum by (model, le) (rate({name}_bucket{{{MODEL}}}[30m]))"
    return f"histogram_quantile({share}, {rates})"


def _scores() -> list[Panel]:
    mean = What(
        "Mean log score, by model",
        "In 30 minutes. Compare a model only with itself: the number depends on the labels' units.",
        "suffix: nats",
        below(-5, -10),
    )
    low = What(
        "Log score, 10 % quantile, by model",
        "A tenth of the labels scored lower; estimated from histogram buckets.",
        "suffix: nats",
        below(-10, -20),
    )
    spread = What("Log scores", "Labels by log score.", "suffix: nats", below(-10, -20))
    each = f"sum by (le) (increase(moca_log_score_nats_bucket{{{MODEL}}}[$__rate_interval]))"
    return [
        lines(mean, Query(f"moca:log_score_nats:mean30m{{{MODEL}}}", "{{model}}"), span=8),
        lines(low, Query(_quantile("0.1", "moca_log_score_nats"), "{{model}}"), span=8),
        buckets_over_time(spread, each, span=8),
    ]


def _pit() -> list[Panel]:
    coverage = What(
        "Labels in the 90 % interval, by model",
        "In one hour; 0.9 if calibrated. Less: overconfident. Alert MocaCalibrationDrift "
        "beyond 0.82 and 0.98.",
        "percentunit",
        within(0.85, 0.95, 0.03),
    )
    mean = What(
        "Mean PIT, by model",
        "In one hour; 0.5 if calibrated. Higher: labels are above the predictions.",
        "none",
        within(0.45, 0.55, 0.03),
    )
    histogram = What(
        "PIT, last hour",
        "Share of labels per twentieth of their predictive distribution, by its upper end: "
        "0.05 each if calibrated. A hill: underconfident; a valley: overconfident; a "
        "slope: biased.",
        "percentunit",
        within(0.03, 0.08, 0.02),
    )
    over_time = What("PIT over time", "Labels by PIT.", "none", within(0.05, 0.95, 0.04))
    bucket = f"moca_pit_bucket{{{MODEL}}}"
    share = (
        f"sum by (le) (increase({bucket}[1h]))"
        f" / on () group_left sum(increase(moca_pit_count{{{MODEL}}}[1h]))"
    )
    return [
        lines(coverage, Query(f"moca:pit:coverage90_1h{{{MODEL}}}", "{{model}}"), span=8),
        lines(mean, Query(f"moca:pit:mean1h{{{MODEL}}}", "{{model}}"), span=8),
        buckets_over_time(over_time, f"sum by (le) (increase({bucket}[$__rate_interval]))", span=8),
        buckets(histogram, share, span=24),
    ]


def _belief() -> list[Panel]:
    pruned = What(
        "Pruned mass",
        "Probability mass pruned per step, mean and 99 %. If high, raise max_hypotheses.",
        "none",
        above(2e-3, 0.02),
    )
    length = What(
        "Most probable run length",
        "Median over observations, by model.",
        "short",
        below(10, 2),
    )
    spread = What("Run lengths", "Observations by most probable run length.", "short", below(10, 2))
    mean = Query(f"moca:pruned_mass:mean30m{{{MODEL}}}", "{{model}} mean")
    high = Query(_quantile("0.99", "moca_pruned_mass"), "{{model}} 99 %")
    half = Query(_quantile("0.5", "moca_run_length_observations"), "{{model}}")
    name = f"moca_run_length_observations_bucket{{{MODEL}}}"
    return [
        lines(pruned, mean, high, span=8),
        lines(length, half, span=8),
        buckets_over_time(spread, f"sum by (le) (increase({name}[$__rate_interval]))", span=8),
    ]
