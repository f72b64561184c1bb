"""The calendar: planned windows and holidays, in which streams learn and confirm nothing.

A window has a local start and end in a time zone, and may recur by a rule of RFC 5545. It is for
the streams that its selectors name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import TypeVar
from zoneinfo import ZoneInfo

import msgspec
from dateutil.rrule import rrule, rrulestr

from moca_client.responses import Window
from service.wire import PlannedSpan

DAY_S = 86_400
DAYS = 4096  # whose spans are remembered
DAY = timedelta(days=1)
LONGEST = timedelta(days=366)
YEARS = range(1970, 3000)  # that windows are in
LAST_S = datetime(YEARS.stop, 1, 1, tzinfo=UTC).timestamp()
EXAMPLE = "FREQ=WEEKLY;BYDAY=SA,SU"
# Parts of a rule, each to be matched whole. With others a rule could be one that never comes, and
# would be looked for without an end.
_DAY = "(MO|TU|WE|TH|FR|SA|SU)"
_DAYS = {False: rf"{_DAY}(,{_DAY})*", True: rf"[+-]?[1-5]?{_DAY}(,[+-]?[1-5]?{_DAY})*"}
_PARTS = {
    "FREQ": "DAILY|WEEKLY|MONTHLY|YEARLY",
    "INTERVAL": "[1-9][0-9]{0,3}",
    "COUNT": "[1-9][0-9]{0,5}",
    "UNTIL": "[0-9]{8}(T[0-9]{6})?",
}
T = TypeVar("T")
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?", re.ASCII)


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Window).decode


def local_time(text: str) -> datetime:
    """Return a local time, or the midnight that a date begins with; ValueError says what is wrong.

    The time has no zone.
    """
    if not _LOCAL.fullmatch(text):
        raise ValueError(
            "expected a local time without a zone, such as 2024-12-24T18:00, or a date; the zone "
            f"is `time_zone`; got {text[:40]!r}"
        )
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"expected an existing date and time, got {text!r}: {error}") from None
    if time.year not in YEARS:
        raise ValueError(f"expected a year from {YEARS.start} to {YEARS.stop - 1}, got {text!r}")
    return time


def zone(name: str) -> ZoneInfo:
    """Return a time zone; raises ValueError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"expected a time zone such as Europe/Berlin, got {name[:40]!r}") from None


def recurrence(text: str, start: datetime) -> rrule:
    """Return a rule that begins with a local start; raises ValueError."""
    parts = [part.partition("=") for part in text.split(";")]
    names = [name for name, _, _ in parts]
    far = "FREQ=MONTHLY" in text or "FREQ=YEARLY" in text  # its days may be those of a month
    allowed = {**_PARTS, "BYDAY": _DAYS[far]}
    fits = all(name in allowed and re.fullmatch(allowed[name], given) for name, _, given in parts)
    if not fits or "FREQ" not in names or len(set(names)) < len(names):
        raise ValueError(
            f"expected a rule such as {EXAMPLE}: FREQ=DAILY, WEEKLY, MONTHLY or YEARLY, with "
            f"INTERVAL, BYDAY, COUNT, or a local UNTIL=YYYYMMDD; got {text[:100]!r}"
        )
    try:
        rule = rrulestr(text, dtstart=start)
    except ValueError as error:  # such as a day that is none
        raise ValueError(f"expected a rule such as {EXAMPLE}: {error}") from None
    assert isinstance(rule, rrule)  # of one line
    return rule


def check(window: Window) -> None:
    """Raise ValueError for a window that cannot be, with its field first in the text."""
    start = _checked("start", local_time, window.start)
    end = _checked("end", local_time, window.end)
    if not start < end <= start + LONGEST:
        raise ValueError(
            f"end: expected after the start {window.start}, and at most {LONGEST.days} days; "
            f"got {window.end}"
        )
    _checked("time_zone", zone, window.time_zone)
    if window.repeat:
        rule = _checked("repeat", lambda text: recurrence(text, start), window.repeat)
        if next(iter(rule), None) != start:
            raise ValueError("start: expected the first time of the rule")


def occurrences(window: Window, since_s: float, until_s: float) -> Iterator[PlannedSpan]:
    """Yield the times of a window that overlap those from `since_s` to before `until_s`, in order.

    Local times are those of clocks on the wall: a window from 22:00 to 23:00 is so all year.
    """
    if until_s <= 0 or since_s >= LAST_S:
        return
    place = zone(window.time_zone)
    start = local_time(window.start)
    length = local_time(window.end) - start
    # A day covers what zones and their changes move.
    first = _wall(max(since_s, 0.0)) - length - DAY
    last = _wall(min(until_s, LAST_S)) + DAY
    times = recurrence(window.repeat, start) if window.repeat else [start]
    for at in times:
        if at > last:
            return
        if at < first:
            continue
        begins = at.replace(tzinfo=place).timestamp()
        ends = (at + length).replace(tzinfo=place).timestamp()
        if begins < until_s and ends > since_s:
            start_ms = round(1000 * begins)
            yield PlannedSpan(window.name, tuple(window.match), start_ms, round(1000 * ends))


def _wall(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


class Calendar:
    """All windows, and the spans of those that a time is in: looked up by day."""

    def __init__(self) -> None:
        self.windows: dict[str, Window] = {}
        self._of_day = lru_cache(DAYS)(self._spans_of_day)

    def replace(self, windows: Mapping[str, Window]) -> None:
        """Take other windows over."""
        if windows != self.windows:
            self.windows = dict(sorted(windows.items()))
            self._of_day.cache_clear()

    def spans(self, times_s: Sequence[float]) -> list[PlannedSpan]:
        """Return the spans that one of these times is in, of all windows, without repeats."""
        found: dict[PlannedSpan, None] = {}
        for at in times_s:
            at_ms = 1000 * at
            found |= dict.fromkeys(
                span
                for span in self._of_day(int(at // DAY_S))
                if span.start_ms <= at_ms < span.end_ms
            )
        return [*found]

    def _spans_of_day(self, day: int) -> list[PlannedSpan]:
        return self.occurrences(day * DAY_S, (day + 1) * DAY_S)

    def occurrences(
        self, since_s: float, until_s: float, most: int | None = None
    ) -> list[PlannedSpan]:
        """Return the times of all windows that overlap a time, ordered by their start.

        most: of each window, its first ones.
        """
        every = [
            span
            for window in self.windows.values()
            for span in islice(occurrences(window, since_s, until_s), most)
        ]
        return sorted(every, key=attrgetter("start_ms"))


def _checked(field: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
