"""What choosing a model's constants on TCPD is worth: chosen on one half, scored on the other.

Candidates are the default settings and random ones around them: every constant of the model, its
hazard, its outlier rate and the odds of `confirm_probability`, each times a factor that is
log-uniform in [1 / SPREAD, SPREAD]. On each of `REPETITIONS` random halves of the series the
candidate with the best sum of F1 and covering is chosen, and scored on the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.stream_settings import DEFAULTS
from model_core.upm.base import UnderlyingModel
from training.evaluation import tcpd
from training.evaluation.online import Settings, follow, segmentation

Floats = NDArray[np.float64]
REPETITIONS = 20
SPREAD = 2.0
OUTPUTS = "confirmed online", "segmentation as served", "in hindsight"


class Row(NamedTuple):
    """F1 and covering of one way to a segmentation, mean and standard deviation over halves.

    chosen: of what was best on the other half. default: of the defaults. beaten: share of the
    candidates that the defaults beat on all series together, which chose them.
    """

    output: str
    chosen: tuple[tuple[float, float], tuple[float, float]]
    default: tuple[tuple[float, float], tuple[float, float]]
    beaten: float


def candidates(
    model: UnderlyingModel, count: int, rng: np.random.Generator
) -> list[tuple[UnderlyingModel, Settings]]:
    """The defaults, then `count` random settings around them."""
    constants = [
        each.name
        for each in fields(model)  # type: ignore[arg-type]
        if isinstance(getattr(model, each.name), float)
    ]
    found = [(model, Settings())]
    probability = DEFAULTS.confirm_probability or 0.99
    for _ in range(count):
        factors = np.exp(np.log(SPREAD) * rng.uniform(-1, 1, len(constants) + 1))
        told: dict[str, Any] = {
            name: getattr(model, name) * float(factor)
            for name, factor in zip(constants, factors, strict=False)
        }
        odds = probability / (1 - probability) * float(factors[-1])
        defaults = DEFAULTS._replace(confirm_probability=odds / (1 + odds))
        changed: UnderlyingModel = replace(model, **told)  # type: ignore[type-var]
        found.append((changed, Settings(defaults)))
    return found


def scored(
    series: Sequence[tcpd.Series], model: UnderlyingModel, settings: Settings
) -> list[list[tuple[float, float]]]:
    """F1 and covering [series][output]."""
    scores = []
    for one in series:
        (followed,) = follow(model, [one.values], settings)
        found = followed.confirmed(), followed.served, segmentation(model, one.values, settings)
        each = [tcpd.score(one.annotations, points, len(one.values)) for points in found]
        scores.append([(score.f1, score.cover) for score in each])
    return scores


def selected(
    series: Sequence[tcpd.Series],
    model: UnderlyingModel,
    count: int,
    rng: np.random.Generator,
    advance: Callable[[], None],
) -> list[Row]:
    """Scores of choices on halves; count: of random settings. advance: called for each."""
    every = []
    for each in candidates(model, count, rng):
        every.append(scored(series, *each))
        advance()
    table = np.array(every)  # [candidate, series, output, measure]
    halves = [rng.permutation(len(series)) for _ in range(REPETITIONS)]
    return [_row(name, table[:, :, k], halves) for k, name in enumerate(OUTPUTS)]


def _row(output: str, table: Floats, halves: Sequence[NDArray[np.int64]]) -> Row:
    """table: [candidate, series, measure]."""
    chosen, default = [], []
    for order in halves:
        middle = len(order) // 2
        for one, other in ((order[:middle], order[middle:]), (order[middle:], order[:middle])):
            best = int(table[:, one].mean(1).sum(-1).argmax())
            chosen.append(table[best, other].mean(0))
            default.append(table[0, other].mean(0))
    sums = table.mean(1).sum(-1)
    return Row(output, _spread(chosen), _spread(default), float((sums[1:] < sums[0]).mean()))


def _spread(values: Sequence[Floats]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean and standard deviation of both measures."""
    mean, sd = np.mean(values, 0), np.std(values, 0)
    return (float(mean[0]), float(sd[0])), (float(mean[1]), float(sd[1]))
