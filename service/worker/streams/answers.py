"""Answers as JSON. Predictive distributions of a whole batch are summarised together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from moca_client import responses
from moca_client.members import ABSENT
from moca_client.responses import BeliefColumns, Component, Predictive, RunLengthSummary
from model_core.predictive import Mixture
from model_core.readout import Readout
from model_core.summary import PRECISION, Summary
from model_core.transfer import on_host, to_device, to_host
from service.schema import rendering
from service.schema.rendering import of_classes, of_numbers
from service.wire import Event, Observe, Record, SeasonPeriods
from service.worker.streams import calibration_metrics

LEVELS = (0.05, 0.5, 0.95)
SUMMARY_BYTES = 64 << 20  # of the covariances of all components of the rows summarised at once
WAITING_BYTES = 256 << 20  # of predictives that wait to be summarised together
KEPT_OUTPUTS = 16  # a record of more keeps no covariance: that of 256 is 600 KB


class MixtureRow(NamedTuple):
    """One row of a batch's mixture.

    run_length: (B, S) of its components, of which one beyond S is the outliers'; None in the
    warm-up, which is one regime.
    """

    mixture: Mixture
    row: int
    run_length: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that wait for the row to be summarised."""
        parameters = self.mixture.components.parameters()
        return sum(parameter.nbytes for parameter in parameters) // len(self.mixture.log_weight)


class SummaryRow(NamedTuple):
    """One row of a batch's summaries, by a compiled kernel."""

    summary: Summary
    row: int

    @property
    def nbytes(self) -> int:
        """Bytes that wait for the row to be rendered."""
        return self.summary.row_bytes


PredictiveRow = MixtureRow | SummaryRow  # of a predictive that waits to be rendered


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


class PredictiveMoments(NamedTuple):
    """Mean and standard deviation of a predictive distribution, by output."""

    mean: list[float]
    sd: list[float]


def moments(place: PredictiveRow) -> PredictiveMoments | None:
    """Moments of one row's predictive distribution; None of classes. nan or inf: has none."""
    if isinstance(place, SummaryRow):
        summary = place.summary.rows([place.row])
        if summary.support in ("class", "binary"):
            return None
        mean = summary.mean[0]
        covariance = summary.covariance[0]
    else:
        alone = _rows(place.mixture, place.row, place.row + 1)
        if alone.components.support in ("class", "binary"):
            return None
        first, second = to_host([alone.mean(), alone.covariance()])
        mean = first[0].numpy()
        covariance = second[0].numpy()
    variance = np.diagonal(covariance)
    return PredictiveMoments(mean.tolist(), np.sqrt(np.maximum(variance, 0.0)).tolist())


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
    kinds: dict[tuple[str, int, int], list[PendingAnswer]] = {}
    summarised: dict[int, list[PendingAnswer]] = {}
    for answer in answers:
        if isinstance(answer.place, MixtureRow):
            components = answer.place.mixture.components
            shape = components.parameters()[0].shape
            kinds.setdefault((components.family, *shape[1:]), []).append(answer)
        elif answer.place is not None:
            summarised.setdefault(id(answer.place.summary), []).append(answer)
    for alike in kinds.values():
        mixture = _with_seasons(_gather(alike), alike)
        labels = [a.record.y if a.readout is not None else None for a in alike]
        numbers = _numbers(mixture, LEVELS)
        cumulative = calibration_metrics.cumulative(mixture, labels)
        tensors = to_host([*numbers, *cumulative])
        models = [answer.model for answer in alike]
        calibration_metrics.measure(mixture, tensors[len(numbers) :], labels, models)
        summaries = _rendered(mixture, tensors[: len(numbers)], LEVELS)
        for row, (answer, summary) in enumerate(zip(alike, summaries, strict=True)):
            _keep(answer, summary)
            _add_details(answer, mixture, row)
            answer.place = None
    for alike in summarised.values():
        _fill_summarised(alike)


def _keep(answer: PendingAnswer, predictive: Predictive) -> None:
    """Enter a predictive into an answer and its record."""
    answer.predictive = predictive
    record = answer.record
    if predictive.probabilities is not ABSENT:
        record.probabilities = predictive.probabilities
        return
    numbers: Any = predictive  # None among them is for clients alone
    kept = len(numbers.variance or []) <= KEPT_OUTPUTS
    record.mean = numbers.mean
    record.variance = numbers.variance if kept else None
    record.quantiles = numbers.quantiles


def _fill_summarised(answers: list[PendingAnswer]) -> None:
    """Fill in answers from the summaries of one batch."""
    places = [a.place for a in answers if isinstance(a.place, SummaryRow)]
    chosen = places[0].summary.rows([place.row for place in places])
    if any(answer.offset for answer in answers):
        chosen = chosen.shifted(np.array([answer.offset for answer in answers]))
    models = [answer.model for answer in answers]
    calibration_metrics.measure_summary(chosen, models)
    for answer, predictive in zip(answers, predictives(chosen, LEVELS), strict=True):
        _keep(answer, predictive)
        answer.place = None


def predictives(summary: Summary, levels: Sequence[float]) -> list[Predictive]:
    """What `summarise` makes of mixtures, from their summaries at ascending levels."""
    if summary.support == "class":
        return [of_classes(probabilities) for probabilities in summary.mean.tolist()]
    if summary.support == "binary":
        return [of_classes([1 - p, p]) for (p,) in summary.mean.tolist()]
    covariance = summary.covariance
    exists: Any = np.isfinite(covariance).all((1, 2)).tolist()
    values = np.maximum.accumulate(summary.quantiles, 1).tolist()
    names = [str(level) for level in levels]
    rows = zip(summary.mean.tolist(), covariance.tolist(), exists, values, strict=True)
    return [
        of_numbers(mean, variance if finite else None, dict(zip(names, at_levels, strict=True)))
        for mean, variance, finite, at_levels in rows
    ]


def _add_details(answer: PendingAnswer, mixture: Mixture, row: int) -> None:
    """Add what the request names beside the usual: other quantiles, the mixture's components."""
    request = answer.request
    place = answer.place
    summary = answer.predictive
    if request is None or not isinstance(place, MixtureRow) or summary is None:
        return
    alone = _rows(mixture, row, row + 1)
    if request.quantiles is not None and summary.quantiles is not ABSENT:
        (rising,) = to_host([_rising(alone, request.quantiles)])
        rising = _complete(alone, rising, request.quantiles)
        values: list[Any] = _in_order(rising, request.quantiles)[0]
        summary.quantiles = dict(zip(map(str, request.quantiles), values, strict=True))
    if request.components:
        lengths = None if place.run_length is None else place.run_length[place.row].tolist()
        (answer.components,) = components(alone, lengths or [answer.record.seq])


def _gather(answers: list[PendingAnswer]) -> Mixture:
    """Rows of several mixtures of one kind as one mixture."""
    groups: list[tuple[Mixture, list[int]]] = []
    for answer in answers:
        assert isinstance(answer.place, MixtureRow)
        if not groups or groups[-1][0] is not answer.place.mixture:
            groups.append((answer.place.mixture, []))
        groups[-1][1].append(answer.place.row)
    (whole, rows), *more = groups
    if not more and rows == list(range(len(whole.log_weight))):
        return whole
    weights = [m.log_weight[rows] for m, rows in groups]
    parts = zip(*([p[rows] for p in m.components.parameters()] for m, rows in groups), strict=True)
    components = groups[0][0].components.rebuilt(*(torch.cat(part) for part in parts))
    return Mixture(torch.cat(weights), components)


def _with_seasons(mixture: Mixture, answers: list[PendingAnswer]) -> Mixture:
    """Predictive of the labels themselves, of one of labels less their seasons."""
    if not any(answer.offset for answer in answers):
        return mixture
    offsets = np.array([answer.offset for answer in answers])
    return mixture.shifted(to_device(offsets, mixture.log_weight.device))


def summarise(mixture: Mixture, levels: Sequence[float]) -> list[Predictive]:
    """Predictive of each row: mean, variance (null where it does not exist) and quantiles.

    For classes, zeros and ones among them: their probabilities.
    """
    return _rendered(mixture, to_host(_numbers(mixture, levels)), levels)


def _numbers(mixture: Mixture, levels: Sequence[float]) -> list[Tensor]:
    """Numbers of `summarise`, where the mixture is: probabilities of classes, or those below.

    Mean (B, d), covariance (B, d, d), quantiles (B, Q, d) at the levels in rising order.
    """
    if mixture.components.support in ("class", "binary"):
        return [mixture.mean()]
    shape = mixture.components.mean().shape
    most = max(1, SUMMARY_BYTES // (8 * shape[1] * shape[2] ** 2))
    if shape[0] > most:
        parts = [_numbers(_rows(mixture, i, i + most), levels) for i in range(0, shape[0], most)]
        return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    return [mixture.mean(), mixture.covariance(), _rising(mixture, levels)]


def _rendered(
    mixture: Mixture, numbers: Sequence[Tensor], levels: Sequence[float]
) -> list[Predictive]:
    """Predictives of the rows from their numbers, which are on the host."""
    support = mixture.components.support
    mean = numbers[0].tolist()
    if support == "class":
        return [of_classes(probabilities) for probabilities in mean]
    if support == "binary":
        return [of_classes([1 - p, p]) for (p,) in mean]
    _, covariance, quantiles = numbers
    exists = torch.isfinite(covariance).flatten(1).all(-1).tolist()
    values = _in_order(_complete(mixture, quantiles, levels), levels)
    rows = zip(mean, covariance.tolist(), exists, values, strict=True)
    names = [str(level) for level in levels]
    return [
        of_numbers(mean, variance if finite else None, dict(zip(names, at_levels, strict=True)))
        for mean, variance, finite, at_levels in rows
    ]


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


def _rows(mixture: Mixture, start: int, end: int) -> Mixture:
    parameters = [parameter[start:end] for parameter in mixture.components.parameters()]
    return Mixture(mixture.log_weight[start:end], mixture.components.rebuilt(*parameters))


def _rising(mixture: Mixture, levels: Sequence[float]) -> Tensor:
    """Quantiles (B, Q, d) at the levels in rising order, monotone against rounding.

    On a device they are found without a look at them, and nan where that has not succeeded.
    """
    if not levels:
        return torch.empty_like(mixture.mean()[:, None][:, :0])
    weight = mixture.log_weight
    at = to_device(np.array(sorted(levels)), weight.device)
    quantiles = mixture.quantile(at, PRECISION, waits=on_host(weight))
    values: Tensor = quantiles.cummax(1).values
    return values


def _complete(mixture: Mixture, values: Tensor, levels: Sequence[float]) -> Tensor:
    """Fill in the rows of `_rising` that a device did not find, on the host."""
    if on_host(mixture.log_weight):
        return values
    for row in values.isnan().flatten(1).any(1).nonzero().flatten().tolist():
        alone = _rows(mixture, row, row + 1)
        weight, *parameters = to_host([alone.log_weight, *alone.components.parameters()])
        values[row] = _rising(Mixture(weight, alone.components.rebuilt(*parameters)), levels)[0]
    return values


def _in_order(values: Tensor, levels: Sequence[float]) -> list[list[list[float]]]:
    """Quantiles (B, Q, d) of the levels in rising order as lists, in the order of the levels."""
    rows: list[list[list[float]]] = values.tolist()
    rising = sorted(levels)
    if rising == list(levels):
        return rows
    places = [rising.index(level) for level in levels]
    return [[row[place] for place in places] for row in rows]
