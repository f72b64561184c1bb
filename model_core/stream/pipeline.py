"""The pipeline of a stream: warm-up, seasons, filter, events, anomaly.

The evaluation of models and `Detector` run it; the service does the same, one step after the
other, between its log and its store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from model_core import anomaly, restart, season, summary, warmup
from model_core.events import Event
from model_core.filter import Inputs
from model_core.predictive import Mixture
from model_core.readout import Readout
from model_core.season import REPLAYED
from model_core.segmentation import Segment, best
from model_core.stream import seasons
from model_core.stream.filters import Filters, Step, inputs_of
from model_core.stream.rows import (
    ANOMALY,
    CHANGED,
    OFFSET,
    PREVIOUS,
    Floats,
    Layout,
    Observation,
)
from model_core.stream.series import Moved, Refused, Rules, SeriesState, Taken
from model_core.stream.step import Moments, follow, raise_alarm
from model_core.upm.base import UnderlyingModel

NOTHING = np.empty(0)
TOGETHER = 1024  # observations of one series that are filtered before they are entered


class _Forecast(NamedTuple):
    """Of an observation in the warm-up, before its label: season, and numbers of the predictive.

    log_score: of its label.
    """

    offset: float
    numbers: Floats
    log_score: float


class Pipeline:
    """Several series of one model and settings, a row each."""

    def __init__(
        self,
        model: UnderlyingModel,
        rules: Rules,
        phases: Sequence[float],
        levels: Sequence[float] = (),
        provisional: bool = True,
        answers: bool = False,
    ) -> None:
        """phases: of each series' searches for seasons, in [0, 1).

        levels: of quantiles; without any predictives are left out. provisional: whether labels of
        the warm-up are predicted. answers: whether answers are retained, too.
        """
        self.model = model
        self.rules = rules
        self.layout = Layout(model, answers)
        self.series = [SeriesState(self.layout.width, phase) for phase in phases]
        self.filters = Filters(model, len(phases), rules.max_hypotheses, levels)
        outputs = anomaly.outputs(model)
        self.ranks = np.zeros((len(phases), anomaly.size(outputs)))
        self.levels = list(levels)
        self._provisional = provisional and bool(levels)
        self._remembers = self.filters.prior(0).context.shape[-1] > 0
        self._outputs = outputs
        if rules.seasonal:
            for series in self.series:
                series.season_state = season.blank()
        moments = self.given()
        if moments is not None:
            for row in range(len(phases)):
                self._begin(row, moments)

    def given(self) -> warmup.Moments | None:
        """Location and scale that need no warm-up, if any."""
        return warmup.given(self.model, self.rules.location, self.rules.scale)

    def threshold(self, row: int) -> float:
        """Threshold of `changed_probability` that confirms changes of a series; 0: another rule."""
        calibrated = self.series[row].threshold
        return self.rules.threshold if calibrated is None else calibrated

    def observe(
        self, rows: Sequence[int], observations: Sequence[Observation]
    ) -> list[Taken | None]:
        """Take one observation of each of several series; None for what the filter refuses."""
        taken: list[Taken | None] = [None] * len(rows)
        cold = [i for i, row in enumerate(rows) if not self.series[row].warm]
        warm = [i for i, row in enumerate(rows) if self.series[row].warm]
        forecasts = self._forecasts([rows[i] for i in cold], [observations[i] for i in cold])
        for i, forecast in zip(cold, forecasts, strict=True):
            with suppress(Refused):
                taken[i] = self._warm_up(rows[i], observations[i], forecast)
        if not warm:
            return taken
        chosen = [rows[i] for i in warm]
        seen = [observations[i] for i in warm]
        offsets = np.array([self._offset(row) for row in chosen])
        packed = self._packed(chosen, seen, offsets)
        steps = self.filters.step(chosen, packed, self.rules.hazard, offsets)
        fine = [j for j, step in enumerate(steps) if step.line.ok]
        lines = [steps[j].line for j in fine]
        moved = [self._track(chosen[j], line) for j, line in zip(fine, lines, strict=True)]
        ranked = self._ranked([chosen[j] for j in fine], [seen[j] for j in fine], lines)
        for i, j in enumerate(fine):
            taken[warm[j]] = self._enter(
                chosen[j], seen[j], float(offsets[j]), steps[j], ranked[i], moved[i]
            )
        return taken

    def observe_series(self, row: int, observations: Sequence[Observation]) -> Iterator[Taken]:
        """Take observations of one series, one after the other, in few calls of its kernel.

        To be taken to the end; those before a Refused one are.
        """
        series = self.series[row]
        at = 0
        while at < len(observations):
            if not series.warm:
                (forecast,) = self._forecasts([row], [observations[at]])
                yield self._warm_up(row, observations[at], forecast)
                at += 1
                continue
            offsets = self._foreseen(row, observations[at : at + TOGETHER])
            seen = observations[at : at + len(offsets)]
            steps: list[Step] = []
            moved: list[tuple[Moved, ...]] = []
            for step in self._through(row, seen, offsets):
                if not step.line.ok:
                    break
                steps.append(step)
                moved.append(self._track(row, step.line, len(moved)))
            done = seen[: len(steps)]
            ranked = self._ranked([row] * len(done), done, [step.line for step in steps])
            for i, observation in enumerate(done):
                yield self._enter(
                    row, observation, float(offsets[i]), steps[i], ranked[i], moved[i]
                )
            at += len(done)
            if len(done) < len(seen):
                raise Refused(f"observation {series.seq}")

    def score(self, row: int, seen: Observation) -> float:
        """Anomaly that an observation would have, which is not taken in; nan: not known yet."""
        if not self.series[row].warm:
            return math.nan
        before = self.filters.state(row)
        offsets = np.array([self._offset(row)])
        packed = self._packed([row], [seen], offsets)
        (step,) = self.filters.step([row], packed, self.rules.hazard, offsets)
        self.filters.put(row, before)
        ranks = self.ranks[row].copy()
        (rank,) = self._ranked([row], [seen], [step.line])
        self.ranks[row] = ranks
        return rank

    def coming(
        self, row: int, count: int = 1, x: tuple[float, ...] = (), elapsed: float = 1.0
    ) -> Inputs:
        """Inputs of a step over the observation to come, of `count` copies of a row."""
        seen = Observation((math.nan,) * self.model.y_dim, x, elapsed)
        packed = self._packed([row] * count, [seen] * count, np.zeros(count))
        return inputs_of(self.model, torch.from_numpy(packed), self.rules.hazard)

    # --- segmentation -------------------------------------------------------------------------

    def segments(self, row: int) -> list[Segment]:
        """Best segmentation of what is retained, as it was known online."""
        series = self.series[row]
        first = max(series.retained.first, series.seq - self.rules.history)
        if not series.warm or first >= series.seq:
            return []
        return best(series.retained.previous, series.best_start, first, series.seq)

    # --- one observation --------------------------------------------------------------------

    def _packed(
        self, rows: Sequence[int], observations: Sequence[Observation], offsets: Floats
    ) -> Floats:
        """Inputs of a step; offsets: (B,) seasons of the labels."""
        confirmed = [self.series[row].track.confirmed_start for row in rows]
        thresholds = list(map(self.threshold, rows))
        rate = self.rules.outlier_rate
        return self.layout.packed(observations, offsets, rate, thresholds, confirmed)

    def _through(
        self, row: int, observations: Sequence[Observation], offsets: Floats
    ) -> Iterator[Step]:
        series = self.series[row]
        return self.filters.through(
            row,
            self._packed([row] * len(observations), observations, offsets),
            self.rules.hazard,
            offsets,
            lambda: series.track.confirmed_start,
        )

    def _track(self, row: int, line: Readout, ahead: int = 0) -> tuple[Moved, ...]:
        """Follow the events; returns those that changed. ahead: observations not yet entered."""
        series = self.series[row]
        seq = series.seq + ahead
        quantity = self.model.label != "class"
        threshold = self.threshold(row)
        changed = follow(series, line, seq, self.rules.confirm_after, threshold, quantity)
        return tuple(Moved(seq, event, series.keep(event)) for event in changed)

    def _ranked(
        self, rows: Sequence[int], observations: Sequence[Observation], lines: Sequence[Readout]
    ) -> list[float]:
        """Anomalies of observations, taken in; nan without a label."""
        if not rows:
            return []
        surprises = np.array([-line.log_score for line in lines])
        labels = np.array([observation.y for observation in observations])[:, : self._outputs]
        at = np.array(rows, dtype=np.int64)
        ranked: list[float] = anomaly.observe_rows(
            self.ranks, at, surprises, np.ascontiguousarray(labels)
        ).tolist()
        return ranked

    def _enter(
        self,
        row: int,
        seen: Observation,
        offset: float,
        step: Step,
        rank: float,
        moved: tuple[Moved, ...],
    ) -> Taken:
        """Enter a step into its series; rank: its anomaly. moved: what it did to events."""
        series = self.series[row]
        line = step.line
        seq = series.seq
        alarm = self._alarm(series, seen, step.numbers, rank)
        series.seq += 1
        kept = self.layout.row(seen, offset, step.numbers)
        kept[PREVIOUS] = line.born_previous_start
        kept[CHANGED] = line.changed_probability
        kept[ANOMALY] = rank
        series.retained.append(kept)
        if self._learn(row, seen):
            self._begin_anew(row)
        series.retained.trim(self._most)
        event = moved[-1].event if moved else None
        return Taken(
            seq=seq,
            readout=line,
            numbers=step.numbers,
            log_score=line.log_score,
            anomaly=rank,
            moved=moved,
            event=event,
            alarm=alarm,
            periods=self._periods(series),
        )

    @property
    def _most(self) -> int:
        """Rows that a series keeps: its history, and what a filter would begin anew with."""
        asked = self.rules.seasonal
        looks = asked or (asked is None and self.model.seasonal)
        return max(self.rules.history, REPLAYED) if looks else self.rules.history

    def _alarm(
        self, series: SeriesState, seen: Observation, numbers: Floats, rank: float
    ) -> Event | None:
        def moments() -> Moments | None:
            if not len(numbers) or not self._outputs or self.model.label == "binary":
                return None
            predicted = summary.Summary(numbers[None], self.model.y_dim, self.model.label)
            variance = np.maximum(np.diagonal(predicted.covariance[0]), 0.0)
            return predicted.mean[0].tolist(), np.sqrt(variance).tolist()

        threshold = self.rules.anomaly_alarm
        event = raise_alarm(series, threshold, series.seq, rank, seen.y, moments)
        if event is not None:
            series.keep(event)
        return event

    # --- seasons ------------------------------------------------------------------------------

    def _offset(self, row: int) -> float:
        """Season of the next label."""
        return seasons.offset(self.series[row].season_state)

    def offsets_ahead(self, row: int, count: int) -> Floats:
        """Seasons (count,) of the labels to come."""
        state = self.series[row].season_state
        return np.array([seasons.offset(state, ahead) for ahead in range(count)])

    def _periods(self, series: SeriesState) -> tuple[int, ...]:
        return () if series.season is None else tuple(series.season.periods)

    def _next_search(self, series: SeriesState, seq: int) -> int | None:
        """Observations, more than `seq`, after which a series without seasons looks for one."""
        return seasons.next_search(self.model, self.rules.seasonal, seq, series.phase)

    def _foreseen(self, row: int, observations: Sequence[Observation]) -> Floats:
        """Seasons of coming labels, up to the first after which the filter may begin anew."""
        series = self.series[row]
        if series.season_state is None:
            due = self._next_search(series, series.seq)
            count = len(observations)
            return np.zeros(count if due is None else min(count, due - series.seq))
        labels = (observation.y[0] for observation in observations)
        return np.array(seasons.foreseen(series.season_state, labels))

    def _learn(self, row: int, seen: Observation) -> bool:
        """Take in the label of an observation; returns whether seasons were found or given up."""
        series = self.series[row]
        if series.season_state is not None:
            return seasons.learn(series, series.season_state, seen.y[0])
        due = self._next_search(series, series.seq - 1) if series.warm else None
        if due != series.seq:
            return False
        rows = series.retained.last(min(season.CAPACITY, self.rules.history))
        series.season_state = seasons.search(series, rows[:, self.layout.y.start].copy())
        return series.season_state is not None

    def _begin_anew(self, row: int) -> None:
        """Begin the filter anew with the last labels less the seasons of now.

        The regimes that it finds among these are known, no events. The regime that the filter
        before believed in goes on where the new one begins.
        """
        series = self.series[row]
        assert series.season_state is not None
        offsets = season.offsets(series.season_state, REPLAYED)
        rows = series.retained.last(len(offsets))
        rows[:, OFFSET] = offsets[len(offsets) - len(rows) :]
        base = series.seq - len(rows)
        joined = max(int(rows[0, PREVIOUS]), 0) if base else 0
        values = self.layout.values(rows)
        before = self.filters.state(row)
        moments = (series.location, series.scale)
        if self.given() is None and warmup.varied(values, self.model.y_dim):
            series.location, series.scale = self.estimated(values)
        self.filters.begin(row, series.location or [], series.scale or [])
        start = max(series.track.confirmed_start - base, 0)
        try:
            lines = self.replayed(self.filters, rows, start, row)
        except Refused:  # go on as before
            series.location, series.scale = moments
            self.filters.begin(row, series.location or [], series.scale or [])
            self.filters.put(row, before)
            return
        for retained, line in zip(rows, lines, strict=True):
            retained[PREVIOUS] = restart.position(line.born_previous_start, base, joined)
        state = self.filters.state(row)
        confirmed = series.track.confirmed_start
        now = restart.restarted(state, lines[-1], base, joined, confirmed)
        self.filters.put(row, now.state)
        series.track = series.track._replace(
            confirmed_start=now.start, before_start=now.start, confirmed_totals=now.totals
        )
        series.best_start = now.best_start
        series.changed_probability = now.changed_probability

    def replayed(
        self, filters: Filters, rows: Floats, confirmed: int, row: int = 0
    ) -> list[Readout]:
        """Step a row of filters through retained observations; what it refuses counts as missing.

        confirmed: start of the last confirmed event, in positions of the filter. Raises Refused
        where it takes no observation, of a model whose numbers are not finite.
        """
        lines: list[Readout] = []
        offsets = rows[:, OFFSET].copy()
        seen = self.layout.observations(rows)
        rules = self.rules
        while len(lines) < len(rows):
            left = slice(len(lines), None)
            packed = self.layout.packed(
                seen[left], offsets[left], rules.outlier_rate, self.threshold(row)
            )
            steps = filters.through(row, packed, rules.hazard, offsets[left], lambda: confirmed)
            for step in steps:
                if not step.line.ok:
                    seen[len(lines)] = self.unlabelled(seen[len(lines)])
                    break
                lines.append(step.line)
        return lines

    def unlabelled(self, seen: Observation) -> Observation:
        """An observation without its label; raises Refused where it has none already."""
        if all(map(math.isnan, seen.y)):
            raise Refused("an observation without a label: the model's numbers are not finite")
        return seen._replace(y=(math.nan,) * self.model.y_dim)

    # --- warm-up ------------------------------------------------------------------------------

    def estimated(self, values: list[list[float]]) -> warmup.Moments:
        """Location and scale of labels, unless they are given."""
        location, scale = warmup.estimate(values, self.model)
        return self.rules.location or location, self.rules.scale or scale

    def predicted(
        self, rows: Sequence[int], inputs: Sequence[tuple[float, ...]]
    ) -> tuple[list[int], Mixture | None]:
        """Provisional predictives of the next labels of series that warm up, of one regime each.

        inputs: of the labels. Returns which of the rows have one, and a mixture of so many rows.
        """
        chosen = []
        histories = []
        moments = []
        for i, row in enumerate(rows):
            retained = self.series[row].retained.rows
            values = self.layout.values(retained)
            if warmup.varied(values, self.model.y_dim):
                chosen.append(i)
                histories.append(self.layout.history(retained, self._remembers))
                moments.append(self.estimated(values))
        if not chosen:
            return [], None
        coming = [inputs[i] or None for i in chosen]
        return chosen, warmup.provisional(self.model, histories, moments, coming)

    def _forecasts(self, rows: Sequence[int], seen: Sequence[Observation]) -> list[_Forecast]:
        """Provisional forecasts of observations of warm-ups."""
        if not self._provisional:
            return [_Forecast(self._offset(row), NOTHING, math.nan) for row in rows]
        forecasts = [_Forecast(0.0, NOTHING, math.nan)] * len(rows)
        at, mixture = self.predicted(rows, [observation.x for observation in seen])
        if mixture is None:
            return forecasts
        offsets = np.array([self._offset(rows[i]) for i in at])
        y = np.array([seen[i].y for i in at])
        by = torch.from_numpy(offsets)
        labelled = self.layout.labelled(y)
        filled = np.where(labelled[:, None], y - offsets[:, None], 0.0)
        scores = mixture.log_prob(torch.from_numpy(filled)).numpy()
        scores = np.where(labelled & np.isfinite(scores), scores, math.nan)
        mixture = mixture.shifted(by) if offsets.any() else mixture
        numbers = summary.of(mixture, torch.from_numpy(y), self.levels)
        for j, i in enumerate(at):
            forecasts[i] = _Forecast(float(offsets[j]), numbers[j], float(scores[j]))
        return forecasts

    def _warm_up(self, row: int, seen: Observation, forecast: _Forecast) -> Taken:
        """Answer from one regime, and begin where enough labels are there; raises Refused."""
        series = self.series[row]
        seq = series.seq
        periods = series.season
        before = None if series.season_state is None else series.season_state.copy()
        series.seq += 1
        series.retained.append(self.layout.row(seen, forecast.offset, forecast.numbers))
        rows = series.retained.rows
        if series.season_state is not None and self._learn(row, seen):
            offsets = season.offsets(series.season_state, len(rows))
            rows[len(rows) - len(offsets) :, OFFSET] = offsets
        values = self.layout.values(rows)
        moved: tuple[Moved, ...] = ()
        if warmup.complete(values, self.model.y_dim, self.rules.warmup, series.seq):
            try:
                moved = self._begin(row, self.estimated(values))
            except Refused:
                series.take_back(seq, periods, before)
                raise
        event = series.track.event or series.track.last_event
        return Taken(
            seq=seq,
            readout=None,
            numbers=forecast.numbers,
            log_score=forecast.log_score,
            anomaly=math.nan,
            moved=moved,
            event=event,
            periods=self._periods(series),
        )

    def _begin(self, row: int, moments: warmup.Moments) -> tuple[Moved, ...]:
        """Start the filter with a known location and scale, through the retained observations."""
        series = self.series[row]
        series.location, series.scale = moments
        series.warm = True
        self.ranks[row] = anomaly.begin(self.model, series.location, series.scale)
        self.filters.begin(row, series.location, series.scale)
        moved: list[Moved] = []
        rows = series.retained.rows
        seen = self.layout.observations(rows)
        offsets = rows[:, OFFSET].copy()
        count = series.seq
        series.seq = 0
        while series.seq < count:
            at = series.seq
            for step in self._through(row, seen[at:], offsets[at:]):
                line = step.line
                if not line.ok:
                    seen[series.seq] = self.unlabelled(seen[series.seq])
                    break
                moved += self._track(row, line)
                self._ranked([row], [seen[series.seq]], [line])
                rows[series.seq, PREVIOUS] = line.born_previous_start
                series.seq += 1
        return tuple(moved)
