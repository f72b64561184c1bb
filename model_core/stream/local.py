"""Series in memory: the pipeline of a `Detector`, and of the evaluation of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from model_core.readout import Readout
from model_core.stream import forecasts, season, warmup
from model_core.stream.columns import Columns, Floats
from model_core.stream.events import Event, Track, Watch, restored
from model_core.stream.pipeline import Pipeline
from model_core.stream.rows import (
    ANOMALY,
    EVIDENCE,
    PREVIOUS,
    TIME,
    Observation,
    Retained,
    RowLayout,
    times_of,
    written,
)
from model_core.stream.segmentation import Segment, best
from model_core.stream.series import NOTHING, Taken
from model_core.stream.slab import Past, Refused, Slab
from model_core.stream.state import SeasonPeriods, SeenLabels
from model_core.stream_settings import StreamSettings
from model_core.upm.base import UnderlyingModel

EVENTS = 1000  # last events of a series that are kept


class Rules(NamedTuple):
    """What series of one model share.

    hazard: (H,) by run length, and outlier_rate: the model's where the settings have none.
    """

    settings: StreamSettings
    hazard: Floats
    outlier_rate: float


class LocalSeries:
    """Numbers, events and retained observations of one series."""

    def __init__(self, rules: Rules, outputs: int, width: int, search_phase: float) -> None:
        """outputs: numbers of a label. width: of the rows retained."""
        self.settings = rules.settings
        self.search_phase = search_phase
        self.next_look = 0
        self.seq = 0
        self.slab: Slab | None = None
        self.row = -1
        self.location: list[float] | None = None
        self.scale: list[float] | None = None
        self.resolution: list[float] | None = None
        self.track = Track()
        self.events: dict[int, Event] = {}  # changes, by id
        self.anomalies: dict[int, Event] = {}  # likewise, by position
        self.last_anomaly: int | None = None
        self.best_start = 0
        self.map_run_length: int | None = None
        self.changed_probability: float | None = None
        self.evidence: float | None = None
        self.season: SeasonPeriods | None = None
        self.season_state = season.blank(outputs) if rules.settings.seasonal else None
        self.retained = Retained(width)

    @property
    def state(self) -> LocalSeries:
        """Its numbers and events."""
        return self

    @property
    def units(self) -> tuple[list[float] | None, list[float] | None, list[float] | None]:
        """Location, scale and resolution."""
        return self.location, self.scale, self.resolution

    @property
    def watch(self) -> Watch:
        """What the next step is to be read for."""
        return self.track.watch(self.settings.threshold)

    @property
    def warm(self) -> bool:
        """Whether location and scale are known, and the filter runs."""
        return self.slab is not None

    def read(self, line: Readout) -> None:
        """Enter what a step reads off the belief."""
        self.best_start = line.best_start
        self.map_run_length = line.map_run_length
        self.changed_probability = line.changed_probability
        self.evidence = line.evidence

    NUMBERS = (
        "search_phase", "seq", "location", "scale", "resolution", "last_anomaly", "best_start",
        "map_run_length", "changed_probability", "evidence",
    )  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """All but arrays, as JSON has it; see `restore`."""
        return {
            **{name: getattr(self, name) for name in self.NUMBERS},
            "warm": self.warm,
            "first": self.retained.first,
            "season": self.season,
            "track": list(self.track),
            "events": list(self.events.values()),
            "anomalies": list(self.anomalies.values()),
        }

    def restore(self, numbers: dict[str, Any]) -> None:
        """Take over what `numbers` gave; raises KeyError, TypeError or ValueError."""
        for name in self.NUMBERS:
            setattr(self, name, numbers[name])
        self.season = None if numbers["season"] is None else SeasonPeriods(*numbers["season"])
        track = dict(zip(Track._fields, numbers["track"], strict=True))
        followed = ("event", "last_event")
        events = {name: track[name] and restored(track[name]) for name in followed}
        self.track = Track(**{**track, **events})
        self.events = {fields[0]: restored(fields) for fields in numbers["events"]}
        self.anomalies = {fields[0]: restored(fields) for fields in numbers["anomalies"]}

    def keep(self, event: Event) -> bool:
        """Keep an event as it is now, and forget the oldest beyond `EVENTS`.

        Returns whether a change is confirmed for the first time: one that is relocated to a start
        after it was confirmed is another one.
        """
        kept = self.events if event.kind == "change" else self.anomalies
        before = kept.get(event.id)
        kept[event.id] = event
        if len(kept) > EVENTS:
            del kept[next(iter(kept))]
        was_confirmed = before is not None and before.confirmed_at is not None
        later = before is not None and event.start > (before.confirmed_at or 0)
        return event.state == "confirmed" and (not was_confirmed or later)


LocalMark = tuple[SeasonPeriods | None, Floats | None]  # season of a series, and its state


class LocalPipeline(Pipeline[LocalSeries, Observation, Floats, LocalMark]):
    """Several series of one model and settings, known by their index."""

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
        self.settings = rules.settings
        self.layout = RowLayout(model, levels if answers else ())
        self._answers = answers
        own = rules.settings
        self.slab = Slab(model, own.max_hypotheses, levels, regimes=own.regimes)
        self.provisional = provisional
        self.summarised = bool(levels)
        width = self.layout.width
        self.series = [LocalSeries(rules, model.y_dim, width, phase) for phase in phases]
        asked = self.settings.seasonal
        looks = asked or (asked is None and model.seasonal) or (model.rescaled and model.y_dim > 1)
        self._most = max(self.settings.history, season.REPLAYED) if looks else self.settings.history
        moments = warmup.given(model, self.settings)
        if moments is not None:
            for series in self.series:
                series.location, series.scale = moments
            self.begin(self.slab, self.series)

    # --- observations ---------------------------------------------------------------------------

    def take(self, rows: Sequence[int], observations: Sequence[Observation]) -> list[Taken | None]:
        """Take one observation of each of several series; None for what the filter refuses."""
        work = [(self.series[row], seen) for row, seen in zip(rows, observations, strict=True)]
        warm = [i for i, (series, _) in enumerate(work) if series.warm]
        cold = [i for i, (series, _) in enumerate(work) if not series.warm]
        taken: dict[int, Taken | None] = {}
        for at, step in ((cold, self.warm_up), (warm, self.observe)):
            if at:
                seen = self._columns([observations[i] for i in at])
                taken.update(zip(at, step(self.slab, [work[i] for i in at], seen), strict=True))
        return [taken[i] for i in range(len(rows))]

    def take_series(self, row: int, observations: Sequence[Observation]) -> list[Taken]:
        """Take observations of one series, one after the other, up to one that is refused."""
        series = self.series[row]
        taken: list[Taken] = []
        while not series.warm and len(taken) < len(observations):
            first = len(taken)
            coming = observations[first : first + self.waiting(series)]
            work = [(series, seen) for seen in coming]
            taken += filter(None, self.warm_up(self.slab, work, self._columns(coming)))
            if len(taken) < first + len(coming):
                return taken
        left = observations[len(taken) :]
        if left:
            taken += self.observe_series(self.slab, series, left, self._columns(left))
        return taken

    # --- storage of observations ----------------------------------------------------------------

    def enter(self, series: LocalSeries, item: Observation, taken: Taken) -> None:
        """Retain a row of the observation."""
        numbers = taken.numbers if self._answers else NOTHING
        kept = self.layout.row(item, taken.offset, numbers)
        line = taken.readout
        if line is not None:
            kept[PREVIOUS] = line.born_previous_start
            kept[EVIDENCE] = line.evidence
            kept[ANOMALY] = taken.anomaly
        series.retained.append(kept)
        if line is not None:
            series.retained.trim(self._most)

    def kept(self, series: LocalSeries, most: int | None = None) -> Floats:
        """Retained rows, a view."""
        return series.retained.rows if most is None else series.retained.last(most)

    def past(self, slab: Slab, kept: Floats) -> Past:
        """Retained rows as a filter takes them."""
        seen = self.layout.columns(kept, self.rules.hazard, self.rules.outlier_rate)
        return Past(seen, kept[:, PREVIOUS].astype(int).tolist(), times=times_of(kept))

    def correct(
        self,
        series: LocalSeries,
        kept: Floats,
        offsets: Floats | None,
        previous: Sequence[int],
    ) -> None:
        """Enter them into the last rows."""
        if offsets is not None:
            kept[len(kept) - len(offsets) :, self.layout.offset] = offsets
        kept[len(kept) - len(previous) :, PREVIOUS] = previous

    def labels(self, asked: Sequence[tuple[LocalSeries, int]]) -> list[SeenLabels]:
        """Those of the last retained rows."""
        return [self._labels(series.retained.last(most)) for series, most in asked]

    def _labels(self, rows: Floats) -> SeenLabels:
        times = rows[:, TIME]
        return SeenLabels(
            rows[:, self.layout.y],
            rows[:, self.layout.offset],
            lambda at: (written(times.item(at)), None),
        )

    def values(self, asked: Sequence[tuple[LocalSeries, int]]) -> list[Floats]:
        """Those of the last retained rows."""
        return [series.retained.last(most)[:, self.layout.y] for series, most in asked]

    def time(self, item: Observation) -> str | None:
        """As RFC 3339 has it."""
        return written(item.time)

    def publish(self, series: LocalSeries, event: Event, time: str | None) -> bool:
        """Keep an event as it is now."""
        return series.keep(event)

    def mark(self, series: LocalSeries) -> LocalMark:
        """Its season."""
        state = series.season_state
        return series.season, None if state is None else state.copy()

    def take_back(self, series: LocalSeries, mark: LocalMark) -> None:
        """Forget the last row, and all that came of the warm-up."""
        series.seq -= 1
        series.season, series.season_state = mark
        series.track = Track()
        series.best_start = 0
        series.map_run_length = series.changed_probability = series.evidence = None
        series.retained.pop()

    # --- what is known --------------------------------------------------------------------------

    def score(self, row: int, observation: Observation) -> float:
        """Anomaly that an observation would have, which is not taken in; nan: not known yet."""
        series = self.series[row]
        if not series.warm:
            return math.nan
        seen = self._with_seasons([series], self._columns([observation]))
        return self.slab.tried(series.row, seen).anomaly

    def predict(
        self, row: int, x: tuple[float, ...], elapsed: float, changepoint: float
    ) -> Floats | None:
        """Numbers of the `Summary` of the next label's predictive; None: nothing is known yet.

        Nothing is, either, where the filter's numbers are not finite. changepoint: as of an
        `Observation`.
        """
        series = self.series[row]
        own = self.begun(row)
        if own is None:
            return None
        try:
            coming = self._unlabelled(x, elapsed, changepoint)
            seen = self._with_seasons([series], self._columns([coming]))
            predicted, _ = forecasts.tried(self.slab, own, seen, seen.offset, self.slab.levels)
        except Refused:
            return None
        finally:
            if not series.warm:
                self.slab.remove(own)
        numbers: Floats = predicted.numbers[0]
        return numbers

    def begun(self, row: int) -> int | None:
        """Row of the slab that holds a series' filter; in the warm-up of one to be removed."""
        series = self.series[row]
        if series.warm:
            return series.row
        seen = self.past(self.slab, series.retained.rows).seen
        (own,) = warmup.begun(self.slab, [seen], [series.settings])
        return own

    def coming(self, count: int = 1) -> Columns:
        """The observation to come, so many times."""
        return self._columns([self._unlabelled()] * count)

    def path(self, row: int) -> list[Segment]:
        """Best path of the filter through what is retained."""
        series = self.series[row]
        first = max(series.retained.first, series.seq - self.settings.history)
        if not series.warm or first >= series.seq:
            return []
        return best(series.retained.previous, series.best_start, first, series.seq)

    def _unlabelled(
        self, x: tuple[float, ...] = (), elapsed: float = 1.0, changepoint: float = math.nan
    ) -> Observation:
        return Observation((math.nan,) * self.model.y_dim, x, elapsed, changepoint)

    def _columns(self, observations: Sequence[Observation]) -> Columns:
        """Observations as a filter takes them, without seasons."""
        rows = np.array([self.layout.row(seen, (), NOTHING) for seen in observations])
        return self.layout.columns(rows, self.rules.hazard, self.rules.outlier_rate)
