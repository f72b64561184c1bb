"""The pipeline of a series: warm-up, season, filter, events, anomaly, one observation at a time.

`Detector`, the evaluation of models and the worker of the service run it, so that all of them say
the same. They differ in what they keep of an observation, and where: see `LocalPipeline`, and
`StoredPipeline` of the service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_core.explanation import explained, following, next_due, reach, uncovered
from model_core.readout import Readout
from model_core.stream import columns, events, season, seasons, warmup
from model_core.stream.columns import Columns, Floats
from model_core.stream.events import Event
from model_core.stream.resolution import renewed
from model_core.stream.series import Moved, Series, State, Taken
from model_core.stream.slab import AT_ONCE, Detail, Past, Slab, Step
from model_core.stream.state import SeasonPeriods, SeenLabels, kept_season, seasons_of
from model_core.upm.base import UnderlyingModel

S = TypeVar("S", bound=Series)
Item = TypeVar("Item")  # one observation, as it is kept
Kept = TypeVar("Kept")  # the last observations of a series, as they are kept
Mark = TypeVar("Mark")  # a series as it was
T = TypeVar("T")
# Work on a series, which goes on with the last labels that it asks for, so many.
Asking = Generator[tuple[S, int], SeenLabels | None, T]


class Pipeline(ABC, Generic[S, Item, Kept, Mark]):
    """Moves series by their observations; subclasses keep these."""

    provisional = True  # whether labels of the warm-up are predicted
    summarised = True  # whether predictives are wanted at all
    explains = True  # whether what changed at events is wanted

    # --- storage of observations ----------------------------------------------------------------

    @abstractmethod
    def enter(self, series: S, item: Item, taken: Taken) -> None:
        """Keep an observation and what it gave; the position of the series is after it."""

    @abstractmethod
    def kept(self, series: S, most: int | None = None) -> Kept:
        """The last `most` observations that are kept, at least; None: all, in the warm-up."""

    @abstractmethod
    def past(self, slab: Slab, kept: Kept) -> Past:
        """Kept observations as a filter takes them."""

    def waited(self, slab: Slab, chosen: Sequence[S]) -> list[Columns]:
        """Observations of each of several series that warm up."""
        return [self.past(slab, self.kept(series)).seen for series in chosen]

    @abstractmethod
    def correct(
        self, series: S, kept: Kept, offsets: Floats | None, previous: Sequence[int]
    ) -> None:
        """Enter other seasons, and where best paths come from, into the last that are kept."""

    @abstractmethod
    def labels(self, asked: Sequence[tuple[S, int]]) -> Sequence[SeenLabels | None]:
        """The last labels of each series, so many where they are kept; None: they cannot be read.

        What several series need at once is asked for at once: a store is far away.
        """

    @abstractmethod
    def values(self, asked: Sequence[tuple[S, int]]) -> Sequence[Floats | None]:
        """Those labels (N, d) alone, nan where missing."""

    @abstractmethod
    def publish(self, series: S, event: Event, time: str | None) -> bool:
        """Keep and tell an event that has changed; returns whether it was confirmed for the first
        time."""

    def time(self, item: Item) -> str | None:
        """When an observation was made, for its events."""
        return None

    def named(self, series: S, line: Readout) -> Readout:
        """What a step read off the belief, with the names that its regimes were given."""
        return line

    def begun_anew(self, series: S, kept: Kept) -> None:
        """Hear that a filter has begun anew with the last that are kept."""

    @abstractmethod
    def mark(self, series: S) -> Mark:
        """What `take_back` needs to be here again."""

    @abstractmethod
    def take_back(self, series: S, mark: Mark) -> None:
        """Be before an observation of the warm-up again that was entered, and then refused."""

    def tick(self) -> None:
        """Hear of work that goes on."""

    # --- one observation of each of several series ----------------------------------------------

    def observe(
        self,
        slab: Slab,
        work: Sequence[tuple[S, Item]],
        seen: Columns,
        detailed: Sequence[Detail | None] = (),
    ) -> list[Taken | None]:
        """Take an observation of each of several series with filters in a slab; None: refused.

        seen: without seasons. detailed: as of `Slab.step`.
        """
        chosen = [series for series, _ in work]
        coming = self._with_seasons(chosen, seen)
        steps = slab.step(
            [series.row for series in chosen],
            coming,
            [series.state.watch for series in chosen],
            detailed,
            self.summarised,
        )
        offsets = coming.offset.tolist()
        return self.take_steps(work, [slab] * len(work), steps, offsets, seen.y.tolist())

    def take_steps(
        self,
        work: Sequence[tuple[S, Item]],
        slabs: Sequence[Slab],
        steps: Sequence[Step],
        offsets: Sequence[list[float]],
        y: Sequence[list[float]],
    ) -> list[Taken | None]:
        """Take observations of distinct series that rows were stepped by; None: refused.

        offsets: their seasons.
        """
        entered = enumerate(zip(slabs, work, steps, offsets, y, strict=True))
        parts = {
            i: self._enter(slab, series, item, step, offset, label)
            for i, (slab, (series, item), step, offset, label) in entered
            if step.readout.ok
        }
        taken = dict(zip(parts, self._together([*parts.values()]), strict=True))
        learning = [(i, slabs[i], work[i][0], own) for i, own in taken.items()]
        self.look(
            [
                (slab, series, self._learn(slab, series, [own], [y[i]]))
                for i, slab, series, own in learning
            ]
        )
        for _, _, series, own in learning:
            own.season = series.state.season
        return [taken.get(i) for i in range(len(work))]

    def _together(self, parts: Sequence[Asking[S, T]]) -> list[T]:
        """Be through with work on distinct series; what many of it wait for is asked for at once.

        Not of all: labels of many series take much memory.
        """
        results: list[T] = []
        for at in range(0, len(parts), AT_ONCE):
            if at:
                self.tick()
            going = parts[at : at + AT_ONCE]
            done: dict[int, T] = {}
            answers: Iterable[tuple[int, SeenLabels | None]]
            answers = enumerate([None] * len(going))
            while len(done) < len(going):
                asked: dict[int, tuple[S, int]] = {}
                for i, answer in answers:
                    try:
                        asked[i] = going[i].send(answer)
                    except StopIteration as end:
                        done[i] = end.value
                answers = zip(asked, self.labels([*asked.values()]), strict=True) if asked else ()
            results += [done[i] for i in range(len(going))]
        return results

    def _alone(self, part: Asking[S, T]) -> T:
        (result,) = self._together([part])
        return result

    def observe_series(
        self,
        slab: Slab,
        series: S,
        items: Sequence[Item],
        seen: Columns,
        believed: bool = False,
    ) -> list[Taken]:
        """Take observations of a series that has a filter, one after the other, in few calls.

        Up to the first that is refused. seen: without seasons. believed: whether beliefs are
        wanted.
        """
        taken: list[Taken] = []
        while len(taken) < seen.rows:
            at = len(taken)
            seq = series.state.seq
            due = seasons.next_look(slab.model, series, seq)
            count = seen.rows - at if due is None else min(seen.rows - at, due - seq)
            if may_leave(slab.model, series.state):
                left = np.flatnonzero(_left(slab, series.state, seen.y[at : at + count]))
                count = int(left[0]) + 1 if len(left) else count
            offsets = seasons.foreseen(series.season_state, count, slab.model.y_dim)
            coming = seen.part(slice(at, at + len(offsets)))._replace(offset=offsets)
            for step, offset, y in zip(
                slab.through(
                    series.row,
                    coming,
                    lambda: series.state.watch,
                    self.summarised,
                    believed,
                ),
                offsets.tolist(),
                coming.y.tolist(),
                strict=False,
            ):
                if not step.readout.ok:
                    break
                self.tick()
                item = items[len(taken)]
                taken.append(self._alone(self._enter(slab, series, item, step, offset, y)))
            own = taken[at:]
            if own:
                anew = self._learn(slab, series, own, coming.y[: len(own)].tolist())
                (anew,) = self.look([(slab, series, anew)])
                own[-1].season = series.state.season
                if anew and believed:
                    own[-1].belief = slab.belief(series.row)
            if len(own) < coming.rows:
                return taken
        return taken

    def _enter(
        self, slab: Slab, series: S, item: Item, step: Step, offset: list[float], y: list[float]
    ) -> Asking[S, Taken]:
        """Enter a step into its series."""
        state = series.state
        seq = state.seq
        time = self.time(item)
        line = self.named(series, step.readout)
        if line is not step.readout:
            step = step._replace(readout=line)
        taken = Taken(seq, step, kept_season(offset), warm=True, belief=step.belief)
        changed = follow(state, step.readout, seq, slab.model.label != "class", time)
        last = state.track.last_event
        stays = last is not None and last not in changed
        if last and stays and (next_due(last, seq) == seq or uncovered(last, changed)):
            last = last._replace(refined_at=seq)
            state.track = state.track.put(last)
            changed = [*changed, last]
        if events.alarming(state.settings.anomaly_alarm, step.anomaly, seq, state.last_anomaly):
            state.last_anomaly = seq
            moments = None if step.predictive is None else step.predictive.moments()
            label = [value - own for value, own in zip(y, offset, strict=True)]
            taken.alarm = events.anomaly(seq, step.anomaly, label, moments, time)
        state.seq = seq + 1
        self.enter(series, item, taken)
        if changed:
            told = [(seq, event, time) for event in changed]
            taken.moved = yield from self._told(slab, series, told)
            news = [moved.event for moved in taken.moved if moved.event.news]
            taken.event = news[-1] if news else None
        if taken.alarm is not None:
            self.publish(series, taken.alarm, time)
        return taken

    # --- seasons --------------------------------------------------------------------------------

    def _with_seasons(self, chosen: Sequence[S], seen: Columns) -> Columns:
        """Observations of several series, with the season of each label."""
        offsets = [season.offset(series.season_state) for series in chosen]
        return seen._replace(offset=seasons_of(offsets, seen.y.shape[1]))

    def _learn(
        self, slab: Slab, series: S, taken: Sequence[Taken], y: Sequence[list[float]]
    ) -> bool:
        """Take in the labels of the last observations; returns whether the filter is to begin anew.

        It is where seasons were found or given up, or an output has left its constant: that is
        looked at after the last of them alone.
        """
        state = series.state
        for own in taken[:-1]:
            own.season = state.season
        anew = series.season_state is not None and seasons.learn(state, series.season_state, y)
        return anew or (may_leave(slab.model, state) and bool(_left(slab, state, np.array(y[-1:]))))

    def look(self, looking: Sequence[tuple[Slab, S, bool]]) -> list[bool]:
        """Look at series after an observation: for seasons, and at the scale, where they are due.

        Of each whether its filter is to begin anew already; returns where that is so by now, and
        has been done. The others may sleep on: nothing of their state has moved.
        """
        begun: list[bool] = []
        for at in range(0, len(looking), AT_ONCE):  # labels of many series take much memory
            if at:
                self.tick()
            begun += self._look(looking[at : at + AT_ONCE])
        return begun

    def _look(self, looking: Sequence[tuple[Slab, S, bool]]) -> list[bool]:
        anew = {i for i, (_, _, own) in enumerate(looking) if own}
        due = {
            i: (slab.model, series)
            for i, (slab, series, _) in enumerate(looking)
            if series.seq >= series.next_look
        }
        anew |= self._search(due)
        for i in {*due, *anew}:
            slab, series, _ = looking[i]
            # Of a model that has neither it is the next observation: another model may be next.
            following = seasons.next_look(slab.model, series, series.seq)
            series.next_look = following or series.seq + 1
        anew |= self._measure({i: own for i, own in due.items() if i not in anew})
        for i in sorted(anew):
            slab, series, _ = looking[i]
            self._begin_anew(slab, series)
        return [i in anew for i in range(len(looking))]

    def _search(self, due: Mapping[int, tuple[UnderlyingModel, S]]) -> set[int]:
        """Search series for their first seasons, where that is due; returns which have one."""
        labels = self._values(
            {
                i: (series, season.CAPACITY)
                for i, (model, series) in due.items()
                if seasons.next_search(model, series, series.seq - 1) == series.seq
            }
        )
        found: set[int] = set()
        for i, state in zip(labels, season.searched([*labels.values()]), strict=True):
            if state is not None:
                _, series = due[i]
                series.season_state = state
                series.state.season = SeasonPeriods(season.periods(state), series.seq)
                found.add(i)
        return found

    def _measure(self, due: Mapping[int, tuple[UnderlyingModel, S]]) -> set[int]:
        """Look at the scale of series, where that is due; returns where it is `_misjudged`.

        It is now and then, of models of real numbers without inputs, whose scale is not stated.
        """
        labels = self._values(
            {
                i: (series, season.CAPACITY if model.y_dim == 1 else season.REPLAYED)
                for i, (model, series) in due.items()
                if model.rescaled
                and series.settings.scale is None
                and warmup.next_look(series.seq - 1, model.y_dim) == series.seq
                and None not in series.units[:2]
            }
        )
        return {i for i, y in labels.items() if _misjudged(*due[i], y)}

    def _values(self, asked: Mapping[int, tuple[S, int]]) -> dict[int, Floats]:
        """`values` of series that can be read, as far back as their history goes."""
        if not asked:
            return {}
        most = [(series, min(count, series.settings.history)) for series, count in asked.values()]
        values = zip(asked, self.values(most), strict=True)
        return {i: y for i, y in values if y is not None}

    def _begin_anew(self, slab: Slab, series: S) -> None:
        """Begin the filter anew with the last labels less the seasons of now."""
        kept = self.kept(series, season.REPLAYED)
        past = self.past(slab, kept)
        anew = seasons.begin_anew(slab, series, past, self.tick)
        if anew is not None:
            self.correct(series, kept, anew.offsets, anew.previous)
            self.begun_anew(series, kept)

    # --- warm-up --------------------------------------------------------------------------------

    def warm_up(
        self,
        slab: Slab,
        work: Sequence[tuple[S, Item]],
        seen: Columns,
        detailed: Sequence[Detail | None] = (),
    ) -> list[Taken | None]:
        """Take observations of several series without filters; None: refused.

        Those of a series follow one another, no more than `waiting`. Where enough labels are there
        the filter begins, in this slab.
        """
        chosen = [series for series, _ in work]
        coming = self._with_seasons(chosen, seen)
        steps = self._forecasts(slab, chosen, coming, detailed)
        taken: list[Taken | None] = []
        ready: list[tuple[int, Taken, Mark]] = []
        offsets = coming.offset.tolist()
        for i, ((series, item), step, offset) in enumerate(zip(work, steps, offsets, strict=True)):
            mark = self.mark(series)
            own = Taken(series.state.seq, step, kept_season(offset))
            if self._wait(slab, series, item, own, seen.y[i].tolist()):
                ready.append((i, own, mark))
            taken.append(own)
        begun = self.begin(slab, [chosen[i] for i, _, _ in ready])
        for (i, own, mark), moved in zip(ready, begun, strict=True):
            if moved is None:
                self.take_back(chosen[i], mark)
                taken[i] = None
                continue
            own.moved = moved
            own.event = chosen[i].state.track.event or chosen[i].state.track.last_event
        return taken

    def waiting(self, series: S) -> int:
        """Observations that a series without a filter takes at once: its filter needs them all.

        One, where each may change the season of the next, or begin to.
        """
        state = series.state
        if series.season_state is not None or state.settings.seasonal:
            return 1
        return min(max(state.settings.warmup - state.seq, 1), AT_ONCE)

    def _wait(self, slab: Slab, series: S, item: Item, own: Taken, y: list[float]) -> bool:
        """Keep an observation of the warm-up; returns whether enough labels are there by now."""
        state = series.state
        state.seq += 1
        self.enter(series, item, own)
        if series.season_state is not None and seasons.learn(state, series.season_state, [y]):
            kept = self.kept(series)
            rows = self.past(slab, kept).seen.rows
            self.correct(series, kept, season.offsets(series.season_state, rows), [])
        own.season = state.season
        if state.seq < state.settings.warmup:
            return False
        past = self.past(slab, self.kept(series)).seen
        values = columns.values(slab.model, past)
        if not warmup.complete(slab.model, values, state.settings.warmup, past.rows):
            return False
        own_units = warmup.units(slab.model, past, state.settings, values)
        state.location, state.scale, state.resolution = own_units
        return True

    def begin(self, slab: Slab, chosen: Sequence[S]) -> list[list[Moved] | None]:
        """Begin filters with a known location and scale, through what was observed before.

        Returns the events of each that changed; None: of one that takes no observation.
        """
        moved: list[list[Moved] | None] = []
        most = 1 if slab.in_series else slab.step_rows  # not all of large states at once
        for i in range(0, len(chosen), most):
            moved += self._begin(slab, chosen[i : i + most])
        return moved

    def _begin(self, slab: Slab, chosen: Sequence[S]) -> list[list[Moved] | None]:
        """As `begin`; events of a series are published once it has taken all observations."""
        states = [series.state for series in chosen]
        rows = slab.begin(
            [state.location or [] for state in states],
            [state.scale or [] for state in states],
            [state.resolution for state in states],
        )
        kept = [self.kept(series) for series in chosen]
        pasts = [self.past(slab, own) for own in kept]
        changed: list[list[tuple[int, Event, str | None]]] = [[] for _ in chosen]
        previous: list[list[int]] = [[] for _ in chosen]
        refused: set[int] = set()
        for state, past in zip(states, pasts, strict=True):  # what begins in a warm-up is no news
            asked = warmup.asked(past.seen.y, state.settings.warmup, state.resolution)
            settled = max(state.track.settled, state.seq - past.seen.rows + asked - 1)
            state.track = state.track._replace(settled=settled, since=settled)
        watched = [lambda state=state: state.watch for state in states]
        replayed = slab.replay_each(rows, pasts, watched)
        for i, at, line in replayed:
            self.tick()
            if line is None:
                refused.add(i)
                continue
            past = pasts[i]
            seq = states[i].seq - past.seen.rows + at
            time = past.times[at] if past.times else None
            events_of = follow(states[i], line, seq, slab.model.label != "class", time)
            changed[i] += [(seq, event, time) for event in events_of]
            previous[i].append(line.born_previous_start)
        moved: list[list[Moved] | None] = []
        for i, (series, row) in enumerate(zip(chosen, rows, strict=True)):
            if i in refused:
                slab.remove(row)
                moved.append(None)
                continue
            series.slab = slab
            series.row = row
            self.correct(series, kept[i], None, previous[i])
            moved.append(self._alone(self._told(slab, series, changed[i])))
        return moved

    def _told(
        self, slab: Slab, series: S, changed: Sequence[tuple[int, Event, str | None]]
    ) -> Asking[S, list[Moved]]:
        """Publish events that have changed, with position and time of the observations.

        What changed at a confirmed one is looked at first, in retained history. Most suspicions are
        withdrawn, and are not worth it.
        """
        moved: list[Moved] = []
        state = series.state
        track = state.track  # that after all of them: starts in it end what is looked at
        end = state.seq
        for seq, event, time in changed:
            own = event
            labels: SeenLabels | None = None
            if event.state == "confirmed" and self.explains:
                labels = yield series, end - reach(event)
            if labels is not None:
                until = min(seq + 1, following(event, track) or seq + 1)
                own = explained(event, slab.model, labels, end, until, state.settings.history)
                state.track = state.track.put(own)
            moved.append(Moved(seq, own, self.publish(series, own, time)))
        return moved

    def _forecasts(
        self, slab: Slab, chosen: Sequence[S], coming: Columns, detailed: Sequence[Detail | None]
    ) -> list[Step | None]:
        """Provisional forecasts of observations of warm-ups."""
        if not (self.provisional and self.summarised):
            return [None] * len(chosen)
        histories: list[Columns] = []
        places = [[*same] for _, same in groupby(range(len(chosen)), lambda i: chosen[i])]
        waited = self.waited(slab, [chosen[first] for first, *_ in places])
        for (first, *later), before in zip(places, waited, strict=True):
            histories.append(before)
            if later:
                every = columns.joined([before, coming.part(slice(first, later[-1]))])
                histories += [every.part(slice(before.rows + at - first)) for at in later]
        settings = [series.state.settings for series in chosen]
        steps: list[Step | None] = []
        for at in range(0, len(chosen), slab.step_rows):  # each needs a state
            part = slice(at, at + slab.step_rows)
            steps += warmup.forecasts(
                slab, histories[part], settings[part], coming.part(part), detailed[part]
            )
        return steps


def may_leave(model: UnderlyingModel, state: State) -> bool:
    """Whether a label of a vector can move an output that was constant, so that it has a scale."""
    if model.y_dim == 1 or not model.rescaled or state.settings.scale is not None:
        return False
    return any(warmup.flat(state.location or [], state.scale or []))


def _left(slab: Slab, state: State, y: Floats) -> NDArray[np.bool_]:
    """Which labels (n, d) move an output as of `may_leave`."""
    left = warmup.left(y, state.location or [], state.scale or []).any(1)
    return left & columns.labelled(slab.model, y)


def _misjudged(model: UnderlyingModel, series: Series, y: Floats) -> bool:
    """Whether labels are of another order than the scale, or on a grid that was not known.

    Or on none that was.
    """
    location, scale, resolution = series.units
    assert location is not None
    assert scale is not None
    last = y[-season.REPLAYED :]  # what a filter begins anew with
    if model.y_dim > 1:
        return any(warmup.outlived(last, location, scale, resolution))
    since = last[-(series.seq // 2) :, 0]  # the look before
    if warmup.outgrown(y[:, 0], location[0], scale[0]) or warmup.shrunk(since, scale[0]):
        return True
    return renewed(model, last, scale, resolution) != resolution


def follow(
    state: State, line: Readout, seq: int, quantity: bool, time: str | None = None
) -> list[Event]:
    """Enter what a step at `seq` reads off the belief; returns the events that changed.

    quantity: whether labels are numbers. time: when the observation was made.
    """
    changed: list[Event] = []
    track = state.track
    later = seq - line.event_run_length > track.settled
    if later or track.event is not None or events.settling(track, seq):
        reading = line.reading(seq, time, quantity)
        state.track, changed = events.track(track, reading, state.settings)
    state.read(line)
    return changed
