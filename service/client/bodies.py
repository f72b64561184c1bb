"""Build request bodies from the arguments of calls; NaN of a label is null, a missing one."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from service.client.errors import InvalidRequest

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# A whole observation, or its label alone; None or NaN: the label is missing.
Observed = Mapping[str, Any] | float | None
_encode = msgspec.json.Encoder(enc_hook=lambda value: _plain(value)).encode


def new_key() -> str:
    """Return a new idempotency key."""
    return secrets.token_hex(16)


def encode(body: Any) -> bytes:
    """Return JSON, with null for NaN; InvalidRequest for values that it cannot represent."""
    check_finite(body, "body")
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"cannot be encoded as JSON: {error}") from error


def observation(value: Observed) -> dict[str, Any]:
    """Return an observation as an object; a plain number, or None, is its label."""
    if isinstance(value, Mapping):
        return dict(value)
    return {"y": value}


def is_list(value: Observed | Sequence[Observed]) -> TypeIs[Sequence[Observed]]:
    """Whether a value is several observations: a sequence, an array or a column of a frame."""
    listed = isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0
    return listed or hasattr(value, "to_list") or hasattr(value, "columns")


def observations(values: Iterable[Observed]) -> list[dict[str, Any]]:
    """Return a list of observations as objects."""
    if isinstance(values, str | bytes):
        raise InvalidRequest("expected observations, got a string")
    if hasattr(values, "columns"):
        raise InvalidRequest("expected observations, got a frame: use `observe_frame`")
    rows = values.tolist() if hasattr(values, "tolist") else values
    return [observation(row) for row in rows]


def items(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items of many streams, each with a key; one without a stream is refused."""
    keyed = []
    for i, row in enumerate(rows):
        if not isinstance(row.get("stream"), str):
            raise InvalidRequest(f"items[{i}]: expected a `stream`, got {row.get('stream')!r}")
        keyed.append({**row, "key": row.get("key") or new_key()})
    return keyed


def check_finite(value: Any, where: str, missing: bool = False) -> None:
    """Refuse infinities, and NaN but in labels, where JSON's null is a missing one.

    missing: whether NaN is allowed.
    """
    if isinstance(value, float):
        if math.isinf(value) or (math.isnan(value) and not missing):
            hint = "NaN or None is a missing label" if missing else "only labels may be missing"
            raise InvalidRequest(f"{where}: expected a finite number, got {value}; {hint}")
    elif isinstance(value, Mapping):
        for name, part in value.items():
            check_finite(part, f"{where}.{name}", name == "y")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for i, part in enumerate(value):
            check_finite(part, f"{where}[{i}]", missing)
    elif hasattr(value, "tolist"):
        check_finite(value.tolist(), where, missing)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and its like, as Python has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
