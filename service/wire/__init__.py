"""What travels through Redis: commands, outcomes, and a stream's stored parts (msgpack, typed).

A LogEntry has commands of one API process. An Outcome is the committed result of one command.
Head and Record are what a stream keeps; how they lie there says `service.wire.stored_records`.
The order of their fields is part of the stored format: another one needs another FORMAT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import TypeVar
from zlib import crc32

import msgspec
import numpy as np

from model_core.stream.events import Event
from model_core.stream.state import KnownRegime, SeasonPeriods
from model_core.stream_settings import StreamSettings
from service.wire.commands import (
    BACKGROUND,
    LEVELS,
    READ_ONLY,
    Act,
    Answers,
    BeliefSummary,
    Command,
    CommandSum,
    Configure,
    Delete,
    Envelope,
    EventFeedback,
    Exclude,
    Expire,
    Id,
    Import,
    Ingest,
    Label,
    LogEntry,
    Move,
    NameRegime,
    Observation,
    Observe,
    ObserveMany,
    Outcome,
    PlannedSpan,
    Predict,
    QuietAnswers,
    QuietRows,
    Regimes,
    RunLength,
    SegmentHistory,
    SetBelief,
    StoredAnswer,
    Sums,
    WhatIf,
    latest,
    numbers,
    outputs_of,
    partial,
    settings_of,
)
from service.wire.records import (
    Head,
    IdempotencyRecord,
    Pace,
    PendingSettings,
    Position,
    Record,
    SettingsChange,
    SettledHead,
    StoredHindsight,
    TaggedHead,
    joined,
    settled_values,
    shared,
    updated,
)
from service.wire.stored_records import (
    decode_block,
    decode_columns,
    decode_position,
    decode_row,
    encode_position,
    encode_row,
)

T = TypeVar("T")
FORMAT = 28  # of all that the store and backups hold; one of another format is refused
encode = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(LogEntry).decode
decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
decode_sums = msgspec.msgpack.Decoder(Sums).decode
decode_results = msgspec.msgpack.Decoder(list[Outcome]).decode
decode_settled = msgspec.msgpack.Decoder(SettledHead).decode
decode_tagged = msgspec.msgpack.Decoder(TaggedHead).decode
decode_change = msgspec.msgpack.Decoder(SettingsChange).decode
decode_hindsight = msgspec.msgpack.Decoder(StoredHindsight).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
decode_idempotency = msgspec.msgpack.Decoder(IdempotencyRecord).decode


def encode_settled(head: Head) -> bytes:
    """Encode the part of a head that few observations change."""
    return encode(settled_values(head))


def units(command: Command | ObserveMany) -> int:
    """What a command counts for in backpressure: its observations, or one."""
    if isinstance(command, Observe):
        return len(command.observations)
    return len(command.y) // 8 if isinstance(command, ObserveMany) else 1


def grouped(items: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """Cut items, in order, into groups of at most `most` together; a larger item is alone."""
    groups: list[list[T]] = []
    room = 0
    for item in items:
        own = size(item)
        if not groups or own > room:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= own
    return groups


# --- checksums ------------------------------------------------------------------------------------

# A damaged part is refused before anything of it is used.
#
# Layout: 0xC1, CRC-32 of place and body (u32, little-endian), body. The place (kind of part, owner,
# field) is in the checksum and not stored, so that bytes that belong elsewhere do not fit. The
# partition is no part of the place: a backup may be restored with another number of them.
#
# CRC-32 finds all damage within 32 neighbouring bits, and any other but for one in 4 billion. It
# takes 4 bytes and the time of reading them once. It is no protection against forgery.

CHECKSUM_MARK = b"\xc1"
CHECKSUM_SIZE = 5  # of what precedes the body
_SUM = np.dtype([("mark", "u1"), ("crc", "<u4")])


class Damaged(ValueError):
    """Bytes that do not fit their checksum at this place."""


def place_of(part: str, owner: object, field: object = "") -> int:
    """Return what the checksums at a place begin with, of part, owner and field."""
    return crc32(f"{part}\0{owner}\0{field}".encode())


def checksummed_at(place: int, body: bytes) -> bytes:
    """Return a body with its checksum; place: as of `place_of`."""
    return CHECKSUM_MARK + crc32(body, place).to_bytes(4, "little") + body


def checksummed_all(places: Iterable[int], bodies: Sequence[bytes]) -> list[bytes]:
    """Return bodies with their checksums; places: as of `place_of`, of each."""
    sums = np.empty(len(bodies), _SUM)
    sums["mark"] = CHECKSUM_MARK[0]
    sums["crc"] = list(map(crc32, bodies, places))
    return list(map(add, sums.view(f"V{CHECKSUM_SIZE}").tolist(), bodies))


def checksummed(body: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return a body with its checksum; part, owner and field are its place."""
    return checksummed_at(place_of(part, owner, field), body)


def checked(blob: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return the body of what `checksummed` made; raises Damaged."""
    return checked_at(place_of(part, owner, field), blob)


def checked_at(place: int, blob: bytes) -> bytes:
    """Return the body of what `checksummed_at` made; raises Damaged."""
    body = blob[CHECKSUM_SIZE:]
    if checksummed_at(place, body) != blob:
        raise Damaged("checksum mismatch")
    return body
