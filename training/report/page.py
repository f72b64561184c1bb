"""A training report: its contents, as a page that needs no network and as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from training.figures.drawing import Chart
from training.results import plain
from training.statistics import Estimate, formatted

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


def rendered(template: str, **content: Any) -> str:
    """A page of `templates/`."""
    loader = PackageLoader("training.report")
    templates = Templates(loader=loader, autoescape=True, undefined=StrictUndefined)
    templates.filters["data_uri"] = _data_uri
    return templates.get_template(template).render(content)


def _data_uri(chart: Chart) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(chart.svg()).decode()}"


def write(folder: Path, report: Report) -> list[Path]:
    """Write `report.html` and `report.json` to the folder; returns the files."""
    numbers = write_numbers(folder, report)
    document = folder / "report.html"
    page = rendered(
        "training.html",
        title=f"Training report: {report.name}",
        report=report,
        metrics=[
            (one.name, one.unit, formatted(one.estimate), one.estimate.count)
            for one in report.metrics
        ],
        compared=("method", "metric", "mean", "model less method", "sequences"),
        comparisons=_compared(report.comparisons),
        untrained=_compared(report.untrained),
        levels=[
            (f"{level:.0%}", f"{inside:.1%}")
            for level, inside in (report.calibration.coverage if report.calibration else ())
        ],
        configuration=list(_flat(report.configuration)),
    )
    document.write_text(page, "utf-8")
    return [document, numbers]


def write_numbers(folder: Path, report: Report) -> Path:
    """Write `report.json` alone, to ship it with a small model; of figures it has the texts."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "report.json"
    fields = {"version": VERSION, **plain(report._replace(figures=()))}
    fields["figures"] = [{"title": f.title, "description": f.description} for f in report.figures]
    text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)
    numbers.write_text(text + "\n", "utf-8")
    return numbers


def _compared(comparisons: Iterable[Comparison]) -> list[tuple[Any, ...]]:
    return [
        (
            one.method,
            one.metric,
            formatted(one.estimate),
            "" if one.difference is None else formatted(one.difference),
            one.estimate.count,
        )
        for one in comparisons
    ]


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", str(value)
