"""The 20 series that every model is judged on: 240 observations each, the same on any machine."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

LENGTH = 240
SETTLED = 60  # observations before the first switch

_normal = NormalDist().inv_cdf


class Draw:
    """Independent draws; `random.random` gives the same numbers in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uniform(self) -> float:
        return self._random.random()

    def normal(self) -> float:
        return _normal(min(max(self.uniform(), 1e-12), 1 - 1e-12))


def _shifted(size: float, at: int = 100) -> list[float]:
    draw = Draw(round(100 * size) + at)
    return [draw.normal() + (size if t >= at else 0.0) for t in range(LENGTH)]


def _levels(seed: int, every: int, sd: float) -> list[float]:
    draw = Draw(seed)
    level = 0.0
    labels = []
    for t in range(LENGTH):
        if t >= SETTLED and t % every == 0:
            level = sd * draw.normal()
        labels.append(level + draw.normal())
    return labels


def _spread(factor: float) -> list[float]:
    draw = Draw(7)
    return [draw.normal() * (factor if 80 <= t < 160 else 1.0) for t in range(LENGTH)]


def _outliers() -> list[float]:
    draw = Draw(8)
    return [(9.0 if draw.uniform() < 0.03 else 0.0) + draw.normal() for _ in range(LENGTH)]


def _autoregressive(coefficient: float, seed: int) -> list[float]:
    draw = Draw(seed)
    labels = [draw.normal()]
    for t in range(1, LENGTH):
        shift = 1.5 if t >= 150 else 0.0
        labels.append(coefficient * labels[-1] + shift + draw.normal())
    return labels


def _heavy(seed: int) -> list[float]:
    draw = Draw(seed)
    return [draw.normal() / math.sqrt(draw.uniform() + 0.05) for _ in range(LENGTH)]


def _skewed() -> list[float]:
    draw = Draw(11)
    return [math.exp(0.75 * draw.normal()) + (2.0 if t >= 140 else 0.0) for t in range(LENGTH)]


def _drift(slope: float) -> list[float]:
    draw = Draw(12)
    return [slope * max(0, t - 100) + draw.normal() for t in range(LENGTH)]


def _season(period: int) -> list[float]:
    draw = Draw(period)
    return [2 * math.sin(2 * math.pi * t / period) + 0.5 * draw.normal() for t in range(LENGTH)]


def _walk() -> list[float]:
    draw = Draw(13)
    labels = [0.0]
    for _ in range(LENGTH - 1):
        labels.append(labels[-1] + draw.normal())
    return labels


def _missing() -> list[float]:
    draw = Draw(14)
    return [
        math.nan if draw.uniform() < 0.1 and t > 2 else draw.normal() + (3.0 if t >= 120 else 0.0)
        for t in range(LENGTH)
    ]


SERIES: dict[str, list[float]] = {
    "shift of .5": _shifted(0.5),
    "shift of 1": _shifted(1.0),
    "shift of 2": _shifted(2.0),
    "shift of 5, late": _shifted(5.0, at=200),
    "two levels": _levels(1, 60, 4.0),
    "many levels": _levels(2, 25, 2.0),
    "quiet": _shifted(0.0),
    "spread triples": _spread(3.0),
    "spread falls": _spread(0.2),
    "outliers": _outliers(),
    "autoregression .6": _autoregressive(0.6, 9),
    "autoregression -.5": _autoregressive(-0.5, 10),
    "heavy tails": _heavy(15),
    "skewed": _skewed(),
    "drift": _drift(0.05),
    "season of 12": _season(12),
    "random walk": _walk(),
    "labels missing": _missing(),
    "large and fine": [1e6 + 1e-2 * y for y in _levels(3, 70, 3.0)],
    "few values": [float(round(y)) for y in _levels(4, 80, 2.0)],
}
