"""Time columns: what the service is told (RFC 3339) and where a plot puts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Axis(NamedTuple):
    """A time column, one entry per observation."""

    name: str
    kind: Literal["year", "datetime", "number"]
    value: list[float]  # years; days since 1970-01-01 UTC; the numbers themselves
    label: list[str]  # how people read it
    rfc3339: list[str] | None  # None for plain numbers, which are no points in time


def time_axis(cells: Sequence[Any], name: str) -> Axis | int:
    """Read a whole column; the answer is the index of a bad cell when there is one.

    In order of preference: plain years (1000 to 2999), dates and times (without an offset they
    are UTC), seconds or milliseconds since 1970, plain numbers.
    """
    numbers = [_number(cell) for cell in cells]
    if all(value is not None for value in numbers):
        return _numeric_axis([value for value in numbers if value is not None], name)
    moments: list[datetime] = []
    for row, cell in enumerate(cells):
        moment = _moment(cell)
        if moment is None:
            return row
        moments.append(moment)
    return _datetime_axis(moments, name)


def _numeric_axis(numbers: list[float], name: str) -> Axis:
    def all_within(low: float, high: float) -> bool:
        return all(low <= value < high for value in numbers)

    if all_within(1000, 3000) and all(value == int(value) for value in numbers):
        years = [f"{int(value):04d}" for value in numbers]
        return Axis(name, "year", numbers, years, [f"{year}-01-01T00:00:00Z" for year in years])
    for low, unit_s in ((1e8, 1.0), (1e11, 1e-3)):
        if all_within(low, low * 1e3 / 2):
            return _datetime_axis([EPOCH + timedelta(seconds=v * unit_s) for v in numbers], name)
    return Axis(name, "number", numbers, [f"{value:g}" for value in numbers], None)


def _datetime_axis(moments: list[datetime], name: str) -> Axis:
    return Axis(
        name,
        "datetime",
        [(moment - EPOCH) / timedelta(days=1) for moment in moments],
        [written(moment) for moment in moments] if moments else [],
        [moment.isoformat().replace("+00:00", "Z") for moment in moments],
    )


def written(moment: datetime) -> str:
    """Write a moment as short as it goes: no clock at midnight, no seconds on the minute."""
    if moment.time().replace(tzinfo=None) == datetime.min.time():
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%Y-%m-%d %H:%M" + (":%S" if moment.second else ""))


def _number(cell: Any) -> float | None:
    if isinstance(cell, bool):
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _moment(cell: Any) -> datetime | None:
    """Read a date or time; without an offset it is UTC."""
    if isinstance(cell, datetime):
        moment = cell
    elif isinstance(cell, date):
        moment = datetime(cell.year, cell.month, cell.day, tzinfo=UTC)
    elif isinstance(cell, str):
        parsed = next((m for parse in _PARSERS if (m := _tried(parse, cell)) is not None), None)
        if parsed is None:
            return None
        moment = parsed
    else:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _tried(parse: Callable[[str], datetime], text: str) -> datetime | None:
    try:
        return parse(text.strip())
    except ValueError:
        return None


# A naive result of either means UTC; `_moment` says so in one place.
_PARSERS: tuple[Callable[[str], datetime], ...] = (
    datetime.fromisoformat,
    lambda text: datetime.strptime(text, "%Y-%m"),  # noqa: DTZ007
    lambda text: datetime.strptime(text, "%Y/%m/%d"),  # noqa: DTZ007
)
