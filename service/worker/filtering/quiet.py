"""Quiet observations: plain labels of streams at rest, stepped and entered as columns.

A stream is at rest while nothing is awaited or stated, and until its season, its scale or the start
of its last change is looked at again. Nearly all observations find it so and leave it so: they move
no event and raise no alarm. One that does is entered as any other, by the step that was made.

A stream at rest sleeps: what quiet observations move are the columns of its `Table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, compress, repeat
from math import inf, nan
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from model_core import readout
from model_core.compiled import NO_BELIEFS
from model_core.explanation import next_due
from model_core.labels import LARGEST, Range, range_of
from model_core.stream import beliefs, season, seasons
from model_core.stream.beliefs import Probabilities
from model_core.stream.columns import Packed, effective_rates, hazard_table
from model_core.stream.columns import plain as plain_inputs
from model_core.stream.pipeline import may_leave
from model_core.stream.slab import AT_ONCE, Rest, Slab, Step, Stepped, SummaryRow
from model_core.stream.state import SeasonPeriods
from model_core.stream_settings import Hazard
from model_core.upm.base import UnderlyingModel
from service.wire import Envelope, Head, Layout, Observation, encode_row, timestamps
from service.wire.rows import Numbers, columns, states_nothing
from service.wire.stored_records import KEPT_OUTPUTS, TOO_MANY, UNKEPT, PlainRows, numbers_of
from service.worker.filtering.rewriting import elapsed_of_each
from service.worker.streams import alarm_period
from service.worker.streams.answers import GATHERED, gathered, layout_of, quiet_numbers
from service.worker.streams.history import ENTRY_BYTES
from service.worker.streams.stream import GROUPS, Stream, Table, put_rows
from service.worker.streams.task import Answering, RowsTask

MOST_AT_ONCE = 4 * AT_ONCE  # observations of a stream in a wave
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[Any]  # of `stream.ROW`

_COLUMN = {name: place for place, name in enumerate(readout.NUMBERS)}
_EVENT_RUN_LENGTH = _COLUMN["event_run_length"]
_PREVIOUS_START = _COLUMN["born_previous_start"]
_EVIDENCE = _COLUMN["evidence"]
_MAP_RUN_LENGTH = _COLUMN["map_run_length"]
_COUNTED = [_COLUMN[name] for name in GATHERED]
# Those that a position has of the last step, as its groups have them, and those it has the sums of.
_LENGTHS = [_COLUMN[name] for name in ("map_run_length", "best_start")]
_READ = [_COLUMN[name] for name in ("changed_probability", "evidence", "pruned_mass")]
_SUMMED = [_COLUMN[name] for name in ("log_score", "pruned_mass")]


# --- rest -----------------------------------------------------------------------------------------


def rest_of(
    stream: Stream, checkpoint_every: int
) -> tuple[tuple[Any, ...], Hazard | None, list[float]] | None:
    """What is common to the next observations of a stream; None where it is not at rest.

    As `Table.add` takes it.
    """
    slab = stream.slab
    head = stream.head
    position = None if head is None else numbers_of(head)
    if slab is None or head is None or position is None or not _resting(stream, slab, head):
        return None
    track = head.track
    until: float = stream.next_look - 1 if slab.model.rescaled else TOO_MANY - 1
    if track.last_event is not None:
        until = min(until, next_due(track.last_event, head.seq))
    if stream.season_state is not None:
        until = min(until, head.seq + season.left(stream.season_state) - 1)
    hazard, outlier_rate = effective_rates(slab.model, head.settings)
    alarm = head.settings.anomaly_alarm
    values = (
        position,
        slab.model.y_dim,
        slab.model.x_dim,
        *range_of(slab.model),
        min(int(until), TOO_MANY - 1),
        stream.due(checkpoint_every),
        outlier_rate,
        *head.watch,
        -1 if track.event is None else track.event.start,
        hazard if isinstance(hazard, float) else nan,
        inf if alarm is None else alarm,
        nan if head.settings.interval is None else head.settings.interval,
        stream.season_state is not None or head.season is not None,
        head.own_rule,
        nan if head.settings.ttl is None else head.settings.ttl,
        0.0,
        alarm_period.is_stale(head),
        head.checkpoint,
        head.checkpoint_ms or head.created_ms,
        0,
        0,
        stream.place,
        stream.tail.place,
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
    return head.track.event is None or bool(settings.threshold)  # else it is confirmed by time


def in_lists(stream: Stream, envelope: Envelope) -> bool:
    """Whether a stream is at rest but for what is looked at now, also while it takes a list."""
    head = stream.live()
    if stream.slab is None or not _resting(stream, stream.slab, head):
        return False
    return head.settings.interval is None and not alarm_period.followed(head, envelope)


def place_of(table: Table, stream: Stream) -> int:
    """Row of a stream that is asleep, as one that is at rest falls; -1: it stays awake."""
    if stream.at < 0:
        rest = rest_of(stream, table.checkpoint_every)
        if rest is not None:
            stream.sleep(table, table.add(*rest))
    return stream.at


def takes(model: UnderlyingModel, seen: Observation, allowed: Range) -> bool:
    """Whether a label without missing outputs, and its input, are some that a stream takes.

    allowed: of the model.
    """
    y = seen.y
    x = seen.x
    if len(x or ()) != model.x_dim or (x and not all(-LARGEST <= value <= LARGEST for value in x)):
        return False
    if model.y_dim == 1:
        return type(y) is float and allowed.has(y)
    if type(y) is not list or len(y) != model.y_dim:
        return False
    return all(value is not None and allowed.has(value) for value in y)


def plain(model: UnderlyingModel, seen: Observation, allowed: Range) -> bool:
    """Whether an observation has what a stream `takes`, and nothing else."""
    return states_nothing(seen) and takes(model, seen, allowed)


# --- waves ----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Wave:
    """Runs of plain labels that come to distinct streams that are asleep, before `until`.

    own: (B,) rows of the table, of the streams as they are before the wave. tables: as of
    `Table.hazards`.
    firsts: (B,) position of the first number of each run. counts: (B,) numbers of each run.
    envelopes: (B,) of the commands. y, x: (N, ...) labels and inputs, run after run, as of
    `Numbers`. elapsed: (N,) time since the one before. times, offset: of the labels, and their
    seasons (N, ...), if any has one. believed: whether the belief after each is wanted, of one run
    alone.
    """

    streams: Sequence[Stream]
    own: Rows
    tables: Mapping[int, Hazard]
    firsts: Ints
    counts: Ints
    envelopes: Sequence[Envelope]
    y: Floats
    x: Floats
    elapsed: Floats
    times: Sequence[str | None] | None
    offset: Floats | None
    believed: bool = False

    @cached_property
    def ends(self) -> Ints:
        """Where each run ends in `y`."""
        return self.counts.cumsum()

    @cached_property
    def owner(self) -> Ints:
        """Run of each number (N,)."""
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def within(self) -> Ints:
        """Place of each number in its run (N,)."""
        starts = self.each(self.ends - self.counts)
        return np.asarray(np.arange(len(self.y)) - starts)

    @cached_property
    def _single(self) -> bool:
        return bool((self.counts == 1).all())

    def each(self, column: NDArray[Any]) -> NDArray[Any]:
        """What the runs have in a column (B, ...), for each of their numbers (N, ...)."""
        return column if self._single else column.repeat(self.counts, 0)

    @property
    def hazards(self) -> list[Hazard | None]:
        """Those of the streams; None: their model's own."""
        hazards = [None if h != h else h for h in self.own["hazard"].tolist()]
        if not self.tables:
            return hazards
        known = zip(self.streams, hazards, strict=True)
        return [self.tables.get(stream.at, hazard) for stream, hazard in known]

    @property
    def seqs(self) -> Ints:
        """Position of each number (N,)."""
        return np.asarray(self.each(self.firsts) + self.within)

    def part(self, places: Ints) -> Wave:
        """Some of the runs, in order."""
        if len(places) == len(self.streams):
            return self
        numbers = places
        chosen = places.tolist()
        if not self._single:
            kept = np.zeros(len(self.streams), dtype=bool)
            kept[places] = True
            numbers = kept.repeat(self.counts).nonzero()[0]
        return replace(
            self._numbers(numbers),
            streams=[self.streams[i] for i in chosen],
            own=self.own.take(places),
            firsts=self.firsts[places],
            counts=self.counts[places],
            envelopes=[self.envelopes[i] for i in chosen],
        )

    def cut(self, start: int, stops: Ints) -> Wave:
        """What each run has from place `start` to before its place of `stops` (B,)."""
        counts = np.maximum(np.minimum(stops, self.counts) - start, 0)
        if np.array_equal(counts, self.counts):
            return self
        if len(self.streams) == 1:
            numbers: Ints | slice = slice(start, start + int(counts[0]))
        else:
            within = self.within - start
            numbers = ((within >= 0) & (within < self.each(counts))).nonzero()[0]
        return replace(self._numbers(numbers), firsts=self.firsts + start, counts=counts)

    def _numbers(self, chosen: Ints | slice) -> Wave:
        """Some of the numbers; runs are left as they are."""
        times = self.times
        if times is not None:
            places = range(len(times))[chosen] if isinstance(chosen, slice) else chosen.tolist()
            times = [times[i] for i in places]
        return replace(
            self,
            y=self.y[chosen],
            x=self.x[chosen],
            elapsed=self.elapsed[chosen],
            times=times,
            offset=None if self.offset is None else self.offset[chosen],
        )

    def of(self, model: UnderlyingModel) -> Wave:
        """The same, of streams of one model: as wide as its labels and inputs."""
        d = model.y_dim
        if (self.y.shape[1], self.x.shape[1]) == (d, model.x_dim):
            return self
        offset = None if self.offset is None else self.offset[:, :d]
        return replace(self, y=self.y[:, :d], x=self.x[:, : model.x_dim], offset=offset)

    def by_slab(self) -> Iterator[tuple[Slab, Ints]]:
        """Runs of streams of each slab, as many as are stepped at once."""
        slabs = [stream.slab for stream in self.streams]
        for slab in dict.fromkeys(slabs):
            assert slab is not None
            own = np.flatnonzero([other is slab for other in slabs])
            for first in range(0, len(own), slab.step_rows):
                yield slab, own[first : first + slab.step_rows]


def asleep(
    table: Table, streams: Sequence[Stream], envelopes: Sequence[Envelope], counts: Ints
) -> tuple[Rows, Ints]:
    """Rows (B,) of distinct streams, and how many observations of each can be in a wave (B,).

    It sleeps through all but the last of so many, which has to be looked at. counts: (B,) that come
    to it; envelopes: of their commands. Of several none, where the alarm period is followed: it is
    fixed after all of them.
    """
    places = np.array([s.at if s.at >= 0 else place_of(table, s) for s in streams])
    own = table.of(places)
    left = np.where(places >= 0, own["until"] - own["position"]["seq"] + 1, 0)
    several = counts > 1
    if several.any():
        left[several & followed(own, envelopes)] = 0
    return own, left


def wave_of(
    table: Table,
    streams: Sequence[Stream],
    own: Rows,
    runs: Sequence[Sequence[Observation]],
    envelopes: Sequence[Envelope],
    believed: bool = False,
) -> Wave:
    """The wave of runs of distinct streams; own: as of `asleep`. believed: as of `Wave`."""
    seen = runs[0] if len(runs) == 1 else list(chain.from_iterable(runs))
    times = [own.time for own in seen]
    y = cast(list[float | list[float]], [own.y for own in seen])
    given = Numbers.read(*columns(y, [own.x for own in seen]))
    return _wave(
        table,
        streams,
        own,
        np.array(list(map(len, runs))),
        envelopes,
        given.y,
        given.x,
        np.ones(len(seen)),
        times if any(times) else None,
        believed,
    )


def wave_of_rows(
    table: Table, tasks: Sequence[RowsTask], streams: Sequence[Stream], allowed: Bools
) -> tuple[list[Ints], Wave]:
    """Rows of each command that may be quiet, to the last of their observations; their wave.

    streams: of all rows, command after command. allowed: (rows,) none but these, of distinct ones.
    """
    sizes = [len(task.streams) for task in tasks]
    counts = np.concatenate([task.counts for task in tasks])
    given = Numbers.joined([task.given for task in tasks])
    envelopes = [*chain.from_iterable(map(repeat, [task.envelope for task in tasks], sizes))]
    own, left = asleep(table, streams, envelopes, counts)
    fit = allowed & (counts > 0) & (counts <= np.minimum(left, MOST_AT_ONCE))
    fit &= _within(own, given, counts)
    if any(task.command.seqs for task in tasks):
        stated = chain.from_iterable(task.of_rows(task.command.seqs) for task in tasks)
        seqs = own["position"]["seq"].tolist()
        fit &= [seq is None or seq == at for seq, at in zip(stated, seqs, strict=True)]
    timed = np.repeat([task.command.settings is not None for task in tasks], sizes)
    fit &= np.where(timed, counts == 1, np.isnan(own["interval"]))
    chosen = np.flatnonzero(fit)
    times = _times_of(tasks)
    elapsed = np.ones(len(chosen))
    if timed[chosen].any():
        last = counts.cumsum()[chosen] - 1
        known = times or [None] * len(given.y)
        now = _seconds([known[at] for at in last.tolist()])
        coming = own.take(chosen)
        passed = elapsed_of_each(now, coming["position"]["last_time"], coming["interval"])
        elapsed = np.where(timed[chosen], np.where(np.isnan(now), 0.0, passed), 1.0)
        chosen = chosen[elapsed > 0]
        elapsed = elapsed[elapsed > 0]
    each = _by_task(tasks, chosen)
    if len(chosen) < len(counts):
        kept = np.zeros(len(counts), dtype=bool)
        kept[chosen] = True
        numbers = kept.repeat(counts)
        given = given.part(numbers)
        times = None if times is None else [*compress(times, numbers.tolist())]
    counts = counts[chosen]
    places = chosen.tolist()
    wave = _wave(
        table,
        [streams[i] for i in places],
        own.take(chosen),
        counts,
        [envelopes[i] for i in places],
        given.y,
        given.x,
        elapsed.repeat(counts),
        times,
    )
    return each, wave


def _by_task(tasks: Sequence[RowsTask], places: Ints) -> list[Ints]:
    """Rows in each command by their places among the rows of all."""
    starts = [*accumulate((len(task.streams) for task in tasks), initial=0)]
    ends = places.searchsorted(starts).tolist()
    return [
        places[ends[i] : ends[i + 1]] + (task.first - starts[i]) for i, task in enumerate(tasks)
    ]


def _within(own: Rows, given: Numbers, counts: Ints) -> Bools:
    """Which rows (B,) have nothing but what their streams take; given: (N, ...) of all."""
    single = bool((counts == 1).all())
    outputs, inputs, least, largest, whole = (
        own[name] if single else own[name].repeat(counts)
        for name in ("outputs", "inputs", *Range._fields)
    )
    within = (given.outputs == outputs) & (given.inputs == inputs)
    for i, y in enumerate(given.y.T):
        fit = (y >= least) & (y <= largest)  # not of nan
        if whole.any():
            fit &= ~whole | (np.floor(y) == y)
        within &= fit if i == 0 else fit | (outputs <= i)
    for i, x in enumerate(given.x.T):
        within &= (np.abs(x) <= LARGEST) | (inputs <= i)
    if single:
        return np.asarray(within)
    others = np.concatenate(([0], (~within).cumsum()))
    ends = counts.cumsum()
    return np.asarray(others[ends] == others[ends - counts])


def _times_of(tasks: Sequence[RowsTask]) -> list[str | None] | None:
    """Times of all observations of commands, if any has one."""
    times = [task.times for task in tasks]
    if all(own is None for own in times):
        return None
    parts = [own or [None] * task.units for task, own in zip(tasks, times, strict=True)]
    return [*chain.from_iterable(parts)]


def _wave(
    table: Table,
    streams: Sequence[Stream],
    own: Rows,
    counts: Ints,
    envelopes: Sequence[Envelope],
    y: Floats,
    x: Floats,
    elapsed: Floats,
    times: Sequence[str | None] | None,
    believed: bool = False,
) -> Wave:
    """A wave, with the seasons of its labels."""
    offset = None
    chosen = own["seasonal"].nonzero()[0].tolist()  # of numpy's ways the one with the fewest calls
    if chosen:
        offset = np.zeros_like(y)
        ends = counts.cumsum()
        for i in chosen:
            count = int(counts[i])
            d = int(own["outputs"][i])
            foreseen = seasons.foreseen(streams[i].season_state, count, d)
            offset[ends[i] - count : ends[i], :d] = foreseen
    firsts = own["position"]["seq"].astype(np.int64)
    return Wave(
        streams,
        own,
        table.hazards,
        firsts,
        counts,
        envelopes,
        y,
        x,
        elapsed,
        times,
        offset,
        believed,
    )


def followed(own: Rows, envelopes: Sequence[Envelope]) -> Bools:
    """Whether observations of commands count for the alarm periods of streams, or end them."""
    paced = ~np.isnan(own["position"]["since"])
    days = _quiet_days(envelopes)
    return np.where(np.isnan(days), paced | own["stale"], ~own["own_rule"])


def _quiet_days(envelopes: Sequence[Envelope]) -> Floats:
    days = [envelope.quiet_days for envelope in envelopes]
    return np.array([nan if own is None else own for own in days], dtype=np.float64)


def follow_all(
    position: Rows, own_rule: Bools, stale: Bools, now: Floats, timed: Bools, quiet_days: Floats
) -> Bools:
    """Count one observation of each of several streams, as `alarm_period.follow` does of one.

    position: (B,) rows of `POSITION`, after them. now: (B,) when each was made, in seconds since
    1970; timed: by its own time. quiet_days: (B,) of their commands; nan: none. Returns which of
    them are left to it: their periods are to be fixed, or not followed any more.
    """
    stated = ~np.isnan(quiet_days)
    since = position["since"]
    if not stated.any():  # as where the service states no rate of false alarms
        return np.asarray(~np.isnan(since) | stale)
    counted = stated & ~own_rule
    begins = counted & ~((position["timed"] == timed) & (now >= since))  # not with since nan
    goes_on = counted & ~begins
    limit = np.where(np.isnan(position["per_day"]), alarm_period.FIRST_S, alarm_period.DAY_S)
    fixed = goes_on & (now - since >= limit) & (quiet_days != 0)
    position["since"][begins] = now[begins]
    position["timed"][begins] = timed[begins]
    position["seen"][begins] = 0
    position["seen"][goes_on & ~fixed] += 1
    return np.asarray(fixed | (~stated & (~np.isnan(since) | stale)))


# --- steps ----------------------------------------------------------------------------------------


class Entered(NamedTuple):
    """What runs of a wave came to.

    firsts: (B,) seq of each. counts: (B,) observations that were quiet, which are entered.
    answering: by what all are answered. numbers: (N, ...) of these, run after run. steps: of the
    observations after them, by run, of runs of one. seasons: by run, of those of streams that look
    for seasons. beliefs: after these observations, where they are wanted. by_blocks: whether rows
    may have been stepped in vain, see `_taken`.
    """

    firsts: Ints
    counts: Ints
    answering: Answering
    numbers: Floats
    steps: Mapping[int, Step]
    seasons: Mapping[int, SeasonPeriods | None]
    beliefs: list[Probabilities] | None
    by_blocks: bool

    @property
    def ends(self) -> Ints:
        """Where the numbers of each run end."""
        return self.counts.cumsum()


def advance(table: Table, slab: Slab, wave: Wave) -> Entered:
    """Step distinct streams of a slab by their runs; enter the quiet observations of each.

    The row of a run that is not quiet to its end is left behind the first that is not.
    """
    wave = wave.of(slab.model)
    present: dict[int, SeasonPeriods | None] = {}
    if wave.offset is not None:
        seasonal = wave.own["seasonal"].nonzero()[0].tolist()
        present = {i: wave.streams[i].season for i in seasonal}
    room = slab.room(len(wave.y)) if wave.believed else NO_BELIEFS
    by_blocks = len(wave.streams) > 1 or not slab.runs
    taken = _taken_by_blocks if by_blocks else _taken
    counts, stepped, steps = taken(slab, wave, room)
    runs = counts.nonzero()[0]
    answering = Answering(wave.streams[0].settings.model, layout_of(slab.model))
    if len(runs):
        numbers = _enter(table, answering, wave.cut(0, counts).part(runs), stepped)
    else:
        numbers = np.empty((0, answering.layout.full))
    held = beliefs.of_room(room[: len(numbers)]) if wave.believed else None
    return Entered(wave.firsts, counts, answering, numbers, steps, present, held, by_blocks)


def _taken(slab: Slab, wave: Wave, room: Floats) -> tuple[Ints, Stepped, dict[int, Step]]:
    """Step the row of the only run, as far as it is quiet; room: for beliefs, see `Slab.stepped`.

    Returns how many of each run are quiet (B,), the steps of these, run after run, and those of the
    observations after them, by run.
    """
    rows = np.array([stream.row for stream in wave.streams])
    rest = Rest(int(wave.own["suspected"][0]), float(wave.own["alarm"][0]))
    stepped = _stepped(slab, rows, wave, room, rest)
    still = _quiet(wave, stepped)
    if still.all():
        return wave.counts, stepped, {}
    count = int(still.argmin())
    return np.array([count]), stepped.part(slice(count)), {0: _step(stepped, count)}


def _taken_by_blocks(slab: Slab, wave: Wave, room: Floats) -> tuple[Ints, Stepped, dict[int, Step]]:
    """As `_taken`, of several runs: in blocks, so that little is stepped in vain."""
    rows = np.array([stream.row for stream in wave.streams])
    counts = np.zeros(len(rows), dtype=np.int64)
    stops = wave.counts
    steps: dict[int, Step] = {}
    owners: list[Ints] = []
    parts: list[Stepped] = []
    for start in range(0, int(wave.counts.max()), AT_ONCE):
        if not (stops > start).any():
            break
        block = wave.cut(start, np.minimum(stops, start + AT_ONCE))
        before = {i: slab.read([rows[i]]) for i in (block.counts > 1).nonzero()[0].tolist()}
        stepped = _stepped(slab, rows, block, room[start:])
        still = _quiet(block, stepped)
        if still.all():
            counts += block.counts
            owners.append(block.owner)
            parts.append(stepped)
            continue
        own = block.counts.copy()
        np.minimum.at(own, block.owner[~still], block.within[~still])
        counts += own
        moved = own < block.counts
        stops = np.where(moved, 0, stops)
        starts = block.ends - block.counts
        for i in moved.nonzero()[0].tolist():
            at = int(starts[i] + own[i])
            steps[i] = _step(stepped, at)
            if own[i] + 1 < block.counts[i]:
                slab.write([rows[i]], before[i])
                again = np.zeros_like(own)
                again[i] = own[i] + 1
                _stepped(slab, rows, block.cut(0, again), NO_BELIEFS)
        quiet = (block.within < block.each(own)).nonzero()[0]
        owners.append(block.owner[quiet])
        parts.append(stepped.part(quiet))
    if len(parts) == 1:
        return counts, parts[0], steps
    stepped = Stepped.joined(parts)
    if len(rows) > 1:  # run after run
        stepped = stepped.part(np.concatenate(owners).argsort(kind="stable"))
    return counts, stepped, steps


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


def _stepped(slab: Slab, rows: Ints, wave: Wave, room: Floats, rest: Rest | None = None) -> Stepped:
    """Steps of rows, of each run, one after the other; room, rest: as of `Slab.stepped`."""
    filtered = wave.y if wave.offset is None else wave.y - wave.offset
    rates = wave.each(wave.own.view(GROUPS)["rates"])
    inputs = plain_inputs(filtered, wave.x, wave.elapsed, rates)
    hazards = wave.each(hazard_table(slab.model, wave.hazards))
    taken = Packed(wave.y, wave.offset, hazards, inputs)
    return slab.stepped(rows[wave.owner], taken, room=room[: len(wave.y)], rest=rest)


def _quiet(wave: Wave, stepped: Stepped) -> Bools:
    """Which steps were taken, move no event, alarm nobody and need no look (N,)."""
    own = wave.own
    starts = wave.seqs - stepped.table[:, _EVENT_RUN_LENGTH]
    suspected = wave.each(own["suspected"])
    still = np.where(
        suspected < 0,
        starts <= wave.each(own["settled"]),
        (starts == suspected) & (stepped.table[:, _EVIDENCE] < wave.each(own["threshold"])),
    )
    still &= wave.seqs < wave.each(own["until"])
    return np.asarray(still & stepped.ok & ~(stepped.anomaly >= wave.each(own["alarm"])))


def _enter(table: Table, answering: Answering, wave: Wave, stepped: Stepped) -> Floats:
    """Enter quiet observations; returns the numbers (N, ...) that they are answered with."""
    assert stepped.predicted is not None
    predicted = stepped.predicted
    if wave.offset is not None:
        predicted = predicted.shifted(wave.offset)
    numbers = quiet_numbers(answering.layout, stepped, predicted)
    streams = wave.streams
    read = stepped.table
    gathered.add_steps(answering.model, read[:, _COUNTED])
    gathered.add_pits(answering.model, predicted)
    accepted_ms = np.array([envelope.time_ms for envelope in wave.envelopes])
    encoded = _encoded(wave, answering.layout, numbers, stepped, accepted_ms)

    number = wave.counts
    ends = wave.ends
    own = wave.own
    groups = own.view(GROUPS)
    summed = read[:, _SUMMED]
    groups["counts"] = groups["counts"] + number[:, None]
    unscored = np.isnan(summed[:, 0])  # that repeat the one before, of a held series
    if unscored.any():
        scored = groups["counts"][:, 1]
        scored -= np.add.reduceat(unscored, ends - number, dtype=scored.dtype)
        summed = np.where(np.isnan(summed), 0.0, summed)
    last = read[ends - 1]
    groups["lengths"] = last[:, _LENGTHS]
    groups["read"] = last[:, _READ]
    groups["sums"] = _added(groups["sums"], summed, number)
    sizes = np.array(list(map(len, encoded)))
    own["slept_bytes"] += np.add.reduceat(sizes, ends - number) + ENTRY_BYTES * number
    own["moved"] += number
    position = own["position"]
    labels = wave.y[ends - 1]
    position["last_label"] = labels[:, 0]
    position["updated_ms"] = accepted_ms
    now = accepted_ms / 1000
    timed = np.zeros(len(streams), dtype=bool)
    if wave.times is not None:
        timed = _enter_times(position, now, _seconds(wave.times), number)
    for i in own["seasonal"].nonzero()[0].tolist():
        state = streams[i].season_state
        if state is not None:
            season.observe(state, wave.y[ends[i] - number[i] : ends[i]].tolist())
    days = _quiet_days(wave.envelopes)
    left = follow_all(position, own["own_rule"], own["stale"], now, timed, days)
    places = [stream.at for stream in streams]
    table.put(places, own)
    if labels.shape[1] > 1:
        table.further.update(zip(places, labels[:, 1:].tolist(), strict=True))
    put_rows(streams, wave.firsts.tolist(), number.tolist(), encoded)
    for i in left.nonzero()[0].tolist():
        at = int(ends[i]) - 1
        time = None if wave.times is None else wave.times[at]
        seen = [Observation(float(wave.y[at, 0]), time=time)]
        alarm_period.follow(streams[i].live(), wave.envelopes[i], seen)
    return numbers


def _encoded(
    wave: Wave, layout: Layout, numbers: Floats, stepped: Stepped, accepted_ms: Ints
) -> list[bytes]:
    """Rows of the tail; numbers: of answers. accepted_ms: of runs."""
    own = wave.own
    uncorrected = stepped.uncorrected
    records = PlainRows(
        layout.classes,
        wave.y,
        wave.x,
        wave.each(own["outlier_rate"]),
        numbers[:, : layout.full - UNKEPT],
        uncorrected if uncorrected.shape[1] else np.full_like(wave.y, nan),
        stepped.table[:, _MAP_RUN_LENGTH].astype(np.int64),
        stepped.table[:, _PREVIOUS_START].astype(np.int64),
        wave.each(accepted_ms),
        wave.elapsed,
        wave.each(own["hazard"]),
        wave.times,
        wave.offset,
    )
    rows, fit = records.encoded()
    whole = ~fit
    if wave.tables:
        whole |= wave.each(np.array([stream.at in wave.tables for stream in wave.streams]))
    for i in whole.nonzero()[0].tolist():
        hazard = wave.hazards[wave.owner[i]]
        rows[i] = encode_row(records.record(i, int(wave.seqs[i]), hazard))
    return rows


def _enter_times(position: Rows, now: Floats, times: Floats, counts: Ints) -> Bools:
    """Enter times (N,) of runs, nan where an observation has none, into positions and `now`.

    Returns which runs end with one that has a time.
    """
    ends = counts.cumsum()
    last = times[ends - 1]
    timed = ~np.isnan(last)
    now[timed] = last[timed]
    position["last_time"][timed] = last[timed]
    for i in np.flatnonzero(~timed & (counts > 1)).tolist():  # one before the last may have one
        known = times[ends[i] - counts[i] : ends[i]]
        known = known[~np.isnan(known)]
        if len(known):
            position["last_time"][i] = known[-1]
    return np.asarray(timed)


def _seconds(times: Sequence[str | None]) -> Floats:
    """Times in seconds since 1970; nan: none. Those of a list are often the same."""
    read = {time: timestamps.seconds(time) for time in set(times) if time is not None}
    return np.array([nan if time is None else read[time] for time in times])


def _added(sums: Floats, values: Floats, counts: Ints) -> Floats:
    """Sums (B, k) to which the values (N, k) of runs are added, one after the other."""
    if len(values) == len(sums):
        return np.asarray(sums + values)
    ends = counts.cumsum().tolist()
    starts = [0, *ends[:-1]]
    runs = zip(sums[:, None], starts, ends, strict=True)
    parts = [np.concatenate((own, values[at:end])) for own, at, end in runs]
    return np.array([np.add.accumulate(part)[-1] for part in parts])
