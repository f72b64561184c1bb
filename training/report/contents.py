"""Contents of a training report, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.figures.chart import Chart
from training.statistics.intervals import Estimate

VERSION = 1  # of the layout of report.json


class Environment(NamedTuple):
    """Environment and duration of the training."""

    torch: str
    device: str
    seed: int
    wall_time_s: float


class Metric(NamedTuple):
    """A measured metric with its unit."""

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
    """Calibration; None where a measure does not apply.

    pit_distance: of the PITs from uniform (Kolmogorov-Smirnov). coverage: (level, share inside) of
    central intervals. class_error: expected calibration error of a classifier.
    """

    pit_distance: float | None = None
    coverage: tuple[tuple[float, float], ...] = ()
    class_error: float | None = None


class Report(NamedTuple):
    """Report of a trained model.

    untrained: built-in models on the held-out part of own data, by log score (more is better);
    empty: not compared. history: one record for each validation, in the JSON only; on the page a
    figure shows it.
    """

    name: str
    kind: str
    data_digest: str
    configuration: Mapping[str, Any]
    environment: Environment
    metrics: tuple[Metric, ...]
    comparisons: tuple[Comparison, ...] = ()
    untrained: tuple[Comparison, ...] = ()
    calibration: Calibration | None = None
    figures: tuple[Chart, ...] = ()
    history: tuple[Mapping[str, float], ...] = ()


def as_json(report: Report) -> dict[str, Any]:
    """The report in JSON types; numbers that are not finite are null, figures are their texts."""
    fields = _json(report._replace(figures=()))
    fields["figures"] = [{"title": f.title, "description": f.description} for f in report.figures]
    return {"version": VERSION, **fields}


def _json(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _json(field) for key, field in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
