"""Metrics of how well models predict, by model; see `service.observability.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import Counter, Histogram

from service.observability.metrics import CHANGEPOINTS, LOG_SCORE, REGISTRY, observe_all

STATES = ("suspected", "confirmed", "withdrawn")

_SHARES = tuple(i / 20 for i in range(1, 21))
_MASSES = (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0)
_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

PIT = Histogram(
    "moca_pit",
    "Probability integral transform (PIT) of each label; uniform if calibrated.",
    ["model"],
    buckets=_SHARES,
    registry=REGISTRY,
)
# The sum of log scores falls and rises, so a rate of it would be wrong: two sums that only rise.
SCORE_ABOVE = Counter(
    "moca_log_score_positive_nats_total",
    "Sum of the positive log predictive densities, in nats.",
    ["model"],
    registry=REGISTRY,
)
SCORE_BELOW = Counter(
    "moca_log_score_negative_nats_total",
    "Sum of the negative log predictive densities, without their sign, in nats.",
    ["model"],
    registry=REGISTRY,
)
PRUNED_MASS = Histogram(
    "moca_pruned_mass",
    "Probability mass of the hypotheses pruned at each observation.",
    ["model"],
    buckets=_MASSES,
    registry=REGISTRY,
)
RUN_LENGTH = Histogram(
    "moca_run_length_observations",
    "Most probable run length after each observation, in observations.",
    ["model"],
    buckets=_LENGTHS,
    registry=REGISTRY,
)


class Steps(NamedTuple):
    """Numbers of some steps of one model; `scores` only of those with a label."""

    scores: Sequence[float]
    pruned: Sequence[float]
    run_lengths: Sequence[float]


def known(model: str) -> None:
    """Have a model's changepoints counted from 0: a rate does not miss the first one."""
    for state in STATES:
        CHANGEPOINTS.labels(model, state)


def stepped(model: str, steps: Steps) -> None:
    """Enter some steps of one model."""
    observe_all(LOG_SCORE.labels(model), steps.scores)
    SCORE_ABOVE.labels(model).inc(sum(score for score in steps.scores if score > 0))
    SCORE_BELOW.labels(model).inc(-sum(score for score in steps.scores if score < 0))
    observe_all(PRUNED_MASS.labels(model), steps.pruned)
    observe_all(RUN_LENGTH.labels(model), steps.run_lengths)
