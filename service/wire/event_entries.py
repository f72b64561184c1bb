"""The feed of events: its entries, their ids, what a reader asks for, and how far it has come.

Every state that an event enters is one entry of its partition's feed, written in the commit that
raises it. Its id follows from the place of the command in the log, so that the same effect has
the same id however often it is tried, and ids rise in the order of the log.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import Struct

from service.wire import Event, Id, checksummed, tags

# The second half of an id has 64 bits: the log entry's own, the command's, the event's number.
SEQ_BITS = 32
INDEX_BITS = 20
EVENT_BITS = 12
STATES = ("suspected", "confirmed", "withdrawn")
CHANGES = frozenset({"change"})  # what readers mean who name no kind
KINDS = frozenset({"change", "returned", "anomaly"})
START = Id(0, 0)  # before every entry


class Raised(Struct, omit_defaults=True):
    """One entry: a stream's event entered a state. Part of the stored format."""

    stream: str
    model: str  # NAME@VERSION
    generation: int  # which life of the stream
    event: Event
    time: str | None = None  # of the observation that raised it, if the client sent one
    at_ms: int = 0  # the API's clock when it accepted that observation
    tags: dict[str, str] = {}  # of the stream at that time

    @property
    def change_id(self) -> str:
        """Text by which the incident of a change is asked for."""
        of = f"{self.stream}\0{self.generation}\0{self.event.id}"
        return blake2b(of.encode(), digest_size=6).hexdigest()


def kind_of(event: Event) -> str:
    """The kind of an event by which readers choose: a change is `returned` in a state in which it
    leads back to a remembered regime.
    """
    return event.kind if event.returned is None else "returned"


class FeedEntry(NamedTuple):
    """An entry as read. `before` is the id of the one before it, trimmed away or not."""

    partition: int
    id: Id
    before: Id
    raised: Raised | None  # None: it cannot be read


class Filter(Struct, frozen=True):
    """Which entries a reader wants; an empty part lets everything through. kinds: never empty."""

    streams: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    models: frozenset[str] = frozenset()  # NAME or NAME@VERSION
    states: frozenset[str] = frozenset()
    kinds: frozenset[str] = CHANGES
    match: tuple[tags.Selector, ...] = ()  # of streams; one has to fit

    def lets(self, raised: Raised) -> bool:
        """Whether an entry fits every part."""
        return (
            kind_of(raised.event) in self.kinds
            and (not self.states or raised.event.state in self.states)
            and self.lets_stream(raised.stream, raised.model, raised.tags)
        )

    def lets_stream(self, stream: str, model: str, stream_tags: Mapping[str, str]) -> bool:
        """Whether a stream fits every part that is of streams."""
        models = {model, model.partition("@")[0]}
        return (
            (not self.streams or stream in self.streams)
            and (not self.prefixes or stream.startswith(self.prefixes))
            and (not self.models or bool(self.models & models))
            and (not self.match or any(s.fits(stream, stream_tags) for s in self.match))
        )


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Raised).decode  # of an entry without its checksum


def id_of(entry: str, index: int, number: int) -> Id:
    """Id of the `number`-th event raised by command `index` of a log entry."""
    ms, seq = Id.parse(entry)
    if seq >> SEQ_BITS or index >> INDEX_BITS or number >> EVENT_BITS:
        raise ValueError(f"no id for event {number} of command {index} of {entry}")
    return Id(ms, (seq << INDEX_BITS | index) << EVENT_BITS | number)


def encode(raised: Raised, number: str) -> bytes:
    """Encode an entry. number: see `number_of`."""
    return checksummed(_encode(raised), "feed", number)


def number_of(partition: int, id_: Id | str) -> str:
    """Return the number of an entry, unique among all partitions."""
    return f"evt_{partition}_{id_}"


# --- cursors: how far a reader has come in every partition, as one short text --------------------

CHECK_BYTES = 4
_total = struct.Struct("<H")  # partitions of the deployment
_place = struct.Struct("<HQQ")  # partition, and the last id read of it


class BadCursor(ValueError):
    """A text that is no cursor of this deployment; the message says why."""


class Positions:
    """The last id read of each of a reader's partitions; `text` is the cursor."""

    def __init__(self, partitions: Iterable[int], total: int, positions: Mapping[int, Id]) -> None:
        self._total = total
        self._ids = {p: positions.get(p, START) for p in sorted(partitions)}

    def __getitem__(self, partition: int) -> Id:
        """Return the last id read."""
        return self._ids[partition]

    def move(self, partition: int, id_: Id) -> None:
        """Note that a partition was read up to an id."""
        self._ids[partition] = id_

    def behind(self, others: Mapping[int, Id]) -> dict[int, Id]:
        """Return the positions of those partitions in which `others` are further."""
        return {p: id_ for p, id_ in self._ids.items() if id_ < others.get(p, START)}

    def text(self) -> str:
        """Return the cursor; partitions at their start are left out."""
        places = [_place.pack(p, *id_) for p, id_ in self._ids.items() if id_ != START]
        blob = _total.pack(self._total) + b"".join(places)
        return text_of(blob + _check(blob))


def parse_cursor(text: str, total: int) -> dict[int, Id]:
    """Read a cursor of a deployment of `total` partitions; BadCursor when it is none."""
    try:
        blob = blob_of(text)
        body = blob[:-CHECK_BYTES]
        if _check(body) != blob[-CHECK_BYTES:] or text_of(blob) != text:
            raise ValueError
        (stated,) = _total.unpack_from(body)
        places = _place.iter_unpack(body[_total.size :])
    except (ValueError, struct.error):
        raise BadCursor("expected the unmodified id of a message of this call") from None
    if stated != total:
        raise BadCursor(
            f"expected a cursor of a service with {total} partitions, got one of {stated}: "
            "subscribe again without it"
        )
    return {partition: Id(ms, number) for partition, ms, number in places}


def text_of(blob: bytes) -> str:
    """Return bytes as text for a URL: base64 without padding."""
    return base64.urlsafe_b64encode(blob).rstrip(b"=").decode()


def blob_of(text: str) -> bytes:
    """Return what `text_of` had; ValueError for what it never gives."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _check(blob: bytes) -> bytes:
    return zlib.crc32(blob).to_bytes(CHECK_BYTES, "little")
