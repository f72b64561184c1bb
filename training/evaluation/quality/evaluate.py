"""`moca evaluate all`: run every measure, and keep the results."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from model_core.stream_settings import DEFAULT_VECTOR_MODEL, StreamSettings
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options, build
from training.evaluation.online import Settings, follow
from training.evaluation.quality import (
    baselines,
    changes,
    corpora,
    forecasts,
    nab,
    selection,
    sensitivities,
)
from training.evaluation.quality.baselines import Detector, Floats
from training.evaluation.quality.changes import ChangeRow, FamilyRow, Sizes
from training.evaluation.quality.corpora import Corpora, Scalars
from training.evaluation.quality.families import FAMILIES
from training.evaluation.quality.forecasts import Forecast, SeriesScore
from training.evaluation.quality.sensitivities import SensitivityRow

# Scored on vectors beside the models that were asked for.
VECTOR_MODELS = (DEFAULT_VECTOR_MODEL, "multivariate")
LESS_SEASONS = "less seasons"  # after a model's name
NAB = "NAB"
ANOMALY = "anomaly"
SURPRISE = "-log_score"  # in the series' scale: one threshold serves all series

Candidates = Mapping[str, tuple[UnderlyingModel, Settings]]  # by name


class ForecastRow(NamedTuple):
    """One method on one corpus."""

    corpus: str
    method: str
    score: forecasts.Score


class SelectionRow(NamedTuple):
    """One model on TCPD."""

    method: str
    row: selection.Row


class NabRow(NamedTuple):
    """One detector's score."""

    method: str
    score: nab.Score


class Results(NamedTuple):
    """All that was measured.

    missing: files and packages that were not there, hence not measured. took_s: wall time.
    """

    models: list[str]
    seed: int
    day: str
    torch: str
    python: str
    took_s: float
    missing: list[str]
    families: list[FamilyRow]
    sensitivity: list[SensitivityRow]
    changes: list[ChangeRow]
    selection: list[SelectionRow]
    forecasts: list[ForecastRow]
    nab: list[NabRow]


class _Bar:
    """A progress bar of known parts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def part(self, name: str, total: int) -> Callable[[], None]:
        """Begin a part; returns what moves it on."""
        task = self._progress.add_task(name, total=total)
        return lambda: self._progress.advance(task)


def evaluate(
    folder: Path,
    models: Sequence[str],
    seed: int = 0,
    sizes: Sizes | None = None,
    console: Console | None = None,
    seasons: bool = False,
    sensitivity_sizes: sensitivities.Sizes | None = None,
) -> Results:
    """Measure models at the service's default settings; raises FileNotFoundError, BadData.

    seasons: also measure each with seasons sought from the first label on.
    """
    torch.set_num_threads(1)
    sizes = sizes or Sizes()
    began = time.monotonic()
    data = corpora.load(folder)
    detectors, missing = baselines.detectors()
    built = {name: (build(name, Options()), Settings()) for name in models}
    if seasons:
        seasonal = Settings(StreamSettings(seasonal=True))
        for name in models:
            built[f"{name} {LESS_SEASONS}"] = (built[name][0], seasonal)
    rng = np.random.default_rng(seed)
    with Progress(console=console, transient=True) as progress:
        bar = _Bar(progress)
        simulated = _simulated(built, detectors, seed, sizes, bar)
        rates = _sensitivities(models, seed, sensitivity_sizes or sensitivities.Sizes(), bar)
        change_rows = _changes(data, models, built, detectors, rng, bar)
        chosen = _selection(data, models, sizes, rng, bar)
        scores, anomalies = _forecasts(data, built, rng, bar)
    return Results(
        list(built),
        seed,
        datetime.now(UTC).date().isoformat(),
        torch.__version__,
        platform.python_version(),
        time.monotonic() - began,
        [*data.missing, *missing],
        simulated,
        rates,
        change_rows,
        chosen,
        scores,
        anomalies,
    )


def _simulated(
    models: Candidates,
    detectors: Mapping[str, Detector],
    seed: int,
    sizes: Sizes,
    bar: _Bar,
) -> list[FamilyRow]:
    watches = [changes.watch_model(name, *each) for name, each in models.items()]
    watches += [changes.watch_baseline(*each) for each in detectors.items()]
    advance = bar.part("simulated families", len(FAMILIES) * len(watches))
    return list(changes.simulate(watches, seed, sizes, advance))


def _sensitivities(
    names: Sequence[str], seed: int, sizes: sensitivities.Sizes, bar: _Bar
) -> list[SensitivityRow]:
    """Of the models whose streams calibrate their sensitivity on their own labels."""
    models = {name: build(name, Options()) for name in names}
    chosen = {n: m for n, m in models.items() if m.label == "real" and not m.x_dim}
    advance = bar.part("sensitivity", len(FAMILIES) * len(chosen))
    return [
        row
        for name, model in chosen.items()
        for row in sensitivities.simulate(name, model, seed, sizes, advance)
    ]


def _changes(
    data: Corpora,
    names: Sequence[str],
    models: Candidates,
    detectors: Mapping[str, Detector],
    rng: np.random.Generator,
    bar: _Bar,
) -> list[ChangeRow]:
    change_rows = []
    if data.tcpd:
        advance = bar.part("TCPD", len(data.tcpd))
        change_rows += changes.on_tcpd(data.tcpd, detectors, models, rng, advance)
    make: dict[str, Callable[[int], UnderlyingModel]] = {
        name: partial(_sized, name) for name in dict.fromkeys([*names, *VECTOR_MODELS])
    }
    if data.vectors:
        advance = bar.part("vectors", len(data.vectors))
        for corpus, series in data.vectors.items():
            change_rows += changes.vectors(corpus, series, detectors, make, rng)
            advance()
    return change_rows


def _selection(
    data: Corpora,
    models: Sequence[str],
    sizes: Sizes,
    rng: np.random.Generator,
    bar: _Bar,
) -> list[SelectionRow]:
    if len(data.tcpd) < 2:  # no halves
        return []
    advance = bar.part("choices on TCPD", len(models) * (1 + sizes.candidates))
    return [
        SelectionRow(name, row)
        for name in models
        for row in selection.selected(data.tcpd, _sized(name, 1), sizes.candidates, rng, advance)
    ]


def _sized(name: str, outputs: int) -> UnderlyingModel:
    return build(name, Options(y_dim=outputs))


def _forecasts(
    data: Corpora, models: Candidates, rng: np.random.Generator, bar: _Bar
) -> tuple[list[ForecastRow], list[NabRow]]:
    rows: list[ForecastRow] = []
    anomalies: list[NabRow] = []
    for corpus, everything in data.scalars.items():
        series = [one for one in everything if forecasts.scorable(one.y)]
        advance = bar.part(f"forecasts: {corpus}", len(series))
        strange: dict[str, list[Floats]] = {}
        scores: dict[str, list[SeriesScore]] = {}
        for one in series:
            for method, score in _scored(one, models, strange).items():
                scores.setdefault(method, []).append(score)
            advance()
        if not series:
            continue
        others = scores[next(iter(baselines.FORECASTERS))]
        rows += [
            ForecastRow(corpus, method, forecasts.pooled(each, others, rng))
            for method, each in scores.items()
        ]
        if corpus == NAB and any(each.window is not None and each.window.any() for each in series):
            anomalies = _anomalies(series, strange, rng)
    return rows, anomalies


def _scored(
    one: Scalars, models: Candidates, strange: dict[str, list[Floats]]
) -> dict[str, SeriesScore]:
    """Scores of every forecaster on one series; strange: gains the probabilities answered."""
    location, scale = changes.scaled(one.y[:, None])
    first = forecasts.first_scored(one.y)
    scores = {}
    for name, (model, settings) in models.items():
        (followed,) = follow(model, [one.y[:, None].tolist()], settings, forecasts.LEVELS)
        answers = followed.answers
        assert answers is not None
        summary = answers.summary
        forecast = Forecast(
            answers.log_score, summary.mean[:, 0], summary.cdf[:, 0], summary.quantiles[:, :, 0]
        )
        scores[name] = forecasts.score(one.y, forecast, scale[0], first)
        for kind, values in (
            ("changed_probability", answers.changed),
            ("recent_change_probability", answers.recent),
            (SURPRISE, -answers.log_score - math.log(scale[0])),
            (ANOMALY, answers.anomaly),
        ):
            strange.setdefault(f"{name}, {kind}", []).append(values)
    z = (one.y - location[0]) / scale[0]
    for name, forecaster in baselines.FORECASTERS.items():
        forecast = forecasts.of_normal(z, forecaster(z))
        scores[name] = forecasts.score(z, forecast, 1.0, first)
    return scores


def _anomalies(
    series: Sequence[Scalars], strange: dict[str, list[Floats]], rng: np.random.Generator
) -> list[NabRow]:
    weighted = [nab.weights(each.window) for each in series if each.window is not None]
    detectors = {
        **strange,
        "windowed Gaussian": [nab.windowed_gaussian(each.y) for each in series],
        "random": [rng.random(len(each.y)) for each in series],
        baselines.NOTHING: [np.zeros(len(each.y)) for each in series],
    }
    rows = []
    for name, scores in detectors.items():
        if name.endswith(ANOMALY):
            rows.append(NabRow(f"{name}, alarms", nab.score_alarms(scores, weighted, rng)))
        rows.append(NabRow(name, nab.score(scores, weighted, rng)))
    return rows
