"""Build request bodies from the arguments of calls; NaN of a label is null, a missing one."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import TYPE_CHECKING, Any

import msgspec

from moca_client.errors import InvalidRequest
from moca_client.times import rfc3339

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
    try:
        check_finite(body, "body")
        return _encode(body)
    except InvalidRequest:
        raise
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
    index = getattr(values, "index", None)
    if not is_time_index(index):
        return [observation(row) for row in rows]
    pairs = zip(rows, times_of(index), strict=True)
    return [{**observation(row), **({} if time is None else {"time": time})} for row, time in pairs]


def is_time_index(index: Any) -> bool:
    """Whether an index of a frame or a column has times: pandas' own, which is not imported."""
    return type(index).__name__ == "DatetimeIndex"


def times_of(index: Any) -> list[str | None]:
    """Return the times of such an index as the service takes them; None: missing."""
    missing = index.isna().tolist()
    return [None if no else rfc3339(time) for time, no in zip(index, missing, strict=True)]


def items(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items of many streams, each with a key; one without a stream is refused."""
    keyed = []
    for i, row in enumerate(rows):
        if not isinstance(row.get("stream"), str):
            raise InvalidRequest(f"items[{i}]: expected a `stream`, got {row.get('stream')!r}")
        keyed.append({**row, "key": row.get("key") or new_key()})
    return keyed


def check_finite(value: Any, where: str, field: str = "") -> None:
    """Refuse infinities, and missing values but in labels, where JSON's null is a missing one.

    field: name of the innermost object's member that the value is in. NaN and pandas' NA and NaT
    are missing everywhere; None, also of a masked array, is no input and elsewhere a value.
    """
    if isinstance(value, float) or value is None or _is_missing(value):
        _check_number(value, where, field)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if part is not None:  # x: None is an observation without inputs
                check_finite(part, f"{where}.{name}", name)
    elif isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        for i, part in enumerate(value):
            check_finite(part, f"{where}[{i}]", field)
    elif hasattr(value, "tolist"):
        check_finite(_plain(value), where, field)


def _check_number(value: Any, where: str, field: str) -> None:
    if isinstance(value, float) and not math.isnan(value):
        allowed = math.isfinite(value)
    else:
        allowed = field == "y" or (value is None and field != "x")
    if not allowed:
        hint = "NaN or None is a missing label" if field == "y" else "only labels may be missing"
        raise InvalidRequest(f"{where}: expected a finite number, got {value}; {hint}")


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and its like, as Python has them; None for pandas' NA."""
    if _is_missing(value):
        return None
    if hasattr(value, "tolist"):
        plain = value.tolist()
        if type(plain) is not type(value):
            return plain
        if isinstance(value, Real):  # numpy's longdouble
            return float(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _is_missing(value: Any) -> bool:
    """Whether a value is pandas' NA or NaT, which are not imported for that."""
    return type(value).__name__ in ("NAType", "NaTType")
