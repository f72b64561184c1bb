"""Times as clients send them: RFC 3339, dates, and seconds since 1970."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from moca_client.times import EPOCH, rfc3339, unit_of

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
EXPECTED = "expected an RFC 3339 time with a time zone, such as 2024-05-01T12:00:00Z"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse(text: str) -> tuple[datetime, float]:
    """Return a time to the second, and its fraction of one; ValueError says what is wrong."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"{EXPECTED}, got {text[:40]!r}")
    # Leap seconds are valid in RFC 3339, and datetime does not know them.
    stem = text[:19].replace("t", "T").replace(" ", "T")
    stem = stem[:17] + "59" if stem[17:] == "60" else stem
    offset = text[-6:] if text[-1] not in "Zz" else "+00:00"
    try:
        return datetime.fromisoformat(stem + offset), float(match[1] or 0.0)
    except ValueError as error:
        raise ValueError(f"expected a valid time, got {text[:40]!r}: {error}") from None


def from_date(text: str) -> str:
    """Return a date as the time that it begins at in UTC; any other text as it is."""
    return f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text


def from_number(number: float) -> str:
    """Return a time since 1970, in seconds, or thousandths, millionths or billionths of them.

    Raises ValueError for a number too small to be one.
    """
    unit_s = unit_of([number])
    if unit_s is None:
        raise ValueError(f"{EXPECTED}, a date, or seconds since 1970 from 1e8 on, got {number:g}")
    return rfc3339(EPOCH + timedelta(microseconds=round(number * unit_s * 1e6)))


def seconds(text: str) -> float:
    """Return a valid time in seconds since 1970."""
    whole, fraction = parse(text)
    return whole.timestamp() + fraction
