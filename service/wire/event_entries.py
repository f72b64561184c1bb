"""The feed of events: its entries, their ids, and what a reader asks for.

Every state that an event enters is one entry of its partition's feed, written in the commit that
raises it. Its id follows from the place of the command in the log, so that the same effect has
the same id however often it is tried, and ids rise in the order of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import Struct

from service.wire import Event, checksummed, tags

log = logging.getLogger(__name__)

# The second half of an id has 64 bits: the log entry's own, the command's, the event's number.
SEQ_BITS = 32
INDEX_BITS = 20
EVENT_BITS = 12
STATES = ("suspected", "confirmed", "withdrawn")
CHANGES = frozenset({"change"})  # what readers mean who name no kind
KINDS = frozenset({"change", "returned", "anomaly"})


class Id(NamedTuple):
    """Id of an entry: milliseconds, and a number within them."""

    ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"

    @classmethod
    def parse(cls, text: str | bytes) -> Id:
        """Read the text form."""
        ms, _, number = (text if isinstance(text, str) else text.decode()).partition("-")
        return cls(int(ms), int(number))


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
_decode = msgspec.msgpack.Decoder(Raised).decode


def id_of(entry: str, index: int, number: int) -> Id:
    """Id of the `number`-th event raised by command `index` of a log entry."""
    ms, seq = Id.parse(entry)
    if seq >> SEQ_BITS or index >> INDEX_BITS or number >> EVENT_BITS:
        raise ValueError(f"no id for event {number} of command {index} of {entry}")
    return Id(ms, (seq << INDEX_BITS | index) << EVENT_BITS | number)


def encode(raised: Raised, number: str) -> bytes:
    """Encode an entry. number: see `number_of`."""
    return checksummed(_encode(raised), "feed", number)


def decode(blob: bytes) -> Raised:
    """Decode an entry without its checksum; raises msgspec.MsgspecError."""
    return _decode(blob)


def number_of(partition: int, id_: Id | str) -> str:
    """Return the number of an entry, unique among all partitions."""
    return f"evt_{partition}_{id_}"


def positions(pairs: Iterable[tuple[int, Id]]) -> dict[int, Id]:
    """Positions by partition, without those at the start."""
    return {partition: id_ for partition, id_ in pairs if id_ > START}
