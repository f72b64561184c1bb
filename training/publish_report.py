"""What a published model's report says: scores on the test split, other modes, calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from training import calibration
from training.config import OWN, Objective
from training.data.base import Splits
from training.errors import TrainingError
from training.evaluation.following import follow
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
from training.figures.chart import Chart
from training.figures.losses import of_validation
from training.intervals import Estimate, estimate, paired
from training.report import Calibration, Comparison, Environment, Metric, Report

MOCA = Objective()  # what a service conditions on, whatever the training did
FOLLOWED = 25  # test sequences on which calibration is measured
MOST = 100  # hypotheses meanwhile
LEVELS = (0.5, 0.8, 0.9, 0.95)
MEASURES = {"nll": ("test NLL", "nats"), "accuracy": ("test accuracy", "")}
BOTH = ("nll", "accuracy")


class Calibrated(NamedTuple):
    """The numbers and their figure."""

    numbers: Calibration
    chart: Chart


def report(name: str, each: Trained, splits: Splits, protocol: Protocol, digest: str) -> Report:
    """All that is told of a run's model, measured on the test split."""
    found = {
        metric: scores(each, splits, protocol._replace(metric=metric), MOCA)
        for metric in (BOTH if splits.classes else BOTH[:1])
    }
    ordered = sorted(found, key=lambda metric: metric != protocol.metric)
    calibrated = _calibrated(each, splits, protocol)
    return Report(
        name=name,
        kind=each.config.model.kind,
        data_digest=digest,
        configuration=_configuration(each),
        environment=Environment(
            str(each.result.get("torch", "not recorded")),
            str(each.result.get("device", "not recorded")),
            each.config.seed,
            each.result["elapsed_s"],
        ),
        metrics=tuple(_metric(metric, found[metric]) for metric in ordered),
        comparisons=_comparisons(each, splits, protocol, found[protocol.metric]),
        calibration=calibrated.numbers,
        figures=(_losses(each), calibrated.chart),
        history=tuple(each.result["history"]),
    )


def _metric(metric: str, values: NDArray[np.float64]) -> Metric:
    name, unit = MEASURES[metric]
    return Metric(name, _estimate(values), unit)


def _estimate(values: NDArray[np.float64]) -> Estimate:
    """Over sequences that have a label."""
    return estimate(values[~np.isnan(values)])


def _comparisons(
    each: Trained, splits: Splits, protocol: Protocol, ours: NDArray[np.float64]
) -> tuple[Comparison, ...]:
    """Runs of other methods beside it on the same data, of each the best in validation."""
    found = []
    for (_, method), other in best(_beside(each)).items():
        try:
            theirs = scores(other, splits, protocol)
        except (TrainingError, ValueError, RuntimeError):  # of another shape, or made for oracles
            continue
        known = ~(np.isnan(ours) | np.isnan(theirs))
        difference = paired(ours[known], theirs[known])
        found.append(
            Comparison(method, MEASURES[protocol.metric][0], _estimate(theirs), difference)
        )
    return tuple(found)


def _beside(each: Trained) -> list[Trained]:
    """Runs in the same folder on the same data, of the same kind, that are another method."""
    return [
        other
        for other in trained(each.run.folder.resolve().parent)
        if _data(other) == _data(each)
        and other.config.experiment == each.config.experiment
        and other.config.model.kind == each.config.model.kind
        and other.config.optimiser.length == each.config.optimiser.length
        and other.method != each.method
    ]


def _data(each: Trained) -> dict[str, Any]:
    """What decides the data: one's own files are known by their digest, wherever they lie."""
    found = each.config.data
    return {**found, "path": ""} if each.config.experiment == OWN else found


def _calibrated(each: Trained, splits: Splits, protocol: Protocol) -> Calibrated:
    """PITs of numbers, reliability of classes; of the model run as a service runs it."""
    batch = sequences(splits, protocol).part(slice(0, FOLLOWED)).to("cpu", DTYPE)
    followed = follow(load(each, splits).model(), batch, most=MOST)
    if followed.probability is not None:
        found = calibration.reliability(followed.probability, batch.y.squeeze(-1))
        numbers = Calibration(class_error=calibration.calibration_error(found))
        return Calibrated(numbers, charts.classifier(found))
    inside = calibration.coverage(followed.pit, torch.tensor(LEVELS, dtype=DTYPE))
    numbers = Calibration(
        calibration.distance(followed.pit), tuple(zip(LEVELS, inside.tolist(), strict=True))
    )
    return Calibrated(numbers, charts.real(followed.pit))


def _losses(each: Trained) -> Chart:
    return of_validation(each.result["history"], "Validation")


def _configuration(each: Trained) -> dict[str, Any]:
    """As it was given; of files of one's own only the name, for where they lay is nobody's."""
    found = each.config.model_dump(mode="json")
    if each.config.experiment == OWN:
        found["data"]["path"] = Path(found["data"]["path"]).name
    return found
