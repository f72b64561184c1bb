"""How well changes are found: in simulated families, on vectors, and on TCPD.

An alarm of a model is an event that is confirmed or `changed_probability` crossing .9. Delays count
the observations from the shift on, the first one included.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.stream_settings import DEFAULTS
from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import Gaussian
from training.evaluation import tcpd
from training.evaluation.online import Followed, Settings, follow, segmentation, warm
from training.evaluation.quality import baselines
from training.evaluation.quality.baselines import Detector
from training.evaluation.quality.corpora import MARGINS, Vectors
from training.evaluation.quality.families import FAMILIES, Family
from training.statistics import Estimate, bootstrap

Floats = NDArray[np.float64]
CROSSED = 0.9  # `changed_probability` above which a model alarms
# Alarm times of series (B, T) of one length, by method.
Watch = Callable[[Floats], Mapping[str, list[list[int]]]]


class Sizes(NamedTuple):
    """Sizes of the simulations."""

    quiet: int = 20
    quiet_length: int = 2000
    shifted: int = 60
    shift_at: int = 300
    within: int = 100  # observations after the shift in which it has to be found
    shifts: tuple[float, ...] = (1.0, 2.0, 3.0)  # standard deviations
    candidates: int = 24  # random settings to choose from, beside the defaults


class FamilyRow(NamedTuple):
    """One method on one family.

    false: alarms per 1,000 quiet observations. found: share of shifts with an alarm in time, by
    size. delay: their median, inf where fewer than half are found.
    """

    family: str
    method: str
    false: Estimate
    found: tuple[float, ...]
    delay: tuple[float, ...]


class ChangeRow(NamedTuple):
    """One method on one corpus: F1 and, on TCPD, covering; means over series."""

    corpus: str
    method: str
    f1: Estimate
    cover: Estimate | None = None
    detections: int = 0


def watch_model(name: str, model: UnderlyingModel, settings: Settings) -> Watch:
    """Alarms of a model."""

    def watch(y: Floats) -> dict[str, list[list[int]]]:
        followed = follow(model, y[..., None].tolist(), settings)
        return {
            f"{name}, confirmed": [confirmations(each) for each in followed],
            f"{name}, changed > .9": [crossings(each.changed) for each in followed],
        }

    return watch


def confirmations(followed: Followed) -> list[int]:
    """Times at which events were confirmed.

    One that is relocated counts again where its new start is after its confirmation: it cannot be
    the same change.
    """
    times = []
    latest: dict[int, int] = {}
    for t, event in followed.events:
        if event.state == "confirmed" and event.start > latest.get(event.id, -1):
            times.append(t)
            latest[event.id] = t
    return times


def crossings(changed: Sequence[float]) -> list[int]:
    """Times at which `changed_probability` comes to exceed `CROSSED`."""
    high = np.array(changed) > CROSSED
    return (1 + np.flatnonzero(high[1:] & ~high[:-1])).tolist()


def watch_baseline(name: str, detector: Detector) -> Watch:
    """Alarms of a baseline, those of the warm-up left out."""

    def watch(y: Floats) -> dict[str, list[list[int]]]:
        warmup = DEFAULTS.warmup
        raised = []
        for series in y:
            location, scale = scaled(series[:, None])
            alarms = baselines.alarms_of(detector, series[:, None], location, scale)
            raised.append([t for t in alarms if t >= warmup])
        return {name: raised}

    return watch


def scaled(y: Floats) -> tuple[list[float], list[float]]:
    """Location and scale of each output of a series (T, d), from its own warm-up."""
    columns = (y[:, k : k + 1].tolist() for k in range(y.shape[1]))
    moments = [warm(Gaussian(), column, DEFAULTS.warmup) for column in columns]
    return [location[0] for location, *_ in moments], [scale[0] for _, scale, _ in moments]


def simulate(
    watches: Sequence[Watch], seed: int, sizes: Sizes, advance: Callable[[], None]
) -> Iterator[FamilyRow]:
    """Every method on every family; `advance` is called after each family and method."""
    for index, family in enumerate(FAMILIES):
        quiet, shifted = _draw(family, np.random.default_rng([seed, index]), sizes)
        for watch in watches:
            raised = watch(quiet)
            after = [watch(y) for y in shifted]
            for method, alarms in raised.items():
                rates = [1000 * len(times) / sizes.quiet_length for times in alarms]
                delays = [_delays(each[method], sizes) for each in after]
                yield FamilyRow(
                    family.name,
                    method,
                    bootstrap(rates, np.random.default_rng(seed)),
                    tuple(float(np.isfinite(each).mean()) for each in delays),
                    tuple(statistics.median(each) for each in delays),
                )
            advance()


def _draw(family: Family, rng: np.random.Generator, sizes: Sizes) -> tuple[Floats, list[Floats]]:
    """Quiet series (B, T), and for each shift series with it."""
    quiet = np.stack([family.draw(rng, sizes.quiet_length) for _ in range(sizes.quiet)])
    length, at = sizes.shift_at + sizes.within, sizes.shift_at
    shifted = [
        np.stack([family.shifted(rng, length, at, by) for _ in range(sizes.shifted)])
        for by in sizes.shifts
    ]
    return quiet, shifted


def _delays(alarms: Sequence[Sequence[int]], sizes: Sizes) -> list[float]:
    first = sizes.shift_at
    return [min((t - first + 1 for t in times if t >= first), default=math.inf) for times in alarms]


def f1(truth: Sequence[int], detected: Sequence[int], margin: int) -> float:
    """F1 of detections; each true change is matched by one detection at most, within the margin."""
    hits = tcpd.hits(truth, list(detected), margin)
    total = len(truth) + len(detected)
    return 2 * hits / total if total else 1.0


def vectors(
    corpus: str,
    series: Sequence[Vectors],
    detectors: Mapping[str, Detector],
    make: Mapping[str, Callable[[int], UnderlyingModel]],
    rng: np.random.Generator,
) -> list[ChangeRow]:
    """F1 on a corpus of vectors; make: models by name, from the number of outputs."""
    margin = MARGINS[corpus]
    detections: dict[str, list[list[int]]] = {}
    for name, build in make.items():
        detections[name] = [
            follow(build(one.y.shape[1]), [one.y.tolist()], Settings())[0].confirmed()
            for one in series
        ]
    for name, detector in detectors.items():
        detections[name] = [
            baselines.alarms_of(detector, one.y, *scaled(one.y), apart=margin) for one in series
        ]
    detections[baselines.EVEN] = [
        baselines.evenly_spaced(len(one.y), len(one.changes)) for one in series
    ]
    rows = []
    for method, detected in detections.items():
        pairs = zip(series, detected, strict=True)
        scores = [f1(one.changes, points, margin) for one, points in pairs]
        count = sum(map(len, detected))
        rows.append(ChangeRow(corpus, method, bootstrap(scores, rng), None, count))
    return rows


def on_tcpd(
    series: Sequence[tcpd.Series],
    detectors: Mapping[str, Detector],
    models: Mapping[str, tuple[UnderlyingModel, Settings]],
    rng: np.random.Generator,
    advance: Callable[[], None],
) -> list[ChangeRow]:
    """F1 and covering of univariate series, by the benchmark's scorer."""
    scores: dict[str, list[tuple[tcpd.Score, int]]] = {}
    for one in series:
        for method, detected in _detections(one, detectors, models).items():
            result = tcpd.score(one.annotations, detected, len(one.values))
            scores.setdefault(method, []).append((result, len(detected)))
        advance()
    return [
        ChangeRow(
            "TCPD",
            method,
            bootstrap([each.f1 for each, _ in results], rng),
            bootstrap([each.cover for each, _ in results], rng),
            sum(count for _, count in results),
        )
        for method, results in scores.items()
    ]


def _detections(
    one: tcpd.Series,
    detectors: Mapping[str, Detector],
    models: Mapping[str, tuple[UnderlyingModel, Settings]],
) -> dict[str, Sequence[int]]:
    """Changes of one series by method."""
    detections: dict[str, Sequence[int]] = {}
    for name, (model, settings) in models.items():
        (followed,) = follow(model, [one.values], settings)
        detections[f"{name}, confirmed online"] = followed.confirmed()
        detections[f"{name}, segmentation as served"] = followed.served
        if not settings.defaults.seasonal:
            detections[f"{name}, in hindsight"] = segmentation(model, one.values, settings)
    y = np.array(one.values)
    for name, detector in detectors.items():
        detections[name] = baselines.alarms_of(detector, y, *scaled(y))
    count = round(statistics.mean(len(points) for points in one.annotations.values()))
    detections[baselines.EVEN] = baselines.evenly_spaced(len(y), count)
    return detections
