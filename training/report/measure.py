"""Measure the contents of a model's report: test scores, other methods, calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.config import OWN, Objective
from training.data.base import Splits
from training.errors import TrainingError
from training.evaluation.filter_trace import trace
from training.evaluation.trained import (
    DTYPE,
    Protocol,
    Trained,
    best,
    load,
    scores,
    sequences,
    trained,
)
from training.figures import calibration as charts
from training.figures.drawing import Chart
from training.figures.performance import validation
from training.report.page import Calibration, Comparison, Environment, Metric, Report
from training.statistics import (
    Estimate,
    calibration_error,
    coverage,
    distance,
    estimate,
    paired,
    reliability,
)

MOCA = Objective()  # the service's conditioning, for any mode of training
CALIBRATION_SEQUENCES = 25  # test sequences on which calibration is measured
MAX_HYPOTHESES = 100  # of the filter while measuring calibration
LEVELS = (0.5, 0.8, 0.9, 0.95)
MEASURES = {"nll": ("test NLL", "nats"), "accuracy": ("test accuracy", "")}
BOTH = ("nll", "accuracy")


class Calibrated(NamedTuple):
    """The numbers and their figure."""

    numbers: Calibration
    chart: Chart


def report(name: str, run: Trained, splits: Splits, protocol: Protocol, digest: str) -> Report:
    """Report of a run's model, measured on the test split."""
    values = {
        metric: scores(run, splits, protocol._replace(metric=metric), MOCA)
        for metric in (BOTH if splits.classes else BOTH[:1])
    }
    ordered = sorted(values, key=lambda metric: metric != protocol.metric)
    calibrated = _calibrated(run, splits, protocol)
    return Report(
        name=name,
        kind=run.config.model.kind,
        data_digest=digest,
        configuration=_configuration(run),
        environment=Environment(
            str(run.result.get("torch", "not recorded")),
            str(run.result.get("device", "not recorded")),
            run.config.seed,
            run.result["elapsed_s"],
        ),
        metrics=tuple(_metric(metric, values[metric]) for metric in ordered),
        comparisons=_comparisons(run, splits, protocol, values[protocol.metric]),
        calibration=calibrated.numbers,
        figures=(
            validation({run.method: run.result["history"]}, "Validation"),
            calibrated.chart,
        ),
        history=tuple(run.result["history"]),
    )


def _metric(metric: str, values: NDArray[np.float64]) -> Metric:
    name, unit = MEASURES[metric]
    return Metric(name, _estimate(values), unit)


def _estimate(values: NDArray[np.float64]) -> Estimate:
    """Estimate over sequences that have a label."""
    return estimate(values[~np.isnan(values)])


def _comparisons(
    run: Trained, splits: Splits, protocol: Protocol, ours: NDArray[np.float64]
) -> tuple[Comparison, ...]:
    """Other methods trained on the same data, of each the run with the best validation."""
    comparisons = []
    for (_, method), other in best(_other_runs(run)).items():
        try:
            theirs = scores(other, splits, protocol)
        except (TrainingError, ValueError, RuntimeError):  # another shape, or switches unknown
            continue
        known = ~(np.isnan(ours) | np.isnan(theirs))
        difference = paired(ours[known], theirs[known])
        comparisons.append(
            Comparison(method, MEASURES[protocol.metric][0], _estimate(theirs), difference)
        )
    return tuple(comparisons)


def _other_runs(run: Trained) -> list[Trained]:
    """Runs of other methods in the same folder, on the same data and of the same kind."""
    return [
        other
        for other in trained(run.run.folder.resolve().parent)
        if _data(other) == _data(run)
        and other.config.experiment == run.config.experiment
        and other.config.model.kind == run.config.model.kind
        and other.config.optimiser.length == run.config.optimiser.length
        and other.method != run.method
    ]


def _data(run: Trained) -> dict[str, Any]:
    """Settings that determine the data: own files count by their digest, at any path."""
    settings = run.config.data
    return {**settings, "path": ""} if run.config.experiment == OWN else settings


def _calibrated(run: Trained, splits: Splits, protocol: Protocol) -> Calibrated:
    """PITs of numbers or reliability of classes, of the model filtered as in the service."""
    batch = sequences(splits, protocol).part(slice(0, CALIBRATION_SEQUENCES)).to("cpu", DTYPE)
    traced = trace(load(run, splits).served(), batch, max_hypotheses=MAX_HYPOTHESES)
    if traced.probability is not None:
        bins = reliability(traced.probability.numpy(), batch.y.squeeze(-1).numpy())
        numbers = Calibration(class_error=calibration_error(bins))
        return Calibrated(numbers, charts.classifier(bins))
    pits = traced.pit.numpy()
    inside = coverage(pits, LEVELS).tolist()
    numbers = Calibration(distance(pits), tuple(zip(LEVELS, inside, strict=True)))
    return Calibrated(numbers, charts.real(pits))


def _configuration(run: Trained) -> dict[str, Any]:
    """The run's configuration; of own files only the name, as their path is private."""
    configuration = run.config.model_dump(mode="json")
    if run.config.experiment == OWN:
        configuration["data"]["path"] = Path(configuration["data"]["path"]).name
    return configuration
