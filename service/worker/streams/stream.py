"""One stream on the host: its head, the records not yet sealed, and what the next commit writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_core.stream import season, seasons
from model_core.stream.slab import Slab
from model_core.stream_settings import DEFAULTS
from service import wire
from service.store import keys
from service.store.log import Effect, index_effects
from service.store.shards import Argument
from service.store.streams import (
    CHUNK,
    Store,
    Stored,
    UnreadablePart,
    blocks,
    decoded,
    phase_of,
    seal,
)
from service.wire import (
    Event,
    Head,
    IdempotencyRecord,
    QuietAnswers,
    Record,
    SettingsChange,
    StoredHindsight,
    StreamSettings,
    stored_records,
)
from service.wire.event_entries import Id
from service.wire.positions import enter_numbers
from service.worker.streams.ledger import Share
from service.worker.streams.step_inputs import number
from service.worker.streams.table import Table

# About, of a stream, of an entry beside its own bytes, and of a struct that is not encoded.
STREAM_BYTES = 2200
ENTRY_BYTES = 110
STRUCT_BYTES = 500
# Stands for every dict of a stream that has no entry: most have none, and an empty one of its own
# takes 64 bytes. It cannot be written to by mistake.
NOTHING: Any = MappingProxyType({})
# Keys of a stream that end with it; a repeated request is known still.
DROPPED = [key for key in keys.PARTS if key is not keys.idempotency]
T = TypeVar("T")
Floats = NDArray[np.float64]


class Ahead(NamedTuple):
    """Row of a state that is `count` observations ahead of the stream's, which wait for labels."""

    row: int
    count: int  # type: ignore[assignment]


class Stream:
    """A loaded stream. `head` is None for one that never was; see `alive`."""

    __slots__ = (
        "partition",
        "name",
        "at",
        "moved",
        "places",
        "tail",
        "tail_start",
        "buffer",
        "remembered",
        "slab",
        "ahead",
        "row",
        "season_state",
        "search_phase",
        "next_look",
        "broken",
        "unserved",
        "reborn",
        "phase",
        "share",
        "feed",
        "host_bytes",
        "_head",
        "_table",
        "_stale",
        "_fresh",
        "_effects",
        "_new",
        "_events",
        "_anomalies",
        "_recent_events",
        "_raised",
        "_touched",
        "_was",
        "_settled",
        "_sealing",
        "_blocks",
        "_relaid",
        "_remembered_bytes",
    )

    def __init__(self, partition: int, name: str, stored: Stored) -> None:
        self.partition = partition
        self.name = name
        self.at = -1  # row of the table of streams at rest; -1: it is awake
        self.moved = 0  # observations since the last commit that it slept through
        self.tail: list[bytes] = []  # rows of the last observations
        self.tail_start = 0  # position of the first of them
        self.buffer: Sequence[Record] = ()  # records while warming up
        self.remembered: dict[bytes, IdempotencyRecord] = NOTHING
        self.slab: Slab | None = None
        self.ahead: Ahead | None = None
        self.row = -1
        self.season_state: Floats | None = None  # of `model_core.stream.season`; see `begin_season`
        self.broken: str | None = None  # why what is stored cannot be read
        self.unserved: Exception | None = None  # why there is no model for what is stored
        self.reborn = False  # the next commit drops an earlier generation
        self.phase = phase_of(name)  # of its checkpoints and chunks
        self.search_phase = season.phase_of(name)
        self.next_look = 0
        self.share: Share | None = None  # of what its engine holds, as last counted
        self._head: Head | None = None
        self._table: Table | None = None  # while it is asleep
        self._stale = stored.stale
        self._fresh: dict[bytes, bytes] = NOTHING
        self._effects: tuple[Effect, ...] = ()
        # Encoded when the answers are complete; rows are already.
        self._new: dict[int, Record | bytes] = NOTHING
        self._events: dict[int, Event] = NOTHING
        self._anomalies: dict[int, Event] = NOTHING
        self._recent_events: dict[int, Event] = NOTHING  # not all committed yet
        self._raised: tuple[tuple[Event, str | None], ...] = ()
        self.feed: tuple[tuple[Id, bytes], ...] = ()  # id and entry, for the next commit
        self._touched = False
        self._was = DEFAULTS  # settings when they were last written
        self._settled = b""  # part of the head, as it was last written
        self.places = wire.place_of("position", name), wire.place_of("tail", name)
        self._sealing: dict[int, bytes] = NOTHING  # chunks that the last commit may be writing
        self._blocks: list[int] = []  # rows in each block of the stored tail
        self._relaid = False  # the next commit writes the tail anew
        self._remembered_bytes = 0
        self.host_bytes = STREAM_BYTES  # what all of this takes, as last counted

    # --- asleep and awake -----------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """What the stream is; it is awake from here on."""
        if self.at >= 0:
            self.wake()
        return self._head

    @head.setter
    def head(self, head: Head | None) -> None:
        if self.at >= 0:
            self.wake()
        self._head = head

    def sleep(self, table: Table, at: int) -> None:
        """Have a row of the table hold the position from here on."""
        self._table = table
        self.at = at

    def wake(self) -> None:
        """Take the position back from the table, if it is asleep."""
        table = self._table
        if table is None:
            return
        self._read_through()
        table.remove(self.at)
        self._table = None
        self.at = -1

    def _read_through(self) -> None:
        """Have the head as its row has it, whose observations it counts as its own."""
        assert self._table is not None
        assert self._head is not None
        enter_numbers(self._head, self._table.rows["position"][self.at].item())
        self._touched = self._touched or self.moved > 0
        self.moved = 0

    @property
    def seq(self) -> int:
        """Observations applied to a stream that exists, which it may sleep through."""
        if self._table is not None:
            return int(self._table.rows["position"]["seq"][self.at])
        return self.live().seq

    @property
    def settings(self) -> StreamSettings:
        """Those of a stream that exists: it may sleep on."""
        assert self._head is not None
        return self._head.settings

    @property
    def alive(self) -> bool:
        """Whether the stream exists now."""
        return self._head is not None and not self._head.deleted

    def current_share(self) -> Share:
        """Part of the totals of a ledger that is this stream's now."""
        self.count()
        if self._table is not None:
            self._table.rows["slept_bytes"][self.at] = 0
        head = self._head
        behind = 0 if self.slab is None or head is None else self.seq - head.checkpoint
        if not behind or head is None:
            return Share(self.host_bytes, self.slab is not None, 0, 0)
        since_ms = head.checkpoint_ms or head.created_ms  # of the stream, where there is none
        return Share(self.host_bytes, True, behind, since_ms)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be committed."""
        return not (self._touched or self._effects or self._fresh or self.moved)

    def live(self) -> Head:
        """Head of a stream known to exist."""
        assert self.head is not None
        return self.head

    @property
    def state(self) -> Head:
        """As the pipeline has it."""
        return self.live()

    def begin_with(self, head: Head | None) -> None:
        """Take the stored head over."""
        self.head = head
        if head is not None:
            self._was = head.settings
            self._settled = wire.encode_settled(head)
            self.begin_season()

    def create(self, head: Head) -> None:
        """Start a new generation of the stream."""
        self.head = head
        self.keep_tail(0, [])
        self.buffer = ()
        self._new = self._events = self._anomalies = self._recent_events = NOTHING
        self._was = DEFAULTS
        self.begin_season()
        self._effects += (("ZADD", keys.names(self.partition), 0, self.name),)
        self._touched = True

    def restart(self, head: Head) -> None:
        """Begin this generation again with other settings; it has no observation yet."""
        old = self.live()
        self.leave()
        head.generation = old.generation
        head.created_ms = old.created_ms
        self.head = head
        self.begin_season()

    def delete(self, now_ms: int) -> None:
        """Leave a tombstone; idempotency records stay, but for those of a damaged stream."""
        p = self.partition
        name = self.name
        head = self.head or Head(1, DEFAULTS)  # it could not be read
        self.head = Head(head.generation, head.settings, deleted=True, updated_ms=now_ms)
        dropped = DROPPED if self.broken is None else keys.PARTS
        if self.broken is not None:
            self.remembered = NOTHING
            self._remembered_bytes = 0
        self.broken = None
        self.unserved = None
        self.reborn = True
        self.keep_tail(0, [])
        self.buffer = ()
        self.season_state = None
        self._new = self._events = self._anomalies = NOTHING
        self.leave()
        for list_of in (keys.names, keys.due):
            self._effects += (("ZREM", list_of(p), name),)
        for key in dropped:
            self._effects += (("UNLINK", key(p, name)),)
        self.drop_hindsight()
        self._touched = True

    def begin_season(self) -> None:
        """Begin a state of seasons, where the settings ask for one or a season was found."""
        self.season_state = season.blank() if self.alive and _seasonal(self.live()) else None
        self.next_look = 0

    def resume_season(self) -> None:
        """Take in the labels that wait in the buffer.

        Where a season was found or given up there was a checkpoint: no filter begins anew here.
        """
        if self.season_state is not None:
            for record in self.buffer:
                season.observe(self.season_state, number(record.y))

    def offset(self, ahead: int = 0) -> float:
        """Season of the next label, or of one that comes so many observations later."""
        return seasons.offset(self.season_state, ahead)

    def leave(self) -> None:
        """Give the row on the device back."""
        if self.at >= 0:
            self.wake()
        self.come_back()
        if self.slab is not None:
            self.slab.remove(self.row)
        self.slab = None
        self.row = -1

    def come_back(self) -> None:
        """Forget the state that ran ahead of labels to come."""
        if self.slab is not None and self.ahead is not None:
            self.slab.remove(self.ahead.row)
        self.ahead = None

    def touch(self, now_ms: int) -> None:
        """Have the head written with the next commit."""
        self.live().updated_ms = now_ms
        self._touched = True

    def keep_changes(self, changes: list[SettingsChange]) -> None:
        """Have changes of settings written with the next commit."""
        key = keys.changes(self.partition, self.name)
        for change in changes:
            field = f"{change.seq}:{change.time_ms}:{change.number}"
            blob = wire.checksummed(wire.encode(change), "change", self.name, field)
            self._effects += (("HSET", key, field, blob),)

    def keep_hindsight(self, hindsight: StoredHindsight) -> None:
        """Have a segmentation in hindsight written with the next commit."""
        blob = wire.checksummed(wire.encode(hindsight), "hindsight", self.name)
        self._effects += (("HSET", keys.hindsight(self.partition), self.name, blob),)

    def drop_hindsight(self) -> None:
        """Have the segmentation in hindsight removed: it is of what is not so any more."""
        self._effects += (("HDEL", keys.hindsight(self.partition), self.name),)

    def count(self) -> None:
        """Count what the stream takes on the host."""
        pending = len(self._head.pending) if self._head is not None else 0
        structs = len(self.buffer) + len(self._recent_events) + pending
        self.host_bytes = (
            STREAM_BYTES
            + sum(map(len, self.tail))
            + (sum(map(len, self._sealing.values())) if self._sealing else 0)
            + ENTRY_BYTES * (len(self.tail) + len(self._sealing))
            + STRUCT_BYTES * structs
            + self._remembered_bytes
            + (0 if self.season_state is None else self.season_state.nbytes)
        )

    def put(self, record: Record) -> None:
        """Keep a record that is new or was changed."""
        if self._new:
            self._new[record.seq] = record
        else:
            self._new = {record.seq: record}

    def take_back(self, seq: int) -> None:
        """Forget a record that was kept since the last commit."""
        self._new = _without(self._new, [seq]) or NOTHING

    def keep_events(self, events: list[Event]) -> None:
        """Queue events for the next commit without publishing them."""
        if events:
            self._events = {**self._events, **{event.id: event for event in events}}
            self._recent_events = {**self._recent_events, **self._events}

    def raise_events(self, events: list[Event], time: str | None) -> None:
        """Have events written with the next commit; `time` is the observation's."""
        self.keep_events(events)
        self._raised += tuple((event, time) for event in events)

    def keep_anomalies(self, events: list[Event]) -> None:
        """Queue anomaly events for the next commit without publishing them."""
        if events:
            self._anomalies = {**self._anomalies, **{event.id: event for event in events}}

    def raise_anomaly(self, event: Event, time: str | None) -> None:
        """Have an anomaly event written with the next commit; `time` is the observation's."""
        self.keep_anomalies([event])
        self._raised += ((event, time),)

    def events(self, store: Store) -> dict[int, Event]:
        """All changepoint events of this generation, by id."""
        events = store.events(self.partition, self.name) | self._recent_events
        return dict(sorted(events.items()))

    def take_raised(self) -> list[tuple[Event, str | None]]:
        """Return the events raised since the last call, in order."""
        raised = self._raised
        self._raised = ()
        return list(raised)

    def remember(
        self, field: bytes, record: IdempotencyRecord, keep_s: float, keep_requests: int
    ) -> None:
        """Keep a keyed outcome; forget those that are old and not among the newest."""
        if not self.remembered:
            self.remembered = {}
        self.remembered[field] = record
        self._fresh = {**self._fresh, field: self._kept(record)}
        self._remembered_bytes += _remembered_bytes(field, record)
        while len(self.remembered) > max(keep_requests, 1):
            oldest, first = next(iter(self.remembered.items()))
            if record.time_ms - first.time_ms <= 1000 * keep_s:
                break
            del self.remembered[oldest]
            self._remembered_bytes -= _remembered_bytes(oldest, first)
            self._fresh.pop(oldest, None)
            self._effects += (("HDEL", keys.idempotency(self.partition, self.name), oldest),)

    def recall(self, stored: dict[bytes, bytes]) -> None:
        """Load keyed outcomes, oldest first; raises UnreadablePart."""
        if not stored:
            return
        records: dict[bytes, IdempotencyRecord] = {}
        for field, blob in stored.items():
            record = decoded(wire.decode_idempotency, blob, "idempotency", self.name)
            if record.field != field:
                raise UnreadablePart(
                    f"the stored idempotency record of {self.name!r} belongs to another key"
                )
            records[field] = record
        by_time = sorted(records.items(), key=lambda pair: pair[1].time_ms)
        self.remembered = {**self.remembered, **dict(by_time)}
        self._remembered_bytes = sum(
            _remembered_bytes(field, record) for field, record in self.remembered.items()
        )

    def keep_remembered(self) -> None:
        """Have all keyed outcomes written with the next commit."""
        kept = {field: self._kept(record) for field, record in self.remembered.items()}
        self._fresh = {**self._fresh, **kept}

    def _kept(self, record: IdempotencyRecord) -> bytes:
        return wire.checksummed(wire.encode(record), "idempotency", self.name)

    @property
    def tail_end(self) -> int:
        """Position after the last row of the tail."""
        return self.tail_start + len(self.tail)

    def read_tail(self, stored: Sequence[bytes]) -> None:
        """Take stored blocks over; raises UnreadablePart."""
        tail: list[bytes] = []
        start = 0
        blocks = []
        for blob in stored:
            first, block = decoded(stored_records.split_block, blob, "tail", self.name)
            if not tail:
                start = first
            if first != start + len(tail):
                raise UnreadablePart(
                    f"its tail goes on at seq {first}, expected {start + len(tail)}"
                )
            tail += block
            blocks.append(len(block))
        self.keep_tail(start, tail)
        self._blocks = blocks

    def keep_tail(self, start: int, tail: list[bytes]) -> None:
        """Have these rows from position `start` on, none of which is stored."""
        self.tail = tail
        self.tail_start = start
        self._blocks = []

    def loose(self, first: int) -> list[Record]:
        """Decode the records of the tail from position `first` on."""
        begin = max(first, self.tail_start)
        part = self.tail[begin - self.tail_start :]
        return [wire.decode_row(seq, row) for seq, row in enumerate(part, begin)]

    @property
    def checkpoint_field(self) -> str:
        """Name of a state at the stream's seq."""
        return f"{self.live().generation}:{self.live().seq}"

    def moved_checkpoint(self) -> None:
        """Point the head at the state at its seq, already written; the one before goes."""
        head = self.live()
        old = f"{head.generation}:{head.checkpoint}"
        if head.checkpoint and head.checkpoint != head.seq:
            self._effects += (("HDEL", keys.checkpoint(self.partition, self.name), old),)
        head.checkpoint = head.seq
        head.checkpoint_ms = head.updated_ms
        self._touched = True

    def commit_checkpoint(self, blob: bytes) -> None:
        """Have the next commit itself write the state at the stream's seq."""
        self.moved_checkpoint()
        key = keys.checkpoint(self.partition, self.name)
        field = self.checkpoint_field
        kept = wire.checksummed(blob, "checkpoint", self.name, field)
        self._effects += (("HSET", key, field, kept),)

    def checkpoint_due(self, every: int) -> bool:
        """Whether a boundary of `every` observations was passed since the last checkpoint.

        A memory stores a regime at the step after its end was confirmed, and a tail is replayed as
        one after the last of them: with one, each confirmed change has a checkpoint after it.
        """
        head = self._head
        assert head is not None
        if head.settings.regimes and head.track.settled >= head.checkpoint:
            return True
        return (self.seq + self.phase) // every > (head.checkpoint + self.phase) // every

    def recent(self) -> tuple[dict[int, Record], dict[int, bytes]]:
        """Records that are in no chunk yet, and chunks that may not be stored yet."""
        records = {record.seq: record for record in self.loose(0)}
        for seq, new in self._new.items():
            records[seq] = wire.decode_row(seq, new) if isinstance(new, bytes) else new
        return records, self._sealing

    def relay(self, records: list[Record]) -> None:
        """Have the last records written anew, in chunks and tail; the first begins a chunk.

        Those before them that are in no chunk yet, as of a long batch, stay as they are.
        """
        head = self.live()
        first = records[0].seq if records else head.seq
        head.sealed = min(head.sealed, first)
        self.keep_tail(self.tail_start, self.tail[: max(0, first - self.tail_start)])
        self._relaid = True
        for record in records:
            self.put(record)

    def effects(self) -> list[Effect]:
        """Everything the next commit must write; afterwards nothing waits."""
        if self._table is not None:
            self._read_through()
        head = self._head
        self._encode()
        self._sealing = NOTHING
        if head is not None and self.alive and self.broken is None and self.unserved is None:
            self._drop_stale(head)
            self._seal(head)
        effects = [*self._effects]
        self._effects = ()
        if self._relaid or len(self.tail) > sum(self._blocks):
            effects += self._tail_effects()
        if self._events or self._anomalies or self._fresh:
            effects += self._hash_effects()
        if self._touched and head is not None:
            effects.append(("HSET", keys.heads(self.partition), *self._head_fields(head)))
            if self.alive:
                effects += index_effects(self.partition, self.name, head, self._was)
                self._was = head.settings
        self._new = self._events = self._anomalies = self._fresh = NOTHING
        self._touched = self.reborn = False
        if self._table is not None:
            self._table.rows["due"][self.at] = self.due(self._table.checkpoint_every)
        return effects

    def due(self, checkpoint_every: int) -> int:
        """Position at which a commit writes more than the position and the tail."""
        head = self._head
        assert head is not None
        phase = self.phase
        boundaries = (
            checkpoint_every * ((head.checkpoint + phase) // checkpoint_every + 1),
            CHUNK * ((head.sealed + phase) // CHUNK + 1),
            CHUNK * (head.oldest + 1) + head.settings.history,
        )
        return min(boundaries) - phase

    def _head_fields(self, head: Head) -> list[Argument]:
        """The head's position, and its settled part where that is another than is stored."""
        position = wire.checksummed_at(self.places[0], wire.encode_position(head))
        fields: list[Argument] = [keys.position_field(self.name), position]
        settled = wire.encode_settled(head)
        if settled != self._settled:
            self._settled = settled
            fields += (self.name, wire.checksummed(settled, "head", self.name))
        return fields

    def _encode(self) -> None:
        """Take what is new into the tail: answers are complete by now."""
        for seq in sorted(self._new):  # those that are corrected may come before others
            new = self._new[seq]
            row = new if isinstance(new, bytes) else wire.encode_row(new)
            if not self.tail:
                self.tail_start = seq
            at = seq - self.tail_start
            if at == len(self.tail):
                self.tail.append(row)
                continue
            if not 0 <= at < len(self.tail):
                raise AssertionError(f"a record at seq {seq}, beside a tail to {self.tail_end}")
            self.tail[at] = row
            self._relaid = True

    def _tail_effects(self) -> list[Effect]:
        """What of the tail is not stored yet; all of it where it was laid anew."""
        key = keys.tail(self.partition, self.name)
        effects: list[Effect] = []
        if self._relaid:
            effects.append(("UNLINK", key))
            self._blocks = []
            self._relaid = False
        stored = sum(self._blocks)
        first = self.tail_start + stored
        new = blocks(self.places[1], self.phase, first, self.tail[stored:])
        if new:
            effects.append(("RPUSH", key, *[blob for _, blob in new]))
            self._blocks += [count for count, _ in new]
        return effects

    def _hash_effects(self) -> list[Effect]:
        """Events, and keyed outcomes, that are new."""
        effects: list[Effect] = []
        kinds = ((keys.events, "event", self._events), (keys.anomalies, "anomaly", self._anomalies))
        for key, part, events in kinds:
            pairs: list[Argument] = []
            for id_, event in events.items():
                pairs += (str(id_), wire.checksummed(wire.encode(event), part, self.name, id_))
            if pairs:
                effects.append(("HSET", key(self.partition, self.name), *pairs))
        if self._fresh:
            records = [part for pair in self._fresh.items() for part in pair]
            effects.append(("HSET", keys.idempotency(self.partition, self.name), *records))
        return effects

    def _drop_stale(self, head: Head) -> None:
        """Drop states that a worker wrote and did not live to commit."""
        if not self._stale:
            return
        named = f"{head.generation}:{head.checkpoint}".encode()  # made again
        stale = [field for field in self._stale if field != named]
        if stale:
            key = keys.checkpoint(self.partition, self.name)
            self._effects += (("HDEL", key, *stale),)
        self._stale = ()

    def _seal(self, head: Head) -> None:
        """Seal complete chunks, drop those past the retained history, trim the tail.

        Of a stream in its warm-up none is complete.
        """
        if not head.warm:
            return
        phase = self.phase
        sealed = (head.sealed + phase) // CHUNK
        complete = (head.seq + phase) // CHUNK
        if sealed < complete:
            for number in range(sealed, complete):
                end = (number + 1) * CHUNK - phase
                first = head.sealed
                part = self.tail[first - self.tail_start : end - self.tail_start]
                self._sealing = {**self._sealing, number: seal(self.name, number, first, part)}
                self._write_history("HSET", str(number), self._sealing[number])
                head.sealed = end
        oldest = min((max(0, head.seq - head.settings.history) + phase) // CHUNK, complete)
        if head.oldest < oldest:
            self._write_history("HDEL", *map(str, range(head.oldest, oldest)))
            head.oldest = oldest
        end = min(head.sealed, head.checkpoint)
        if self.tail_start < end and self.tail:
            self._trim(end)

    def _trim(self, end: int) -> None:
        """Drop the rows before position `end`, but for those of a stored block that goes on."""
        stored = [] if self._relaid else self._blocks
        dropped = 0
        start = self.tail_start
        while dropped < len(stored) and start + stored[dropped] <= end:
            start += stored[dropped]
            dropped += 1
        kept = stored[dropped:]
        if kept and not dropped:
            return
        if not kept:
            start = end
        if dropped:
            key = keys.tail(self.partition, self.name)
            self._effects += (("LTRIM", key, dropped, -1),)
        self.keep_tail(start, self.tail[start - self.tail_start :])
        self._blocks = kept

    def _write_history(self, operation: str, *arguments: Argument) -> None:
        self._effects += ((operation, keys.history(self.partition, self.name), *arguments),)
        self._touched = True


# --- many streams that are asleep: nothing here costs a call for each of them ---------------------


def ordinary(streams: Iterable[Stream]) -> list[Stream]:
    """Those of which nothing is to be committed but observations that they slept through."""
    return [
        stream
        for stream in streams
        if stream.moved
        and stream.at >= 0
        and not stream._touched
        and not stream._effects
        and not stream._new
        and not stream._fresh
        and not stream._stale
        and not stream._sealing
    ]


def put_rows(
    streams: Iterable[Stream], firsts: Iterable[int], counts: Iterable[int], rows: Sequence[bytes]
) -> None:
    """Keep encoded records that streams slept through, of each so many from a position on."""
    at = 0
    for stream, first, count in zip(streams, firsts, counts, strict=True):
        own = rows[at : at + count]
        at += count
        stream.moved += count
        if stream._new:  # one that is not complete yet comes before them
            stream._new |= enumerate(own, first)
            continue
        if not stream.tail:
            stream.tail_start = first
        stream.tail += own


def take_rows(streams: Iterable[Stream]) -> list[bytes]:
    """Rows that are to be committed of streams that are `ordinary`, joined; then none are."""
    taken = []
    for stream in streams:
        count = stream.moved
        taken += [stream.tail[-1] if count == 1 else b"".join(stream.tail[-count:])]
        stream.moved = 0
        stream._blocks += [count]
    return taken


def _seasonal(head: Head) -> bool:
    """Whether a stream has a state of seasons: by default from the first that is found on."""
    stated = head.settings.seasonal
    return head.season is not None if stated is None else stated


def _remembered_bytes(field: bytes, record: IdempotencyRecord) -> int:
    size = 400 + len(field) + sum(len(part) + 50 for part in record.body)
    if record.answers is None:
        return size
    quiet = [part for part in record.answers.parts if isinstance(part, QuietAnswers)]
    others = len(record.answers.parts) - len(quiet)
    size += sum(len(part.rows) + 100 for part in quiet)
    # Numbers that are objects take four times their encoded size.
    return size + (4 * len(wire.encode(record.answers)) if others else 0)


def _without(parts: Mapping[int, T], gone: Iterable[int]) -> dict[int, T]:
    """The others: a new dict, since one that entries were taken from keeps their memory."""
    dropped = set(gone)
    return {seq: part for seq, part in parts.items() if seq not in dropped}
