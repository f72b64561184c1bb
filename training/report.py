"""The report of a training run: one page that needs no network, and the same numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.figures.chart import Chart
from training.intervals import Estimate

VERSION = 1  # of the layout of report.json


class Environment(NamedTuple):
    """Where and for how long it was trained."""

    torch: str
    device: str
    seed: int
    wall_time_s: float


class Metric(NamedTuple):
    """What was measured, in which unit, on how many sequences."""

    name: str
    estimate: Estimate
    unit: str = ""


class Comparison(NamedTuple):
    """Another method on the same sequences; difference: the model less the method, paired."""

    method: str
    metric: str
    estimate: Estimate
    difference: Estimate | None = None


class Calibration(NamedTuple):
    """What is known of it; None where it does not apply.

    pit_distance: of the PITs from uniform (Kolmogorov-Smirnov). coverage: (level, share inside) of
    central intervals. class_error: expected calibration error of a classifier.
    """

    pit_distance: float | None = None
    coverage: tuple[tuple[float, float], ...] = ()
    class_error: float | None = None


class Report(NamedTuple):
    """All that is told of a trained model.

    history: one record for each validation, in the JSON only: figures show it on the page.
    """

    name: str
    kind: str
    data_digest: str
    configuration: Mapping[str, Any]
    environment: Environment
    metrics: tuple[Metric, ...]
    comparisons: tuple[Comparison, ...] = ()
    calibration: Calibration | None = None
    figures: tuple[Chart, ...] = ()
    history: tuple[Mapping[str, float], ...] = ()


def as_json(report: Report) -> dict[str, Any]:
    """The report in JSON types; what is not a finite number is null, figures are their texts."""
    found = _json(report._replace(figures=()))
    found["figures"] = [{"title": f.title, "description": f.description} for f in report.figures]
    return {"version": VERSION, **found}


def _json(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _json(each) for key, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
