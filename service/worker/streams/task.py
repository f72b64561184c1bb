"""One command on its way from the log to its stored outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from moca_client.responses import Ingested
from service import wire
from service.problems import LabelOutOfRange, ServiceError
from service.store.log import DONE, Entry, Offset
from service.wire import (
    Answers,
    Envelope,
    IdempotencyRecord,
    Ingest,
    Observe,
    Outcome,
    QuietAnswers,
    StoredAnswer,
)
from service.worker.streams.answers import PendingAnswer

REACH = 128  # observations of one stream in a batch: they are applied one after the other


class CommandTask:
    """One command on its way from the log to its outcome."""

    __slots__ = (
        "answers", "applied", "body", "command", "duplicate", "entry", "envelope", "field",
        "incarnation", "index", "misfits", "model", "partition", "parts", "raised", "refusal",
        "same_as", "status",
    )  # fmt: skip

    def __init__(
        self,
        partition: int,
        incarnation: str,
        envelope: Envelope,
        entry: str,
        index: int,
    ) -> None:
        self.partition = partition
        self.incarnation = incarnation
        self.envelope = envelope
        self.command = envelope.command
        self.entry = entry
        self.index = index  # its place in the log
        self.raised = 0  # events so far
        self.status = 200
        self.body: list[bytes] = []
        self.applied = 0  # observations
        self.model = ""  # that answers
        self.parts: list[PendingAnswer | QuietAnswers | StoredAnswer] = []  # answers to them
        self.answers: Answers | None = None  # the same, once they are complete
        self.duplicate = False
        self.misfits: list[LabelOutOfRange] = []  # of an Ingest, which goes on after them
        self.refusal: ServiceError | None = None
        self.same_as: CommandTask | None = None  # an earlier task of this batch with the same key
        self.field: bytes | None = None  # its idempotency record is to be kept under this

    def outcome(self) -> Outcome:
        """What is stored and published."""
        return Outcome(self.envelope.number, self.status, self.body, self.answers, self.duplicate)

    def take(
        self, model: str, parts: Sequence[PendingAnswer | QuietAnswers | StoredAnswer], count: int
    ) -> None:
        """Take answers to the next `count` observations."""
        self.model = model
        self.parts += parts
        self.applied += count

    def repeat(self, earlier: CommandTask | IdempotencyRecord) -> None:
        """Come to what an earlier command of the same key came to."""
        self.status = earlier.status
        self.body = earlier.body
        self.answers = earlier.answers
        self.duplicate = True

    def finish(self) -> None:
        """Complete what it came to, once the batch's predictives are filled in."""
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
            self.answers = Answers(self.model, parts)
        if self.refusal is not None:
            if isinstance(self.command, Observe):
                self.refusal.extra["applied"] = self.applied
            self.status = self.refusal.status
            self.body.append(self.refusal.render())

    def _ingested(self) -> bytes:
        """Count what was applied: nobody reads each answer."""
        given = wire.units(self.envelope.command)
        applied = self.applied
        rejected = len(self.misfits)
        reason = str(self.misfits[0]) if self.misfits else ""
        return msgspec.json.encode(Ingested(applied, given - applied - rejected, rejected, reason))


def key_field(command: Observe) -> bytes:
    """Field of a keyed command's idempotency record."""
    return f"{command.key}\0{command.first}".encode()


class Lost(NamedTuple):
    """A command that was damaged in the log, by its number."""

    incarnation: str
    number: int
    units: int


class LogItem(NamedTuple):
    """One command and the offset that is reached when it is applied.

    `payload` is what to set aside: an entry or a command that cannot be read (`task` is None
    then), or a command that cannot be applied. `lost`: who waits for one that cannot be read.
    """

    task: CommandTask | None
    offset: Offset
    payload: bytes | None = None
    lost: Lost | None = None


def decode_entries(partition: int, at: Offset, entries: list[Entry]) -> list[LogItem]:
    """Commands of a partition's entries that are beyond its offset."""
    items: list[LogItem] = []
    for entry in entries:
        commands = _commands(partition, entry)
        if not commands:
            items.append(LogItem(None, Offset(entry.id, DONE), entry.payload))
        elif entry.id == at.entry:
            items += commands[at.index + 1 :]
        else:
            items += commands
    return items


def _commands(partition: int, entry: Entry) -> list[LogItem]:
    """Commands of an entry, each checked by itself; none if it cannot be read."""
    try:
        sums = wire.decode_sums(wire.checked(entry.sums, "entry", partition))
    except (msgspec.MsgspecError, ValueError):  # damaged, or text that is none
        # Nothing of it can be checked: none is applied, and who waits is answered if possible.
        try:
            batch = wire.decode_batch(entry.payload)
        except (msgspec.MsgspecError, ValueError):
            return []
        every = [
            (envelope, Lost(batch.incarnation, envelope.number, wire.units(envelope.command)))
            for envelope in batch.envelopes
        ]
        offsets = _offsets(entry.id, len(every))
        return [
            LogItem(None, offset, wire.encode(envelope), lost)
            for offset, (envelope, lost) in zip(offsets, every, strict=True)
        ]
    items = []
    start = sums.start
    offsets = _offsets(entry.id, len(sums.commands))
    for i, (command, offset) in enumerate(zip(sums.commands, offsets, strict=True)):
        body = entry.payload[start : start + command.length]
        start += command.length
        try:
            # One that is right and cannot be read is of another version: answered as damaged.
            envelope = wire.decode_envelope(body) if crc32(body) == command.crc else None
        except msgspec.MsgspecError:
            envelope = None
        if envelope is None:
            lost = Lost(sums.incarnation, command.number, command.units)
            items.append(LogItem(None, offset, body, lost))
        else:
            task = CommandTask(partition, sums.incarnation, envelope, entry.id, i)
            items.append(LogItem(task, offset))
    return items


def _offsets(entry: str, commands: int) -> list[Offset]:
    """Offsets that are reached when each command of an entry is applied."""
    return [Offset(entry, DONE if i == commands - 1 else i) for i in range(commands)]


def in_reach(items: list[LogItem], alone: Callable[[LogItem], bool]) -> list[LogItem]:
    """The first items, so many that no stream has more than REACH observations; one at least.

    alone: whether an item has to be the only one.
    """
    counts: Counter[str] = Counter()
    for i, item in enumerate(items):
        if alone(item):
            return items[: max(1, i)]
        if item.task is not None:
            command = item.task.command
            counts[command.stream] += wire.units(command)
            if i and counts[command.stream] > REACH:
                return items[:i]
    return items
