"""Rows of streams to bytes and back: surviving hypotheses only, versioned and checksummed.

Layout: `MOCA`, version (u16), header length (u32), header (JSON), numbers of the arrays
(little-endian, in the header's order), CRC-32 of all before it (u32). First come all their first
bytes, then all second ones, and so on: signs and exponents, which compress, lie together. The
arrays are the slots of the hypotheses, their
lines of `table.Layout`, of a symmetric matrix those of its lower triangle, the head, and the
statistics of stored regimes. There is one format; a state of another is refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from model_core import anomaly, correction
from model_core.errors import BadState
from model_core.regimes import NEXT_ID, OF_EACH, REGIMES, SETTLED
from model_core.stream import resolution, season
from model_core.table import (
    CHANGES,
    GAP,
    LOG_PROB,
    PREVIOUS,
    RUN_LENGTH,
    SEQ,
    STEPS,
    Layout,
    statistics_line,
)

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
MAGIC = b"MOCA"
VERSION = 9
_PREFIX = struct.Struct("<4sHI")
_CHECKSUM = struct.Struct("<I")
_DTYPES = {"f64": np.dtype("<f8"), "i64": np.dtype("<i8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SLOTS = "slots"
_LINES = "lines"
_HEAD = "head"
_RANKS = "anomaly"
_ERRORS = "errors"
_HELD = "held"
_SEASON = "season"
_REGIMES = "regimes"


class StreamRow(NamedTuple):
    """All that is kept of one stream, on the host: lines (L, W) and head (H,) of `table.Layout`.

    ranks, errors: states of `anomaly` and `correction`. held: of repeated labels. resolution:
    (d + 1,), see `resolution`; bytes do not have it, as they do not have location and scale.
    """

    lines: Floats
    head: Floats
    ranks: Floats
    errors: Floats
    held: Floats
    resolution: Floats

    @property
    def seq(self) -> int:
        """Observations that were applied."""
        return int(self.head[SEQ])


def encode(layout: Layout, own: StreamRow, seasons: Floats | None = None) -> bytes:
    """Bytes of one stream; seasons: state of `season`."""
    alive = np.isfinite(own.lines[LOG_PROB, : layout.slots]).nonzero()[0]
    arrays: Arrays = {
        _SLOTS: alive.astype(np.int64),
        _LINES: own.lines.take(_stored(layout), 0).take(alive, 1),  # in half the time of an index
        _HEAD: own.head,
        _RANKS: own.ranks,
        _ERRORS: own.errors,
    }
    if own.resolution[-1]:
        arrays[_HELD] = own.held
    if layout.regimes:
        arrays[_REGIMES] = own.lines[_of_regimes(layout)]
    if seasons is not None:
        arrays[_SEASON] = seasons
    return _packed(_begin_of_state(layout.kind, _table(arrays)), arrays)


def decode(layout: Layout, like: StreamRow, blob: bytes) -> StreamRow:
    """What `encode` made bytes of; like: any row of such a stream, for what bytes do not have.

    Raises BadState for a wrong checksum, an unknown version, another model kind, or numbers that
    cannot be a state of the model.
    """
    arrays = _arrays(blob, layout.kind)
    stored = _stored(layout)
    kept = arrays.get(_LINES)
    if kept is None or kept.ndim != 2 or kept.dtype != np.float64 or len(kept) != len(stored):
        raise BadState(f"state has no array {_LINES!r} of {len(stored)} lines")
    names = {"head": _HEAD, "ranks": _RANKS, "errors": _ERRORS}
    if like.resolution[-1]:
        names["held"] = _HELD
    parts = {part: _fitting(arrays, name, getattr(like, part)) for part, name in names.items()}
    own = like._replace(lines=kept, **parts)
    check(layout, own)
    slots = _slots(arrays, kept.shape[1], layout.slots)
    begun = np.isfinite(like.lines[LOG_PROB]).any()
    lines = layout.resized(like.lines[None], 0)[0] if begun else like.lines.copy()
    lines[np.ix_(stored, slots)] = kept
    for leaf in layout.symmetric:
        size = leaf.shape[-1]
        places = np.arange(leaf.lines.start, leaf.lines.stop).reshape(-1, size, size)
        rows, columns = np.tril_indices(size)
        lines[places[:, columns, rows].ravel()] = lines[places[:, rows, columns].ravel()]
    if layout.regimes:
        stored_regimes = _fitting(arrays, _REGIMES, lines[_of_regimes(layout)])
        if not np.isfinite(stored_regimes).all():
            raise BadState(f"state's array {_REGIMES!r} has numbers that are not finite")
        lines[_of_regimes(layout)] = stored_regimes
        lines[_of_regimes(layout)[0], layout.slots : layout.stored.start] = stored_regimes[:, -1:]
    return own._replace(lines=lines)


def check(layout: Layout, own: StreamRow) -> None:
    """Raise BadState for numbers that no stream has, which a kernel would not look at.

    own: with lines of the hypotheses there are (L, n).
    """
    kept = own.lines
    head = own.head
    max_hypotheses = layout.max_hypotheses
    seq = head[SEQ]
    count = kept.shape[1]
    least = int(seq != 0)  # no hypotheses before the first observation
    if not least <= count <= max_hypotheses:
        raise BadState(f"state has {count} hypotheses, expected {least} to {max_hypotheses}")
    if not (np.isfinite(kept).all() and np.isfinite(head).all()):
        raise BadState("state has numbers that are not finite")
    _check_whole("seq", head[[SEQ]], 0, 2.0**53)
    _check_whole("run lengths", kept[RUN_LENGTH], 0, seq - 1)
    _check_whole("previous starts", kept[PREVIOUS], -1, seq - 1)
    passed = kept[[CHANGES, GAP]]
    if head[STEPS] < 0 or (passed < 0).any() or (kept[CHANGES] > seq).any():
        raise BadState("state has numbers of steps, changes or gaps that no stream has")
    if (kept[LOG_PROB] > 1e-6).any():
        raise BadState("state has log probabilities that are none")
    _check_beside(own)
    if layout.regimes:  # all lines are kept
        _check_memory(layout, kept, head)


def _check_beside(own: StreamRow) -> None:
    """Raise BadState for what lies beside a filter that no stream has."""
    if not anomaly.valid(own.ranks):
        raise BadState(f"state's array {_RANKS!r} is no sketch of ranks")
    if not correction.valid(own.errors):
        raise BadState(f"state's array {_ERRORS!r} is no state of errors of forecasts")
    if not resolution.valid(own.held, own.head[SEQ]):
        raise BadState(f"state's array {_HELD!r} is no state of repeated labels")


def _check_memory(layout: Layout, kept: Floats, head: Floats) -> None:
    """Raise BadState for origins and numbers of a memory that no stream has."""
    numbers = head[layout.numbers :]
    most = head[SEQ]
    _check_whole("origins", kept[[layout.origin, layout.ended]], 0, layout.regimes)
    _check_whole("settled positions", numbers[[SETTLED]], -1, 2.0**53)
    _check_whole("ids to come", numbers[[NEXT_ID]], 1, 2.0**53)
    ids, seen, last_seen = numbers[REGIMES:].reshape(OF_EACH, -1)
    _check_whole("ids of regimes", ids, 0, numbers[NEXT_ID] - 1)
    _check_whole("times that regimes were seen", seen, 0, most)
    _check_whole("positions of regimes", last_seen, 0, most)
    returns = kept[layout.returns]
    if ((returns < 0) | (returns > kept[CHANGES] + 1e-6)).any():
        raise BadState("state has numbers of returns that no stream has")
    there = ids[ids > 0]
    if len(np.unique(there)) < len(there) or (seen[ids > 0] < 1).any():
        raise BadState("state has regimes with one id, or that were never seen")


def decode_season(kind: str, outputs: int, blob: bytes) -> Floats:
    """State of `season` from bytes. Raises BadState, also where there is none."""
    values = _arrays(blob, kind).get(_SEASON)
    if values is None:
        raise BadState(f"state has no array {_SEASON!r}")
    if not season.valid(values) or len(values) != outputs:
        raise BadState(f"state's array {_SEASON!r} is no state of a season")
    return values


def pack(magic: bytes, version: int, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """Bytes of named arrays of float64 and int64, and of a header (JSON), with a checksum."""
    return _packed(_begin(magic, version, {**header, "arrays": _table(arrays)}), arrays)


def _packed(begin: bytes, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    numbers = b"".join([array.tobytes() for array in arrays.values()])
    body = begin + np.frombuffer(numbers, np.uint8).reshape(-1, 8).T.tobytes()
    return body + _CHECKSUM.pack(crc32(body))


def _begin(magic: bytes, version: int, header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _PREFIX.pack(magic, version, len(text)) + text


@lru_cache(1024)  # as of `_header`
def _begin_of_state(kind: str, table: tuple[Any, ...]) -> bytes:
    return _begin(MAGIC, VERSION, {"kind": kind, "arrays": table})


def _table(arrays: Mapping[str, NDArray[Any]]) -> tuple[Any, ...]:
    """Name, type and shape of arrays."""
    return tuple([(name, _NAMES[array.dtype], array.shape) for name, array in arrays.items()])


def unpack(magic: bytes, version: int, blob: bytes) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of what `pack` made. Raises BadState."""
    if len(blob) < _PREFIX.size + _CHECKSUM.size:
        raise BadState(f"state of {len(blob)} bytes is truncated")
    body = blob[: -_CHECKSUM.size]
    own_magic, own_version, length = _PREFIX.unpack_from(body)
    if own_magic != magic:
        raise BadState(f"state begins with {own_magic!r}, expected {magic!r}")
    if own_version != version:
        raise BadState(f"state has format {own_version}, expected {version}")
    if _CHECKSUM.pack(crc32(body)) != blob[-_CHECKSUM.size :]:
        raise BadState("state's checksum does not match its bytes")
    start = _PREFIX.size + length
    header, table = _header(body[_PREFIX.size : start])
    count = max(0, len(body) - start) // 8
    numbers = np.frombuffer(body, np.uint8, 8 * count, start).reshape(8, -1).T.tobytes()
    arrays = {}
    at = 0
    for name, dtype, shape in table:
        end = at + prod(shape)
        if max(shape, default=0) > count or end > count:
            raise BadState(f"state's array {name!r} of shape {shape} is missing")
        own = np.frombuffer(numbers[8 * at : 8 * end], _DTYPES[dtype])
        arrays[name] = own.reshape(shape).copy()
        at = end
    if start + 8 * at != len(body):
        raise BadState(f"state has {len(body) - start - 8 * at} unexpected bytes after its arrays")
    return {**header}, arrays  # the header is kept for the next


def _arrays(blob: bytes, kind: str) -> Arrays:
    header, arrays = unpack(MAGIC, VERSION, blob)
    made_by = header.get("kind")
    if made_by != kind:
        raise BadState(f"state was made by a model of kind {made_by!r}, not {kind!r}")
    return arrays


@lru_cache  # states of a model have few different ones
def _header(text: bytes) -> tuple[dict[str, Any], list[tuple[str, str, list[int]]]]:
    """The header, and name, type and shape of each array."""
    try:
        header: dict[str, Any] = json.loads(text)
        table = [(name, d, shape) for name, d, shape in header["arrays"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadState(f"state's header cannot be read: {error!r}") from error
    for name, dtype, shape in table:
        sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        if not isinstance(name, str) or not isinstance(dtype, str) or not sizes:
            raise BadState(f"state's header has {[name, dtype, shape]} for an array")
        if dtype not in _DTYPES:
            raise BadState(f"state's array {name!r} is of unknown type {dtype!r}")
    return header, table


def _fitting(arrays: Arrays, name: str, like: NDArray[Any]) -> NDArray[Any]:
    value = arrays.get(name)
    if value is None:
        raise BadState(f"state has no array {name!r}")
    if value.shape != like.shape or value.dtype != like.dtype:
        raise BadState(
            f"state's array {name!r} is {value.dtype} {list(value.shape)}, "
            f"expected {like.dtype} {list(like.shape)}"
        )
    return value


def _slots(arrays: Arrays, count: int, room: int) -> NDArray[np.int64]:
    """Slots of the hypotheses: their own, so that sums over them are the same to the last bit.

    The first ones where there is less room.
    """
    slots = _fitting(arrays, _SLOTS, np.empty(count, dtype=np.int64))
    if count and (slots[0] < 0 or (np.diff(slots) <= 0).any()):
        raise BadState(f"state's array {_SLOTS!r} is not ascending from 0 on")
    return slots if not count or slots[-1] < room else np.arange(count)


def _check_whole(name: str, values: Floats, least: float, most: float) -> None:
    """Raise BadState for places that a kernel could not look up."""
    if not ((values == np.floor(values)) & (values >= least) & (values <= most)).all():
        raise BadState(f"state has {name} that are no whole numbers from {least:g} to {most:g}")


def _of_regimes(layout: Layout) -> tuple[slice, slice]:
    """Lines and columns of the statistics of stored regimes, and of the prior that they widened."""
    return slice(statistics_line(layout.outputs), layout.origin), slice(layout.stored.start, None)


@lru_cache(8)  # of few models at a time
def _stored(layout: Layout) -> NDArray[np.int64]:
    """Lines that are stored: of a symmetric matrix those of its lower triangle.

    Of rows with a memory all of them.
    """
    if layout.regimes or not layout.symmetric:
        return np.arange(layout.height)
    mirrored = np.zeros(layout.height, dtype=bool)
    for leaf in layout.symmetric:
        upper = ~np.tri(leaf.shape[-1], dtype=bool)
        mirrored[leaf.lines] = np.broadcast_to(upper, leaf.shape).ravel()
    return np.flatnonzero(~mirrored)
