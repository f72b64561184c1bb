"""Offline simulation of the service on a series: the same filter, warm-up and events.

Series are stepped by the model's compiled kernel where it has one and numba is installed, else by
the eager filter; both give the same numbers but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import anomaly, compiled, kernel, readout, season, warmup
from model_core import filter as moca
from model_core.defaults import Defaults
from model_core.events import Event, Track, track
from model_core.filter import FilterState, Info, Inputs, Prior
from model_core.kernel import InPlace
from model_core.predictive import Mixture
from model_core.quantiles import with_normal
from model_core.readout import Readout
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel
from training.data.base import Batch
from training.evaluation import seasons

Rows = Sequence[Sequence[float]]  # labels [T][d], nan where missing
Warmed = tuple[list[float], list[float], int]  # location, scale, observations of the warm-up
RECENT_RUN_LENGTHS = 5  # of `recent_change_probability`, as in the service
AT_ONCE = 64  # observations in a call of a kernel
OK_COLUMN = list(readout.NUMBERS).index("ok")
NO_SUMMARY = np.empty(0)


class Settings(NamedTuple):
    """Settings of the filter; hazard and outlier rate are by default the model's.

    search_phase: of the searches for seasons by default, in [0, 1); see `seasons.Search`.
    """

    defaults: Defaults = Defaults()
    hazard: float | None = None
    outlier_rate: float | None = None
    search_phase: float = 0.0

    @property
    def threshold(self) -> float:
        """Of `changed_probability`, at which a change is confirmed; 0 where it takes time."""
        return self.defaults.confirm_probability or 0.0


class Answers(NamedTuple):
    """Numbers that the service answers of each observation of a series; nan while warming up.

    log_score, changed, recent, anomaly: (T,) log score (nan without a label, as the anomaly),
    `changed_probability`, `recent_change_probability` and `anomaly`. summary: of the predictives
    (T rows), empty unless quantiles were wanted; also filled while warming up. warmup: observations
    of the warm-up.
    """

    log_score: NDArray[np.float64]
    changed: NDArray[np.float64]
    recent: NDArray[np.float64]
    anomaly: NDArray[np.float64]
    summary: Summary
    warmup: int


class Followed(NamedTuple):
    """Events and segmentation of one series.

    events: each state change of an event with its position. changed:
    `changed_probability` after each observation; nan while warming up. served: starts of the
    segmentation of the retained history, without the first. answers: all other numbers.
    """

    events: list[tuple[int, Event]]
    changed: list[float]
    served: Sequence[int] = ()
    answers: Answers | None = None

    def confirmed(self) -> list[int]:
        """Latest starts of the events that are confirmed at the end."""
        starts = {event.id: event.start for _, event in self.events if event.state == "confirmed"}
        return sorted(set(starts.values()))


class Step(NamedTuple):
    """One observation of one stream.

    summary: numbers of a row of `Summary`, none where no predictive is wanted.
    """

    stream: int
    t: int
    readout: Readout
    summary: NDArray[np.float64]


def run(
    model: UnderlyingModel, prior: Prior, y: Tensor, settings: Settings
) -> Iterator[tuple[FilterState, Info]]:
    """Filter labels (B, T, d), nan where missing, step by step."""
    state = moca.init(prior, settings.defaults.max_hypotheses)
    for t in range(y.shape[1]):
        state, info = moca.step(model, state, prior, _inputs(model, y, t, settings))
        yield state, info


def _inputs(model: UnderlyingModel, y: Tensor, t: int, settings: Settings) -> Inputs:
    """Observation `t` of every stream with its settings."""
    inputs = observed(model, Batch(None, y), t)
    if settings.hazard is not None:
        hazard = torch.full_like(inputs.hazard[:, :1], settings.hazard)
        inputs = inputs._replace(hazard=hazard)
    if settings.outlier_rate is not None:
        rate = torch.full_like(inputs.elapsed, settings.outlier_rate)
        inputs = inputs._replace(outlier_rate=rate)
    return inputs


def observed(model: UnderlyingModel, batch: Batch, t: int) -> Inputs:
    """Observation `t` of every sequence."""
    y = batch.y[:, t]
    known = torch.isfinite(y)
    labelled = known.any(-1) if model.partial else known.all(-1)
    hazard = model.hazard
    table = [hazard] if isinstance(hazard, float) else list(hazard)
    ones = torch.ones(len(y), dtype=torch.float64)
    return Inputs(
        x=None if batch.x is None else batch.x[:, t],
        y=torch.where(labelled.unsqueeze(-1), y, 0.0),
        labelled=labelled,
        hazard=torch.tensor(table, dtype=torch.float64).expand(len(y), -1),
        elapsed=ones if batch.elapsed is None else batch.elapsed[:, t].double(),
        changepoint=ones * math.nan,
        outlier_rate=ones * model.outlier_rate,
    )


def follow(
    model: UnderlyingModel,
    series: Sequence[Rows],
    settings: Settings,
    levels: Sequence[float] = (),
) -> list[Followed]:
    """Events and answers of several series of one length, as of streams of the service.

    levels: of the quantiles of predictives; without any these are not summarised.
    """
    warmups = [warm(model, rows, settings.defaults.warmup) for rows in series]
    parts = [_stretches(model, *each, settings) for each in zip(series, warmups, strict=True)]
    alike = [i for i, each in enumerate(parts) if len(each) < 2]  # in which no season is found
    together = iter(
        _follow_together(
            model, [series[i] for i in alike], [warmups[i] for i in alike], settings, levels
        )
    )
    return [
        next(together)
        if len(each) < 2
        else _follow_seasonal(model, rows, warmed, each, settings, levels)
        for rows, warmed, each in zip(series, warmups, parts, strict=True)
    ]


def _stretches(
    model: UnderlyingModel, rows: Rows, warmed: Warmed, settings: Settings
) -> list[seasons.Stretch]:
    """Stretches of a series of one number; none where its streams do not look for seasons."""
    defaults = settings.defaults
    if model.label != "real" or model.y_dim != 1 or defaults.seasonal is False:
        return []
    y = np.array(rows, dtype=np.float64)[:, 0]
    if defaults.seasonal:
        return seasons.stretches(y)
    if not model.seasonal:
        return []
    history = min(defaults.history, season.CAPACITY)
    return seasons.stretches(y, seasons.Search(settings.search_phase, warmed[2], history))


def _follow_together(
    model: UnderlyingModel,
    series: Sequence[Rows],
    warmups: Sequence[Warmed],
    settings: Settings,
    levels: Sequence[float],
) -> list[Followed]:
    """Events and answers of several series without a season."""
    if not series:
        return []
    y = torch.tensor(series, dtype=torch.float64)
    followers = [
        _Follower(model, rows, warmed, settings)
        for rows, warmed in zip(y.numpy(), warmups, strict=True)
    ]
    prior = prior_of(model, [(location, scale) for location, scale, _ in warmups])
    confirmed = np.zeros(len(series), dtype=np.int64)
    for step in steps(model, prior, y, settings, confirmed, levels):
        follower = followers[step.stream]
        follower.take(step)
        confirmed[step.stream] = follower.track.confirmed_start
    first = max(0, y.shape[1] - settings.defaults.history)
    return [each.followed(first) for each in followers]


def _follow_seasonal(
    model: UnderlyingModel,
    rows: Rows,
    warmed: Warmed,
    stretches: Sequence[seasons.Stretch],
    settings: Settings,
    levels: Sequence[float],
) -> Followed:
    """Events and answers of one series less its seasons.

    Where a season is found or given up, the filter begins anew with the last labels less their
    season. The regimes that it finds among these are known, no events.
    """
    location, scale, _ = warmed
    y = np.array(rows, dtype=np.float64)
    follower = _Follower(model, y, warmed, settings)
    confirmed = np.zeros(1, dtype=np.int64)
    for stretch in stretches:
        base, replayed = stretch.base, len(stretch.past)
        if replayed:
            known = stretch.past[np.isfinite(stretch.past), None]
            location, scale = warmup.estimate(known.tolist(), model)
        joined = follower.best_start(base)
        labels = torch.tensor(np.concatenate([stretch.past, stretch.labels])[None, :, None])
        prior = prior_of(model, [(location, scale)])
        confirmed[0] = max(follower.track.confirmed_start - base, 0)
        for step in steps(model, prior, labels, settings, confirmed, levels):
            t = base + step.t
            each = seasons.moved(step.readout, base, joined)
            if step.t < replayed:
                follower.replay(t, each, last=step.t == replayed - 1)
            else:
                summary = stretch.answered(step.summary, step.t - replayed)
                follower.take(Step(0, t, each, summary))
            confirmed[0] = max(follower.track.confirmed_start - base, 0)
    first = max(0, len(rows) - settings.defaults.history)
    return follower.followed(first)


def segmentation(model: UnderlyingModel, rows: Rows, settings: Settings) -> list[int]:
    """Starts of the best segmentation of a whole series, without the first.

    Viterbi over the hypotheses that are not pruned; location and scale are those of all labels.
    """
    labels = [row for row in rows if all(map(math.isfinite, row))]
    prior = prior_of(model, [warmup.estimate(labels, model)])
    y = torch.tensor([rows], dtype=torch.float64)
    pointers = _Pointers()
    for step in steps(model, prior, y, settings, np.zeros(1, dtype=np.int64)):
        pointers.add(step.readout)
    return pointers.starts()


def steps(
    model: UnderlyingModel,
    prior: Prior,
    y: Tensor,
    settings: Settings,
    confirmed: NDArray[np.int64],
    levels: Sequence[float] = (),
) -> Iterator[Step]:
    """Filter labels (B, T, d), nan where missing; the steps of one stream come in order.

    confirmed: (B,) start of each stream's last confirmed event; the caller may move it after each
    step. levels: of the quantiles in the summaries; without any there are none.
    """
    fast = kernel.in_place(model, y.device, settings.defaults.max_hypotheses)
    if fast is None:
        yield from _steps_eagerly(model, prior, y, settings, confirmed, levels)
        return
    fast.compile()
    rows = _Rows(model, fast, prior, y, settings, levels)
    for stream in range(len(y)):
        yield from rows.through(stream, confirmed)


def _steps_eagerly(
    model: UnderlyingModel,
    prior: Prior,
    y: Tensor,
    settings: Settings,
    confirmed: NDArray[np.int64],
    levels: Sequence[float],
) -> Iterator[Step]:
    for t, (state, info) in enumerate(run(model, prior, y, settings)):
        table = _readouts(state, info, torch.tensor(confirmed), settings.threshold)
        summaries = _summaries(info.predictive, y[:, t], levels)
        for stream, (each, summary) in enumerate(zip(table, summaries, strict=True)):
            yield Step(stream, t, each, summary)


class _Rows:
    """Streams whose states a compiled kernel steps where they lie."""

    def __init__(
        self,
        model: UnderlyingModel,
        fast: InPlace,
        prior: Prior,
        y: Tensor,
        settings: Settings,
        levels: Sequence[float],
    ) -> None:
        self._model, self._kernel, self._y, self._settings = model, fast, y, settings
        self._levels = levels
        self._blank = moca.init(prior, settings.defaults.max_hypotheses)
        self._leaves = [each.clone().contiguous() for each in moca.leaves(self._blank)]
        stats = type(prior.stats)(*(each.clone().contiguous() for each in prior.stats))
        self._prior = Prior(stats, *(each.clone().contiguous() for each in prior[1:]))
        self._views = fast.views([*self._leaves, *self._prior.stats, *self._prior[1:]])
        self._normal = with_normal(levels)
        self._inputs = self._packed()
        first = _inputs(model, y, 0, settings) if y.shape[1] else None
        self._hazards = np.empty((AT_ONCE, 0)) if first is None else _repeated(first.hazard)

    def _packed(self) -> NDArray[np.float64]:
        """Inputs (B, T, 6 + d) of all steps; see `compiled.kernel.Kernel.advance`."""
        y, model, stated = self._y.numpy(), self._model, self._settings.outlier_rate
        known = np.isfinite(y)
        labelled = known.any(-1) if model.partial else known.all(-1)
        packed = np.zeros((*y.shape[:2], compiled.LABEL + model.y_dim))
        packed[..., compiled.LABELLED] = labelled
        packed[..., compiled.ELAPSED] = 1.0
        packed[..., compiled.CHANGEPOINT] = np.nan
        packed[..., compiled.OUTLIER_RATE] = model.outlier_rate if stated is None else stated
        packed[..., compiled.THRESHOLD] = self._settings.threshold
        packed[..., compiled.LABEL :] = np.where(labelled[..., None], y, 0.0)
        return packed

    def through(self, stream: int, confirmed: NDArray[np.int64]) -> Iterator[Step]:
        """Step a stream through its labels.

        `AT_ONCE` of them are stepped as if nothing was confirmed on the way. Where the caller
        confirms an event, those after it are stepped anew: their numbers are about another start.
        """
        t = 0
        while t < self._y.shape[1]:
            end = min(t + AT_ONCE, self._y.shape[1])
            before = [each[stream].clone() for each in self._leaves]
            start = int(confirmed[stream])
            table, numbers = self._advance(stream, t, end, start, bool(self._levels))
            fine = _leading(table[:, OK_COLUMN] > 0)
            used = 0
            for each in readout.rows(table[:fine]) if fine else []:
                summary = numbers[used] if self._levels else NO_SUMMARY
                yield Step(stream, t + used, each, summary)
                used += 1
                if confirmed[stream] != start:
                    break
            refused = used == fine < end - t
            if used < end - t:
                for leaf, old in zip(self._leaves, before, strict=True):
                    leaf[stream] = old
                self._advance(stream, t, t + used, start, False)
            t += used
            if refused:
                yield self._step_eagerly(stream, t, confirmed)
                t += 1

    def _advance(
        self, stream: int, first: int, end: int, confirmed: int, summarised: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Table of `readout`, and numbers of `Summary`, of steps from `first` to before `end`."""
        count = end - first
        inputs = self._inputs[stream, first:end].copy()
        inputs[:, compiled.CONFIRMED] = confirmed
        table, summary = self._kernel.advance(
            self._views,
            np.full(count, stream, dtype=np.int64),
            inputs,
            self._hazards[:count],
            RECENT_RUN_LENGTHS,
            self._normal,
            summarised,
        )
        return table, summary.numbers

    def _step_eagerly(self, stream: int, t: int, confirmed: NDArray[np.int64]) -> Step:
        """Step over a label that the kernel leaves to the eager filter."""
        one = slice(stream, stream + 1)
        state = moca.rebuild(self._blank, [each[one] for each in self._leaves])
        stats = type(self._prior.stats)(*(each[one] for each in self._prior.stats))
        prior = Prior(stats, *(each[one] for each in self._prior[1:]))
        inputs = _inputs(self._model, self._y[one], t, self._settings)
        state, info = moca.step(self._model, state, prior, inputs)
        for leaf, new in zip(self._leaves, moca.leaves(state), strict=True):
            leaf[one] = new
        (each,) = _readouts(state, info, torch.tensor(confirmed[one]), self._settings.threshold)
        (summary,) = _summaries(info.predictive, self._y[one, t], self._levels)
        return Step(stream, t, each, summary)


def _repeated(hazard: Tensor) -> NDArray[np.float64]:
    """Hazards (AT_ONCE, H) of the steps of one call; all streams (B, H) have the same."""
    return np.ascontiguousarray(np.tile(hazard[:1].numpy(), (AT_ONCE, 1)))


def _leading(fine: NDArray[np.bool_]) -> int:
    """Number of entries before the first that is false."""
    return len(fine) if fine.all() else int(fine.argmin())


def _summaries(
    mixture: Mixture, y: Tensor, levels: Sequence[float]
) -> Iterable[NDArray[np.float64]]:
    """Numbers of the rows of `Summary`, as a compiled kernel makes them, or none."""
    if not levels:
        return [NO_SUMMARY] * len(y)
    missing = ~torch.isfinite(y)
    at = torch.where(missing, 0.0, y)
    cdf, below = (
        torch.where(missing, torch.nan, mixture.cdf(each))
        for each in (at, at - float(mixture.components.support in ("count", "binary")))
    )
    quantiles = mixture.quantile(torch.tensor(levels, dtype=torch.float64))
    parts = (mixture.mean(), mixture.covariance(), cdf, below, quantiles.transpose(1, 2))
    return list(torch.cat([each.flatten(1) for each in parts], 1).numpy())


class _Follower:
    """Events, answers and best path of one stream."""

    def __init__(
        self,
        model: UnderlyingModel,
        labels: NDArray[np.float64],
        warmed: Warmed,
        settings: Settings,
    ) -> None:
        """labels: (T, d), nan where missing. warmed: as of `warm`."""
        self.track = Track()
        self._events: list[tuple[int, Event]] = []
        self._model, self._labels = model, labels
        location, scale, self._warmup = warmed
        self._units = location, scale
        self._threshold = settings.threshold
        self._confirm_after = 0 if settings.threshold else settings.defaults.confirm_after
        self._numbers = np.full((3, len(labels)), np.nan)
        self._surprises = np.full(len(labels), np.nan)
        self._summaries: list[NDArray[np.float64]] = []
        self._pointers = _Pointers()

    def take(self, step: Step) -> None:
        """Take in the next step of the stream."""
        each, t = step.readout, step.t
        self._pointers.add(each)
        self._summaries.append(step.summary)
        self._surprises[t] = -each.log_score
        if t >= self._warmup:
            answered = (each.log_score, each.changed_probability, each.recent_change_probability)
            self._numbers[:, t] = answered
        rule = self._confirm_after, self._threshold
        self.track, moved = track(self.track, each.reading(t), *rule)
        self._events += [(t, event) for event in moved]

    def best_start(self, t: int) -> int:
        """Start of the last regime of the best path before observation `t`."""
        return self._pointers.best_start(t)

    def replay(self, t: int, readout: Readout, last: bool) -> None:
        """Put a step of a new filter in the place of one that was taken before.

        last: whether it is the last one; the regime it believes in raises no event.
        """
        self._pointers.replace(t, readout)
        if last:
            start = max(self.track.confirmed_start, readout.reading(t).start)
            self.track = self.track._replace(
                confirmed_start=start, before_start=start, confirmed_totals=readout.start_totals
            )

    def followed(self, first: int) -> Followed:
        """What came of the stream; first: of its retained history."""
        log_score, changed, recent = self._numbers
        summary = Summary(np.array(self._summaries), self._model.y_dim, self._model.label)
        answers = Answers(log_score, changed, recent, self._anomalies(), summary, self._warmup)
        if self._warmup > len(changed):
            # A stream that never finished its warm-up has no events, and is one segment.
            return Followed([], changed.tolist(), answers=answers)
        served = self._pointers.starts(first)
        return Followed(self._events, changed.tolist(), served, answers)

    def _anomalies(self) -> NDArray[np.float64]:
        """Anomalies (T,); nan while warming up, which counts as past, and without a label."""
        outputs = anomaly.outputs(self._model)
        location, scale = [0.0] * outputs, [1.0] * outputs
        if self._model.needs_scale:
            location, scale = self._units
        found = anomaly.observe_rows(
            anomaly.start(location[:outputs], scale[:outputs])[None],
            np.zeros(len(self._labels), dtype=np.int64),
            self._surprises,
            np.ascontiguousarray(self._labels[:, :outputs]),
        )
        found[: self._warmup] = np.nan
        return found


class _Pointers:
    """Back pointers of the best path of a stream (Viterbi)."""

    def __init__(self) -> None:
        self._previous: list[int] = []  # by t: where the regime before one that starts there starts
        self._best: list[int] = []  # by t: where the last regime of the best path starts

    def add(self, step: Readout) -> None:
        """Add a step."""
        self._best.append(step.best_start)
        self._previous.append(step.born_previous_start)

    def replace(self, t: int, step: Readout) -> None:
        """Put another filter's step in the place of one."""
        self._best[t] = step.best_start
        self._previous[t] = step.born_previous_start

    def best_start(self, t: int) -> int:
        """Start of the last regime of the best path before observation `t`."""
        return self._best[t - 1] if t > 0 else 0

    def starts(self, first: int = 0) -> list[int]:
        """Starts of the best segmentation, those after `first`."""
        starts = []
        start = self._best[-1] if self._best else 0
        while start > first:
            starts.append(start)
            start = self._previous[start]
        return starts[::-1]


def warm(model: UnderlyingModel, rows: Iterable[Sequence[float]], warmup_labels: int) -> Warmed:
    """Location, scale, and the number of observations of the warm-up."""
    values: list[Sequence[float]] = []
    t = -1
    for t, row in enumerate(rows):
        known = list(map(math.isfinite, row))
        if any(known) if model.partial else all(known):
            values.append(row)
        if warmup.complete(values, model.y_dim, warmup_labels, t + 1):
            return *warmup.estimate(values, model), t + 1
    return *warmup.estimate(values, model), t + 2


def prior_of(model: UnderlyingModel, moments: list[tuple[list[float], list[float]]]) -> Prior:
    """Prior of streams with these locations and scales."""
    location = torch.tensor([location for location, _ in moments], dtype=torch.float64)
    scale = torch.tensor([scale for _, scale in moments], dtype=torch.float64)
    return moca.make_prior(model, location, scale)


def _readouts(state: FilterState, info: Info, confirmed: Tensor, threshold: float) -> list[Readout]:
    """Readouts after a step, of streams whose changes are confirmed at a threshold; 0: in time."""
    thresholds = torch.full((len(confirmed),), threshold, dtype=torch.float64)
    return readout.rows(readout.table(state, info, confirmed, thresholds, RECENT_RUN_LENGTHS))
