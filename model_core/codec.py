"""States to bytes and back: one stream, surviving hypotheses only, versioned and checksummed.

Layout: `MOCA`, version (u16), header length (u32), header (JSON), arrays (little-endian, in the
header's order), CRC-32 of all before it (u32). A symmetric matrix is stored as its lower triangle.
There is one format; a state of another is refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import anomaly
from model_core.belief import Belief
from model_core.errors import BadState
from model_core.filter import FilterState, Prior, init, leaves, rebuild
from model_core.stream import season
from model_core.transfer import to_host
from model_core.upm.base import UnderlyingModel

MAGIC = b"MOCA"
VERSION = 1
_PREFIX = struct.Struct("<4sHI")
_CHECKSUM = struct.Struct("<I")
_DTYPES = {"f64": torch.float64, "i64": torch.int64}
_RANKS = "anomaly"
_SEASON = "season"
_NAMES = {np.dtype("<f8"): "f64", np.dtype("<i8"): "i64"}


def encode(
    model: UnderlyingModel,
    state: FilterState,
    ranks: NDArray[np.float64] | None = None,
    seasons: NDArray[np.float64] | None = None,
) -> bytes:
    """Bytes of one stream's state (every tensor with batch 1).

    ranks, seasons: its states of `anomaly` and `season`.
    """
    state = rebuild(state, to_host([leaf.detach() for leaf in leaves(state)]))
    alive = np.flatnonzero(np.isfinite(_numbers(state.belief.log_prob)))
    belief = zip(Belief._fields, state.belief, strict=True)
    arrays = {name: _numbers(tensor)[alive] for name, tensor in belief}
    arrays["totals_at_start"] = _numbers(state.totals_at_start)[alive]
    for name, tensor in zip(state.stats._fields, state.stats, strict=True):
        kept = _numbers(tensor)[alive]
        arrays[f"stats.{name}"] = _lower(kept) if name in model.symmetric else kept
    arrays["seq"] = _numbers(state.seq)
    arrays["totals"] = _numbers(state.totals)
    if state.context.shape[-1]:
        arrays["context"] = _numbers(state.context)
    if ranks is not None:
        arrays[_RANKS] = ranks
    if seasons is not None:
        arrays[_SEASON] = seasons
    return pack(MAGIC, VERSION, {"kind": model.kind}, arrays)


def pack(
    magic: bytes, version: int, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> bytes:
    """Bytes of named arrays of float64 and int64, and of a header (JSON), with a checksum."""
    table = [[name, _NAMES[array.dtype], list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": table}, separators=(",", ":")).encode()
    payload = b"".join(array.tobytes() for array in arrays.values())
    body = _PREFIX.pack(magic, version, len(text)) + text + payload
    return body + _CHECKSUM.pack(crc32(body))


def unpack(magic: bytes, version: int, blob: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and arrays of what `pack` made. Raises BadState."""
    body, start = _checked(blob, magic, version)
    header, table = _header(body[_PREFIX.size : start])
    arrays = {}
    for name, dtype, shape in table:
        end = start + 8 * prod(shape)
        if max(shape, default=0) > len(body) or end > len(body):
            raise BadState(f"state's array {name!r} of shape {shape} is missing")
        arrays[name] = _array(body[start:end], _DTYPES[dtype]).reshape(shape)
        start = end
    if start != len(body):
        raise BadState(f"state has {len(body) - start} unexpected bytes after its arrays")
    return header, arrays


def decode(model: UnderlyingModel, prior: Prior, max_hypotheses: int, blob: bytes) -> FilterState:
    """State (batch 1) from bytes.

    Raises BadState for a wrong checksum, an unknown version, another model kind or shapes that
    do not fit the model.
    """
    arrays = _arrays(blob, model.kind)
    state = init(prior, max_hypotheses)
    seq = _fitting(arrays, "seq", state.seq[0])
    if "log_prob" not in arrays or arrays["log_prob"].dim() != 1:
        raise BadState("state has no list 'log_prob' of its hypotheses")
    count = len(arrays["log_prob"])
    least = int(seq != 0)  # no hypotheses before the first observation
    if not least <= count <= max_hypotheses:
        raise BadState(f"state has {count} hypotheses, expected {least} to {max_hypotheses}")
    targets = dict(zip(Belief._fields, state.belief, strict=True))
    targets["totals_at_start"] = state.totals_at_start
    for name, target in targets.items():
        target[0, :count] = _fitting(arrays, name, target[0, :count])
    for name, target in zip(state.stats._fields, state.stats, strict=True):
        values = arrays.get(f"stats.{name}")
        if values is not None and name in model.symmetric:
            arrays[f"stats.{name}"] = _full(name, values, target.shape[-1])
        target[0, :count] = _fitting(arrays, f"stats.{name}", target[0, :count])
    context = state.context
    if context.shape[-1]:
        context = _fitting(arrays, "context", context[0])[None]
    totals = _fitting(arrays, "totals", state.totals[0])[None]
    return state._replace(seq=seq[None], totals=totals, context=context)


def decode_ranks(model: UnderlyingModel, blob: bytes, size: int) -> NDArray[np.float64]:
    """State of `anomaly` from bytes. Raises BadState, also where there is none."""
    arrays = _arrays(blob, model.kind)
    ranks = _fitting(arrays, _RANKS, torch.empty(size, dtype=torch.float64)).numpy()
    if not anomaly.valid(ranks):
        raise BadState(f"state's array {_RANKS!r} is no sketch of ranks")
    return np.asarray(ranks)


def decode_season(model: UnderlyingModel, blob: bytes) -> NDArray[np.float64]:
    """State of `season` from bytes. Raises BadState, also where there is none."""
    stored = _arrays(blob, model.kind).get(_SEASON)
    if stored is None:
        raise BadState(f"state has no array {_SEASON!r}")
    values = np.asarray(stored.numpy())
    if values.dtype != np.float64 or values.ndim != 1 or not season.valid(values):
        raise BadState(f"state's array {_SEASON!r} is no state of a season")
    return values


def _checked(blob: bytes, expected: bytes, latest: int) -> tuple[bytes, int]:
    """All but the checksum, and where the arrays begin."""
    if len(blob) < _PREFIX.size + _CHECKSUM.size:
        raise BadState(f"state of {len(blob)} bytes is truncated")
    body = blob[: -_CHECKSUM.size]
    (checksum,) = _CHECKSUM.unpack(blob[-_CHECKSUM.size :])
    magic, version, length = _PREFIX.unpack_from(body)
    if magic != expected:
        raise BadState(f"state begins with {magic!r}, expected {expected!r}")
    if version != latest:
        raise BadState(f"state has format {version}, expected {latest}")
    if crc32(body) != checksum:
        raise BadState("state's checksum does not match its bytes")
    return body, _PREFIX.size + length


def _arrays(blob: bytes, kind: str) -> dict[str, Tensor]:
    header, arrays = unpack(MAGIC, VERSION, blob)
    made_by = header.get("kind")
    if made_by != kind:
        raise BadState(f"state was made by a model of kind {made_by!r}, not {kind!r}")
    return arrays


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


def _array(values: bytes, dtype: torch.dtype) -> Tensor:
    if not values:  # frombuffer takes no empty one
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(values), dtype=dtype)


def _fitting(arrays: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    if name not in arrays:
        raise BadState(f"state has no array {name!r}")
    value = arrays[name]
    if value.shape != like.shape or value.dtype != like.dtype:
        raise BadState(
            f"state's array {name!r} is {value.dtype} {list(value.shape)}, "
            f"expected {like.dtype} {list(like.shape)}"
        )
    return value.to(like.device)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    """The only row of a tensor on the host."""
    return np.asarray(tensor[0].numpy())


def _lower(matrix: NDArray[Any]) -> NDArray[Any]:
    places = np.flatnonzero(np.tri(matrix.shape[-1]))
    return matrix.reshape(*matrix.shape[:-2], matrix.shape[-1] ** 2).take(places, -1)


def _full(name: str, lower: Tensor, size: int) -> Tensor:
    if lower.shape[-1:] != (size * (size + 1) // 2,):
        raise BadState(
            f"state's array 'stats.{name}' is {list(lower.shape)}, expected triangles of {size}"
        )
    rows, columns = torch.tril_indices(size, size)
    full = torch.zeros(*lower.shape[:-1], size, size, dtype=lower.dtype)
    full[..., rows, columns] = lower
    full[..., columns, rows] = lower
    return full
