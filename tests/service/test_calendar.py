"""Windows of the calendar: their times are those of clocks on the wall, compared with a walk."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.calendar import Calendar, Window, check, occurrences

BERLIN = "Europe/Berlin"
DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def times(window, since, until):
    return [
        (
            datetime.fromtimestamp(one.start_ms / 1000, UTC),
            datetime.fromtimestamp(one.end_ms / 1000, UTC),
        )
        for one in occurrences(window, at(since), at(until))
    ]


def overlapping(times, since_s, until_s):
    return [(start, end) for start, end in times if start < until_s and end > since_s]


def walked(window, days, every):
    """Times of a window by a walk over the days from its start on."""
    start = datetime.fromisoformat(window.start)
    length = datetime.fromisoformat(window.end) - start
    place = ZoneInfo(window.time_zone)
    found = []
    for i in range(1200):
        day = start + timedelta(days=i)
        week = ((start - timedelta(days=start.weekday())).date(), day.date())
        weeks = (week[1] - week[0]).days // 7
        due = i % every == 0 if days is None else weeks % every == 0 and DAYS[day.weekday()] in days
        if due:
            ends = day + length
            found.append([one.replace(tzinfo=place).timestamp() for one in (day, ends)])
    return found


@given(
    first=st.integers(0, 365 * 24 * 60),
    minutes=st.integers(1, 3 * 24 * 60),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kolkata", "Pacific/Apia"]),
    weekly=st.booleans(),
    every=st.integers(1, 3),
    others=st.sets(st.sampled_from(DAYS)),
    since=st.integers(0, 700),
    hours=st.integers(0, 400),
)
def test_times_are_those_of_a_walk(first, minutes, zone, weekly, every, others, since, hours):
    first = datetime.fromisoformat("2023-01-01") + timedelta(minutes=first)
    days = others | {DAYS[first.weekday()]} if weekly else None
    rule = f"FREQ=WEEKLY;INTERVAL={every};BYDAY={','.join(sorted(days))}" if weekly else ""
    window = Window(
        "w",
        first.isoformat(timespec="minutes"),
        (first + timedelta(minutes=minutes)).isoformat(timespec="minutes"),
        zone,
        rule or f"FREQ=DAILY;INTERVAL={every}",
    )
    check(window)
    since_s = at("2023-01-01T00:00:00") + 86_400 * since
    until_s = since_s + 3600 * hours
    found = [
        (one.start_ms / 1000, one.end_ms / 1000) for one in occurrences(window, since_s, until_s)
    ]
    every_one = walked(window, days, every)
    assert found == overlapping(every_one, since_s, until_s)
    calendar = Calendar()
    calendar.replace({"w": window})
    for moment in (since_s, (since_s + until_s) / 2, *(end for _, end in found[:2])):
        spans = [(span.start_ms / 1000, span.end_ms / 1000) for span in calendar.spans([moment])]
        assert spans == [(start, end) for start, end in every_one if start <= moment < end]


def test_a_holiday_is_from_midnight_to_midnight_where_it_is():
    window = Window("holidays", "2024-12-24", "2024-12-27", BERLIN)
    check(window)
    assert times(window, "2024-01-01", "2025-01-01") == [
        (datetime(2024, 12, 23, 23, tzinfo=UTC), datetime(2024, 12, 26, 23, tzinfo=UTC))
    ]
    assert times(window, "2024-12-26T23:00:00", "2025-01-01") == []  # the end is not part of it
    assert len(times(window, "2024-12-26T22:59:59", "2025-01-01")) == 1


def test_a_night_that_is_shorter_in_march_is_so():
    window = Window("night", "2024-03-29T22:00", "2024-03-30T06:00", BERLIN, "FREQ=DAILY")
    nights = times(window, "2024-03-30T12:00:00", "2024-04-01T12:00:00")
    assert [(end - start) / timedelta(hours=1) for start, end in nights] == [7, 8]


def test_every_other_rule():
    for rule, expected in (
        ("FREQ=MONTHLY;BYDAY=1MO", ["2024-01-01", "2024-02-05", "2024-03-04", "2024-04-01"]),
        ("FREQ=MONTHLY;COUNT=2", ["2024-01-01", "2024-02-01"]),
        ("FREQ=DAILY;UNTIL=20240103", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        ("FREQ=YEARLY", ["2024-01-01"]),
    ):
        window = Window("w", "2024-01-01", "2024-01-01T01:00", repeat=rule)
        check(window)
        starts = [
            start.date().isoformat() for start, _ in times(window, "2024-01-01", "2024-04-15")
        ]
        assert starts == expected, rule


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("start", {"start": "2024-01-01T00:00:00Z"}),
        ("start", {"start": "2024-13-01"}),
        ("start", {"start": "1969-12-31"}),
        ("end", {"end": "2024-01-01"}),
        ("end", {"end": "2025-06-01"}),
        ("time_zone", {"time_zone": "Berlin"}),
        ("time_zone", {"time_zone": "../../etc/passwd"}),
        ("repeat", {"repeat": "FREQ=HOURLY"}),
        ("repeat", {"repeat": "FREQ=DAILY;INTERVAL=0"}),
        ("repeat", {"repeat": "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"}),
        ("repeat", {"repeat": "FREQ=MONTHLY;BYDAY=-60MO"}),
        ("repeat", {"repeat": "FREQ=DAILY;FREQ=WEEKLY"}),
        ("repeat", {"repeat": "INTERVAL=2"}),
        ("repeat", {"repeat": "FREQ=DAILY;UNTIL=20241399"}),
        ("start", {"repeat": "FREQ=WEEKLY;BYDAY=TU"}),  # it is a Monday
    ],
)
def test_what_is_no_window_is_named_by_its_field(field, wrong):
    good = {"name": "w", "start": "2024-01-01", "end": "2024-01-01T01:00"}
    check(Window(**good))
    with pytest.raises(ValueError, match=f"^{field}: expected "):
        check(Window(**{**good, **wrong}))


def test_an_end_before_the_start_is_refused_with_both():
    message = "^end: expected after the start 2026-11-28, .* got 2026-11-27$"
    with pytest.raises(ValueError, match=message):
        check(Window("w", "2026-11-28", "2026-11-27"))


def test_times_of_any_year_are_looked_up():
    calendar = Calendar()
    calendar.replace({"w": Window("w", "2024-01-01", "2024-01-02", repeat="FREQ=DAILY")})
    assert calendar.spans([at("0002-01-01"), at("9998-12-31"), -1.0]) == []
    (span,) = calendar.spans([at("2999-12-30T12:00:00"), at("2999-12-30T13:00:00")])
    assert span.start_ms == 1000 * at("2999-12-30")
