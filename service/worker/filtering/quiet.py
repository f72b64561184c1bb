"""Quiet observations: plain labels of streams at rest, stepped and entered as columns.

A stream is at rest while nothing is awaited or stated, and until the start of its last change is
looked at again. Nearly all observations find it so and leave it so: they move no event and raise no
alarm. One that does is entered as any other, by the step that was made. After the last of a run
seasons and scale are looked at, which wakes those alone whose filters begin anew.

A stream at rest sleeps: what quiet observations move are the columns of its `Table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from model_core import readout
from model_core.compiled import LABEL, NO_BELIEFS
from model_core.explanation import next_due
from model_core.hazard import table_of
from model_core.labels import range_of
from model_core.stream import season, seasons
from model_core.stream.beliefs import Probabilities
from model_core.stream.columns import Packed, effective_rates, hazard_table, of_all
from model_core.stream.columns import plain as plain_inputs
from model_core.stream.pipeline import may_leave
from model_core.stream.slab import Slab, Step, Stepped, SummaryRow
from model_core.stream.state import SeasonPeriods
from model_core.stream_settings import Hazard
from model_core.upm.base import UnderlyingModel
from service.wire import (
    Envelope,
    Head,
    Layout,
    Observation,
    QuietAnswers,
    encode_row,
    timestamps,
)
from service.wire.rows import Numbers
from service.wire.stored_records import (
    KEPT_OUTPUTS,
    TOO_MANY,
    UNKEPT,
    PlainRows,
    numbers_of,
    singly,
)
from service.worker.filtering.rewriting import elapsed_of_each
from service.worker.streams import alarm_period
from service.worker.streams.answers import GATHERED, gathered, layout_of, quiet_numbers
from service.worker.streams.stream import (
    GROUPS,
    ROW,
    WHOLE_ROW,
    Stream,
    Table,
    as_rows,
)
from service.worker.streams.task import Answering

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Rows = NDArray[Any]  # of `stream.ROW`

_COLUMN = {name: place for place, name in enumerate(readout.NUMBERS)}
_PREVIOUS_START = _COLUMN["born_previous_start"]
_MAP_RUN_LENGTH = _COLUMN["map_run_length"]
_COUNTED = np.array([_COLUMN[name] for name in GATHERED])
# Those that positions are moved by: see `compiled.plain.enter`.
_ENTERED = np.array(
    [
        _COLUMN[name]
        for name in (
            "log_score", "pruned_mass", "map_run_length", "best_start", "changed_probability",
            "evidence",
        )
    ]
)  # fmt: skip
_NO_TIMES = _NO_DAYS = np.empty(0)
_NO_FLAGS = np.empty(0, bool)

# The seasons of a stream after labels, and whether they were found or given up.
Learned = tuple[SeasonPeriods | None, bool]
# Looks at streams, as of `Pipeline.look`.
Look = Callable[[Sequence[tuple[Slab, Stream, bool]]], list[bool]]


# --- rest -----------------------------------------------------------------------------------------


def rest_of(
    stream: Stream, checkpoint_every: int
) -> tuple[tuple[Any, ...], Hazard | None, list[float]] | None:
    """What is common to the next observations of a stream; None where it is not at rest.

    As `Table.enter` takes it.
    """
    slab = stream.slab
    head = stream.head
    position = None if head is None else numbers_of(head)
    if slab is None or head is None or position is None or not _resting(stream, slab, head):
        return None
    track = head.track
    until = TOO_MANY - 1
    if track.last_event is not None:
        until = int(min(until, next_due(track.last_event, head.seq)))
    hazard, outlier_rate = effective_rates(slab.model, head.settings)
    alarm = head.settings.anomaly_alarm
    values = (
        position,
        slab.model.y_dim,
        stream.due(checkpoint_every),
        outlier_rate,
        *head.watch,
        hazard if isinstance(hazard, float) else nan,
        -1 if track.event is None else track.event.start,
        until,
        inf if alarm is None else alarm,
        stream.next_look if slab.model.rescaled else TOO_MANY,
        nan if head.settings.interval is None else head.settings.interval,
        head.seq,
        stream.season_state is not None or head.season is not None,
        head.own_rule,
        nan if head.settings.ttl is None else head.settings.ttl,
        0.0,
        alarm_period.is_stale(head),
        head.settings.history,
        stream.waits,
        stream.writes,
        0,
        0,
        0,
        0,
        stream.place,
        stream.tail.place,
        stream.row,
        id(slab),
    )
    return values, hazard, cast(list[float], head.last_label)[1:]


def _resting(stream: Stream, slab: Slab, head: Head) -> bool:
    """Whether nothing is awaited or stated, and labels and inputs are all that is expected."""
    model = slab.model
    if not slab.in_series or model.typical or model.y_dim > KEPT_OUTPUTS:
        return False
    if (head.x_dim, head.y_dim) != (model.x_dim, model.y_dim):
        return False
    settings = head.settings
    if settings.regimes or not head.seq or may_leave(model, head):
        return False
    if head.deleted or not head.warm or stream.broken or stream.unserved or stream.buffer:
        return False
    stated = head.pending_supervision is not None or head.belief_override is not None
    if stated or head.pending or stream.ahead is not None:
        return False
    event = head.track.event
    if event is None:
        return True
    # Without a threshold it is confirmed by time. What a new beginning has settled is withdrawn.
    return bool(settings.threshold) and event.start > head.track.settled


def in_lists(stream: Stream, envelope: Envelope) -> bool:
    """Whether a stream is at rest but for what is looked at now, also while it takes a list."""
    head = stream.live()
    if stream.slab is None or not _resting(stream, stream.slab, head):
        return False
    return head.settings.interval is None and not alarm_period.followed(head, envelope)


def fitting(
    model: UnderlyingModel, given: Numbers, counts: Ints, begun: Bools, most: Ints
) -> Bools:
    """Choose of runs (B) of observations the first that are labels and inputs of a model alone.

    counts, begun: as of `Coming`. most: (B,) of each at most, which becomes how many. Returns which
    observations (N,) are chosen.
    """
    from model_core.compiled import plain  # numba: half a second

    chosen = np.empty(len(given.y), dtype=bool)
    sizes = (model.y_dim, model.x_dim, *range_of(model))
    columns = (given.y, given.outputs, given.x, given.inputs)
    plain.count_fitting(*columns, *sizes, counts, begun, most, chosen)
    return chosen


# --- waves ----------------------------------------------------------------------------------------


class Coming(NamedTuple):
    """The next observations of distinct streams (B): so many of each, run after run.

    places: (B,) of the streams' rows in the table. commands: (B,) whose envelope is that of each.
    begun: (B,) of a command that part was applied of; of any other all have to fit. timed: (B,) of
    repeating writers, see `rewriting.resampled`; None: of none. believed: whether the belief after
    each is wanted.
    """

    places: Ints
    envelopes: Sequence[Envelope]
    commands: Ints
    given: Numbers
    counts: Ints
    begun: Bools
    timed: Bools | None
    believed: bool = False

    @property
    def quiet_days(self) -> Floats:
        """Those of the commands (B,), as of `_quiet_days`."""
        return _quiet_days(self.envelopes, self.commands)

    def part(self, chosen: Ints) -> Coming:
        """Those of some of the streams."""
        places, envelopes, commands, given, counts, begun, timed, believed = self
        numbers = np.zeros(len(counts), dtype=bool)
        numbers[chosen] = True
        return Coming(
            places[chosen],
            envelopes,
            commands[chosen],
            given.part(numbers.repeat(counts)),
            counts[chosen],
            begun[chosen],
            None if timed is None else timed[chosen],
            believed,
        )


@dataclass(eq=False, repr=False)
class Wave:
    """Runs of plain labels that come to distinct streams of a slab that are asleep, before `until`.

    places: (B,) of their rows in the table; own: (B,) these, as they are before the wave. firsts:
    (B,) position of the first number of each run. counts: (B,) numbers of each run, at least one.
    envelopes, commands: as of `Coming`. y, x, times: (N, ...) of the observations, run after run,
    as of `Numbers`. elapsed: (N,) time since the one before. offset: (N, ...) seasons of the
    labels, if any has one. believed: as of `Coming`. alone: it is one run, whose season is learned
    on the way: `offset` is filled in as far as it is known.
    """

    slab: Slab
    table: Table
    places: Ints
    own: Rows
    firsts: Ints
    counts: Ints
    envelopes: Sequence[Envelope]
    commands: Ints
    y: Floats
    x: Floats
    elapsed: Floats
    times: NDArray[np.object_] | None
    offset: Floats | None
    believed: bool
    alone: bool

    def __post_init__(self) -> None:
        self.ends = self.counts.cumsum()  # where each run ends in `y`
        self._single = len(self.y) == len(self.counts)  # no run has more than one number

    def stream(self, run: int) -> Stream:
        """That of a run."""
        return cast("Stream", self.table.streams[self.places[run]])

    @cached_property
    def owner(self) -> Ints:
        """Run of each number (N,)."""
        return np.arange(len(self.counts)).repeat(self.counts)

    def each(self, column: NDArray[Any]) -> NDArray[Any]:
        """What the runs have in a column (B, ...), for each of their numbers (N, ...)."""
        return column if self._single else column.repeat(self.counts, 0)

    @property
    def hazards(self) -> list[Hazard | None]:
        """Those of the streams; None: their model's own."""
        hazards = [None if h != h else h for h in self.own["hazard"].tolist()]
        tables = self.table.hazards
        if not tables:
            return hazards
        known = zip(self.places.tolist(), hazards, strict=True)
        return [tables.get(at, hazard) for at, hazard in known]

    @property
    def hazard_table(self) -> Floats:
        """The same (B, H) as of `model_core.stream.columns.hazard_table`."""
        stated = self.own["hazard"]
        model = self.slab.model
        if self.table.hazards:
            return hazard_table(model, self.hazards)
        unstated = np.count_nonzero(stated != stated)
        if unstated == len(stated):
            return of_all(table_of(model.hazard), len(stated))
        return hazard_table(model, self.hazards) if unstated else np.array(stated)[:, None]

    def last(self, column: NDArray[Any]) -> NDArray[Any]:
        """What the last number of each run (B, ...) has in a column (N, ...)."""
        return column if self._single else column[self.ends - 1]

    def first(self, counts: Ints, chosen: Ints) -> Wave:
        """The first numbers of each run, so many; runs of none are left out.

        chosen: places of all these numbers.
        """
        runs = counts.nonzero()[0]
        return Wave(
            self.slab,
            self.table,
            self.places[runs],
            as_rows(as_rows(self.own, WHOLE_ROW).take(runs), ROW),
            self.firsts[runs],
            counts[runs],
            self.envelopes,
            self.commands[runs],
            self.y.take(chosen, 0),
            self.x.take(chosen, 0),
            self.elapsed.take(chosen),
            None if self.times is None else self.times.take(chosen),
            None if self.offset is None else self.offset.take(chosen, 0),
            self.believed,
            self.alone,
        )


def waves_of(table: Table, coming: Coming, allowed: Bools) -> list[tuple[Ints, Wave]]:
    """The runs that may be quiet, none but those allowed (B,): places of some, and their wave.

    Each is of streams of one slab, as many as are stepped at once.
    """
    places = coming.places
    ids = table.rows["slab"][places]
    for i in ((ids == 0) & allowed).nonzero()[0].tolist():
        stream = table.streams[places[i]]
        rest = rest_of(stream, table.checkpoint_every)
        if rest is not None:
            stream.sleep(table, *rest)
            ids[i] = id(stream.slab)
    left = (allowed & (ids != 0)).nonzero()[0]
    waves = []
    while len(left):
        alike = ids[left] == ids[left[0]]
        own = left[alike]
        left = left[~alike]
        slab = table.streams[places[own[0]]].slab
        for at in range(0, len(own), slab.step_rows):
            part = own[at : at + slab.step_rows]
            runs = coming if len(part) == len(allowed) else coming.part(part)
            chosen, wave = _wave_of(table, slab, runs)
            if len(chosen):
                waves.append((part[chosen], wave))
    return waves


def _wave_of(table: Table, slab: Slab, coming: Coming) -> tuple[Ints, Wave]:
    """The runs that may be quiet, of streams that are asleep, as far as they may; their wave.

    The last of these may have to be looked at; after it season or scale may. Of several
    observations none may, where the alarm period is followed: it is fixed after all of them.
    """
    from model_core.compiled import plain  # numba: half a second

    places, envelopes, commands, given, counts, begun, timed, believed = coming
    own = table.of(places)
    left = np.empty(len(counts), np.int64)
    days = coming.quiet_days
    repeating = _NO_FLAGS if timed is None else timed
    plain.count_left(table.columns, places, counts, repeating, days, left)
    alone = len(places) == 1
    for i in () if alone else own["seasonal"].nonzero()[0].tolist():  # as far as seasons are known
        state = table.streams[places[i]].season_state
        if state is not None:
            left[i] = min(left.item(i), season.left(state))
    kept = fitting(slab.model, given, counts, begun, left)
    elapsed = np.ones(len(counts))
    if timed is not None:
        at = (timed & (left > 0)).nonzero()[0]
        starts = counts.cumsum() - counts
        now = np.full(len(at), nan) if given.times is None else _seconds(given.times[starts[at]])
        passed = elapsed_of_each(now, own["position"]["last_time"][at], own["interval"][at])
        elapsed[at] = np.where(np.isnan(now), 0.0, passed)
        left[elapsed <= 0] = 0
        kept &= (left > 0).repeat(counts)
    chosen = left.nonzero()[0]
    if len(chosen) < len(left):
        places, left, elapsed = places[chosen], left[chosen], elapsed[chosen]
        own = table.of(places)
        commands = commands[chosen]
    if not _all(kept):
        given = given.part(kept.nonzero()[0])
    y = given.y[:, : slab.model.y_dim]
    wave = Wave(
        slab,
        table,
        places,
        own,
        own["position"]["seq"].astype(np.int64),
        left,
        envelopes,
        commands,
        y,
        given.x[:, : slab.model.x_dim],
        elapsed.repeat(left),
        given.times,
        _seasons(table, places, own, left, y),
        believed,
        alone,
    )
    return chosen, wave


def _seasons(table: Table, places: Ints, own: Rows, counts: Ints, y: Floats) -> Floats | None:
    """Seasons (N, d) of the labels of runs; None: no stream has any."""
    chosen = own["seasonal"].nonzero()[0].tolist()  # of numpy's ways the one with the fewest calls
    if not chosen:
        return None
    offset = np.zeros(y.shape)
    ends = counts.cumsum()
    for i in chosen:
        count = int(counts[i])
        state = table.streams[places[i]].season_state
        known = seasons.foreseen(state, count, y.shape[1])
        begin = ends[i] - count
        offset[begin : begin + len(known)] = known
    return offset


def _quiet_days(envelopes: Sequence[Envelope], commands: Ints) -> Floats:
    """Those of the commands (B,) of streams; nan: it has none; empty: nor has any other."""
    days = [envelope.quiet_days for envelope in envelopes]
    if days.count(None) == len(days):  # as where the service states no rate of false alarms
        return _NO_DAYS
    return np.array(days, dtype=np.float64)[commands]


# --- steps ----------------------------------------------------------------------------------------


class Entered(NamedTuple):
    """What runs of a wave came to.

    firsts: (B,) seq of each. counts: (B,) observations that were quiet, which are entered.
    answering: by what all are answered. numbers: (N, ...) of these, run after run. steps: of the
    observations after them, by run. seasons: by run, of those of streams that look for seasons.
    renewed: the same after the last of these observations, where that has changed it. anew: streams
    whose filters have begun anew after it. room: the beliefs after these observations, as of
    `Slab.stepped`, where they are wanted.
    """

    firsts: Ints
    counts: Ints
    answering: Answering
    numbers: Floats
    steps: Mapping[int, Step]
    seasons: Mapping[int, SeasonPeriods | None]
    renewed: Mapping[int, SeasonPeriods | None]
    anew: Sequence[Stream]
    room: Floats

    @property
    def ends(self) -> Ints:
        """Where the numbers of each run end."""
        return self.counts.cumsum()

    def answers(
        self, run: int, rows: bytes, beliefs: list[Probabilities] | None = None
    ) -> list[QuietAnswers]:
        """Answers to the quiet observations of a run; rows: their numbers, encoded."""
        first = int(self.firsts[run])
        count = int(self.counts[run])
        layout = self.answering.layout
        before = self.seasons.get(run)
        if not count or run not in self.renewed:
            return [QuietAnswers(first, rows, layout, before, beliefs)] if count else []
        last = first + count - 1
        at = len(rows) // count * (count - 1)
        own = beliefs or []
        return [
            QuietAnswers(position, part, layout, season, held or None)
            for position, part, season, held in (
                (first, rows[:at], before, own[:-1]),
                (last, rows[at:], self.renewed[run], own[-1:]),
            )
            if part
        ]


def advance(wave: Wave, look: Look) -> Entered:
    """Step distinct streams by their runs; enter the quiet observations of each.

    The row of a run that is not quiet to its end is left behind the first that is not.
    """
    slab = wave.slab
    present: dict[int, SeasonPeriods | None] = {}
    if wave.offset is not None:
        seasonal = wave.own["seasonal"].nonzero()[0].tolist()
        present = {i: wave.stream(i).season for i in seasonal}
    room = slab.room(len(wave.y)) if wave.believed else NO_BELIEFS
    stepped, learned = _stepped(wave, room)
    stepped_to = len(stepped.table)
    if stepped_to < len(wave.y):
        wave = wave.first(np.array([stepped_to]), np.arange(stepped_to))
        room = room[:stepped_to]
    answering = Answering(wave.stream(0).settings.model, layout_of(slab.model))
    counts = wave.counts
    entering = wave
    steps: dict[int, Step] = {}
    if not _all(stepped.quiet):
        quiet = stepped.quiet.nonzero()[0]
        starts = wave.ends - counts
        counts = np.add.reduceat(stepped.quiet, starts, dtype=np.int64)
        at = (starts + counts).tolist()
        steps = {i: _step(stepped, at[i]) for i in (counts < wave.counts).nonzero()[0].tolist()}
        stepped = stepped.part(quiet)
        room = room[quiet] if wave.believed else room
        entering = wave.first(counts, quiet)
    numbers = np.empty((0, answering.layout.full))
    renewed: dict[int, SeasonPeriods | None] = {}
    anew: list[Stream] = []
    if len(entering.y):
        numbers = _enter(answering, entering, stepped)
        runs = counts.nonzero()[0].tolist()
        moved = _learn(entering, learned)
        begun = _look(entering, moved, look)
        anew = [entering.stream(i) for i in begun]
        changed = {*moved, *(i for i, found in begun.items() if found)}
        renewed = {runs[i]: entering.stream(i).season for i in changed}
    return Entered(wave.firsts, counts, answering, numbers, steps, present, renewed, anew, room)


def _step(stepped: Stepped, at: int) -> Step:
    """One of several steps."""
    (line,) = readout.rows(stepped.table[at : at + 1])
    assert stepped.predicted is not None
    return Step(
        line,
        SummaryRow(stepped.predicted, at),
        float(stepped.anomaly[at]),
        stepped.uncorrected[at].tolist(),
    )


def _stepped(wave: Wave, room: Floats) -> tuple[Stepped, Learned | None]:
    """Steps of the rows of streams, of each its run; room: as of `Slab.stepped`.

    A run alone is stepped on while its season is learned on the way, as far as that moves no
    period: also what its quiet observations have made of it. None: they are to be learned yet.
    """
    slab = wave.slab
    filtered = wave.y if wave.offset is None else wave.y - wave.offset
    groups = as_rows(wave.own, GROUPS)
    inputs = plain_inputs(filtered, wave.x, wave.elapsed, wave.each(groups["rates"]))
    taken = Packed(wave.y, wave.offset, wave.each(wave.hazard_table), inputs)
    rows = wave.each(wave.own["state"].astype(np.int64))
    rest = wave.each(groups["rest"])
    stream = wave.stream(0)
    state = stream.season_state
    offset = wave.offset
    if not wave.alone or offset is None or state is None:
        return slab.stepped(rows, taken, room=room, rest=rest), None
    labels = slice(LABEL, LABEL + wave.y.shape[1])
    learned: Learned = stream.season, False
    begun = 0

    def following(done: int, quiet: int) -> int:
        nonlocal begun, learned
        if quiet:
            seen = wave.y[begun : begun + quiet]
            seq = int(wave.firsts[0]) + begun + quiet
            learned = seasons.learned(stream.season, state, seen, seq)
        if quiet < done - begun or done == len(wave.y) or learned[0] != stream.season:
            return 0
        count = min(len(wave.y) - done, season.left(state))
        if done:
            part = slice(done, done + count)
            offset[part] = seasons.ahead(state, count, wave.y.shape[1])
            inputs[part, labels] = wave.y[part] - offset[part]
        begun = done
        return count

    return slab.stepped_on(rows, taken, room, rest, following), learned


def _enter(answering: Answering, wave: Wave, stepped: Stepped) -> Floats:
    """Enter quiet observations; returns the numbers (N, ...) that they are answered with."""
    from model_core.compiled import plain  # numba: half a second

    assert stepped.predicted is not None
    numbers = quiet_numbers(answering.layout, stepped, wave.offset)
    gathered.add_steps(answering.model, stepped.table.take(_COUNTED, 1))
    gathered.add_pits(answering.model, stepped.predicted)
    accepted_ms = np.array([envelope.time_ms for envelope in wave.envelopes])[wave.commands]
    encoded = _encoded(wave, answering.layout, numbers, stepped, accepted_ms)

    times = _NO_TIMES if wave.times is None else _seconds(wave.times)
    days = _quiet_days(wave.envelopes, wave.commands)
    left = np.empty(len(wave.counts), bool)
    table = wave.table
    plain.enter(
        table.columns, wave.places, wave.counts, stepped.table, _ENTERED, wave.y, accepted_ms,
        times, days, alarm_period.FIRST_S, alarm_period.DAY_S, left,
    )  # fmt: skip
    if wave.y.shape[1] > 1:
        further = wave.last(wave.y)[:, 1:].tolist()
        table.further.update(zip(wave.places.tolist(), further, strict=True))
    table.keep(wave.places, wave.counts, encoded)
    for i in left.nonzero()[0].tolist():
        at = int(wave.ends[i]) - 1
        time = None if wave.times is None else wave.times[at]
        seen = [Observation(float(wave.y[at, 0]), time=time)]
        alarm_period.follow(wave.stream(i).live(), wave.envelopes[wave.commands[i]], seen)
    return numbers


def _learn(wave: Wave, known: Learned | None) -> dict[int, bool]:
    """Take the labels of runs that were entered into the seasons of their streams.

    known: that of a run alone, which was learned on the way. Returns, by run whose seasons have
    changed, whether they were found or given up.
    """
    changed = {}
    for i in wave.own["seasonal"].nonzero()[0].tolist():
        stream = wave.stream(i)
        state = stream.season_state
        if state is not None:
            end = wave.ends[i]
            labels = wave.y[end - wave.counts[i] : end]
            seq = int(wave.firsts[i] + wave.counts[i])
            learned = known or seasons.learned(stream.season, state, labels, seq)
            periods, moved = learned
            if periods != stream.season:
                stream.live().season = periods
                changed[i] = moved
    return changed


def _look(wave: Wave, learned: Mapping[int, bool], look: Look) -> dict[int, bool]:
    """Look at the streams of runs that were entered, where that is due; learned: as of `_learn`.

    Returns, by run whose filter has begun anew, whether a first season was found.
    """
    due = (wave.firsts + wave.counts >= wave.own["look"]).nonzero()[0].tolist()
    looking = sorted({*due, *(i for i, moved in learned.items() if moved)})
    if not looking:
        return {}
    streams = [wave.stream(i) for i in looking]
    before = [stream.season_state is None for stream in streams]
    begun = look([(wave.slab, wave.stream(i), learned.get(i, False)) for i in looking])
    for stream in streams:
        if stream.asleep:
            wave.table.rows["look"][stream.at] = stream.next_look
    return {
        i: unknown and stream.season_state is not None
        for i, stream, unknown, anew in zip(looking, streams, before, begun, strict=True)
        if anew
    }


def _encoded(
    wave: Wave, layout: Layout, numbers: Floats, stepped: Stepped, accepted_ms: Ints
) -> Bytes | list[bytes]:
    """Rows of the tail, as of `PlainRows.encoded`; numbers: of answers. accepted_ms: of runs."""
    from model_core.compiled import plain  # numba: half a second

    own = wave.own
    uncorrected = stepped.uncorrected
    records = PlainRows(
        layout.classes,
        wave.y,
        wave.x,
        wave.each(own["outlier_rate"]),
        numbers[:, : layout.full - UNKEPT],
        uncorrected if uncorrected.shape[1] else np.full_like(wave.y, nan),
        stepped.table[:, _MAP_RUN_LENGTH],
        stepped.table[:, _PREVIOUS_START],
        wave.each(accepted_ms),
        wave.elapsed,
        wave.each(own["hazard"]),
        None if wave.times is None else wave.times.tolist(),
        wave.offset,
    )
    rows, fit = records.encoded(plain)
    whole = ~fit
    tables = wave.table.hazards
    if tables:
        whole |= wave.each(np.array([at in tables for at in wave.places.tolist()]))
    others = whole.nonzero()[0].tolist()
    if not others:
        return rows
    each = cast(list[bytes], singly([cast(Any, rows)]))
    for i in others:
        run = wave.owner[i]
        seq = int(wave.firsts[run] + wave.counts[run] - (wave.ends[run] - i))
        each[i] = encode_row(records.record(i, seq, wave.hazards[run]))
    return each


def _seconds(column: NDArray[np.object_]) -> Floats:
    """Times in seconds since 1970; nan: none. Those of a list are often the same."""
    times = column.tolist()
    read = {time: timestamps.seconds(time) for time in set(times) if time is not None}
    return np.array([nan if time is None else read[time] for time in times])


def _all(flags: Bools) -> bool:
    """Whether all hold; of numpy's ways the quickest of few."""
    return bool(np.count_nonzero(flags) == len(flags))
