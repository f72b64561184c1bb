"""Quiet observations: plain numbers of streams at rest, stepped and entered as columns.

A stream is at rest while nothing is awaited or stated, and until its season, its scale or the start
of its last change is looked at again. Nearly all observations find it so and leave it so: they move
no event and raise no alarm. One that does is entered as any other, by the step that was made.

A stream at rest sleeps: what quiet observations move are the columns of its `Table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core import readout
from model_core.stream import explained
from model_core.stream.columns import Columns, effective_rates, hazard_table
from model_core.stream.slab import AT_ONCE, SCORE_COLUMN, Slab, Step, Stepped, SummaryRow
from model_core.stream_settings import Hazard
from service.wire import Envelope, Head, Observation, encode_row, timestamps
from service.wire.answers import QuietNumbers
from service.wire.positions import TOO_MANY, numbers_of
from service.wire.stored_records import PlainRows
from service.worker.filtering.resampling import elapsed_of_each
from service.worker.streams import alarm_period, answers, step_metrics
from service.worker.streams.history import ENTRY_BYTES
from service.worker.streams.stream import Stream, put_rows
from service.worker.streams.table import Table
from service.worker.streams.task import RowsTask
from service.worker.streams.validation import plain_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[Any]  # of `table.ROW`

_COLUMN = {name: place for place, name in enumerate(readout.NUMBERS)}
_EVENT_RUN_LENGTH = _COLUMN["event_run_length"]
_PREVIOUS_START = _COLUMN["born_previous_start"]
_EVIDENCE = _COLUMN["evidence"]
# Fields of a position that a step sets, each with its column.
_READ = {
    name: _COLUMN[name]
    for name in (
        "best_start", "map_run_length", "changed_probability", "evidence", "pruned_mass",
    )
}  # fmt: skip
_SUMMED = {"log_score_sum": SCORE_COLUMN, "pruned_mass_sum": _COLUMN["pruned_mass"]}
_COUNTED = [_COLUMN[name] for name in step_metrics.NUMBERS]
_QUIET = {name: place for place, name in enumerate(QuietNumbers._fields)}
# Where the numbers of `PlainRows` after label and outlier rate are among `QuietNumbers`.
_STORED = [
    _QUIET[name]
    for name in (
        "log_score", "changed_probability", "evidence", "changepoint_probability",
        "recent_change_probability", "anomaly", "mean", "variance", "lower", "median", "upper",
    )
]  # fmt: skip


# --- rest -----------------------------------------------------------------------------------------


class Rest(NamedTuple):
    """A stream that is found at rest: values of `table.ROW`, and its hazard."""

    values: tuple[Any, ...]
    hazard: Hazard | None


def rest_of(stream: Stream, checkpoint_every: int) -> Rest | None:
    """What is common to the next observations of a stream; None where it is not at rest."""
    slab = stream.slab
    head = stream.head
    position = None if head is None else numbers_of(head)
    if slab is None or head is None or position is None or not _resting(stream, slab, head):
        return None
    track = head.track
    until: float = stream.next_look - 1 if slab.model.seasonal else TOO_MANY - 1
    if track.last_event is not None:
        until = min(until, explained.next_due(track.last_event, head.seq))
    hazard, outlier_rate = effective_rates(slab.model, head.settings)
    alarm = head.settings.anomaly_alarm
    values = (
        position,
        min(int(until), TOO_MANY - 1),
        stream.due(checkpoint_every),
        *head.watch,
        -1 if track.event is None else track.event.start,
        hazard if isinstance(hazard, float) else nan,
        outlier_rate,
        inf if alarm is None else alarm,
        nan if head.settings.interval is None else head.settings.interval,
        head.own_rule,
        nan if head.settings.ttl is None else head.settings.ttl,
        alarm_period.is_stale(head),
        head.checkpoint,
        head.checkpoint_ms or head.created_ms,
        0,
        stream.place,
        stream.tail.place,
    )
    return Rest(values, hazard)


def _resting(stream: Stream, slab: Slab, head: Head) -> bool:
    """Whether nothing is awaited or stated, and single numbers are all that is expected."""
    if not slab.in_series or slab.model.label != "real" or head.x_dim != 0 or head.y_dim != 1:
        return False
    settings = head.settings
    if settings.regimes or not head.seq:
        return False
    if head.deleted or not head.warm or stream.broken or stream.unserved or stream.buffer:
        return False
    stated = head.pending_supervision is not None or head.belief_override is not None
    if stated or head.pending or stream.ahead is not None:
        return False
    if head.season is not None or stream.season_state is not None:
        return False
    return head.track.event is None or bool(settings.threshold)  # else it is confirmed by time


def place_of(table: Table, stream: Stream) -> int:
    """Row of a stream that is asleep, as one that is at rest falls; -1: it stays awake."""
    if stream.at < 0:
        rest = rest_of(stream, table.checkpoint_every)
        if rest is not None:
            stream.sleep(table, table.add(*rest))
    return stream.at


def plain(seen: Observation) -> bool:
    """Whether an observation is a number that every stream of one takes, and nothing else."""
    if not plain_number(seen):
        return False
    return seen.elapsed is None and seen.changepoint is None and not seen.pending


# --- waves ----------------------------------------------------------------------------------------


class Wave(NamedTuple):
    """Runs of plain numbers that come to distinct streams that are asleep, before `until`.

    y: (N,) run after run. elapsed: (N,) time since the one before. counts: (B,) numbers of each
    run. times: (N,) if any number has one. envelopes: (B,) of the commands.
    """

    streams: Sequence[Stream]
    y: Floats
    elapsed: Floats
    counts: Ints
    times: Sequence[str | None] | None
    envelopes: Sequence[Envelope]

    @property
    def ends(self) -> Ints:
        """Where each run ends in `y`."""
        return self.counts.cumsum()

    def part(self, chosen: Sequence[int]) -> Wave:
        """Some of the runs."""
        if len(chosen) == len(self.streams):
            return self
        numbers: list[int] | Ints = [*chosen]
        if len(self.y) != len(self.streams):
            starts = self.ends - self.counts
            numbers = np.concatenate([np.arange(self.counts[i]) + starts[i] for i in chosen])
        return Wave(
            [self.streams[i] for i in chosen],
            self.y[numbers],
            self.elapsed[numbers],
            self.counts[numbers] if len(self.y) == len(self.streams) else self.counts[[*chosen]],
            None if self.times is None else [self.times[i] for i in numbers],
            [self.envelopes[i] for i in chosen],
        )

    def by_slab(self) -> Iterator[tuple[Slab, list[int]]]:
        """Runs of streams of each slab, as many as are stepped at once."""
        slabs = [stream.slab for stream in self.streams]
        for slab in dict.fromkeys(slabs):
            assert slab is not None
            own = [i for i, other in enumerate(slabs) if other is slab]
            for first in range(0, len(own), slab.step_rows):
                yield slab, own[first : first + slab.step_rows]


def wave_of(
    streams: Sequence[Stream], runs: Sequence[Sequence[Observation]], envelopes: Sequence[Envelope]
) -> Wave:
    """The wave of runs of distinct streams."""
    seen = list(chain.from_iterable(runs))
    times = [own.time for own in seen]
    return Wave(
        streams,
        np.array([own.y for own in seen], dtype=np.float64),
        np.ones(len(seen)),
        np.array(list(map(len, runs))),
        times if any(times) else None,
        envelopes,
    )


def quiet_rows(table: Table, task: RowsTask, streams: Sequence[Stream]) -> tuple[list[int], Floats]:
    """Places of rows that may be quiet, to the last of their observations; streams: of each.

    Also the time (rows,) that has elapsed for each since the observation before.
    """
    counts = task.counts
    places = np.array([s.at if s.at >= 0 else place_of(table, s) for s in streams])
    own = table.of(places)
    seqs = own["position"]["seq"].astype(np.int64)
    fit = (places >= 0) & (counts > 0) & (seqs + counts <= own["until"])
    fit &= task.plain
    if task.command.seqs is not None:
        stated = task.command.seqs[task.first : task.stop]
        fit &= [seq is None or seq == at for seq, at in zip(stated, seqs.tolist(), strict=True)]
    if counts.max() > 1:
        # Of a list the period is fixed after all of it; a longer one goes in parts.
        several = counts > 1
        fit &= ~several | ~followed(own, [task.envelope] * len(counts)) & (counts <= AT_ONCE)
    elapsed = np.ones(len(counts))
    if task.command.settings is None:
        fit &= np.isnan(own["interval"])
    else:
        fit &= counts == 1
        chosen = np.flatnonzero(fit)
        _, times = task.numbers_of((chosen + task.first).tolist())
        last = own["position"]["last_time"][chosen]
        now = _seconds(times or [None] * len(chosen))
        passed = elapsed_of_each(now, last, own["interval"][chosen])
        elapsed[chosen] = np.where(np.isnan(now), 0.0, passed)
        fit &= elapsed > 0
    return np.flatnonzero(fit).tolist(), elapsed


def wave_of_rows(
    task: RowsTask, rows: Sequence[int], elapsed: Floats, streams: Sequence[Stream]
) -> Wave:
    """The wave of rows of a command; elapsed, streams: of each."""
    y, times = task.numbers_of(rows)
    counts = task.counts[[row - task.first for row in rows]]
    return Wave(streams, y, np.repeat(elapsed, counts), counts, times, [task.envelope] * len(rows))


def joined(waves: Sequence[Wave]) -> Wave:
    """Waves of distinct streams as one."""
    if len(waves) == 1:
        return waves[0]
    times: list[str | None] | None = None
    if any(wave.times is not None for wave in waves):
        times = []
        for wave in waves:
            times += [None] * len(wave.y) if wave.times is None else wave.times
    return Wave(
        [stream for wave in waves for stream in wave.streams],
        np.concatenate([wave.y for wave in waves]),
        np.concatenate([wave.elapsed for wave in waves]),
        np.concatenate([wave.counts for wave in waves]),
        times,
        [envelope for wave in waves for envelope in wave.envelopes],
    )


def run_of(
    table: Table, stream: Stream, seen: Sequence[Observation], envelope: Envelope
) -> Sequence[Observation] | None:
    """The first of these observations, as far as the stream is at rest, and they are plain."""
    if place_of(table, stream) < 0:
        return None
    row = table.rows[stream.at]
    left = int(row["until"]) - int(row["position"]["seq"])
    if left < 1 or not np.isnan(row["interval"]):
        return None
    if len(seen) > 1:
        if followed(table.rows[[stream.at]], [envelope])[0]:
            return None  # the period is fixed after all of them
        seen = seen[: min(left, AT_ONCE)]
    return seen if all(map(plain, seen)) else None


def followed(own: Rows, envelopes: Sequence[Envelope]) -> Bools:
    """Whether observations of commands count for the alarm periods of streams, or end them."""
    paced = ~np.isnan(own["position"]["since"])
    days = _quiet_days(envelopes)
    return np.where(np.isnan(days), paced | own["stale"], ~own["own_rule"])


def _quiet_days(envelopes: Sequence[Envelope]) -> Floats:
    days = [envelope.quiet_days for envelope in envelopes]
    return np.array([nan if own is None else own for own in days], dtype=np.float64)


# --- steps ----------------------------------------------------------------------------------------


class Entered(NamedTuple):
    """What runs of a wave came to.

    firsts: (B,) seq of each. counts: (B,) observations that were quiet, which are entered.
    numbers: (..., 15) `QuietNumbers` of these, run after run. steps: of the observations after
    them, by run, of runs of one.
    """

    firsts: Ints
    counts: Ints
    numbers: Floats
    steps: Mapping[int, Step]

    @property
    def ends(self) -> Ints:
        """Where the numbers of each run end."""
        return self.counts.cumsum()


def advance(table: Table, slab: Slab, wave: Wave) -> Entered:
    """Step distinct streams of a slab by their runs; enter the quiet observations of each.

    The row of a run of several is left before the first that is not quiet.
    """
    streams = wave.streams
    places = np.array([stream.at for stream in streams])
    own = table.of(places)
    hazards = _hazards(table, places, own)
    rows = [stream.row for stream in streams]
    firsts = own["position"]["seq"].astype(np.int64)
    starts = wave.ends - wave.counts
    owner = np.repeat(np.arange(len(streams)), wave.counts)
    within = np.arange(len(wave.y)) - starts[owner]
    each = own.take(owner)
    before = {i: slab.read([rows[i]]) for i in np.flatnonzero(wave.counts > 1).tolist()}
    stepped = _stepped(slab, rows, each, hazards, owner, wave.y, wave.elapsed)
    assert stepped.predicted is not None

    still = _quiet(each, firsts[owner] + within, stepped)
    counts = wave.counts
    chosen = np.arange(len(owner))
    steps: dict[int, Step] = {}
    if not still.all():
        counts = counts.copy()
        np.minimum.at(counts, owner[~still], within[~still])
        chosen = np.flatnonzero(within < counts[owner])
    for i in np.flatnonzero(counts < wave.counts).tolist():
        at = int(starts[i])
        if i not in before:
            (line,) = readout.rows(stepped.table[at : at + 1])
            steps[i] = Step(line, SummaryRow(stepped.predicted, at), float(stepped.anomaly[at]))
            continue
        slab.write([rows[i]], before[i])
        if counts[i]:
            again = slice(at, at + counts[i])
            y = wave.y[again]
            _stepped(slab, rows, each[again], hazards, owner[again], y, wave.elapsed[again])

    if not len(chosen):
        return Entered(firsts, counts, np.empty((0, len(QuietNumbers._fields))), steps)
    predicted = stepped.predicted.rows(chosen.tolist())
    numbers = answers.quiet_rows(predicted, stepped, chosen)
    model = streams[0].settings.model
    step_metrics.gathered.add(model, stepped.table[chosen][:, _COUNTED])
    step_metrics.gathered.add_pits(model, predicted)
    owner = owner[chosen]
    records = _records(each.take(chosen), wave, owner, chosen, numbers, stepped)
    encoded = _encoded(records, [hazards[i] for i in owner], firsts[owner] + within[chosen])
    entered = np.flatnonzero(counts)
    number = counts[entered]
    moved = own.take(entered)
    left = entered[_move(moved, wave, entered, starts[entered], number, stepped)]
    sizes = np.array(list(map(len, encoded)))
    moved["slept_bytes"] += np.add.reduceat(sizes, number.cumsum() - number)
    moved["slept_bytes"] += ENTRY_BYTES * number
    table.rows[places[entered]] = moved
    moved_streams = [streams[i] for i in entered.tolist()]
    put_rows(moved_streams, firsts[entered].tolist(), number.tolist(), encoded)
    for i in left.tolist():
        time = None if wave.times is None else wave.times[starts[i]]
        seen = [Observation(float(wave.y[starts[i]]), time=time)]
        alarm_period.follow(streams[i].live(), wave.envelopes[i], seen)
    return Entered(firsts, counts, numbers, steps)


def _hazards(table: Table, places: Ints, own: Rows) -> list[Hazard | None]:
    """Hazards of streams; None: their model's own."""
    hazards = [None if hazard != hazard else hazard for hazard in own["hazard"].tolist()]
    if table.hazards:
        pairs = zip(places.tolist(), hazards, strict=True)
        return [table.hazards.get(at, hazard) for at, hazard in pairs]
    return hazards


def _stepped(
    slab: Slab,
    rows: Sequence[int],
    each: Rows,
    hazards: Sequence[Hazard | None],
    owner: Ints,
    y: Floats,
    elapsed: Floats,
) -> Stepped:
    """Steps of the rows of streams by labels, one after the other.

    rows, hazards: of the streams. owner: (N,) of each label; each: (N,) its row of the table.
    """
    count = len(owner)
    owners = owner.tolist()
    seen = Columns(
        y=y[:, None],
        x=np.empty((count, 0)),
        elapsed=elapsed,
        changepoint=np.full(count, nan),
        outlier_rate=each["outlier_rate"],
        hazard=hazard_table(slab.model, [hazards[i] for i in owners]),
        offset=np.zeros(count),
    )
    watched = np.array([each["settled"], each["since"], each["threshold"]]).T
    return slab.stepped([rows[i] for i in owners], seen, watched)


def _quiet(own: Rows, seqs: Ints, stepped: Stepped) -> Bools:
    """Which steps were taken, move no event and alarm nobody (N,)."""
    starts = seqs - stepped.table[:, _EVENT_RUN_LENGTH].astype(np.int64)
    suspected = own["suspected"]
    still = np.where(
        suspected < 0,
        starts <= own["settled"],
        (starts == suspected) & (stepped.table[:, _EVIDENCE] < own["threshold"]),
    )
    return np.asarray(still & stepped.ok & (stepped.anomaly < own["alarm"]))


def _records(
    own: Rows, wave: Wave, owner: Ints, chosen: Ints, numbers: Floats, stepped: Stepped
) -> PlainRows:
    """Records of quiet observations; own, owner: (N,) of each of them."""
    accepted_ms = np.array([envelope.time_ms for envelope in wave.envelopes])
    return PlainRows(
        np.column_stack((wave.y[chosen], own["outlier_rate"], numbers[:, _STORED])),
        numbers[:, _QUIET["map_run_length"]].astype(np.int64),
        stepped.table[chosen, _PREVIOUS_START].astype(np.int64),
        accepted_ms[owner],
        wave.elapsed[chosen],
        own["hazard"],
        None if wave.times is None else [wave.times[i] for i in chosen.tolist()],
    )


def _encoded(records: PlainRows, hazards: Sequence[Hazard | None], seqs: Ints) -> list[bytes]:
    """Rows of records, also of those that are no ordinary ones."""
    rows = records.encoded()
    tables = [i for i, hazard in enumerate(hazards) if type(hazard) in (tuple, dict)]
    for i in {*np.flatnonzero(~records.fit).tolist(), *tables}:
        rows[i] = encode_row(records.record(i, int(seqs[i]), hazards[i]))
    return rows


def _move(
    own: Rows, wave: Wave, entered: Ints, starts: Ints, counts: Ints, stepped: Stepped
) -> Bools:
    """Enter quiet observations into rows of the table; returns which are left to `alarm_period`.

    own: (R,) rows of the runs `entered`, which are moved. starts, counts: (R,) of these.
    """
    last = starts + counts - 1
    lines = stepped.table[last]
    position = own["position"]
    for name, column in _READ.items():
        position[name] = lines[:, column]
    for name, column in _SUMMED.items():
        position[name] = _added(position[name], stepped.table[:, column], starts, counts)
    for name in ("seq", "scored"):
        position[name] = position[name] + counts
    position["last_label"] = wave.y[last]
    envelopes = [wave.envelopes[i] for i in entered.tolist()]
    position["updated_ms"] = [envelope.time_ms for envelope in envelopes]
    now = position["updated_ms"] / 1000
    timed = np.zeros(len(last), dtype=bool)
    if wave.times is not None:
        times = _seconds(wave.times)
        timed = ~np.isnan(times[last])
        now[timed] = times[last][timed]
        position["last_time"][timed] = now[timed]
        for i in np.flatnonzero(~timed & (counts > 1)).tolist():  # one before the last may have one
            known = times[starts[i] : last[i]]
            known = known[~np.isnan(known)]
            if len(known):
                position["last_time"][i] = known[-1]
    return alarm_period.follow_all(
        position, own["own_rule"], own["stale"], now, timed, _quiet_days(envelopes)
    )


def _seconds(times: Sequence[str | None]) -> Floats:
    """Times in seconds since 1970; nan: none. Those of a list are often the same."""
    read = {time: timestamps.seconds(time) for time in set(times) if time is not None}
    return np.array([nan if time is None else read[time] for time in times])


def _added(sums: Floats, values: Floats, starts: Ints, counts: Ints) -> Floats:
    """Sums to which the values of runs are added, one after the other."""
    if (counts == 1).all():
        return np.asarray(sums + values[starts])
    runs = zip(sums.tolist(), starts.tolist(), counts.tolist(), strict=True)
    return np.array(
        [np.add.accumulate([total, *values[at : at + count]])[-1] for total, at, count in runs]
    )
