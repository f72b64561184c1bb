"""What steps give, in numbers: answers to observations, and metrics.

Predictives of a whole batch are summarised together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from moca_client.responses import ABSENT, Component, Predictive
from model_core import correction
from model_core import summary as summaries
from model_core.lazy import torch
from model_core.predictive import Mixture
from model_core.readout import NUMBERS, Readout
from model_core.stream.series import Taken
from model_core.stream.slab import Detail, DetailRow, Stepped, SummaryRow
from model_core.stream.state import seasons_of
from model_core.summary import Floats, Summary
from model_core.upm.base import UnderlyingModel
from service.observability import metrics
from service.schema.rendering import of_classes, of_numbers
from service.wire import LEVELS, BeliefSummary, Observe, ObserveMany, Record, StoredAnswer
from service.wire.commands import DETAILS, SUMMARY, Layout
from service.wire.stored_records import KEPT_OUTPUTS

WAITING_BYTES = 256 << 20  # of predictives that wait to be summarised together
# Columns of a readout that quiet answers have, in their order.
_SUMMARY = [list(NUMBERS).index(name) for name in SUMMARY[:-1]]  # all but the anomaly
_DETAILS = [list(NUMBERS).index(name) for name in DETAILS]

# What a record has of a readout, what an answer has of a record, and with details.
RECORDED = [name for name in Record.__struct_fields__ if name in Readout._fields]
FULL = [name for name in StoredAnswer.__struct_fields__ if name in Record.__struct_fields__]
ANSWERED = [name for name in FULL if name not in ("variance", *DETAILS)]

# Columns of a readout that metrics have.
GATHERED = ("changepoint_probability", "log_score", "pruned_mass", "map_run_length", "evidence")
MOST_STEPS = 4096  # that are gathered: they are entered then, though no second has passed
STEPPED = ("count", "binary")  # supports on which a distribution function has steps
_random = np.random.default_rng(1)  # of metrics alone: no answer depends on it


class GatheredSteps(metrics.GatheredValues):
    """Also numbers of steps, by model. Of one thread.

    A worker enters what was gathered once a second, and when nothing waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: defaultdict[str, list[Floats]] = defaultdict(list)
        self._pits: defaultdict[str, list[Floats]] = defaultdict(list)
        self._count = 0

    def add_steps(self, model: str, numbers: Floats) -> None:
        """Gather what steps of one model gave: (n, 5) GATHERED; log_score nan: without a label."""
        self._steps[model].append(numbers)
        self._count += len(numbers)
        if self._count > MOST_STEPS:
            self.enter()

    def add_readouts(self, model: str, lines: Sequence[Readout]) -> None:
        """Gather what was read off after steps of one model."""
        if lines:
            rows = [[getattr(own, name) for name in GATHERED] for own in lines]
            self.add_steps(model, np.array(rows))

    def add_pits(self, model: str, summary: Summary) -> None:
        """Gather the probability integral transform of each label, of each output alone.

        It is uniform where the predictives are calibrated. Classes have no order, hence none.
        """
        if summary.support == "class":
            return
        values = summary.cdf
        if summary.support in STEPPED:  # a random place within the step of the distribution
            below = summary.cdf_below
            values = below + _random.random(values.shape) * (values - below)
        self._pits[model].append(values.ravel())

    def enter(self) -> None:
        """Enter what was gathered into the histograms."""
        super().enter()
        for model, parts in self._steps.items():
            changepoint, score, pruned, run_length, evidence = np.concatenate(parts).T
            score = score[~np.isnan(score)]
            metrics.observe_all(metrics.CHANGEPOINT_PROBABILITY, changepoint)
            metrics.observe_all(metrics.LOG_SCORE.labels(model), score)
            metrics.SCORE_ABOVE.labels(model).inc(score[score > 0].sum())
            metrics.SCORE_BELOW.labels(model).inc(-score[score < 0].sum())
            metrics.observe_all(metrics.PRUNED_MASS.labels(model), pruned)
            metrics.observe_all(metrics.RUN_LENGTH.labels(model), run_length)
            metrics.observe_all(metrics.EVIDENCE.labels(model), evidence)
        for model, parts in self._pits.items():
            values = np.concatenate(parts)
            values = values[np.isfinite(values)].clip(0.0, 1.0)
            metrics.observe_all(metrics.PIT.labels(model), values)
        self._steps.clear()
        self._pits.clear()
        self._count = 0


gathered = GatheredSteps()


class PendingAnswer(msgspec.Struct, gc=False):
    """What one observation will be answered with; the predictive is filled in per batch."""

    model: str
    record: Record
    request: Observe | None = None  # which parts of the predictive it names
    taken: Taken | None = None  # what it gave; None: nothing yet
    readout: Readout | None = None  # None: while warming up, and before it was stepped
    place: SummaryRow | None = None  # of a predictive that is yet to be filled in
    predictive: Predictive | None = None
    quantiles: Any = None  # at the levels that the request names
    components: list[Component] | None = None
    provisional: bool = False  # labels before it are to come

    @property
    def detail(self) -> Detail | None:
        """What the request names beside the usual summary of the predictive."""
        if self.request is None or not detailed(self.request):
            return None
        return Detail(sorted(self.request.quantiles or ()), self.request.components)

    def enter(self, taken: Taken) -> None:
        """Enter what the observation gave, also into the record."""
        record = self.record
        step = taken.step
        self.taken = taken
        record.offset = taken.offset
        if step is None:
            return
        self.place = step.predictive
        line = step.readout
        if taken.warm:
            self.readout = line
            for name in RECORDED:
                setattr(record, name, getattr(line, name))
            record.changepoint_probability = line.changepoint_probability if record.seq else None
            record.previous_start = line.born_previous_start
            record.anomaly = _number(step.anomaly)
            record.uncorrected = [*step.uncorrected] or None
        record.log_score = _number(line.log_score)
        if step.detail is not None:
            self._describe(step.detail)
            taken.step = step._replace(detail=None)  # it is large

    def _describe(self, place: DetailRow) -> None:
        """Add what the request names beside the usual: other quantiles, components."""
        request = self.request
        offset = self.record.offset
        assert request is not None
        if request.quantiles is not None and place.summary is not None:
            shifted = place.summary.shifted(np.array([offset])) if offset else place.summary
            correction.apply(shifted.numbers, place.applied[None])
            (at_levels,) = predictives(shifted, request.quantiles)
            self.quantiles = at_levels.quantiles
        if request.components and place.mixture is not None:
            (self.components,) = components(place.mixture.shifted(offset), place.run_lengths)

    def stored(self) -> StoredAnswer:
        """Return it as the API is sent it."""
        request = self.request
        record = self.record
        line = self.readout
        full = request is not None and request.full
        answer = StoredAnswer(
            record.seq,
            warming_up=line is None,
            components=self.components,
            provisional=self.provisional,
        )
        for name in FULL if full else ANSWERED:
            setattr(answer, name, getattr(record, name))
        if line is not None and request is not None and (full or request.belief):
            answer.run_length = BeliefSummary(
                line.map_run_length, line.mean_run_length, line.hypotheses, line.pruned_mass
            )
        described: Any = self.predictive  # None among its numbers is for clients alone
        if described is not None and described.probabilities is ABSENT:
            answer.mean = described.mean
            answer.variance = described.variance if full else None
            answer.quantiles = described.quantiles
        elif described is not None:
            answer.probabilities = described.probabilities
        if self.taken is not None:
            answer.event = self.taken.event
            answer.season = self.taken.season
            answer.belief = self.taken.belief
        return answer


def layout_of(model: UnderlyingModel) -> Layout:
    """Return the order of the numbers of a model's quiet observations."""
    return Layout(model.y_dim, 2 if model.label == "binary" else model.classes)


def quiet_numbers(layout: Layout, stepped: Stepped, offset: Floats | None) -> Floats:
    """Return the numbers of steps (n, `full`) in the order of a layout.

    offset: (n, d) seasons, which predictives are less of; None: of nothing.
    """
    predicted = stepped.predicted
    assert predicted is not None
    count, width = predicted.numbers.shape
    parts = (predicted.numbers, stepped.anomaly[:, None], stepped.table)
    numbers: Floats = np.concatenate(parts, 1).take(_places(layout, predicted.support, width), 1)
    if predicted.support == "binary":
        np.subtract(1.0, numbers[:, 1], out=numbers[:, 0])
    elif not layout.classes:
        middle = numbers[:, : layout.predictive].reshape(count, -1, layout.outputs)
        if offset is not None:
            middle += offset[:, None]
        np.maximum.accumulate(middle[:, 1:], 1, out=middle[:, 1:])
    return numbers


@lru_cache(256)
def _places(layout: Layout, support: str, width: int) -> NDArray[np.int64]:
    """Where the numbers of a layout are, in summaries of this width, anomalies and tables."""
    places: Any = np.arange(width)[None]
    own = summaries.Summary(places, layout.outputs, support)
    middle = [own.mean, own.mean] if support == "binary" else [own.mean]
    covariance = []
    if not layout.classes:
        middle.append(own.quantiles)
        covariance.append(own.covariance)
    table = np.arange(width + 1, width + 1 + len(NUMBERS))
    parts = (*middle, table[_SUMMARY], np.array([width]), *covariance, table[_DETAILS])
    return np.concatenate([part.ravel() for part in parts])


def describe(record: Record, predictive: Predictive) -> None:
    """Enter the predictive of its label into a record."""
    if predictive.probabilities is not ABSENT:
        record.probabilities = predictive.probabilities
        return
    described: Any = predictive  # None among its numbers is for clients alone
    kept = len(described.variance or []) <= KEPT_OUTPUTS
    record.mean = described.mean
    record.variance = described.variance if kept else None
    record.quantiles = described.quantiles


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def detailed(request: Observe | ObserveMany) -> bool:
    """Whether a request names more than the usual summary of the predictives."""
    return request.components or request.quantiles is not None


class Filling:
    """Answers whose predictives are summarised together, before they are too many to keep."""

    def __init__(self, most_bytes: int) -> None:
        self.count = 0
        self._most = most_bytes
        self._waiting: list[PendingAnswer] = []
        self._bytes = 0

    def add(self, *answers: PendingAnswer) -> None:
        """Have answers filled in, now or later."""
        self.count += len(answers)
        self._waiting += answers
        for answer in answers:
            if answer.place is not None:
                self._bytes += answer.place.summary.row_bytes
        if self._bytes > self._most:
            self.fill()

    def fill(self) -> None:
        """Render the predictive of each answer that waits and has one, many together."""
        groups: dict[int, tuple[Summary, list[tuple[PendingAnswer, Taken, int]]]] = {}
        for answer in self._waiting:
            place = answer.place
            if place is not None and answer.taken is not None:
                _, alike = groups.setdefault(id(place.summary), (place.summary, []))
                alike.append((answer, answer.taken, place.row))
        for whole, alike in groups.values():
            summary = whole.rows([row for _, _, row in alike])
            # That of the record may be another by now, where the filter has begun anew.
            seasons = [taken.offset for _, taken, _ in alike]
            if any(seasons):
                summary = summary.shifted(seasons_of(seasons, summary.outputs))
            # How labels of the warm-up lie in their predictives is not counted.
            counted = [i for i, (_, taken, _) in enumerate(alike) if taken.warm]
            if counted:
                gathered.add_pits(alike[0][0].model, summary.rows(counted))
            for (answer, taken, _), predictive in zip(
                alike, predictives(summary, LEVELS), strict=True
            ):
                answer.predictive = predictive
                describe(answer.record, predictive)
                if answer.quantiles is not None:
                    predictive.quantiles = answer.quantiles
                answer.place = taken.step = None  # they are large
        self._waiting = []
        self._bytes = 0


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


def summarise(mixture: Mixture, levels: Sequence[float]) -> list[Predictive]:
    """Predictive of each row, with quantiles at the levels."""
    rows = len(mixture.log_weight)
    nothing = torch.full((rows, mixture.outputs), math.nan, dtype=torch.float64)
    summary = summaries.of_mixture(mixture, nothing, sorted(levels))
    return predictives(summary, levels)


def components(mixture: Mixture, run_lengths: Sequence[int | None]) -> list[list[Component]]:
    """The components of each row that have a weight; run_lengths: as of `Slab.mixture`."""
    weights = mixture.log_weight.exp().tolist()
    moments = _moments(mixture)
    return [
        [
            Component(weight, length, **described)
            for weight, length, described in zip(row, run_lengths, own, strict=True)
            if weight > 0
        ]
        for row, own in zip(weights, moments, strict=True)
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
