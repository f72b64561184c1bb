"""Answers as JSON. Predictive distributions of a whole batch are summarised together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from moca_client import responses
from moca_client.members import ABSENT
from moca_client.responses import BeliefColumns, Component, Predictive, RunLengthSummary
from model_core import summary as summaries
from model_core.lazy import torch
from model_core.predictive import Mixture
from model_core.readout import Readout
from model_core.stream.predictives import MixtureRow, PredictiveRow, summarised
from model_core.stream.slab import Step
from model_core.summary import Summary
from service.schema import rendering
from service.schema.rendering import of_classes, of_numbers
from service.wire import Event, Observe, Record, SeasonPeriods, numbers
from service.worker.streams import calibration_metrics

LEVELS = (0.05, 0.5, 0.95)
WAITING_BYTES = 256 << 20  # of predictives that wait to be summarised together
KEPT_OUTPUTS = 16  # a record of more keeps no covariance: that of 256 is 600 KB


class PendingAnswer(msgspec.Struct, gc=False):
    """What one observation will be answered with; the predictive is filled in per batch."""

    stream: str
    model: str
    record: Record
    request: Observe | None = None  # which parts of the predictive it names
    readout: Readout | None = None
    place: PredictiveRow | None = None
    predictive: Predictive | None = None
    event: Event | None = None
    belief: tuple[list[int], list[float]] | None = None  # run lengths and their probabilities
    components: list[Component] | None = None
    provisional: bool = False  # labels before it are to come
    offset: float = 0.0  # season that the place's predictive is less of
    season: SeasonPeriods | None = None

    @property
    def detailed(self) -> bool:
        """Whether the request names more than the usual summary of the predictive."""
        return self.request is not None and detailed(self.request)

    def enter(self, step: Step) -> None:
        """Enter what a step gave, also into the record."""
        line = step.readout
        record = self.record
        self.readout = line
        self.place = step.predictive
        self.offset = record.offset
        record.log_score = None if math.isnan(line.log_score) else line.log_score
        record.changed_probability = line.changed_probability
        record.changepoint_probability = line.changepoint_probability if record.seq else None
        record.recent_change_probability = line.recent_change_probability
        record.map_run_length = line.map_run_length
        record.previous_start = line.born_previous_start
        record.anomaly = None if math.isnan(step.anomaly) else step.anomaly
        record.regime = line.regime

    def render(self) -> bytes:
        """JSON text, as DESIGN section 5 has it."""
        record = self.record
        readout = self.readout
        answer = responses.Answer(
            stream=self.stream,
            seq=record.seq,
            model=self.model,
            predictive=self.predictive,
            log_score=record.log_score,
            changed_probability=record.changed_probability,
            changepoint_probability=record.changepoint_probability,
            recent_change_probability=record.recent_change_probability,
            anomaly=record.anomaly,
            run_length=None if readout is None else self._run_length(readout),
            event=rendering.event(self.event),
            warming_up=readout is None,
            duplicate=False,
            components=self.components,
            time=record.time,
            provisional=self.provisional,
            season=rendering.season(self.season),
            regime=rendering.regime(record.regime),
        )
        return msgspec.json.encode(answer)

    def _run_length(self, readout: Readout) -> RunLengthSummary:
        return RunLengthSummary(
            map=readout.map_run_length,
            mean=readout.mean_run_length,
            hypotheses=readout.hypotheses,
            pruned_mass=readout.pruned_mass,
            belief=None if self.belief is None else BeliefColumns(self.belief[0], self.belief[1]),
        )


def detailed(request: Observe) -> bool:
    """Whether a request names more than the usual summary of the predictives."""
    return request.components or request.quantiles is not None


def repeat(body: list[bytes]) -> list[bytes]:
    """Stored answers, now marked as duplicates; problem documents as they are."""
    answers = [msgspec.json.decode(text) for text in body]
    for answer in answers:
        if "duplicate" in answer:
            answer["duplicate"] = True
    return [msgspec.json.encode(answer) for answer in answers]


class Filling:
    """Answers whose predictives are summarised together, before they are too many to keep."""

    def __init__(self, most_bytes: int = WAITING_BYTES) -> None:
        self.count = 0
        self._most = most_bytes
        self._waiting: list[PendingAnswer] = []
        self._bytes = 0

    def add(self, *answers: PendingAnswer) -> None:
        """Have answers filled in, now or later."""
        self.count += len(answers)
        self._waiting += answers
        self._bytes += sum(answer.place.nbytes for answer in answers if answer.place is not None)
        if self._bytes > self._most:
            self.fill()

    def fill(self) -> None:
        """Fill in those that wait."""
        fill(self._waiting)
        self._waiting = []
        self._bytes = 0


def fill(answers: list[PendingAnswer]) -> None:
    """Summarise the predictive of every answer that has one, batches of a kind together."""
    groups: dict[Any, list[PendingAnswer]] = {}
    for answer in answers:
        if answer.place is not None:
            groups.setdefault(answer.place.kind, []).append(answer)
    for alike in groups.values():
        summary = _summary(alike)
        # How labels of the warm-up lie in their predictives is not counted.
        counted = [i for i, answer in enumerate(alike) if answer.readout is not None]
        if counted:
            calibration_metrics.measure(summary.rows(counted), [alike[i].model for i in counted])
        for answer, predictive in zip(alike, predictives(summary, LEVELS), strict=True):
            _keep(answer, predictive)
            _add_details(answer, predictive)
            answer.place = None


def _summary(answers: list[PendingAnswer]) -> Summary:
    """Summaries of predictives of one kind."""
    places = [answer.place for answer in answers if answer.place is not None]
    outputs = max((len(numbers(answer.record.y)) for answer in answers), default=1) or 1
    labels = np.full((len(answers), outputs), math.nan)
    for row, answer in enumerate(answers):
        if answer.record.y is not None:
            labels[row] = numbers(answer.record.y)
    offsets = np.array([answer.offset for answer in answers])
    return summarised(places, labels, offsets, LEVELS)


def _keep(answer: PendingAnswer, predictive: Predictive) -> None:
    """Enter a predictive into an answer and its record."""
    answer.predictive = predictive
    record = answer.record
    if predictive.probabilities is not ABSENT:
        record.probabilities = predictive.probabilities
        return
    described: Any = predictive  # None among its numbers is for clients alone
    kept = len(described.variance or []) <= KEPT_OUTPUTS
    record.mean = described.mean
    record.variance = described.variance if kept else None
    record.quantiles = described.quantiles


def predictives(summary: Summary, levels: Sequence[float]) -> list[Predictive]:
    """Predictives of summaries: mean, variance (null where it does not exist) and quantiles.

    levels: of the quantiles, which the summaries have in rising order. For classes, zeros and ones
    among them: their probabilities.
    """
    if summary.support == "class":
        return [of_classes(probabilities) for probabilities in summary.mean.tolist()]
    if summary.support == "binary":
        return [of_classes([1 - p, p]) for (p,) in summary.mean.tolist()]
    covariance = summary.covariance
    exists: Any = np.isfinite(covariance).all((1, 2)).tolist()
    values = np.maximum.accumulate(summary.quantiles, 1).tolist()
    rising = sorted(levels)
    places = [(str(level), rising.index(level)) for level in levels]
    rows = zip(summary.mean.tolist(), covariance.tolist(), exists, values, strict=True)
    return [
        of_numbers(mean, variance if finite else None, {name: at_levels[i] for name, i in places})
        for mean, variance, finite, at_levels in rows
    ]


def _add_details(answer: PendingAnswer, predictive: Predictive) -> None:
    """Add what the request names beside the usual: other quantiles, the mixture's components."""
    request = answer.request
    place = answer.place
    if request is None or not detailed(request) or not isinstance(place, MixtureRow):
        return
    mixture = place.mixture.rows(slice(place.row, place.row + 1))
    if answer.offset:
        mixture = mixture.shifted(torch.full_like(mixture.log_weight[:, 0], answer.offset))
    if request.quantiles is not None and predictive.quantiles is not ABSENT:
        (at_levels,) = summarise(mixture, request.quantiles)
        predictive.quantiles = at_levels.quantiles
    if request.components:
        lengths = None if place.run_length is None else place.run_length[place.row].tolist()
        (answer.components,) = components(mixture, lengths or [answer.record.seq])


def summarise(mixture: Mixture, levels: Sequence[float]) -> list[Predictive]:
    """Predictive of each row, with quantiles at the levels."""
    rows = len(mixture.log_weight)
    nothing = torch.full((rows, mixture.outputs), math.nan, dtype=torch.float64)
    return predictives(summaries.of_mixture(mixture, nothing, sorted(levels)), levels)


def components(mixture: Mixture, run_lengths: Sequence[int | None]) -> list[list[Component]]:
    """The components of each row that have a weight, the shortest run length first.

    run_lengths: of the components, the same in all rows; the outliers' may be left out.
    """
    weights = mixture.log_weight.exp().tolist()
    moments = _moments(mixture)
    lengths = [*run_lengths, *[None] * (len(weights[0]) - len(run_lengths))]
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i] is None, lengths[i] or 0))
    return [
        [Component(row[i], lengths[i], **described[i]) for i in order if row[i] > 0]
        for row, described in zip(weights, moments, strict=True)
    ]


def _moments(mixture: Mixture) -> list[list[dict[str, Any]]]:
    """Each component's mean, variance, family and parameters, or its classes' probabilities."""
    parts = mixture.components
    means = parts.mean().tolist()
    if parts.support == "class":
        return [[{"probabilities": probabilities} for probabilities in row] for row in means]
    variances = parts.variance().tolist()
    named = {name: value.tolist() for name, value in parts.named().items()}
    return [
        [
            {
                "mean": mean,
                "variance": [value if math.isfinite(value) else None for value in variances[b][m]],
                "family": parts.family,
                "parameters": {name: values[b][m] for name, values in named.items()},
            }
            for m, mean in enumerate(row)
        ]
        for b, row in enumerate(means)
    ]
