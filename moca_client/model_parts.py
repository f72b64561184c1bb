"""Parts of an answer about a model, as its `model.json` and `report.json` state them.

Files of earlier and own kinds of models may lack members, and have others.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from moca_client.members import doc

Json = str | float | bool | list[Any] | dict[str, Any] | None  # of an experiment's settings


class Encoder(TypedDict, total=False):
    """Features of the inputs; which members there are depends on `type`."""

    type: str
    layers: list[int]
    activation: str
    output_activation: str
    channels: int
    height: int
    width: int
    blocks: list[int]
    periods: list[float]
    trend: bool


class Estimate(TypedDict, total=False):
    """Mean of a measure with its 95 % interval, over `count` sequences."""

    mean: float | None
    low: float | None
    high: float | None
    count: int


class TrainingMetric(Estimate, total=False):
    """The first metric of a training report."""

    name: str
    unit: str


class TrainingSummary(TypedDict, total=False):
    """Summary of a training."""

    experiment: str
    mode: str
    iterations: int
    best_iteration: int
    metric: TrainingMetric
    data_digest: str
    versions: dict[str, str]
    report: str
    date: str


class ModelRegime(TypedDict, total=False):
    """A typical regime of a model, and how probable it is in a series."""

    name: str
    probability: float


class Environment(TypedDict, total=False):
    """Environment and duration of a training."""

    torch: str
    device: str
    seed: int
    wall_time_s: float | None


class ReportMetric(TypedDict, total=False):
    """A measured metric with its unit."""

    name: str
    estimate: Estimate
    unit: str


class Comparison(TypedDict, total=False):
    """Another method on the same sequences; `difference`: the model less the method, paired."""

    method: str
    metric: str
    estimate: Estimate
    difference: Estimate | None


class ReportCalibration(TypedDict, total=False):
    """Calibration; null where a measure does not apply."""

    pit_distance: Annotated[float | None, doc("of the PITs from uniform (Kolmogorov-Smirnov)")]
    coverage: Annotated[
        list[list[float | None]], doc("level of a central interval, and the share inside")
    ]
    class_error: Annotated[float | None, doc("expected calibration error of a classifier")]


class Figure(TypedDict, total=False):
    """Texts of a figure of the report's page."""

    title: str
    description: str


class TrainingReport(TypedDict, total=False):
    """Numbers of a training report."""

    version: int
    name: str
    kind: str
    data_digest: str
    configuration: dict[str, Json]
    environment: Environment
    metrics: list[ReportMetric]
    comparisons: list[Comparison]
    untrained: Annotated[
        list[Comparison], doc("built-in models on the held-out part, by log score")
    ]
    calibration: ReportCalibration | None
    figures: list[Figure]
    history: Annotated[list[dict[str, float | None]], doc("a record for each validation")]
