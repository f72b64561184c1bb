"""Training report of a run: test scores, other methods, calibration; as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training import results, trained
from training.config import OWN, Objective
from training.data.windows import Splits
from training.errors import TrainingError
from training.figures import Chart
from training.statistics import Estimate, MethodComparison, estimate, paired
from training.trained import METRICS, Calibration, Protocol, Trained

VERSION = 1  # of the layout of report.json
SERVED = Objective()  # the service's conditioning, for any mode of training


class Metric(NamedTuple):
    """A measured metric with its unit."""

    name: str
    estimate: Estimate
    unit: str = ""


class Report(NamedTuple):
    """Report of a trained model.

    environment: that of the training, with its duration. untrained: built-in models on the
    held-out part of own data, by log score (more is better); empty: not compared. history: one
    record for each validation, in the JSON only; on the page a figure shows it.
    """

    name: str
    kind: str
    data_digest: str
    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    comparisons: tuple[MethodComparison, ...] = ()
    untrained: tuple[MethodComparison, ...] = ()
    calibration: Calibration | None = None
    figures: tuple[Chart, ...] = ()
    history: tuple[Mapping[str, float], ...] = ()


def measured(name: str, run: Trained, splits: Splits, digest: str) -> Report:
    """Report of a run's model, measured on the test split."""
    protocol = run.protocol
    first = protocol.metric
    other = [metric for metric in METRICS if metric != first and splits.classes]
    values = {
        metric: trained.scores(run, splits, protocol._replace(metric=metric), SERVED)
        for metric in (first, *other)
    }
    configuration = run.config.model_dump(mode="json")
    if run.config.experiment == OWN:  # of own files only the name, as their path is private
        configuration["data"]["path"] = Path(configuration["data"]["path"]).name
    numbers, chart = trained.calibration(run, splits)
    return Report(
        name=name,
        kind=run.config.model.kind,
        data_digest=digest,
        configuration=configuration,
        environment={
            "torch": run.result["torch"],
            "device": run.result["device"],
            "seed": run.config.seed,
            "wall_time_s": run.result["elapsed_s"],
        },
        metrics=tuple(
            Metric(METRICS[metric][0], _estimate(of_metric), METRICS[metric][1])
            for metric, of_metric in values.items()
        ),
        comparisons=_comparisons(run, splits, protocol, values[first]),
        calibration=numbers,
        figures=(
            trained.validations(run),
            chart,
        ),
        history=tuple(run.result["history"]),
    )


def _estimate(values: NDArray[np.float64]) -> Estimate:
    """Estimate over sequences that have a label."""
    return estimate(values[~np.isnan(values)])


def _comparisons(
    run: Trained, splits: Splits, protocol: Protocol, ours: NDArray[np.float64]
) -> tuple[MethodComparison, ...]:
    """Other methods trained on the same data, of each the run with the best validation."""

    def comparable(one: Trained) -> tuple[Any, ...]:
        config = one.config
        # Own files count by their digest, at any path.
        data = {**config.data, "path": ""} if config.experiment == OWN else config.data
        return data, config.experiment, config.model.kind, config.optimiser.length

    others = [
        other
        for other in trained.finished(run.folder.resolve().parent)
        if comparable(other) == comparable(run) and other.method != run.method
    ]
    comparisons = []
    for (_, method), other in trained.best(others).items():
        try:
            theirs = trained.scores(other, splits, protocol)
        except (TrainingError, ValueError, RuntimeError):  # another shape, or switches unknown
            continue
        present = ~(np.isnan(ours) | np.isnan(theirs))
        difference = paired(ours[present], theirs[present])
        comparisons.append(
            MethodComparison(method, METRICS[protocol.metric][0], _estimate(theirs), difference)
        )
    return tuple(comparisons)


def write(folder: Path, report: Report, page: bool = True) -> list[Path]:
    """Write `report.json`, which has the texts of figures alone, and, as a page, `report.html`.

    Returns the files.
    """
    numbers = folder / "report.json"
    drawn = [{"title": f.title, "description": f.description} for f in report.figures]
    results.write(numbers, {"version": VERSION, **report._asdict(), "figures": drawn})
    if not page:
        return [numbers]
    document = folder / "report.html"
    text = results.rendered(
        "training.html",
        title=f"Training report: {report.name}",
        report=report,
        metrics=[(one.name, one.unit, one.estimate, one.estimate.count) for one in report.metrics],
        compared=("method", "metric", "mean", "model less method", "sequences"),
        comparisons=_compared(report.comparisons),
        untrained=_compared(report.untrained),
        levels=[
            (f"{level:.0%}", f"{inside:.1%}")
            for level, inside in (report.calibration.coverage if report.calibration else ())
        ],
        configuration=list(_flat(report.configuration)),
    )
    document.write_text(text, "utf-8")
    return [numbers, document]


def _compared(comparisons: Iterable[MethodComparison]) -> list[tuple[Any, ...]]:
    return [
        (one.method, one.metric, one.estimate, one.difference, one.estimate.count)
        for one in comparisons
    ]


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", str(value)
