"""Times as people write them, read twice: as the service takes them, and as a plot places them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Least number that counts seconds since 1970, or thousandths, millionths, billionths; by 1973.
UNITS = ((1e8, 1.0), (1e11, 1e-3), (1e14, 1e-6), (1e17, 1e-9))
LONGEST = 500.0  # largest of a unit, in its least
NO_TIME = "is not a time (RFC 3339, a date, a year, or a number)"
CENTURY = 69  # years of two digits from here on are of the last century, as POSIX has it
# A day, month and year with one separator between them, and perhaps a clock.
_date = re.compile(
    r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})"
    r"(?:,?[T ] *(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,6}))?)? *([ap]m)?)?",
    re.ASCII | re.IGNORECASE,
).fullmatch
# A date without a clock, and a time of day, as two columns side by side have them.
is_day = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}", re.ASCII).fullmatch
is_clock = re.compile(
    r"\d{1,2}:\d\d(:\d\d([.,]\d{1,6})?)?( *[ap]m)?", re.ASCII | re.IGNORECASE
).fullmatch
_month = re.compile(r"(\d{4})-(\d{1,2})", re.ASCII).fullmatch
_period = re.compile(r"([0-9]{1,6})([smhdw])").fullmatch
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_COMPACT = (19_000_101, 29_991_231)  # years, months and days without separators


class BadTime(ValueError):
    """A cell that is no time; `row` counts from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class AmbiguousTime(BadTime):
    """Dates whose day, month or year may be first."""


class Axis(NamedTuple):
    """A time column, one entry per observation."""

    name: str
    kind: Literal["year", "datetime", "number"]
    value: list[float]  # years; days since 1970-01-01 UTC; the numbers themselves
    rfc3339: list[str] | None  # None for plain numbers, which are no points in time
    notice: str = ""  # how cells were read that may mean something else

    def label(self, row: int) -> str:
        """Return how people read a time: no clock at midnight, no seconds on the minute."""
        if self.kind != "datetime" or self.rfc3339 is None:
            return f"{self.value[row]:g}"
        moment = datetime.fromisoformat(self.rfc3339[row])
        if moment.time() == datetime.min.time():
            return moment.strftime("%Y-%m-%d")
        return moment.strftime("%Y-%m-%d %H:%M" + (":%S" if moment.second else ""))

    def earlier(self) -> int | None:
        """Return the first row that is earlier than the one before it; None: there is none."""
        rows = enumerate(pairwise(self.value), start=1)
        return next((row for row, (before, value) in rows if value < before), None)

    def repeated(self) -> int:
        """Return how many rows have the time of the one before."""
        return sum(before == value for before, value in pairwise(self.value))

    def at(self, rows: Sequence[int]) -> Axis:
        """Return the times of some rows."""
        return self._replace(
            value=[self.value[row] for row in rows],
            rfc3339=self.rfc3339 and [self.rfc3339[row] for row in rows],
        )


def period_s(text: str) -> int | None:
    """Return a period such as `90d` or `12h` in seconds; None for text that is none."""
    match = _period(text)
    return None if match is None else int(match[1]) * _SECONDS[match[2]]


def time_axis(cells: Sequence[Any], name: str, time_format: str | None = None) -> Axis:
    """Read a whole column; raises BadTime.

    In order of preference: by the format, if one is named; plain years (1000 to 2999), seconds or
    their thousandths, millionths or billionths since 1970, plain numbers; dates and times, which
    are UTC without an offset. A date may have its day first; what comes first shows in the column.
    """
    if time_format is not None:
        return _datetime_axis(
            [_formatted(cells, row, time_format) for row in range(len(cells))], name
        )
    numbers = [finite(cell) for cell in cells]
    if all(value is not None for value in numbers):
        return _numeric_axis([value for value in numbers if value is not None], name)
    moments = []
    for cell in cells:
        moment = moment_of(cell)
        if moment is None:  # what is after it may be long
            break
        moments.append(moment)
    if len(moments) == len(cells):
        return _datetime_axis(moments, name)
    years = [match is not None and len(match[1]) == 4 for match in map(_date_match, cells)]
    if moments and not all(years):
        raise BadTime(len(moments), NO_TIME)
    common, notice = _common(cells)
    return _datetime_axis(common, name)._replace(notice=notice)


def finite(cell: Any) -> float | None:
    """A cell as a finite number; a truth value is none."""
    if isinstance(cell, bool):
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _formatted(cells: Sequence[Any], row: int, time_format: str) -> datetime:
    try:
        return _utc(datetime.strptime(str(cells[row]).strip(), time_format))  # noqa: DTZ007
    except (ValueError, OverflowError):
        raise BadTime(row, f"is no time of the form {time_format!r}") from None


def _numeric_axis(numbers: list[float], name: str) -> Axis:
    whole = all(value == int(value) for value in numbers)
    if whole and all(1000 <= value < 3000 for value in numbers):
        starts = [f"{int(value):04d}-01-01T00:00:00Z" for value in numbers]
        return Axis(name, "year", numbers, starts)
    if whole and all(_COMPACT[0] <= value <= _COMPACT[1] for value in numbers):
        days = [_tried(datetime.fromisoformat, f"{value:.0f}") for value in numbers]
        if all(day is not None for day in days):
            return _datetime_axis([day for day in days if day is not None], name)
    unit_s = unit_of(numbers)
    if unit_s is not None:
        return _datetime_axis([EPOCH + timedelta(seconds=v * unit_s) for v in numbers], name)
    return Axis(name, "number", numbers, None)


def unit_of(numbers: Sequence[float]) -> float | None:
    """Return the unit, in seconds, that numbers count the time since 1970 in; None: in none."""
    for low, unit_s in UNITS:
        if all(low <= value < low * LONGEST for value in numbers):
            return unit_s
    return None


def _datetime_axis(moments: list[datetime], name: str) -> Axis:
    return Axis(
        name,
        "datetime",
        [(moment - EPOCH) / timedelta(days=1) for moment in moments],
        [rfc3339(moment) for moment in moments],
    )


def rfc3339(moment: datetime) -> str:
    """Return a moment as the service takes it; without an offset it is UTC."""
    return _utc(moment).isoformat().replace("+00:00", "Z")


def moment_of(cell: Any) -> datetime | None:
    """Read a date or time; without an offset it is UTC."""
    if isinstance(cell, datetime):
        return _tried(_utc, cell)
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day, tzinfo=UTC)
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    month = _month(text)
    return _tried(datetime.fromisoformat, f"{month[1]}-{month[2]:0>2}-01" if month else text)


def _utc(moment: datetime) -> datetime:
    """Without an offset it is UTC; OverflowError where it is of no year from 1 to 9999 there."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _tried(parse: Callable[[T], datetime], cell: T) -> datetime | None:
    try:
        return _utc(parse(cell))
    except (ValueError, OverflowError):
        return None


# --- dates whose parts come in another order --------------------------------------------------


def _common(cells: Sequence[Any]) -> tuple[list[datetime], str]:
    """Read dates such as 31.12.2024, 12/31/2024 or 2024/12/31, with a clock or without.

    And say how the first one was read whose year has two digits; empty where all have four.
    """
    matches = []
    for row, cell in enumerate(cells):
        match = _date_match(cell)
        if match is None:
            raise BadTime(row, NO_TIME)
        matches.append(match)
    moments = _in_one_order(matches)
    for match, moment in zip(matches, moments, strict=True):
        if len(match[1]) < 3 and len(match[4]) < 3:
            return moments, (
                f"{match[0]!r} was read as {moment:%Y-%m-%d}: years have two digits; "
                f"for another order name the time format, such as '%y{match[2]}%m{match[2]}%d'"
            )
    return moments, ""


def _date_match(cell: Any) -> re.Match[str] | None:
    return _date(cell.strip()) if isinstance(cell, str) else None


def _in_one_order(matches: Sequence[re.Match[str]]) -> list[datetime]:
    """Read all dates of a column in the one order of day, month and year that fits them all."""
    first = matches[0]
    if all(len(match[1]) == 4 for match in matches):
        orders = ["ymd"]
    elif first[2] == ".":  # between points the day is first
        orders = ["dmy"]
    else:
        orders = ["dmy", "mdy", "ymd"]
    read: dict[str, list[datetime]] = {}
    faults = []
    for order in orders:
        try:
            read[order] = [_moment(row, match, order) for row, match in enumerate(matches)]
        except BadTime as fault:
            faults.append(fault)
    if not read:
        raise max(faults, key=lambda fault: fault.row)
    moments, *others = read.values()
    if any(other != moments for other in others):
        year = "Y" if len(first[4]) == 4 else "y"
        forms = (first[2].join(f"%{part}" for part in order.replace("y", year)) for order in read)
        either = " or ".join(map(repr, forms))
        raise AmbiguousTime(
            0, f"may have its day, month or year first: name which, as time format {either}"
        )
    return moments


def _moment(row: int, match: re.Match[str], order: str) -> datetime:
    """Return the moment of a date; raises BadTime for one that is none in this order."""
    parts = dict(zip(order, (match[1], match[3], match[4]), strict=True))
    year = int(parts["y"])
    if len(parts["y"]) == 2:
        year += 2000 if year < CENTURY else 1900
    hour = int(match[5] or 0)
    if match[9]:
        hour = hour % 12 + (12 if match[9].lower() == "pm" else 0)
    fraction = int((match[8] or "").ljust(6, "0"))
    try:
        if len(parts["y"]) not in {2, 4}:
            raise ValueError
        day = datetime(year, int(parts["m"]), int(parts["d"]), tzinfo=UTC)
        return day.replace(
            hour=hour, minute=int(match[6] or 0), second=int(match[7] or 0), microsecond=fraction
        )
    except ValueError:
        names = {"d": "day", "m": "month", "y": "year"}
        expected = ", ".join(names[part] for part in order)
        raise BadTime(row, f"is no date of {expected}, as others of the column are") from None
