"""One command on its way from the log to its stored outcome."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from moca_client.responses import Ingested
from model_core.errors import OutOfRange
from model_core.stream.state import SeasonPeriods
from service import wire
from service.problems import ServiceError
from service.store.log import DONE, Entry, Offset
from service.wire import (
    Answers,
    Command,
    Envelope,
    IdempotencyRecord,
    Ingest,
    Observe,
    ObserveMany,
    Outcome,
    QuietAnswers,
    QuietRows,
    StoredAnswer,
    event_entries,
    rows,
)
from service.wire.commands import Layout
from service.wire.rows import Numbers
from service.worker.streams.answers import PendingAnswer
from service.worker.streams.stream import Stream

T = TypeVar("T")
REACH = 128  # observations of one stream in a batch: they are applied one after the other
OUTCOME_BYTES = 32 << 10  # of the answers to rows that have one outcome together

Part = PendingAnswer | QuietAnswers | StoredAnswer  # of the answers to a command


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class CommandTask:
    """One command, or one row of an ObserveMany, on its way from the log to its outcome.

    command: that of the envelope, or what a row of it stands for; of an Ingest it becomes what is
    to be applied of what was `received`.
    """

    partition: int
    incarnation: str
    envelope: Envelope
    entry: str
    index: int  # its place in the log
    command: Command
    row: int = 0
    given: Numbers | None = None  # its observations as columns, once they are known
    received: Command = dataclasses.field(init=False)
    names: list[str] = dataclasses.field(init=False)  # of the stream that it is for
    units: int = dataclasses.field(init=False)  # what it counts for in backpressure
    raised: int = 0  # events so far
    status: int = 200
    body: list[bytes] = dataclasses.field(default_factory=list)
    applied: int = 0  # observations
    model: str = ""  # that answers
    # Answers to the observations, and the same once they are complete.
    parts: list[Part] = dataclasses.field(default_factory=list)
    answers: Answers | None = None
    duplicate: bool = False
    # Of an Ingest, which goes on after them.
    misfits: list[OutOfRange] = dataclasses.field(default_factory=list)
    refusal: ServiceError | None = None
    same_as: CommandTask | None = None  # an earlier task of this batch with the same key

    def __post_init__(self) -> None:
        self.received = self.command
        self.names = [self.command.stream]
        self.units = wire.units(self.command)

    def count(self, observations: Counter[str]) -> int:
        """Add its observations to those of its stream; returns how many these are then."""
        (name,) = self.names
        observations[name] += self.units
        return observations[name]

    def outcomes(self) -> list[Outcome]:
        """What is stored and published."""
        return [self.outcome()]

    def outcome(self) -> Outcome:
        """What it came to."""
        number = self.envelope.number
        return Outcome(number, self.status, self.body, self.answers, self.duplicate, self.row)

    def alone(self) -> Envelope:
        """Its envelope, as if it were no row."""
        return replace(self.envelope, command=self.received)

    def take(self, model: str, parts: Sequence[Part], count: int) -> None:
        """Take answers to the next `count` observations."""
        self.model = model
        self.parts += parts
        self.applied += count

    def publish(self, stream: Stream) -> None:
        """Make what the stream has raised just now entries of the feed, under this command."""
        for event, time in stream.take_raised():
            head = stream.live()
            id_ = event_entries.id_of(self.entry, self.index, self.raised)
            self.raised += 1
            raised = event_entries.Raised(
                stream.name,
                head.settings.model,
                head.generation,
                event,
                time,
                self.envelope.time_ms,
                head.settings.tags,
            )
            number = event_entries.number_of(stream.partition, id_)
            stream.feed += ((id_, event_entries.encode(raised, number)),)

    def repeat(self, earlier: CommandTask | IdempotencyRecord) -> None:
        """Come to what an earlier command of the same key came to."""
        self.status = earlier.status
        self.body = earlier.body
        self.answers = earlier.answers
        self.duplicate = True

    def finish(self) -> None:
        """Complete what it came to, once the batch's predictives are filled in."""
        if self.answers is not None:  # it was quiet
            return
        if self.same_as is not None:
            self.repeat(self.same_as)
            return
        if isinstance(self.command, Ingest):
            if self.refusal is None:
                self.body.append(self._ingested())
        elif self.parts:
            parts = [
                part.stored() if isinstance(part, PendingAnswer) else part for part in self.parts
            ]
            full = isinstance(self.command, Observe) and self.command.full
            self.answers = Answers(self.model, full, parts)
        if self.refusal is not None:
            if isinstance(self.command, Observe):
                self.refusal.extra["applied"] = self.applied
            self.status = self.refusal.status
            self.body.append(self.refusal.render())

    def _ingested(self) -> bytes:
        """Count what was applied: nobody reads each answer."""
        skipped = self.units - self.applied - len(self.misfits)
        return _counted(self.applied, skipped, self.misfits)


def _counted(applied: int, skipped: int, misfits: Sequence[OutOfRange]) -> bytes:
    """Answer to an Ingest."""
    reason = str(misfits[0]) if misfits else ""
    return msgspec.json.encode(Ingested(applied, skipped, len(misfits), reason))


class Answering(NamedTuple):
    """A model, and the order of the numbers of its quiet answers."""

    model: str
    layout: Layout


class BatchAnswers:
    """Answers to quiet observations, one of each of some rows (N,) of commands.

    answering: by which of the keys of `numbers` each is answered; -1: by none, as it is no such
    row. firsts: seq of each. numbers: (N, ...) by what they are answered with. seasons: by place,
    of those that have any.
    """

    __slots__ = ("answering", "firsts", "numbers", "seasons")

    def __init__(self, count: int) -> None:
        self.answering = np.full(count, -1)
        self.firsts = np.zeros(count, np.int64)
        self.numbers: dict[Answering, NDArray[np.float64]] = {}
        self.seasons: dict[int, SeasonPeriods | None] = {}

    def enter(
        self,
        places: NDArray[np.int64],
        answering: Answering,
        firsts: NDArray[np.int64],
        numbers: NDArray[np.float64],
    ) -> None:
        """Take the numbers (n, ...) of rows at `places`, whose observations are at `firsts`."""
        if len(places) == len(self.firsts):  # as a rule
            self.numbers[answering] = numbers
            self.firsts = firsts
            self.answering[:] = 0
            return
        held = self.numbers.setdefault(answering, np.empty((len(self.firsts), numbers.shape[1])))
        held[places] = numbers
        self.firsts[places] = firsts
        self.answering[places] = list(self.numbers).index(answering)


class RowsTask:
    """Rows of an ObserveMany that follow on each other, on their way to their outcomes.

    A row that is quiet is never made a task of its own: it has its answers here, or in columns that
    the commands of a batch share.
    """

    __slots__ = (
        "answers", "at", "base", "columns", "command", "entry", "envelope", "first", "incarnation",
        "names", "partition", "stop", "tasks", "units", "_ends", "_every",
    )  # fmt: skip

    def __init__(
        self,
        partition: int,
        incarnation: str,
        envelope: Envelope,
        entry: str,
        base: int,
        command: ObserveMany,
    ) -> None:
        """Begin with all rows; base: place of the first in the log's entry.

        Raises ValueError for columns that do not fit.
        """
        rows.check(command)
        self.partition = partition
        self.incarnation = incarnation
        self.envelope = envelope
        self.command = command
        self.entry = entry
        self.base = base
        self._ends = rows.ends_of(command)
        self._every: Numbers | None = None
        self._begin(0, len(command.streams))

    def _begin(self, first: int, stop: int) -> None:
        """Have these rows, none of which was applied."""
        self.first = first
        self.stop = stop
        self.units = self._ends[stop] - self._ends[first]  # observations
        self.names = self.command.streams[first:stop]  # of the rows' streams; none twice
        self.tasks: dict[int, CommandTask] = {}  # of rows that are not quiet
        self.answers: dict[int, Answers] = {}  # of quiet rows of several observations
        self.columns: BatchAnswers | None = None  # of quiet rows of one
        self.at = 0  # place of the first row in these

    @property
    def every(self) -> Numbers:
        """Labels and inputs of all observations of the command."""
        if self._every is None:
            self._every = Numbers.of(self.command)
        return self._every

    def part(self, first: int, stop: int) -> RowsTask:
        """Some of the rows, none of which was applied."""
        part = copy(self)
        part._begin(first, stop)
        return part

    @property
    def given(self) -> Numbers:
        """Labels and inputs of all observations of the rows."""
        return self.every.part(slice(self._ends[self.first], self._ends[self.stop]))

    @property
    def labels(self) -> bytes | None:
        """Labels of the rows, if each has one number and nothing else, not even a time."""
        command = self.command
        if command.counts or command.outputs or command.inputs or command.times:
            return None
        return command.y[8 * self.first : 8 * self.stop]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Observations of each row."""
        counts = self.command.counts
        if counts is None:
            return np.ones(self.stop - self.first, np.int64)
        return np.array(counts[self.first : self.stop], np.int64)

    def row_at(self, place: int) -> int:
        """The row at a place in its columns."""
        return self.first + place - self.at

    def of_rows(self, column: list[T | None] | None) -> list[T | None]:
        """What the rows have in a column of the command."""
        if column is None:
            return [None] * (self.stop - self.first)
        return column[self.first : self.stop]

    @property
    def status(self) -> int:
        """The worst of the rows' statuses."""
        return max((task.status for task in self.tasks.values()), default=200)

    def count(self, observations: Counter[str]) -> int:
        """Add its observations to those of its streams; returns the most that one has then."""
        names = self.names
        if self.command.counts is None:
            observations.update(names)
        else:
            counts = self.command.counts[self.first : self.stop]
            observations.update(dict(zip(names, counts, strict=True)))
        return max(map(observations.__getitem__, names))

    def task(self, row: int) -> CommandTask:
        """A row as a task of its own."""
        ends = self._ends[row], self._ends[row + 1]
        observations = rows.part_of(self.command, self.every, *ends)
        command = rows.row_of(self.command, row, observations)
        given = self.every.part(slice(*ends)) if self.command.others is None else None
        index = self.base + row
        task = CommandTask(
            self.partition, self.incarnation, self.envelope, self.entry, index, command, row, given
        )
        self.tasks[row] = task
        return task

    def quiet_answers(self, row: int) -> Answers:
        """Answers to a row that was quiet."""
        columns = self.columns
        place = self.at + row - self.first
        if columns is None or columns.answering[place] < 0:
            return self.answers[row]
        answering = [*columns.numbers][columns.answering[place]]
        full = self.command.full
        encoded = answering.layout.encoded(columns.numbers[answering][place : place + 1], full)
        season = columns.seasons.get(place)
        own = QuietAnswers(int(columns.firsts[place]), encoded, answering.layout, season)
        return Answers(answering.model, full, [own])

    def finish(self) -> None:
        """Render the bodies, once the batch's predictives are filled in."""
        for task in self.tasks.values():
            task.finish()

    def outcomes(self) -> list[Outcome]:
        """What is stored and published: one for all that came to the same, or are quiet."""
        outcomes: list[Outcome] = []
        number = self.envelope.number
        full = self.command.full
        row = self.first
        for answering, count in self._stretches():
            start = self.at + row - self.first
            own = slice(start, start + count)
            if answering is not None and self.command.settings is not None:
                _join(outcomes, Outcome(number, 200, [_counted(1, 0, [])], row=row, rows=count))
            elif answering is not None and self.columns is not None:
                known = self.columns.seasons
                seasons = [known.get(at) for at in range(start, start + count)] if known else []
                quiet = QuietRows(
                    answering.model,
                    full,
                    answering.layout,
                    self.columns.firsts[own].tolist(),
                    answering.layout.encoded(self.columns.numbers[answering][own], full),
                    seasons if any(seasons) else None,
                )
                outcomes.append(Outcome(number, 200, [], None, row=row, quiet=quiet))
            else:
                for other in range(row, row + count):
                    answers = self.answers.get(other)
                    if answers is None:
                        _join(outcomes, self.tasks[other].outcome())
                    else:
                        outcomes.append(Outcome(number, 200, [], answers, row=other))
            row += count
        return outcomes

    def _stretches(self) -> Iterator[tuple[Answering | None, int]]:
        """By what rows one after the other are answered, and how many; of quiet ones not too many.

        None: those that are not quiet, or of several observations.
        """
        size = self.stop - self.first
        if self.columns is None:
            yield None, size
            return
        known = [*self.columns.numbers, None]  # the last one of those that have -1
        own = self.columns.answering[self.at : self.at + size]
        cuts = (own[1:] != own[:-1]).nonzero()[0] + 1
        for start, end in pairwise([0, *cuts.tolist(), size]):
            answering = known[own[start]]
            count = end - start
            if answering is not None:
                most = -(-OUTCOME_BYTES // answering.layout.row_bytes(self.command.full))
                while count > most:
                    yield answering, most
                    count -= most
            yield answering, count


def _join(outcomes: list[Outcome], outcome: Outcome) -> None:
    """Add the outcome of a row, to the last one where it came to the same."""
    last = outcomes[-1] if outcomes else None
    if last is None or last.quiet is not None or last.answers is not None or outcome.answers:
        outcomes.append(outcome)
    elif (last.status, last.body, last.duplicate) == (
        outcome.status,
        outcome.body,
        outcome.duplicate,
    ):
        last.rows += outcome.rows
    else:
        outcomes.append(outcome)


Task = CommandTask | RowsTask


def key_field(key: str, first: int = 0) -> bytes:
    """Field of a keyed command's idempotency record; first: see `wire.Observe`."""
    return f"{key}\0{first}".encode()


class Lost(NamedTuple):
    """A command that was damaged in the log, by its number."""

    incarnation: str
    number: int
    units: int
    rows: int


class LogItem(NamedTuple):
    """One command, or some of its rows, and the offset that is reached when it is applied.

    `payload` is what to set aside: an entry or a command that cannot be read (`task` is None
    then), or a command that cannot be applied. `lost`: who waits for one that cannot be read.
    """

    task: Task | None
    offset: Offset
    payload: bytes | None = None
    lost: Lost | None = None

    def before(self, late: Collection[str]) -> LogItem | None:
        """What comes before the first row of one of these streams; None: nothing does."""
        task = self.task
        if task is None:
            return self
        end = next((i for i, name in enumerate(task.names) if name in late), None)
        if end is None:
            return self
        if end == 0 or not isinstance(task, RowsTask):
            return None
        stop = task.first + end
        return LogItem(task.part(task.first, stop), Offset(task.entry, task.base + stop - 1))

    def singly(self) -> Iterator[LogItem]:
        """Its rows one by one."""
        task = self.task
        if not isinstance(task, RowsTask):
            yield self
            return
        for row in range(task.first, task.stop):
            last = row == task.stop - 1
            yield LogItem(
                task.task(row), self.offset if last else Offset(task.entry, task.base + row)
            )


def decode_entries(partition: int, at: Offset, entries: list[Entry]) -> list[LogItem]:
    """Commands of a partition's entries that are beyond its offset."""
    items: list[LogItem] = []
    for entry in entries:
        applied = at.index + 1 if entry.id == at.entry else 0
        commands = _commands(partition, entry, applied)
        items += commands or [LogItem(None, Offset(entry.id, DONE), entry.payload)]
    return items


def _commands(partition: int, entry: Entry, applied: int) -> list[LogItem]:
    """Commands of an entry, each checked by itself; none if its checksums cannot be read.

    applied: rows of it that are applied, and are left out.
    """
    try:
        sums = wire.decode_sums(wire.checked(entry.sums, "entry", partition))
    except (msgspec.MsgspecError, ValueError):  # damaged, or text that is none
        return []
    items: list[LogItem] = []
    start = sums.start
    base = 0  # rows of the commands before
    for i, command in enumerate(sums.commands):
        body = entry.payload[start : start + command.length]
        start += command.length
        first = max(0, applied - base)
        end = base + command.rows
        if first < command.rows:
            offset = Offset(entry.id, DONE if i == len(sums.commands) - 1 else end - 1)
            task = _task(partition, sums.incarnation, entry.id, base, body, command)
            if task is None:
                # How many observations the applied rows had is lost: one is assumed for each.
                lost = Lost(sums.incarnation, command.number, command.units - first, command.rows)
                items.append(LogItem(None, offset, body, lost))
            elif first and isinstance(task, RowsTask):
                items.append(LogItem(task.part(first, command.rows), offset))
            else:
                items.append(LogItem(task, offset))
        base = end
    return items


def _task(
    partition: int, incarnation: str, entry: str, base: int, body: bytes, command: wire.CommandSum
) -> Task | None:
    """The task of an encoded command; None where it is damaged.

    One that is right and cannot be read is of another version: answered as damaged.
    """
    if crc32(body) != command.crc:
        return None
    try:
        envelope = wire.decode_envelope(body)
        own = envelope.command
        if isinstance(own, ObserveMany):
            return RowsTask(partition, incarnation, envelope, entry, base, own)
    except (msgspec.MsgspecError, ValueError):
        return None
    return CommandTask(partition, incarnation, envelope, entry, base, own)


def in_reach(items: list[LogItem], alone: Callable[[LogItem], bool]) -> list[LogItem]:
    """The first items, so many that no stream has more than REACH observations; one at least.

    alone: whether an item has to be the only one.
    """
    if len(items) == 1:
        return items
    observations: Counter[str] = Counter()
    for i, item in enumerate(items):
        if alone(item):
            return items[: max(1, i)]
        if item.task is not None and item.task.count(observations) > REACH and i:
            return items[:i]
    return items
