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
from model_core.compiled import NO_BELIEFS
from model_core.explanation import next_due
from model_core.stream import beliefs, season, seasons
from model_core.stream.beliefs import Probabilities
from model_core.stream.columns import Packed, effective_rates, hazard_table
from model_core.stream.columns import plain as plain_inputs
from model_core.stream.slab import AT_ONCE, Slab, Step, Stepped, SummaryRow
from model_core.stream.state import SeasonPeriods
from model_core.stream_settings import Hazard
from service.wire import Envelope, Head, Observation, Observe, encode_row, timestamps
from service.wire.answers import QuietNumbers
from service.wire.records import TOO_MANY, numbers_of
from service.wire.stored_records import NUMBERS_KEPT, PlainRows
from service.worker.filtering.rewriting import elapsed_of_each
from service.worker.streams import alarm_period, answers, step_metrics
from service.worker.streams.history import ENTRY_BYTES
from service.worker.streams.stream import Stream, put_rows
from service.worker.streams.table import GROUPS, Table
from service.worker.streams.task import CommandTask, RowsTask
from service.worker.streams.validation import plain_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[Any]  # of `table.ROW`

_COLUMN = {name: place for place, name in enumerate(readout.NUMBERS)}
_EVENT_RUN_LENGTH = _COLUMN["event_run_length"]
_PREVIOUS_START = _COLUMN["born_previous_start"]
_BEST_START = _COLUMN["best_start"]
_EVIDENCE = _COLUMN["evidence"]
_COUNTED = [_COLUMN[name] for name in step_metrics.NUMBERS]
_QUIET = {name: place for place, name in enumerate(QuietNumbers._fields)}
_MAP_RUN_LENGTH = _QUIET["map_run_length"]
# Those of `QuietNumbers` that a position has of the last step, and those it has the sums of.
_READ = [_QUIET[name] for name in ("changed_probability", "evidence", "pruned_mass")]
_SUMMED = [_QUIET[name] for name in ("log_score", "pruned_mass")]


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
        until = min(until, next_due(track.last_event, head.seq))
    if stream.season_state is not None:
        until = min(until, head.seq + season.left(stream.season_state) - 1)
    hazard, outlier_rate = effective_rates(slab.model, head.settings)
    alarm = head.settings.anomaly_alarm
    values = (
        position,
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


def plain(seen: Observation) -> bool:
    """Whether an observation is a number that every stream of one takes, and nothing else."""
    if not plain_number(seen):
        return False
    return seen.elapsed is None and seen.changepoint is None and not seen.pending


# --- waves ----------------------------------------------------------------------------------------


class Wave(NamedTuple):
    """Runs of plain numbers that come to distinct streams that are asleep, before `until`.

    y: (N,) run after run. elapsed: (N,) time since the one before. counts: (B,) numbers of each
    run. times: (N,) if any number has one. envelopes: (B,) of the commands. believed: whether the
    belief after each is wanted, of one run alone.
    """

    streams: Sequence[Stream]
    y: Floats
    elapsed: Floats
    counts: Ints
    times: Sequence[str | None] | None
    envelopes: Sequence[Envelope]
    believed: bool = False

    @property
    def ends(self) -> Ints:
        """Where each run ends in `y`."""
        return self.counts.cumsum()

    @property
    def in_runs(self) -> bool:
        """Whether a run is of several numbers."""
        return len(self.y) != len(self.streams)

    def part(self, chosen: Sequence[int]) -> Wave:
        """Some of the runs."""
        if len(chosen) == len(self.streams):
            return self
        numbers: list[int] | Ints = [*chosen]
        if self.in_runs:
            starts = self.ends - self.counts
            numbers = np.concatenate([np.arange(self.counts[i]) + starts[i] for i in chosen])
        return Wave(
            [self.streams[i] for i in chosen],
            self.y[numbers],
            self.elapsed[numbers],
            self.counts[[*chosen]],
            None if self.times is None else [self.times[i] for i in numbers],
            [self.envelopes[i] for i in chosen],
            self.believed,
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
    streams: Sequence[Stream],
    runs: Sequence[Sequence[Observation]],
    envelopes: Sequence[Envelope],
    believed: bool = False,
) -> Wave:
    """The wave of runs of distinct streams; believed: as of `Wave`."""
    seen = list(chain.from_iterable(runs))
    times = [own.time for own in seen]
    return Wave(
        streams,
        np.array([own.y for own in seen], dtype=np.float64),
        np.ones(len(seen)),
        np.array(list(map(len, runs))),
        times if any(times) else None,
        envelopes,
        believed,
    )


def is_single(task: CommandTask) -> bool:
    """Whether a command is one plain observation, and nothing beside the usual answer is named."""
    command = task.command
    if type(command) is not Observe or len(command.observations) != 1:
        return False
    if command.belief or answers.detailed(command) or task.envelope.planned is not None:
        return False
    return plain(command.observations[0])


def quiet_singles(
    table: Table, tasks: Sequence[CommandTask], streams: Sequence[Stream]
) -> list[bool]:
    """Whether single observations may be quiet; streams: of each, distinct."""
    places = np.array([s.at if s.at >= 0 else place_of(table, s) for s in streams])
    own = table.of(places)
    seqs = own["position"]["seq"]
    fit = (places >= 0) & (seqs < own["until"]) & np.isnan(own["interval"])
    stated = [task.command.seq for task in tasks if isinstance(task.command, Observe)]
    if any(seq is not None for seq in stated):
        fit &= [seq is None or seq == at for seq, at in zip(stated, seqs.tolist(), strict=True)]
    return list(fit.tolist())


def wave_of_singles(tasks: Sequence[CommandTask], streams: Sequence[Stream]) -> Wave:
    """The wave of single observations; streams: of each."""
    seen = [task.command.observations for task in tasks if isinstance(task.command, Observe)]
    return wave_of(streams, seen, [task.envelope for task in tasks])


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
    """The first of these observations, as far as the stream is at rest where they are plain."""
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
    return seen


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
    them, by run, of runs of one. seasons: by run, of those of streams that look for seasons.
    beliefs: after these observations, where they are wanted.
    """

    firsts: Ints
    counts: Ints
    numbers: Floats
    steps: Mapping[int, Step]
    seasons: Mapping[int, SeasonPeriods | None]
    beliefs: list[Probabilities] | None

    @property
    def ends(self) -> Ints:
        """Where the numbers of each run end."""
        return self.counts.cumsum()


class _Labels(NamedTuple):
    """Labels of a wave (N,), run after run.

    owner: run of each. seqs: their positions. own: rows of the table, and hazards, of their
    streams as these are before the wave. times, offset: seasons (N,), if any has one.
    """

    owner: Ints
    seqs: Ints
    y: Floats
    elapsed: Floats
    own: Rows
    hazards: list[Hazard | None]
    times: Sequence[str | None] | None
    offset: Floats | None

    @property
    def filtered(self) -> Floats:
        """Labels (N,) less their seasons."""
        return self.y if self.offset is None else self.y - self.offset

    def part(self, chosen: Ints) -> _Labels:
        """Some of them."""
        places = chosen.tolist()
        return _Labels(
            self.owner[chosen],
            self.seqs[chosen],
            self.y[chosen],
            self.elapsed[chosen],
            self.own.take(chosen),
            [self.hazards[i] for i in places],
            None if self.times is None else [self.times[i] for i in places],
            None if self.offset is None else self.offset[chosen],
        )


def _labels(table: Table, wave: Wave) -> _Labels:
    """Labels of a wave."""
    places = np.array([stream.at for stream in wave.streams])
    own = table.of(places)
    seqs = own["position"]["seq"].astype(np.int64)
    owner = np.arange(len(places))
    # None: their model's own.
    hazards: list[Hazard | None] = [None if h != h else h for h in own["hazard"].tolist()]
    if table.hazards:
        known = zip(places.tolist(), hazards, strict=True)
        hazards = [table.hazards.get(at, hazard) for at, hazard in known]
    offset = _offsets(wave, own["seasonal"])
    if wave.in_runs:
        owner = owner.repeat(wave.counts)
        own = own.take(owner)
        seqs = seqs[owner] + np.arange(len(owner)) - (wave.ends - wave.counts)[owner]
        hazards = [hazards[i] for i in owner.tolist()]
    return _Labels(owner, seqs, wave.y, wave.elapsed, own, hazards, wave.times, offset)


def _offsets(wave: Wave, seasonal: Bools) -> Floats | None:
    """Seasons (N,) of the labels of a wave; seasonal: (B,) which streams may have any."""
    chosen = seasonal.nonzero()[0].tolist()  # of numpy's ways the one with the fewest calls
    if not chosen:
        return None
    offset = np.zeros(len(wave.y))
    ends = wave.ends.tolist()
    counts = wave.counts.tolist()
    for i in chosen:
        first = ends[i] - counts[i]
        offset[first : ends[i]] = seasons.foreseen(wave.streams[i].season_state, counts[i])
    return offset


def advance(table: Table, slab: Slab, wave: Wave) -> Entered:
    """Step distinct streams of a slab by their runs; enter the quiet observations of each.

    The row of a run of several is left before the first that is not quiet.
    """
    streams = wave.streams
    labels = _labels(table, wave)
    rows = [stream.row for stream in streams]
    before = {i: slab.read([rows[i]]) for i in (wave.counts > 1).nonzero()[0].tolist()}
    starts = wave.ends - wave.counts
    firsts = labels.seqs[starts]
    present: dict[int, SeasonPeriods | None] = {}
    if labels.offset is not None:
        seasonal = labels.own["seasonal"][starts].nonzero()[0]
        present = {i: streams[i].season for i in seasonal.tolist()}
    room = slab.room(len(wave.y)) if wave.believed else NO_BELIEFS
    stepped = _stepped(slab, rows, labels, room)
    still = _quiet(labels, stepped)
    steps: dict[int, Step] = {}
    if still.all():
        numbers = _enter(table, wave, wave.counts, labels, stepped)
        held = beliefs.of_room(room) if wave.believed else None
        return Entered(firsts, wave.counts, numbers, steps, present, held)

    counts = wave.counts.copy()
    within = labels.seqs - firsts[labels.owner]
    np.minimum.at(counts, labels.owner[~still], within[~still])
    for i in np.flatnonzero(counts < wave.counts).tolist():
        at = int(starts[i])
        if i not in before:
            (line,) = readout.rows(stepped.table[at : at + 1])
            assert stepped.predicted is not None
            steps[i] = Step(
                line,
                SummaryRow(stepped.predicted, at),
                float(stepped.anomaly[at]),
                stepped.uncorrected[at].tolist(),
            )
            continue
        slab.write([rows[i]], before[i])
        if counts[i]:
            _stepped(slab, rows, labels.part(np.arange(at, at + counts[i])), NO_BELIEFS)
    chosen = np.flatnonzero(within < counts[labels.owner])
    if not len(chosen):
        numbers = np.empty((0, len(QuietNumbers._fields)))
    else:
        numbers = _enter(table, wave, counts, labels.part(chosen), stepped.part(chosen))
    held = beliefs.of_room(room[: len(chosen)]) if wave.believed else None
    return Entered(firsts, counts, numbers, steps, present, held)


def _stepped(slab: Slab, rows: Sequence[int], labels: _Labels, room: Floats) -> Stepped:
    """Steps of the rows of streams, of each run, by labels, one after the other.

    room: for beliefs, see `Slab.stepped`.
    """
    inputs = plain_inputs(labels.filtered, labels.elapsed, labels.own.view(GROUPS)["rates"])
    stepped_rows = [rows[i] for i in labels.owner.tolist()]
    hazards = hazard_table(slab.model, labels.hazards)
    taken = Packed(labels.y[:, None], labels.offset, hazards, inputs)
    return slab.stepped(stepped_rows, taken, room=room)


def _quiet(labels: _Labels, stepped: Stepped) -> Bools:
    """Which steps were taken, move no event and alarm nobody (N,)."""
    own = labels.own
    starts = labels.seqs - stepped.table[:, _EVENT_RUN_LENGTH]
    suspected = own["suspected"]
    still = np.where(
        suspected < 0,
        starts <= own["settled"],
        (starts == suspected) & (stepped.table[:, _EVIDENCE] < own["threshold"]),
    )
    return np.asarray(still & stepped.ok & (stepped.anomaly < own["alarm"]))


def _enter(table: Table, wave: Wave, counts: Ints, labels: _Labels, stepped: Stepped) -> Floats:
    """Enter quiet observations; returns their `QuietNumbers` (N, 15).

    counts: (B,) the first of each run of the wave. labels, stepped: of these alone.
    """
    assert stepped.predicted is not None
    predicted = stepped.predicted
    if labels.offset is not None:
        predicted = predicted.shifted(labels.offset)
    numbers = answers.quiet_rows(stepped, predicted)
    model = wave.streams[0].settings.model
    step_metrics.gathered.add(model, stepped.table[:, _COUNTED])
    step_metrics.gathered.add_pits(model, predicted)
    runs = counts.nonzero()[0]
    number = counts[runs]
    ends = number.cumsum()
    accepted_ms = np.array([envelope.time_ms for envelope in wave.envelopes])
    encoded = _encoded(labels, numbers, stepped, accepted_ms)

    streams = [wave.streams[i] for i in runs.tolist()]
    places = np.array([stream.at for stream in streams])
    firsts = labels.seqs[ends - number]
    own = labels.own.take(ends - 1)
    groups = own.view(GROUPS)
    groups["counts"] = groups["counts"] + number[:, None]
    groups["lengths"][:, 0] = numbers[ends - 1, _MAP_RUN_LENGTH]
    groups["lengths"][:, 1] = stepped.table[ends - 1, _BEST_START]
    groups["read"] = numbers[ends - 1][:, _READ]
    groups["sums"] = _added(groups["sums"], numbers[:, _SUMMED], number)
    sizes = np.array(list(map(len, encoded)))
    own["slept_bytes"] += np.add.reduceat(sizes, ends - number) + ENTRY_BYTES * number
    position = own["position"]
    position["last_label"] = labels.y[ends - 1]
    position["updated_ms"] = accepted_ms[runs]
    now = accepted_ms[runs] / 1000
    timed = np.zeros(len(runs), dtype=bool)
    if labels.times is not None:
        timed = _enter_times(position, now, _seconds(labels.times), number)
    days = _quiet_days([wave.envelopes[i] for i in runs.tolist()])
    for i in own["seasonal"].nonzero()[0].tolist():
        state = streams[i].season_state
        if state is not None:
            season.observe(state, labels.y[ends[i] - number[i] : ends[i]].tolist())
    left = alarm_period.follow_all(position, own["own_rule"], own["stale"], now, timed, days)
    table.rows[places] = own
    put_rows(streams, firsts.tolist(), number.tolist(), encoded)
    for i in left.nonzero()[0].tolist():
        at = int(ends[i]) - 1
        time = None if labels.times is None else labels.times[at]
        seen = [Observation(float(labels.y[at]), time=time)]
        alarm_period.follow(streams[i].live(), wave.envelopes[runs[i]], seen)
    return numbers


def _encoded(labels: _Labels, numbers: Floats, stepped: Stepped, accepted_ms: Ints) -> list[bytes]:
    """Rows of the tail; accepted_ms: of runs."""
    own = labels.own
    records = PlainRows(
        labels.y,
        own["outlier_rate"],
        numbers[:, :NUMBERS_KEPT],
        stepped.uncorrected[:, 0],
        numbers[:, _MAP_RUN_LENGTH].astype(np.int64),
        stepped.table[:, _PREVIOUS_START].astype(np.int64),
        accepted_ms[labels.owner],
        labels.elapsed,
        own["hazard"],
        labels.times,
        labels.offset,
    )
    rows = records.encoded()
    others = {i for i, own in enumerate(labels.hazards) if type(own) in (tuple, dict)}
    for i in others.union((~records.fit).nonzero()[0].tolist()):
        rows[i] = encode_row(records.record(i, int(labels.seqs[i]), labels.hazards[i]))
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
    runs = zip(sums, starts, ends, strict=True)
    return np.array([np.add.accumulate([own, *values[at:end]])[-1] for own, at, end in runs])
