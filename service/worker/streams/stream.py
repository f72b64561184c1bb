"""Streams on the host: their heads, asleep or awake, and what the next commit writes of them.

A stream falls asleep when its next observations are expected to do no more than move the numbers of
a row of `Table`: columns are what ordinary observations move, and are checked by. It wakes when
anything else touches its head: see `Stream.head`.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from model_core.stream import season, seasons
from model_core.stream.slab import Slab
from model_core.stream.state import SeasonPeriods, kept_season
from model_core.stream_settings import DEFAULTS, Hazard
from service import wire
from service.store import keys
from service.store.log import Effect, Pushed, due_effect
from service.store.shards import Argument
from service.store.streams import BLOCK, Store, values_of
from service.wire import (
    Event,
    Head,
    Id,
    IdempotencyRecord,
    QuietAnswers,
    Record,
    SettingsChange,
    StoredHindsight,
    StreamSettings,
    stored_records,
)
from service.wire.records import Position
from service.wire.stored_records import POSITION, Blocks, decoded_row, enter_numbers, field_at
from service.worker.streams.history import FEW, NOTHING, LastRows, Tail, encoded_row
from service.worker.streams.step_inputs import label_of

if TYPE_CHECKING:
    from model_core.compiled.plain import RestColumns

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FEWEST_ROWS = 64  # room for so many at first
RECENT = 256  # labels of a stream that is asleep
RINGS = 4096  # streams that have these, at most: 8 MB
# A stream is listed again as one that expires once that moves by more than this share of its `ttl`;
# when it seems to be due it is looked at, and listed as it is.
LISTED_SHARE = 1 / 16
TOGETHER = 3  # rows of a block of a tail, at least; fewer lie beside the position
BESIDE_BYTES = 160  # of rows, at most: two usual ones
ROW = np.dtype(
    [
        ("position", POSITION),
        ("outputs", "<u2"),  # numbers in a label
        ("due", "<i8"),  # position at which a commit writes the state
        ("outlier_rate", "<f8"),
        ("settled", "<f8"),  # this and the next two: as of `Watch`
        ("since", "<f8"),
        ("threshold", "<f8"),
        ("hazard", "<f8"),  # nan: it is no number; see `Table.hazards`
        ("suspected", "<f8"),  # this and the next two: as of `compiled.REST`
        ("until", "<f8"),
        ("alarm", "<f8"),
        ("look", "<i8"),  # observations after which season or scale are looked at
        ("interval", "<f8"),  # as of `StreamSettings`; nan: times do not count
        ("asleep", "<i8"),  # position since which its recent labels are there
        ("seasonal", "?"),  # whether seasons are looked for in each label, or were found
        ("own_rule", "?"),  # as of `Head`
        ("ttl", "<f8"),  # as of `StreamSettings`; nan: none
        ("listed_ms", "<f8"),  # when it expires, as it was listed last while it was asleep
        ("stale", "?"),  # its alarm period is of a setting that is no more
        ("history", "<i8"),  # as of `StreamSettings`
        ("waits", "?"),  # more of its head and tail is to be written than that it moved
        ("writes", "?"),  # so are other keys of it
        ("slept_bytes", "<i8"),  # of tail and keyed outcomes, since they were last counted
        ("moved", "<i8"),  # observations since the last commit
        ("beside", "<u2"),  # rows that lie beside its position, and their bytes
        ("beside_bytes", "<u2"),
        ("position_place", "<u4"),  # of checksums: of its position, and of its tail
        ("tail_place", "<u4"),
        ("state", "<u4"),  # row of its slab
        ("slab", "<i8"),  # its id; 0: the stream is awake
    ]
)

# The same rows, without their fields: numpy copies these one by one.
WHOLE_ROW = np.dtype(f"V{ROW.itemsize}")
# The same rows, of which fields that lie together are read together.
GROUPS = np.dtype(
    {
        "names": ["rates", "rest"],
        "formats": [("<f8", 4), ("<f8", 3)],
        "offsets": [
            field_at(ROW, "outlier_rate"),  # and numbers of `Watch`
            field_at(ROW, "suspected"),  # until, alarm
        ],
        "itemsize": ROW.itemsize,
    }
)


class Kept(NamedTuple):
    """Encoded records that streams slept through: rows of the table, and their bytes of each.

    places: -1: of which they were taken.
    """

    places: Ints
    sizes: Ints
    records: bytes

    def take(self, parts: Mapping[int, list[bytes]]) -> None:
        """Add those of rows to their `parts`."""
        ends = self.sizes.cumsum().tolist()
        spans = zip(self.places.tolist(), [0, *ends], ends, strict=False)
        for i, (at, start, end) in enumerate(spans):
            if at in parts:
                parts[at].append(self.records[start:end])
                self.places[i] = -1


class Table:
    """The streams of a worker, a row each: zeros of those that are awake."""

    def __init__(self, checkpoint_every: int) -> None:
        """Hold no stream; checkpoint_every: observations between checkpoints of a stream."""
        self.checkpoint_every = checkpoint_every
        self._hold(np.zeros(FEWEST_ROWS, ROW), np.zeros((FEWEST_ROWS, BESIDE_BYTES), np.uint8))
        self.streams: list[Any] = [None] * FEWEST_ROWS  # by row; None: it is free
        self.names: list[str] = [""] * FEWEST_ROWS  # of these: few need the streams for them
        self.used_s = np.zeros(FEWEST_ROWS)  # last, by the monotonic clock
        self.hazards: dict[int, Hazard] = {}  # those that are tables, by row
        # Numbers of the last label after its first, by row, of vectors.
        self.further: dict[int, list[float]] = {}
        self._new: list[Kept] = []  # since the last commit, oldest first
        self._free = list(range(FEWEST_ROWS))

    def _hold(self, rows: NDArray[Any], beside: Bytes) -> None:
        self.rows = rows
        # Rows that commits have written with positions, and not to tails.
        self.beside = beside
        # Those at each position modulo `RECENT`, of single outputs. They take no memory before
        # they are used, and begin anew here: it is rare.
        self._recent = np.zeros((min(len(rows), RINGS), RECENT))
        rows["asleep"] = rows["position"]["seq"]
        self._whole = rows.view(WHOLE_ROW)  # the same memory
        self._columns: RestColumns | None = None

    @property
    def columns(self) -> RestColumns:
        """What quiet observations go by: the memory of the rows."""
        if self._columns is None:
            self._columns = columns_of(self.rows, self._recent)
        return self._columns

    def add(self, stream: Stream) -> None:
        """Give a stream a row; it is awake."""
        if not self._free:
            held = len(self.rows)
            self._hold(*(_with_room(own, 2 * held) for own in (self.rows, self.beside)))
            self.used_s = _with_room(self.used_s, 2 * held)
            self.streams += [None] * held
            self.names += [""] * held
            self._free += range(2 * held - 1, held - 1, -1)
        at = stream.at = self._free.pop()
        self.streams[at] = stream
        self.names[at] = stream.name
        self.used_s[at] = time.monotonic()

    def remove(self, stream: Stream) -> None:
        """Take the row back of a stream that is awake."""
        self.streams[stream.at] = None
        self.names[stream.at] = ""
        self._free.append(stream.at)
        stream.at = -1

    def streams_of(self, places: Ints) -> list[Stream]:
        """Streams of rows."""
        return [self.streams[at] for at in places.tolist()]

    def enter(
        self, at: int, values: tuple[Any, ...], hazard: Hazard | None, further: list[float]
    ) -> None:
        """Have a row hold these values of `ROW`. further: its own."""
        self.rows[at] = values
        if further:
            self.further[at] = further
        if hazard is not None and not isinstance(hazard, float):
            self.hazards[at] = hazard

    def clear(self, at: int) -> None:
        """Forget what a row holds."""
        self.rows[at] = np.zeros((), ROW)
        self.hazards.pop(at, None)
        self.further.pop(at, None)

    def of(self, places: Ints) -> NDArray[Any]:
        """Copies (B,) of rows, as whole rows: field by field it takes three times as long."""
        return as_rows(self._whole.take(places), ROW)

    def put(self, places: Ints, rows: NDArray[Any]) -> None:
        """Write rows (B,) at distinct places, as whole rows: for the same reason."""
        self._whole[places] = as_rows(rows, WHOLE_ROW)

    def keep(self, places: Ints, counts: Ints, records: Bytes | list[bytes]) -> None:
        """Keep encoded records that streams slept through: so many of each, row after row."""
        if isinstance(records, np.ndarray):
            kept = Kept(places.copy(), counts * records.shape[1], records.tobytes())
        else:
            sizes = np.add.reduceat(list(map(len, records)), counts.cumsum() - counts)
            kept = Kept(places.copy(), sizes, b"".join(records))
        self._new.append(kept)

    def take_kept(self, places: Ints) -> tuple[Ints, bytes]:
        """Take the records of distinct rows for a commit: bytes (B,) of each row, and the bytes."""
        if len(self._new) == 1 and self._new[0].places.tobytes() == places.tobytes():
            return self._new.pop()[1:]
        parts: dict[int, list[bytes]] = {at: [] for at in places.tolist()}
        for kept in self._new:
            kept.take(parts)
        self._new = [kept for kept in self._new if np.count_nonzero(kept.places >= 0)]
        runs = list(map(b"".join, parts.values()))
        return np.fromiter(map(len, runs), np.int64, len(runs)), b"".join(runs)

    def kept_of(self, at: int, taken: bool = False) -> list[Record | bytes]:
        """Return the records of one row that lie beside its position, and those since then.

        taken: the next commit does not write them from here.
        """
        row = self.rows[at]
        parts = [self.beside[at, : row["beside_bytes"]].tobytes()]
        for kept in self._new:
            for i in (kept.places == at).nonzero()[0].tolist():
                start = int(kept.sizes[:i].sum())
                parts.append(kept.records[start : start + int(kept.sizes[i])])
                if taken:
                    kept.places[i] = -1
        count = int(row["moved"]) + int(row["beside"])
        if taken:
            row["moved"] = row["beside"] = row["beside_bytes"] = 0
        return stored_records.split_rows(b"".join(parts), count)

    def recent(self, at: int, first: int) -> Floats | None:
        """Labels (n, 1) of a row from a position on; None where they are not all there."""
        row = self.rows[at]
        seq = int(row["position"]["seq"])
        held, room = self._recent.shape
        if at >= held or first < max(row["asleep"], seq - room) or row["outputs"] > 1:
            return None
        labels: Floats = self._recent[at].take(np.arange(first, seq) % room)
        return labels[:, None]

    def trim(self) -> bool:
        """Give back memory where at most a quarter of the rows is used; returns whether these move.

        As many as are used are free then: it takes as many removals until the next time.
        """
        used = len(self.rows) - len(self._free)
        held = max(FEWEST_ROWS, 2 * used)
        if 4 * used > len(self.rows) or held >= len(self.rows):
            return False
        streams = [stream for stream in self.streams if stream is not None]
        own = places_of(streams)
        places = own.tolist()
        self._hold(_with_room(self.of(own), held), _with_room(self.beside[own], held))
        self.used_s = _with_room(self.used_s[own], held)
        self.streams = [*streams, *[None] * (held - used)]
        self.names = [*(stream.name for stream in streams), *[""] * (held - used)]
        self._free = list(range(held - 1, used - 1, -1))
        self.hazards = {i: self.hazards[at] for i, at in enumerate(places) if at in self.hazards}
        self.further = {i: self.further[at] for i, at in enumerate(places) if at in self.further}
        moved = {at: i for i, at in enumerate(places)}
        self._new = [
            kept._replace(places=np.array([moved.get(at, -1) for at in kept.places.tolist()]))
            for kept in self._new
        ]
        for at, stream in enumerate(streams):
            stream.at = at
        return True

    @property
    def slept_bytes(self) -> int:
        """Bytes on the host that are not counted yet."""
        return int(self.rows["slept_bytes"].sum())

    @property
    def behind(self) -> int:
        """Largest number of observations since a stream's last checkpoint."""
        return int(self._behind().max())

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest checkpoint was made of a stream that was observed since."""
        made_ms = self.rows["position"]["checkpoint_ms"][self._behind() > 0]
        return int(made_ms.min()) if len(made_ms) else None

    def _behind(self) -> Ints:
        position = self.rows["position"]
        return np.asarray(position["seq"].astype(np.int64) - position["checkpoint"])


def columns_of(rows: Rows, recent: Floats) -> RestColumns:
    """What quiet observations go by, of rows of `ROW` and recent labels: the same memory."""
    from model_core.compiled.plain import RestColumns  # numba: half a second

    position = rows["position"]
    of_position = POSITION.names or ()
    numbers = {
        name: (position if name in of_position else rows)[name]
        for name in RestColumns._fields
        if name != "recent"
    }
    return RestColumns(**numbers, recent=recent)


def as_rows(rows: NDArray[Any], form: np.dtype[Any]) -> NDArray[Any]:
    """The same memory as rows of another form; a view takes numpy several times as long."""
    return np.ndarray(len(rows), form, cast(Any, rows))


def places_of(streams: Sequence[Stream]) -> Ints:
    """Rows (B,) of streams in their table."""
    return np.fromiter(map(_at, streams), np.int64, len(streams))


_at = attrgetter("at")


def _with_room(rows: NDArray[Any], held: int) -> NDArray[Any]:
    """Rows, and free ones after them up to so many, which take no memory before they are used."""
    room = np.zeros((held, *rows.shape[1:]), rows.dtype)
    room[: len(rows)] = rows
    return room


NO_POSITION = msgspec.structs.asdict(Position())
# About, of a stream, and of a struct that is not encoded.
STREAM_BYTES = 2400
STRUCT_BYTES = 500
# Keys of a stream that end with it; a repeated request is known still.
DROPPED = [key for key in keys.PARTS if key is not keys.idempotency]
Rows = NDArray[Any]  # of `ROW`
StreamKey = tuple[int, str]  # partition and name
StreamList = tuple[int, Sequence[str]]  # partition and distinct names
NO_PLACES = np.empty(0, np.int64)


class Ahead(NamedTuple):
    """Row of a state that is `count` observations ahead of the stream's, which wait for labels."""

    row: int
    count: int  # type: ignore[assignment]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Stream:
    """A loaded stream. `head` is None for one that never was; see `alive`."""

    partition: int
    name: str
    # Its filter: see `model_core.stream.series.Series`.
    slab: Slab | None = None
    row: int = -1
    # Records while warming up, those that are stored as rows: a seventh of their memory.
    buffer: Sequence[Record | bytes] = ()
    season_state: Floats | None = None  # of `model_core.stream.season`; see `begin_season`
    next_look: int = 0
    ahead: Ahead | None = None
    search_phase: float = dataclasses.field(init=False)
    # What it keeps beside its head.
    tail: Tail = dataclasses.field(init=False)
    place: int = dataclasses.field(init=False)  # of the checksums of its position
    remembered: dict[bytes, IdempotencyRecord] = dataclasses.field(default_factory=lambda: NOTHING)
    broken: str | None = None  # why what is stored cannot be read
    unserved: Exception | None = None  # why there is no model for what is stored
    at: int = -1  # its row in the table of its worker; -1: it is in none
    host_bytes: int = STREAM_BYTES
    counted_bytes: int = 0  # of these, which are in the total of its worker
    # What the next commit writes.
    feed: tuple[tuple[Id, bytes], ...] = ()  # id and entry
    _head: Head | None = None
    _table: Table | None = None  # which has its position while it is asleep
    _touched: bool = False
    _effects: tuple[Effect, ...] = ()
    _raised: tuple[tuple[Event, str | None], ...] = ()
    # Some of them may not be committed yet.
    _recent_events: dict[int, Event] = dataclasses.field(default_factory=lambda: NOTHING)
    _settled: bytes = b""  # digest of this part of the head, as it was last written
    _remembered_bytes: int = 0

    def __post_init__(self) -> None:
        self.search_phase = season.phase_of(self.name)
        self.place = wire.place_of("position", self.name)
        self.tail = Tail(self.partition, self.name)

    # --- asleep and awake -----------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """What the stream is; it is awake from here on."""
        if self._table is not None:
            self.wake()
        return self._head

    @head.setter
    def head(self, head: Head | None) -> None:
        self.wake()
        self._head = head

    @property
    def asleep(self) -> bool:
        """Whether its row has its position."""
        return self._table is not None

    def sleep(
        self, table: Table, values: tuple[Any, ...], hazard: Hazard | None, further: list[float]
    ) -> None:
        """Have its row of the table hold the position from here on, as of `Table.enter`."""
        table.enter(self.at, values, hazard, further)
        self._table = table
        self._forget_position()

    def _forget_position(self) -> None:
        """Give back the memory of a position that is in the table."""
        for name, value in NO_POSITION.items():
            setattr(self._head, name, value)

    def wake(self) -> None:
        """Take the position back from the table, if it is asleep."""
        table = self._table
        if table is None:
            return
        self._read_through(table)
        table.clear(self.at)
        self._table = None

    def _read_through(self, table: Table) -> None:
        """Have the head as its row has it, whose observations it counts as its own."""
        assert self._head is not None
        head = self._head
        row = table.rows[self.at]
        enter_numbers(head, row["position"].item(), table.further.get(self.at, ()))
        row["waits"] = True
        self._touched |= bool(row["moved"])
        rows = table.kept_of(self.at, taken=True)
        first = head.seq - len(rows)
        if not self.tail.new:
            self.tail.stored = first  # commits moved it on: see `parted`
        if rows:
            self.tail.put_rows(first, rows)

    @property
    def waits(self) -> bool:
        """Whether its head or a record waits for a commit; of a stream that is awake."""
        return self._touched or bool(self.tail.new)

    @property
    def writes(self) -> bool:
        """Whether other keys of it wait for a commit."""
        return bool(self._effects)

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
    def season(self) -> SeasonPeriods | None:
        """That of a stream that exists: it may sleep on."""
        assert self._head is not None
        return self._head.season

    @property
    def outputs(self) -> int:
        """Numbers of a label of a stream that exists: it may sleep on."""
        assert self._head is not None
        return self._head.y_dim or 1

    @property
    def units(self) -> tuple[list[float] | None, list[float] | None, list[float] | None]:
        """Location, scale and resolution of a stream that exists: it may sleep on."""
        assert self._head is not None
        return self._head.location, self._head.scale, self._head.resolution

    @property
    def alive(self) -> bool:
        """Whether the stream exists now."""
        return self._head is not None and not self._head.deleted

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be committed."""
        moved = self._table is not None and self._table.rows["moved"][self.at]
        return not (self._touched or self._effects or moved)

    def live(self) -> Head:
        """Head of a stream known to exist."""
        head = self.head
        assert head is not None
        return head

    @property
    def state(self) -> Head:
        """As the pipeline has it."""
        return self.live()

    def first_of_last(self, most: int) -> int:
        """Position of the first of the last `most` records, as far as they are retained."""
        assert self._head is not None
        table = self._table
        oldest = self._head.oldest
        if table is not None:
            oldest = int(table.rows["position"]["oldest"][self.at])
        return max(oldest, self.seq - min(most, self.settings.history))

    def last(self, first: int) -> LastRows:
        """Records from a position on, of a stream that may sleep on."""
        slept = () if self._table is None else self._table.kept_of(self.at)
        return self.tail.last(first, self.seq, slept)

    def recent(self, first: int) -> Floats | None:
        """Labels (n, 1) from a position on; None where they have to be read."""
        return None if self._table is None else self._table.recent(self.at, first)

    def growth(self) -> int:
        """Count what it takes on the host; returns how much that is more than in the total."""
        self.count()
        if self._table is not None:
            self._table.rows["slept_bytes"][self.at] = 0
        growth = self.host_bytes - self.counted_bytes
        self.counted_bytes = self.host_bytes
        return growth

    def count(self) -> None:
        """Count what the stream takes on the host."""
        pending = len(self._head.pending) if self._head is not None else 0
        structs = len(self.buffer) + len(self._recent_events) + pending
        season_bytes = 0 if self.season_state is None else self.season_state.nbytes
        self.host_bytes = (
            STREAM_BYTES + STRUCT_BYTES * structs + self._remembered_bytes + season_bytes
        )

    # --- generations ----------------------------------------------------------------------------

    def begin_with(self, head: Head) -> None:
        """Take the stored head over."""
        head.settings = wire.shared(head.settings)
        self._settled = _digest_of(wire.encode_settled(head))
        self.head = head
        self.begin_season()

    def create(self, head: Head) -> None:
        """Start a new generation of the stream."""
        head.settings = wire.shared(head.settings)
        head.checkpoint_ms = head.checkpoint_ms or head.created_ms
        self.head = head
        self.tail.clear()
        self.buffer = ()
        self._recent_events = NOTHING
        self.begin_season()
        self._put(("ZADD", keys.names(self.partition), 0, self.name))
        self._touched = True

    def restart(self, head: Head) -> None:
        """Begin this generation again with other settings; it has no observation yet."""
        old = self.live()
        self.leave()
        head.generation = old.generation
        head.created_ms = old.created_ms
        head.checkpoint_ms = old.checkpoint_ms
        self.head = head
        self.begin_season()

    def take_over(self, made: Stream) -> None:
        """Go on with the head, the filter and the seasons of a stream made beside this one."""
        self.leave()
        self.head = made.head
        self.unserved = None
        self.slab = made.slab
        self.row = made.row
        self.buffer = made.buffer
        self.season_state = made.season_state
        self.next_look = 0  # that of before may be of another model, or of a season that is dropped

    def delete(self, now_ms: int) -> None:
        """Leave a tombstone; idempotency records stay, but for those of a damaged stream."""
        head = self.head or Head(1, DEFAULTS)  # it could not be read
        self.leave()
        self.head = Head(head.generation, head.settings, deleted=True, updated_ms=now_ms)
        dropped = DROPPED if self.broken is None else keys.PARTS
        if self.broken is not None:
            self.remembered = NOTHING
            self._remembered_bytes = 0
        self.broken = None
        self.unserved = None
        self.tail.clear()
        self.buffer = ()
        self.season_state = None
        for list_of in (keys.names, keys.due):
            self._put(("ZREM", list_of(self.partition), self.name))
        for key in dropped:
            self.write("UNLINK", key)
        self._put(("HDEL", keys.checkpoints(self.partition), self.name))
        self.drop_hindsight()
        self._touched = True

    def begin_season(self) -> None:
        """Begin a state of seasons, where the settings ask for one or a season was found."""
        self.season_state = None
        self.next_look = 0
        if self.alive:
            head = self.live()
            stated = head.settings.seasonal
            asked = stated or (stated is None and head.season is not None)
            if asked and head.y_dim is not None:
                self.season_state = season.blank(head.y_dim)

    def buffered(self) -> list[Record]:
        """Records of the buffer, which end with the stream."""
        rows = enumerate(self.buffer, self.live().seq - len(self.buffer))
        return [decoded_row(seq, row) for seq, row in rows]

    def resume_season(self) -> None:
        """Take in the labels that wait in the buffer, and know when seasons are next looked at.

        Where a season was found or given up there was a checkpoint: no filter begins anew here.
        """
        if self.season_state is not None:
            for record in self.buffered():
                season.observe(self.season_state, [label_of(record, len(self.season_state))])
        if self.slab is not None:
            self.next_look = seasons.next_look(self.slab.model, self, self.seq) or self.seq + 1

    def offset(self, ahead: int = 0) -> list[float]:
        """Season of the next label, or of one that comes so many observations later, as kept."""
        return kept_season(season.offset(self.season_state, ahead))

    def leave(self) -> None:
        """Give the row on the device back."""
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

    # --- what the next commit writes ------------------------------------------------------------

    def write(self, operation: str, key: Callable[[int, str], str], *arguments: Argument) -> None:
        """Have a key of the stream written, removed or cut."""
        self._put((operation, key(self.partition, self.name), *arguments))

    def _put(self, effect: Effect) -> None:
        self._effects += (effect,)
        if self._table is not None:
            self._table.rows["writes"][self.at] = True

    def touch(self, now_ms: int) -> None:
        """Have the head written."""
        self.live().updated_ms = now_ms
        self._touched = True

    def list_again(self) -> None:
        """Have the stream listed by when it expires."""
        self._put(due_effect(self.partition, self.name, self.live()))

    def keep_changes(self, changes: Iterable[SettingsChange]) -> None:
        """Have changes of settings written."""
        for change in changes:
            at = f"{change.seq}:{change.time_ms}:{change.number}"
            blob = wire.checksummed(wire.encode(change), "changes", self.name, at)
            self.write("HSET", keys.changes, at, blob)

    def keep_hindsight(self, hindsight: StoredHindsight) -> None:
        """Have a segmentation in hindsight written."""
        blob = wire.checksummed(wire.encode(hindsight), "hindsight", self.name)
        self._put(("HSET", keys.hindsight(self.partition), self.name, blob))

    def drop_hindsight(self) -> None:
        """Have the segmentation in hindsight removed: it is of what is not so any more."""
        self._put(("HDEL", keys.hindsight(self.partition), self.name))

    def keep_events(self, events: Sequence[Event]) -> None:
        """Have events written without publishing them."""
        pairs: list[Argument] = []
        for event in events:
            at = f"{event.kind}:{event.id}"
            pairs += (at, wire.checksummed(wire.encode(event), "events", self.name, at))
        if pairs:
            self.write("HSET", keys.events, *pairs)
        changes = {event.id: event for event in events if event.kind == "change"}
        if changes:
            self._recent_events = {**self._recent_events, **changes}

    def raise_events(self, events: Sequence[Event], time: str | None) -> None:
        """Have events written and published; `time` is the observation's."""
        self.keep_events(events)
        self._raised += tuple((event, time) for event in events)

    def take_raised(self) -> list[tuple[Event, str | None]]:
        """Return the events raised since the last call, in order."""
        raised = self._raised
        self._raised = ()
        return list(raised)

    def events(self, store: Store) -> dict[int, Event]:
        """All changepoint events of this generation, by id."""
        events = store.events(self.partition, self.name) | self._recent_events
        return dict(sorted(events.items()))

    def remember(
        self, field: bytes, record: IdempotencyRecord, keep_s: float, keep_requests: int
    ) -> None:
        """Keep a keyed outcome; forget those that are old and not among the newest."""
        if not self.remembered:
            self.remembered = {}
        before = self._remembered_bytes
        self.remembered[field] = record
        at = keys.text_of(field)
        blob = wire.checksummed(wire.encode(record), "idempotency", self.name, at)
        self.write("HSET", keys.idempotency, field, blob)
        self._remembered_bytes += _remembered_bytes(field, record)
        while len(self.remembered) > max(keep_requests, 1):
            oldest, first = next(iter(self.remembered.items()))
            if record.time_ms - first.time_ms <= 1000 * keep_s:
                break
            del self.remembered[oldest]
            self._remembered_bytes -= _remembered_bytes(oldest, first)
            self.write("HDEL", keys.idempotency, oldest)
        if self._table is not None:
            self._table.rows["slept_bytes"][self.at] += self._remembered_bytes - before

    def recall(self, stored: Mapping[bytes, bytes]) -> None:
        """Take stored keyed outcomes over, oldest first; raises UnreadablePart."""
        records = values_of("idempotency", self.name, stored)
        if records:
            by_time = sorted(zip(stored, records, strict=True), key=lambda pair: pair[1].time_ms)
            self.remembered = {**self.remembered, **dict(by_time)}
            self._remembered_bytes = sum(
                _remembered_bytes(field, record) for field, record in self.remembered.items()
            )

    # --- checkpoints ----------------------------------------------------------------------------

    def commit_checkpoint(self, state: bytes) -> None:
        """Have the next commit write the state at the stream's seq; it may sleep on.

        state: as of `packed_state`.
        """
        if self._table is not None:
            self._read_through(self._table)
        head = self._head
        assert head is not None
        head.checkpoint = head.seq
        head.checkpoint_ms = head.updated_ms
        self._enter_checkpoint(head)
        self._put(("HSET", keys.checkpoints(self.partition), self.name, state))
        self._touched = True

    @property
    def behind(self) -> int:
        """Observations since the last checkpoint of a stream that exists, which may sleep on."""
        return self.seq - self._checkpoint

    @property
    def _checkpoint(self) -> int:
        if self._table is not None:
            return int(self._table.rows["position"]["checkpoint"][self.at])
        return self.live().checkpoint

    def checkpoint_due(self, every: int) -> bool:
        """Whether a boundary of `every` observations was passed since the last checkpoint.

        A memory stores a regime at the step after its end was confirmed, and a tail is replayed as
        one after the last of them: with one, each confirmed change has a checkpoint after it.
        """
        head = self._head
        assert head is not None
        if head.settings.regimes and head.track.settled >= head.checkpoint:
            return True
        return self.seq >= self.due(every)

    def due(self, checkpoint_every: int) -> int:
        """Position at which a commit writes the state."""
        return int(_due(np.array([self.place]), np.array([self._checkpoint]), checkpoint_every)[0])

    def effects(self) -> tuple[list[Effect], list[Argument]]:
        """Everything the next commit must write, and fields of heads; afterwards nothing waits."""
        table = self._table
        if table is not None:
            self._read_through(table)
        head = self._head
        self._touched |= bool(self.tail.new)  # also of what lay beside the position
        effects = [*self._effects, *self.tail.effects()]
        self._effects = ()
        self.buffer = tuple(map(encoded_row, self.buffer))
        if head is not None and self.alive and self.broken is None and self.unserved is None:
            oldest = min(head.retained_from, head.checkpoint)  # it is replayed from there
            if oldest >= head.oldest + BLOCK:
                head.oldest = oldest
                self._touched = True
                effects.append(("DROP", keys.tail(self.partition, self.name), oldest))
        fields: list[Argument] = []
        if self._touched and head is not None:
            position = wire.checksummed_at(self.place, wire.encode_position(head))
            fields += (self.name, stored_records.with_block(position))
            settled = wire.encode_settled(head)
            digest = _digest_of(settled)
            if digest != self._settled:
                self._settled = digest
                own = wire.checksummed(settled, "head", self.name)
                fields += (keys.settled_field(self.name), own)
            if self.alive and head.settings.ttl is not None:
                effects.append(due_effect(self.partition, self.name, head))
        self._touched = False
        if table is not None and head is not None:
            self._enter_checkpoint(head)
            table.rows["waits"][self.at] = False
            table.rows["writes"][self.at] = False
            self._forget_position()
        return effects, fields

    def _enter_checkpoint(self, head: Head) -> None:
        """Have its row, if it is asleep, say the same of checkpoint and tail as the head."""
        if self._table is None:
            return
        row = self._table.rows[self.at]
        position = row["position"]
        position["checkpoint"] = head.checkpoint
        position["checkpoint_ms"] = head.checkpoint_ms
        position["oldest"] = head.oldest
        row["due"] = self.due(self._table.checkpoint_every)


def _digest_of(settled: bytes) -> bytes:
    """Eight bytes that stand for a settled part: as bytes it takes four times as many."""
    return blake2b(settled, digest_size=8).digest()


# --- many streams that are asleep: nothing here costs a call for each of them ---------------------


class Changes(NamedTuple):
    """Part of a commit: see `Commit`; and entries of the feed, by their ids."""

    effects: list[Effect]
    pushed: Pushed = Pushed()
    feed: Sequence[tuple[Id, bytes]] = ()


class Asleep(NamedTuple):
    """Streams of which only position, tail and state move, with their rows as they are.

    names: by partition. places: of the rows in the table. further: as of `Table`, by place among
    them. sizes, records: as of `Table.take_kept`. states: by place, those that are written, as of
    `packed_state`.
    """

    table: Table
    names: Mapping[int, Sequence[str]]
    places: Ints
    rows: Rows
    further: Mapping[int, list[float]]
    sizes: Ints
    records: bytes
    states: dict[int, bytes]

    @property
    def due(self) -> list[int]:
        """Places of those whose state is to be written."""
        return np.flatnonzero(self.rows["position"]["seq"] >= self.rows["due"]).tolist()

    def stream(self, i: int) -> Stream:
        """One of the streams."""
        return cast("Stream", self.table.streams[self.places[i]])


def parted(
    table: Table, of_partition: Mapping[int, Ints]
) -> tuple[Asleep, dict[int, list[Stream]]]:
    """Streams of which only position, tail and state move, and all others, of rows by partition.

    Their heads say nothing new but of observations that they slept through. They stay in order, and
    the others by partition. What else waits for a commit, as keyed outcomes do, is written as it
    is.
    """
    places = np.concatenate([NO_PLACES, *of_partition.values()])
    rows = table.of(places)
    moved = rows["moved"]  # none of one that is awake
    alone = ~rows["waits"] & (moved > 0) & (moved + rows["beside"] <= BLOCK)
    names = {}
    others = {}
    end = 0
    for partition, own in of_partition.items():
        end += len(own)
        asleep = alone[end - len(own) : end]
        names[partition] = [table.names[at] for at in own[asleep].tolist()]
        others[partition] = table.streams_of(own[~asleep])
    chosen = places[alone]
    if len(chosen) < len(places):
        rows = table.of(chosen)
    vectors = (rows["outputs"] > 1).nonzero()[0].tolist() if table.further else []
    further = {i: table.further[chosen.item(i)] for i in vectors}
    table.rows["moved"][chosen] = 0
    kept = table.take_kept(chosen)
    return Asleep(table, names, chosen, rows, further, *kept, {}), others


def changes_of(moved: Asleep, others: Mapping[int, Sequence[Stream]]) -> dict[int, Changes]:
    """What writes streams, as they were `parted`, by partition; then nothing waits.

    The heads of the others of a partition are one HSET.
    """
    states = _checkpoints(moved)
    pushed = _pushed(moved)
    written = {}
    for partition, streams in others.items():
        own = states.get(partition, [])
        feed: list[tuple[Id, bytes]] = []
        heads: list[Argument] = []
        for stream in streams:
            effects, fields = stream.effects()
            own += effects
            heads += fields
            feed += stream.feed
            stream.feed = ()
        if heads:
            own.append(("HSET", keys.heads(partition), *heads))
        written[partition] = Changes(own, pushed.get(partition, Pushed()), feed)
    for stream in moved.table.streams_of(moved.places[moved.rows["writes"]]):
        written[stream.partition].effects.extend(stream._effects)
        stream._effects = ()
        moved.table.rows["writes"][stream.at] = False
    for partition, arguments in _listed(moved).items():
        written[partition].effects.append(("ZADD", keys.due(partition), *arguments))
    return written


def _listed(moved: Asleep) -> dict[int, list[Argument]]:
    """When streams expire that were listed too far from it, and their names, by partition."""
    due: defaultdict[int, list[Argument]] = defaultdict(list)
    rows = moved.rows
    limited = (rows["ttl"] == rows["ttl"]).nonzero()[0]  # the others are nan
    if len(limited):
        rows = rows[limited]
        lives_ms = 1000 * rows["ttl"]
        expire_ms = rows["position"]["updated_ms"] + lives_ms
        far = np.abs(expire_ms - rows["listed_ms"]) > LISTED_SHARE * lives_ms
        for i, at_ms in zip(limited[far].tolist(), expire_ms[far].tolist(), strict=True):
            stream = moved.stream(i)
            moved.table.rows["listed_ms"][stream.at] = at_ms
            due[stream.partition] += (int(at_ms), stream.name)
    return due


def _due(places: Ints, checkpoints: Ints, every: int) -> Ints:
    """Positions (B,) at which states are due; places: of streams, by which they differ."""
    phases = places % every
    return every * ((checkpoints + phases) // every + 1) - phases


def _checkpoints(moved: Asleep) -> dict[int, list[Effect]]:
    """What writes states, by partition; rows have them as checkpoints from here on.

    The oldest records go with them, as far as they are past the history.
    """
    if not moved.states:
        return {}
    at = np.array([*moved.states])
    rows = moved.rows[at]
    position = rows["position"]
    position["checkpoint"] = position["seq"]
    position["checkpoint_ms"] = position["updated_ms"]
    oldest = position["seq"] - rows["history"]
    gone = oldest >= position["oldest"].astype(np.int64) + BLOCK
    position["oldest"] = np.where(gone, oldest, position["oldest"])
    every = moved.table.checkpoint_every
    rows["due"] = _due(rows["position_place"].astype(np.int64), position["seq"], every)
    moved.rows[at] = rows
    rows["moved"] = 0
    moved.table.put(moved.places[at], rows)
    fields: defaultdict[int, list[Argument]] = defaultdict(list)
    for i, state in moved.states.items():
        stream = moved.stream(i)
        fields[stream.partition] += (stream.name, state)
    effects: dict[int, list[Effect]] = {
        partition: [("HSET", keys.checkpoints(partition), *own)]
        for partition, own in fields.items()
    }
    for i, first in zip(at[gone].tolist(), oldest[gone].tolist(), strict=True):
        stream = moved.stream(i)
        key = keys.tail(stream.partition, stream.name)
        effects[stream.partition].append(("DROP", key, first))
    return effects


def _pushed(moved: Asleep) -> dict[int, Pushed]:
    """Tails and positions of streams of which only these move, by partition."""
    from model_core.compiled.checksums import enter_positions  # numba: half a second

    # Made at once: a call of numpy takes as long for one as for a hundred.
    table = moved.table
    rows = moved.rows
    places = moved.places
    held = rows["beside_bytes"].astype(np.int64)
    counts = rows["moved"] + rows["beside"]
    together = held + moved.sizes
    full = (counts >= TOGETHER) | (together > BESIDE_BYTES)
    table.rows["beside"][places] = np.where(full, 0, counts)
    table.rows["beside_bytes"][places] = np.where(full, 0, together)
    further = {i: stored_records.further_bytes(own) for i, own in moved.further.items()}
    sizes = np.zeros(len(rows), np.int64)
    sizes[[*further]] = [*map(len, further.values())]
    (positions, ends_of_positions), (tails, ends_of_tails) = stored_records.elements(
        np.stack((rows["position_place"], rows["tail_place"]), 1).astype(np.int64),
        np.ascontiguousarray(stored_records.bytes_of(rows)[:, : POSITION.itemsize]),
        sizes,
        b"".join(further.values()),
        Blocks(
            rows["position"]["seq"] - counts,
            counts,
            full,
            table.beside,
            places,
            held,
            np.frombuffer(moved.records, np.uint8),
            moved.sizes,
        ),
        enter_positions,
    )
    for i in (counts > FEW).nonzero()[0].tolist():
        moved.stream(i).tail.thin = 0
    pushed = {}
    end = 0
    of_tails = slice(0, 0)
    of_positions = slice(0, 0)
    to_tails = full.tolist()
    for partition, names in moved.names.items():
        if not names:
            continue
        begin = end
        end += len(names)
        of_tails = slice(of_tails.stop, ends_of_tails[end - 1])
        of_positions = slice(of_positions.stop, ends_of_positions[end - 1])
        chosen = list(compress(names, to_tails[begin:end]))
        pushed[partition] = Pushed(
            names,
            stored_records.packed(len(names), positions[of_positions]),
            chosen,
            stored_records.packed(len(chosen), tails[of_tails]),
        )
    return pushed


def _remembered_bytes(field: bytes, record: IdempotencyRecord) -> int:
    size = 400 + len(field) + sum(len(part) + 50 for part in record.body)
    if record.answers is None:
        return size
    quiet = [
        part
        for part in record.answers.parts
        if isinstance(part, QuietAnswers) and part.beliefs is None
    ]
    others = len(record.answers.parts) - len(quiet)
    size += sum(len(part.rows) + 100 for part in quiet)
    # Numbers that are objects take four times their encoded size.
    return size + (4 * len(wire.encode(record.answers)) if others else 0)
