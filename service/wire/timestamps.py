"""RFC 3339 times as clients send them."""

from __future__ import annotations

import re
from datetime import datetime

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse(text: str) -> tuple[datetime, float]:
    """Return a time to the second, and its fraction of one; ValueError says what is wrong."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError("expected an RFC 3339 time with a time zone, such as 2024-05-01T12:00:00Z")
    # Leap seconds are valid in RFC 3339, and datetime does not know them.
    stem = text[:19].replace("t", "T").replace(" ", "T")
    stem = stem[:17] + "59" if stem[17:] == "60" else stem
    offset = text[-6:] if text[-1] not in "Zz" else "+00:00"
    try:
        return datetime.fromisoformat(stem + offset), float(match[1] or 0.0)
    except ValueError as error:
        raise ValueError(f"invalid time: {error}") from None


def seconds(text: str) -> float:
    """Return a valid time in seconds since 1970."""
    whole, fraction = parse(text)
    return whole.timestamp() + fraction
