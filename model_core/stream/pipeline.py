"""The pipeline of several series: warm-up, seasons, filter, events, anomaly.

The evaluation of models and `Detector` run it; the service does the same, one step after the
other, between its log and its store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from model_core.filter import Inputs
from model_core.readout import Readout
from model_core.stream import columns, predictives, season, seasons, warmup
from model_core.stream.columns import Columns
from model_core.stream.events import Event
from model_core.stream.rows import ANOMALY, CHANGED, OFFSET, PREVIOUS, Floats, Layout, Observation
from model_core.stream.segmentation import Segment, best
from model_core.stream.series import Moved, Rules, SeriesState, Taken
from model_core.stream.slab import AT_ONCE, Past, Refused, Slab, Step
from model_core.stream.step import follow, raise_alarm
from model_core.stream.warmup import Moments
from model_core.upm.base import UnderlyingModel

NOTHING = np.empty(0)


class _Forecast(NamedTuple):
    """Of an observation in the warm-up, before its label: season, and numbers of the predictive.

    log_score: of its label.
    """

    offset: float
    numbers: Floats
    log_score: float


class Pipeline:
    """Several series of one model and settings."""

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
        self.slab = Slab(model, rules.max_hypotheses, levels)
        self.levels = list(levels)
        self._provisional = provisional and bool(levels)
        self._quantity = model.label != "class"
        if rules.seasonal:
            for series in self.series:
                series.season_state = season.blank()
        moments = warmup.given(model, rules.stated)
        if moments is not None:
            for series in self.series:
                self._begin(series, moments)

    def threshold(self, row: int) -> float:
        """Threshold of `changed_probability` that confirms changes of a series; 0: another rule."""
        return self._threshold(self.series[row])

    def _threshold(self, series: SeriesState) -> float:
        return self.rules.threshold if series.threshold is None else series.threshold

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
                taken[i] = self._warm_up(self.series[rows[i]], observations[i], forecast)
        if not warm:
            return taken
        chosen = [self.series[rows[i]] for i in warm]
        offsets = np.array([seasons.offset(series.season_state) for series in chosen])
        seen = self._columns([observations[i] for i in warm], offsets)
        steps = self._step(chosen, seen)
        fine = [j for j, step in enumerate(steps) if step.readout.ok]
        moved = [self._follow(chosen[j], steps[j].readout) for j in fine]
        numbers = self._numbers([steps[j] for j in fine], seen.part(fine))
        for j, changed, summary in zip(fine, moved, numbers, strict=True):
            observation = observations[warm[j]]
            offset = float(offsets[j])
            taken[warm[j]] = self._enter(chosen[j], observation, offset, steps[j], summary, changed)
        return taken

    def observe_series(self, row: int, observations: Sequence[Observation]) -> Iterator[Taken]:
        """Take observations of one series, one after the other, in few calls of its kernel.

        To be taken to the end; those before a Refused one are.
        """
        series = self.series[row]
        together = AT_ONCE if self.slab.in_series else 1  # mixtures themselves are large
        at = 0
        while at < len(observations):
            if not series.warm:
                (forecast,) = self._forecasts([row], [observations[at]])
                yield self._warm_up(series, observations[at], forecast)
                at += 1
                continue
            offsets = self._foreseen(series, observations[at : at + together])
            seen = self._columns(observations[at : at + len(offsets)], offsets)
            steps: list[Step] = []
            moved: list[tuple[Moved, ...]] = []
            for step in self._through(series, seen):
                if not step.readout.ok:
                    break
                steps.append(step)
                moved.append(self._follow(series, step.readout, len(moved)))
            numbers = self._numbers(steps, seen.part(slice(len(steps))))
            for i, step in enumerate(steps):
                offset = float(offsets[i])
                yield self._enter(series, observations[at + i], offset, step, numbers[i], moved[i])
            at += len(steps)
            if len(steps) < seen.rows:
                raise Refused(f"observation {series.seq}")

    def score(self, row: int, observation: Observation) -> float:
        """Anomaly that an observation would have, which is not taken in; nan: not known yet."""
        series = self.series[row]
        if not series.warm:
            return math.nan
        offset = np.array([seasons.offset(series.season_state)])
        (step,) = self.slab.tried(series.row, self._columns([observation], offset))
        return step.anomaly

    def predict(self, row: int, x: tuple[float, ...], elapsed: float) -> Floats | None:
        """Numbers of the `Summary` of the next label's predictive; None: nothing is known yet.

        Nothing is, either, where the filter's numbers are not finite.
        """
        series = self.series[row]
        own = self.begun(row)
        if own is None:
            return None
        try:
            nothing = (math.nan,) * self.model.y_dim
            coming = self._columns([Observation(nothing, x, elapsed)], self.offsets_ahead(row, 1))
            (step,) = self.slab.tried(own, coming, not self.levels)
        finally:
            if not series.warm:
                self.slab.remove(own)
        if not step.readout.ok:
            return None
        (numbers,) = predictives.numbers([step.predictive], coming.y, coming.offset, self.levels)
        return numbers

    def coming(self, count: int = 1, x: tuple[float, ...] = (), elapsed: float = 1.0) -> Inputs:
        """Inputs of a step over the observation to come, of `count` copies of a row."""
        observation = Observation((math.nan,) * self.model.y_dim, x, elapsed)
        seen = self._columns([observation] * count, np.zeros(count))
        return columns.inputs_of(self.model, columns.packed(self.model, seen, 0, 0.0), seen.hazard)

    # --- segmentation -------------------------------------------------------------------------

    def segments(self, row: int) -> list[Segment]:
        """Best segmentation of what is retained, as it was known online."""
        series = self.series[row]
        first = max(series.retained.first, series.seq - self.rules.history)
        if not series.warm or first >= series.seq:
            return []
        return best(series.retained.previous, series.best_start, first, series.seq)

    def retained(self, rows: Floats) -> Columns:
        """Retained rows as a filter takes them."""
        return self.layout.columns(rows, self.rules.hazard, self.rules.outlier_rate)

    # --- one observation --------------------------------------------------------------------

    def _columns(self, observations: Sequence[Observation], offsets: Floats) -> Columns:
        """Observations as a filter takes them; offsets: (B,) seasons of the labels."""
        count = len(observations)
        blank = (0.0,) * self.model.x_dim
        return Columns(
            y=np.array([seen.y for seen in observations], dtype=np.float64),
            x=np.array([seen.x or blank for seen in observations], dtype=np.float64),
            elapsed=np.array([seen.elapsed for seen in observations]),
            changepoint=np.array([seen.changepoint for seen in observations]),
            outlier_rate=np.full(count, self.rules.outlier_rate),
            hazard=columns.of_all(self.rules.hazard, count),
            offset=offsets,
        )

    def _step(self, chosen: Sequence[SeriesState], seen: Columns) -> list[Step]:
        """Step several series by one observation each."""
        rows = [series.row for series in chosen]
        confirmed = [series.track.confirmed_start for series in chosen]
        thresholds = [self._threshold(series) for series in chosen]
        return self.slab.step(rows, seen, confirmed, thresholds, (), bool(self.levels))

    def _through(self, series: SeriesState, seen: Columns) -> Iterator[Step]:
        """Step a series by several observations, one after the other."""
        threshold = self._threshold(series)
        return self.slab.through(
            series.row, seen, lambda: series.track.confirmed_start, threshold, bool(self.levels)
        )

    def _numbers(self, steps: Sequence[Step], seen: Columns) -> Sequence[Floats]:
        """Numbers of the summaries of the predictives of steps; empty where none are wanted."""
        if not self.levels:
            return [NOTHING] * len(steps)
        rows = [step.predictive for step in steps]
        return predictives.numbers(rows, seen.y, seen.offset, self.levels)

    def _follow(self, series: SeriesState, line: Readout, ahead: int = 0) -> tuple[Moved, ...]:
        """Follow the events; returns those that changed. ahead: observations not yet entered."""
        seq = series.seq + ahead
        confirm_after = self.rules.confirm_after
        threshold = self._threshold(series)
        changed = follow(series, line, seq, confirm_after, threshold, self._quantity)
        return tuple(Moved(seq, event, series.keep(event)) for event in changed)

    def _enter(
        self,
        series: SeriesState,
        seen: Observation,
        offset: float,
        step: Step,
        numbers: Floats,
        moved: tuple[Moved, ...],
    ) -> Taken:
        """Enter a step into its series; moved: what it did to events."""
        line = step.readout
        seq = series.seq
        alarm = self._alarm(series, seen, offset, step)
        series.seq += 1
        kept = self.layout.row(seen, offset, numbers)
        kept[PREVIOUS] = line.born_previous_start
        kept[CHANGED] = line.changed_probability
        kept[ANOMALY] = step.anomaly
        series.retained.append(kept)
        if self._learn(series, seen):
            self._begin_anew(series)
        series.retained.trim(self._most)
        return Taken(
            seq=seq,
            readout=line,
            numbers=numbers,
            log_score=line.log_score,
            anomaly=step.anomaly,
            moved=moved,
            event=moved[-1].event if moved else None,
            alarm=alarm,
            periods=series.periods,
        )

    @property
    def _most(self) -> int:
        """Rows that a series keeps: its history, and what a filter would begin anew with."""
        asked = self.rules.seasonal
        looks = asked or (asked is None and self.model.seasonal)
        return max(self.rules.history, season.REPLAYED) if looks else self.rules.history

    def _alarm(
        self, series: SeriesState, seen: Observation, offset: float, step: Step
    ) -> Event | None:
        label = [value - offset for value in seen.y]
        event = raise_alarm(
            series,
            self.rules.anomaly_alarm,
            series.seq,
            step.anomaly,
            label,
            lambda: predictives.moments(step.predictive),
        )
        if event is not None:
            series.keep(event)
        return event

    # --- seasons ------------------------------------------------------------------------------

    def offsets_ahead(self, row: int, count: int) -> Floats:
        """Seasons (count,) of the labels to come."""
        state = self.series[row].season_state
        return np.array([seasons.offset(state, ahead) for ahead in range(count)])

    def _next_search(self, series: SeriesState, seq: int) -> int | None:
        """Observations, more than `seq`, after which a series without seasons looks for one."""
        return seasons.next_search(self.model, self.rules.seasonal, seq, series.phase)

    def _foreseen(self, series: SeriesState, observations: Sequence[Observation]) -> Floats:
        """Seasons of coming labels, up to the first after which the filter may begin anew."""
        due = self._next_search(series, series.seq)
        left = None if due is None else due - series.seq
        labels = [observation.y[0] for observation in observations]
        return np.array(seasons.foreseen(series.season_state, labels, left))

    def _learn(self, series: SeriesState, seen: Observation) -> bool:
        """Take in the label of an observation; returns whether seasons were found or given up."""
        if series.season_state is not None:
            return seasons.learn(series, series.season_state, seen.y[0])
        due = self._next_search(series, series.seq - 1) if series.warm else None
        if due != series.seq:
            return False
        rows = series.retained.last(min(season.CAPACITY, self.rules.history))
        series.season_state = seasons.search(series, rows[:, self.layout.y.start].copy())
        return series.season_state is not None

    def _begin_anew(self, series: SeriesState) -> None:
        """Begin the filter anew with the last labels less the seasons of now."""
        assert series.season_state is not None
        rows = series.retained.last(season.REPLAYED)
        anew = seasons.begin_anew(
            series,
            series.season_state,
            self.slab,
            series.row,
            Past(self.retained(rows), rows[:, PREVIOUS].astype(int).tolist()),
            self._threshold(series),
            self.rules.stated,
        )
        if anew is not None:
            replayed = rows[len(rows) - len(anew.offsets) :]
            replayed[:, OFFSET] = anew.offsets
            replayed[:, PREVIOUS] = anew.previous

    def unlabelled(self, seen: Observation) -> Observation:
        """An observation without its label; raises Refused where it has none already."""
        if all(map(math.isnan, seen.y)):
            raise Refused("an observation without a label: the model's numbers are not finite")
        return seen._replace(y=(math.nan,) * self.model.y_dim)

    # --- warm-up ------------------------------------------------------------------------------

    def begun(self, row: int) -> int | None:
        """Row of the slab that holds a series' filter; in the warm-up of one to be removed."""
        series = self.series[row]
        if series.warm:
            return series.row
        return warmup.begun(self.slab, self.retained(series.retained.rows), self.rules.stated)

    def _forecasts(self, rows: Sequence[int], seen: Sequence[Observation]) -> list[_Forecast]:
        """Provisional forecasts of observations of warm-ups."""
        offsets = np.array([seasons.offset(self.series[row].season_state) for row in rows])
        if not self._provisional or not rows:
            return [_Forecast(offset, NOTHING, math.nan) for offset in offsets.tolist()]
        histories = [self.retained(self.series[row].retained.rows) for row in rows]
        coming = self._columns(seen, offsets)
        steps = warmup.forecasts(self.slab, histories, [self.rules.stated] * len(rows), coming)
        made = {i: step for i, step in enumerate(steps) if step is not None}
        summaries = self._numbers([*made.values()], coming.part([*made]))
        forecasts = [_Forecast(0.0, NOTHING, math.nan)] * len(rows)
        for (i, step), numbers in zip(made.items(), summaries, strict=True):
            forecasts[i] = _Forecast(float(offsets[i]), numbers, step.readout.log_score)
        return forecasts

    def _warm_up(self, series: SeriesState, seen: Observation, forecast: _Forecast) -> Taken:
        """Answer from one regime, and begin where enough labels are there; raises Refused."""
        seq = series.seq
        periods = series.season
        before = None if series.season_state is None else series.season_state.copy()
        series.seq += 1
        series.retained.append(self.layout.row(seen, forecast.offset, forecast.numbers))
        rows = series.retained.rows
        if series.season_state is not None and self._learn(series, seen):
            offsets = season.offsets(series.season_state, len(rows))
            rows[len(rows) - len(offsets) :, OFFSET] = offsets
        values = columns.values(self.model, self.retained(rows))
        moved: tuple[Moved, ...] = ()
        if warmup.complete(values, self.model.y_dim, self.rules.warmup, series.seq):
            try:
                moved = self._begin(series, warmup.estimated(self.model, values, self.rules.stated))
            except Refused:
                self.slab.remove(series.row)
                series.take_back(seq, periods, before)
                raise
        return Taken(
            seq=seq,
            readout=None,
            numbers=forecast.numbers,
            log_score=forecast.log_score,
            anomaly=math.nan,
            moved=moved,
            event=series.track.event or series.track.last_event,
            periods=series.periods,
        )

    def _begin(self, series: SeriesState, moments: Moments) -> tuple[Moved, ...]:
        """Start the filter with a known location and scale, through the retained observations."""
        series.location, series.scale = moments
        (series.row,) = self.slab.begin([series.location], [series.scale])
        moved: list[Moved] = []
        rows = series.retained.rows
        threshold = self._threshold(series)
        past = Past(self.retained(rows))
        series.seq = 0
        for line in self.slab.replay(
            series.row, past, lambda: series.track.confirmed_start, threshold
        ):
            moved += self._follow(series, line)
            rows[series.seq, PREVIOUS] = line.born_previous_start
            series.seq += 1
        return tuple(moved)
