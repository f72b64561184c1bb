"""Positions of heads as they are stored: a kind (u8), then numbers at fixed places.

So is that of nearly every stream, of one output, that was filtered. Any other is the whole in
msgpack. Workers keep those of streams at rest as rows of an array, which begin as what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan
from operator import attrgetter
from struct import Struct
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.wire.records import Head, Pace, Position

# Kinds of positions, and what is added to NUMBERS.
WHOLE = 0
NUMBERS = 1
TIMED = 2  # the last observation that had a time was at one
PACED = 4  # its pace is followed
TOO_MANY = 1 << 32  # observations of a stream whose position is the whole
_ALWAYS = {
    "seq": "I",
    "scored": "I",
    "map_run_length": "I",
    "best_start": "I",
    "updated_ms": "q",
    "changed_probability": "d",
    "evidence": "d",
    "pruned_mass": "d",
    "log_score_sum": "d",
    "pruned_mass_sum": "d",
    "last_label": "d",
}
_TIME = {"last_time": "d"}
_PACE = {"since": "d", "timed": "B", "seen": "I", "per_day": "d"}  # `Pace`; per_day nan: None
_TYPES = {"B": "u1", "I": "<u4", "q": "<i8", "d": "<f8"}
_FIELDS = _ALWAYS | _TIME | _PACE
POSITION = np.dtype([("kind", "u1"), *((name, _TYPES[form]) for name, form in _FIELDS.items())])
_numbers = Struct("<B" + "".join(_FIELDS.values()))
# Where the parts that not every position has begin; those missing are nan and 0.
_TIME_AT = 1 + Struct("<" + "".join(_ALWAYS.values())).size
_PACE_AT = _TIME_AT + Struct("<" + "".join(_TIME.values())).size
_NO_TIME = Struct("<d").pack(nan)
_NO_PACE = Struct("<" + "".join(_PACE.values())).pack(nan, 0, 0, nan)
_all = attrgetter(*Position.__struct_fields__)
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[Any], Position] = msgspec.msgpack.Decoder(Position).decode
Numbers = tuple[float, ...]  # of `POSITION`


def numbers_of(head: Head) -> Numbers | None:
    """Return a head's position as numbers of `POSITION`; None where it has others.

    Its kind says what is stored of them; where nothing is known it is nan.
    """
    last = head.last_label
    if last is None or len(last) != 1 or last[0] is None or head.regime is not None:
        return None
    if head.changed_probability is None or head.evidence is None or head.map_run_length is None:
        return None
    pace = Pace(nan, False) if head.pace is None else head.pace
    if max(head.seq, head.scored, pace.seen) >= TOO_MANY:
        return None
    return (
        NUMBERS + TIMED * (head.last_time is not None) + PACED * (head.pace is not None),
        head.seq,
        head.scored,
        head.map_run_length,
        head.best_start,
        head.updated_ms,
        head.changed_probability,
        head.evidence,
        head.pruned_mass,
        head.log_score_sum,
        head.pruned_mass_sum,
        last[0],
        nan if head.last_time is None else head.last_time,
        pace.since,
        pace.timed,
        pace.seen,
        nan if pace.per_day is None else pace.per_day,
    )


def enter_numbers(position: Position, numbers: Numbers) -> None:
    """Enter numbers of `POSITION` into a position, or a head."""
    (
        _,
        position.seq,
        position.scored,
        position.map_run_length,
        position.best_start,
        position.updated_ms,
        position.changed_probability,
        position.evidence,
        position.pruned_mass,
        position.log_score_sum,
        position.pruned_mass_sum,
        last_label,
        last_time,
        since,
        timed,
        seen,
        per_day,
    ) = numbers  # type: ignore[assignment]
    position.last_label = [last_label]
    position.last_time = None if isnan(last_time) else last_time
    position.regime = None
    position.pace = None
    if not isnan(since):
        position.pace = Pace(since, bool(timed), int(seen), None if isnan(per_day) else per_day)


def encode_position(head: Head) -> bytes:
    """Encode the part of a head that every observation moves."""
    numbers = numbers_of(head)
    if numbers is None:
        return bytes([WHOLE]) + _encode(_all(head))
    (body,) = _cut([_numbers.pack(*numbers)], [int(numbers[0])])
    return body


def encode_positions(rows: NDArray[Any]) -> list[bytes]:
    """Encode rows (B,) of `POSITION`, whatever their kinds."""
    rows = rows.copy()
    rows["kind"] = NUMBERS + TIMED * ~np.isnan(rows["last_time"]) + PACED * ~np.isnan(rows["since"])
    return _cut(rows.view(f"V{rows.itemsize}").tolist(), rows["kind"].tolist())


def _cut(bodies: list[bytes], kinds: list[int]) -> list[bytes]:
    """What is stored of positions of kinds."""
    if kinds.count(NUMBERS) == len(kinds):
        return [body[:_TIME_AT] for body in bodies]
    return [
        body[: _PACE_AT if kind & TIMED else _TIME_AT] + (body[_PACE_AT:] if kind & PACED else b"")
        for body, kind in zip(bodies, kinds, strict=True)
    ]


def decode_position(body: bytes) -> Position:
    """Decode what `encode_position` made; raises MsgspecError, IndexError or struct.error."""
    kind = body[0]
    if kind == WHOLE:
        return _decode(memoryview(body)[1:])
    rest = body[_TIME_AT:]
    time, pace = (rest[:8], rest[8:]) if kind & TIMED else (_NO_TIME, rest)
    position = Position()
    whole = body[:_TIME_AT] + time + (pace if kind & PACED else pace + _NO_PACE)
    enter_numbers(position, _numbers.unpack(whole))
    return position
