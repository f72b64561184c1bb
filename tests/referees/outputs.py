"""Referee of numbers: what every model answers to 20 series, through `Detectors`.

Frozen are, for each model and series, the whole answer at six positions, sums of each column over
all positions with weights that differ, and the events with their positions. A difference anywhere
moves a sum.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from model_core import Detectors
from tests.referees.judging import Row, worst

# Of each of the 20 series, the same on any machine.
LENGTH = 240
SETTLED = 60  # observations before the first switch
TOLERANCE = 1e-9  # relative above 1
LOOKS = (25, 70, 105, 135, 190, 239)
Labels = list[Any]
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


def _numbers(labels: list[float]) -> Labels:
    return [None if math.isnan(y) else y for y in labels]


def _of_each(convert: Callable[[float], float]) -> Callable[[list[float]], Labels]:
    return lambda labels: [None if math.isnan(y) else convert(y) for y in labels]


def _pairs(labels: list[float]) -> Labels:
    """Vectors: a series and the one before it, with part of one in the other."""
    other = SERIES["two levels"]
    return [None if math.isnan(y) else [y, 0.6 * y + other[t]] for t, y in enumerate(labels)]


COUNTS = _of_each(lambda y: float(math.floor(math.exp(min(max(y / 2, -3.0), 4.0)))))
BITS = _of_each(lambda y: float(y > 0))
CLASSES = _of_each(lambda y: float(min(max(math.floor(y + 2), 0), 3)))
DURATIONS = _of_each(lambda y: math.exp(min(max(y / 2, -20.0), 20.0)))
INPUTS = [[math.sin(0.37 * t)] for t in range(LENGTH)]

# Name: settings of the detector, labels, whether it takes inputs. Names of built-in models have no
# versions here: one model of each name is what shall be.
MODELS: dict[str, tuple[dict[str, Any], Callable[[list[float]], Labels], bool]] = {
    "gaussian": ({}, _numbers, False),
    "gaussian, two outputs": ({"model": "gaussian"}, _pairs, False),
    "gaussian, hazard by run length": (
        {"model": "gaussian", "hazard": [0.0, 0.02, 0.05, 0.01], "outlier_rate": 0.0},
        _numbers,
        False,
    ),
    "gaussian, ten hypotheses": ({"model": "gaussian", "max_hypotheses": 10}, _numbers, False),
    "averaged": ({}, _numbers, False),
    "averaged, two outputs": ({"model": "averaged"}, _pairs, False),
    "averaged, confirmed after 10": ({"model": "averaged", "confirm_after": 10}, _numbers, False),
    "poisson": ({}, COUNTS, False),
    "bernoulli": ({}, BITS, False),
    "categorical": ({"classes": 4}, CLASSES, False),
    "exponential": ({}, DURATIONS, False),
    "gamma": ({}, DURATIONS, False),
    "linear": ({}, _numbers, True),
    "autoregressive": ({"order": 2, "trend": True}, _numbers, False),
    "multivariate": ({}, _pairs, False),
    "joint": ({}, _pairs, False),
    "alpaca": ({}, _numbers, True),
    "lstm": ({}, _numbers, True),
    "pcoc": ({}, CLASSES, True),
}


def irregular(*shape: int, seed: int) -> np.ndarray:
    """Weights of both signs that no generator decides."""
    numbers = np.sin(seed + 12.9898 * np.arange(math.prod(shape)) ** 1.5)
    return (0.7 * numbers).reshape(shape)


def artifacts(folder: Path) -> None:
    """Write small trained models as any trainer could, see docs/models.md."""
    mlp = {
        "encoder.0.weight": irregular(4, 1, seed=1),
        "encoder.0.bias": irregular(4, seed=2),
        "encoder.1.weight": irregular(3, 4, seed=3),
        "encoder.1.bias": irregular(3, seed=4),
    }
    encoder = {
        "type": "mlp",
        "layers": [1, 4, 3],
        "activation": "relu",
        "output_activation": "tanh",
    }
    common = {"format": 1, "x_dim": 1, "feature_dim": 3, "encoder": encoder, "hazard": 0.02}
    _save(
        folder / "alpaca",
        {**common, "kind": "alpaca", "y_dim": 1},
        mlp
        | {
            "prior_mean": irregular(3, 1, seed=5),
            "prior_covariance_factor": np.eye(3) + 0.3 * np.tril(irregular(3, 3, seed=6)),
            "log_noise_variance": np.array([-0.4]),
        },
    )
    _save(
        folder / "pcoc",
        {**common, "kind": "pcoc", "y_dim": 4},
        mlp
        | {
            "prior_mean": irregular(4, 3, seed=7),
            "log_prior_precision": irregular(4, 3, seed=8),
            "log_noise_variance": irregular(4, 3, seed=9),
            "log_dirichlet": irregular(4, seed=10),
        },
    )
    lstm = {"format": 1, "kind": "lstm", "x_dim": 1, "y_dim": 1, "feature_dim": 3, "hazard": 0.02}
    _save(
        folder / "lstm",
        {**lstm, "encoder": {**encoder}, "hidden_dim": 4},
        mlp
        | {
            "lstm.weight_ih": irregular(16, 4, seed=11),
            "lstm.weight_hh": irregular(16, 4, seed=12),
            "lstm.bias_ih": irregular(16, seed=13),
            "lstm.bias_hh": irregular(16, seed=14),
            "decoder.0.weight": irregular(5, 7, seed=15),
            "decoder.0.bias": irregular(5, seed=16),
            "decoder.1.weight": irregular(2, 5, seed=17),
            "decoder.1.bias": irregular(2, seed=18),
        },
    )


def _save(folder: Path, description: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps(description))
    named = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    save_file(named, folder / "model.safetensors")


def measure(folder: Path) -> dict[str, Any]:
    """Numbers by model and series."""
    artifacts(folder)
    measured: dict[str, Any] = {}
    for name, (settings, labels_of, takes_inputs) in MODELS.items():
        model = folder / name if (folder / name).is_dir() else name
        detectors = Detectors(list(SERIES), **{"model": model, **settings})
        labels = [labels_of(series) for series in SERIES.values()]
        answers: list[list[Any]] = [[] for _ in SERIES]
        for t in range(LENGTH):
            x = [INPUTS[t]] * len(SERIES) if takes_inputs else None
            for row, answer in enumerate(detectors.update([each[t] for each in labels], x)):
                answers[row].append(answer)
        for row, title in enumerate(SERIES):
            measured[f"{name} / {title}"] = summarised(
                answers[row], detectors.events(row, withdrawn=True)
            )
        print(f"  {name}: {len(SERIES)} series", flush=True)
    return measured


def summarised(answers: list[Any], events: list[Any]) -> dict[str, Any]:
    """Looks, weighted sums and events of one series."""
    columns = [list(_columns(answer)) for answer in answers]
    width = max(map(len, columns))
    rows = np.array([row + [math.nan] * (width - len(row)) for row in columns])
    known = np.where(np.isfinite(rows), rows, 0.0)
    weights = 1 + np.arange(len(rows)) % 7
    return {
        "looks": [[_rounded(value) for value in rows[at]] for at in LOOKS],
        "sums": [_rounded(value) for value in weights @ known / weights.sum()],
        "events": [
            [each.state, each.start, each.suspected_at, each.confirmed_at, each.direction]
            for each in events
        ],
    }


def _columns(answer: Any) -> Iterator[float]:
    """One answer as numbers; none of a predictive distribution that is not there yet."""
    for value in (answer.log_score, answer.changed_probability, answer.anomaly):
        yield math.nan if value is None else float(value)
    predictive = answer.predictive
    if predictive is None:
        return
    if predictive.probabilities is not None:
        yield from predictive.probabilities
        return
    yield from np.ravel(predictive.mean)
    yield from np.ravel(predictive.sd)
    for level in sorted(predictive.quantiles or {}):
        yield from np.ravel(predictive.quantiles[level])


def _rounded(value: float) -> float | None:
    """Fifteen digits: three more than are compared."""
    return None if not math.isfinite(value) else float(f"{value:.15g}")


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    """A row for each model; names the series that differ most."""
    rows = []
    for model in dict.fromkeys(name.partition(" / ")[0] for name in frozen):
        series = [name for name in frozen if name.partition(" / ")[0] == model]
        differences = {name: worst(now.get(name), frozen[name]) for name in series}
        name = max(series, key=differences.__getitem__)
        difference = differences[name]
        ok = difference <= TOLERANCE
        where = "" if ok else f", {name.partition(' / ')[2]}"
        rows.append(Row(model, f"{len(series)} series", f"{difference:.1e}{where}", ok))
    return rows
