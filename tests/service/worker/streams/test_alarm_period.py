"""The service's rate of false alarms: the period of each stream, by its pace and their number."""

from datetime import UTC, datetime, timedelta

import pytest

from service.schema import rendering
from service.wire import Configure, EventFeedback, Move, Observation, Observe, WhatIf
from tests.service.worker.conftest import Trouble, noise, restore_commit

KNOWN = {"location": [0.0], "scale": [1.0]}
MINUTE_MS = 60_000
BEGAN = datetime(2026, 5, 1, tzinfo=UTC)


def period(bench, stream="a"):
    return bench.head(stream).settings.false_alarm_every


def timed(minutes, labels):
    """Observations `minutes` apart, by their own times."""
    at = (BEGAN + timedelta(minutes=minutes * i) for i in range(len(labels)))
    return [Observation(y=y, time=t.isoformat()) for y, t in zip(labels, at, strict=True)]


@pytest.fixture
def fleet(make_bench):
    """208 streams, and one false alarm a day over all of them."""
    bench = make_bench()
    bench.quiet_days = 208.0
    return bench


def test_the_pace_of_arrivals_fixes_the_period_after_an_hour_and_every_day(fleet):
    def post(count, minutes):
        for y in noise(count):
            fleet.now_ms += minutes * MINUTE_MS
            fleet.observe("a", [y])

    post(60, 1)
    assert period(fleet) == 10_000.0
    post(1, 1)
    assert period(fleet) == pytest.approx(208 * 1440)
    assert rendering.glance("a", fleet.head("a"), []).alarm_period.days == pytest.approx(208)
    shown = fleet.ask(Configure("a", {}))
    assert shown["settings"]["false_alarm_every"] == period(fleet)
    assert shown["alarm_period"] == {
        "observations_per_day": pytest.approx(1440),
        "false_alarm_every": period(fleet),
        "days": pytest.approx(208),
    }
    fleet.quiet_days = 416.0  # as many streams again
    post(1, 23 * 60)
    assert period(fleet) == pytest.approx(208 * 1440)
    post(1, 60)
    assert period(fleet) == 1000.0  # of two observations a day: the shortest


def test_times_of_observations_count_where_there_are_any(fleet):
    """A year that is posted at once is no pace."""
    fleet.observe("a", timed(5, noise(600)), part=512)
    assert period(fleet) == pytest.approx(208 * 288)
    assert fleet.head("a").pace.timed


def test_a_stated_interval_is_the_pace(fleet):
    fleet.ask(Configure("a", {"interval": 60.0}), status=201)
    fleet.observe("a", timed(5, noise(40)))
    assert period(fleet) == 208 * 1440


def test_a_rule_of_its_own_stays(fleet):
    rules = {"own": {"false_alarm_every": 500.0}, "late": {"confirm_after": 3}, "back": {}}
    for name, rule in rules.items():
        fleet.ask(Configure(name, {**KNOWN, **rule}), status=201)
    fleet.ask(Configure("back", {"false_alarm_every": 300.0}))
    for name in rules:
        fleet.observe(name, timed(5, noise(40)))
    assert [period(fleet, name) for name in rules] == [500.0, None, 300.0]
    assert "alarm_period" not in fleet.ask(Configure("own", {}))
    # Given back, it is the default until the pace is known.
    fleet.ask(Configure("back", {"false_alarm_every": None}))
    assert period(fleet, "back") == 10_000.0
    fleet.observe("back", timed(20, noise(4)), part=1)
    assert period(fleet, "back") == 208 * 72


def test_without_the_setting_streams_return_to_the_default(fleet):
    fleet.observe("a", timed(5, noise(40)))
    assert period(fleet) == 208 * 288
    fleet.quiet_days = 0.0  # an API that does not know the number of streams yet
    fleet.observe("a", [Observation(y=0.0, time="2026-05-03T00:00:00Z")])
    assert period(fleet) == 208 * 288
    fleet.quiet_days = None
    fleet.observe("a", [0.0])
    assert (period(fleet), fleet.head("a").pace) == (10_000.0, None)


def test_a_label_that_comes_late_is_no_observation(fleet):
    for hour in (0, 1):
        waiting = Observation(pending=True, time=f"2026-05-01T0{hour}:00:00Z")
        fleet.observe("a", [waiting])
        fleet.observe("a", [1.0], seq=hour)
    assert fleet.head("a").pace.per_day == 24


def test_reruns_and_reloads_keep_it_and_what_is_applied_again_meets_it(make_bench):
    """Connections cut before and after the commits: the same heads and events, to the bit."""
    bench, plain = make_bench(checkpoint_every=16), make_bench(db=1)
    seen = timed(5, [*noise(60), *noise(30, level=6.0)])
    for each in (bench, plain):
        each.quiet_days = 208.0
        each.ask(Configure("a", KNOWN), status=201)
    for i in range(0, len(seen), 6):
        Trouble(bench, "cut_after" if i % 12 else "cut_before")
        for each in (bench, plain):
            each.send(*[Observe("a", [observation]) for observation in seen[i : i + 6]])
        restore_commit(bench.worker.log)
    assert bench.head("a").settings == plain.head("a").settings
    assert bench.head("a").pace == plain.head("a").pace
    assert period(bench) == 208 * 288
    assert bench.events("a") == plain.events("a")
    (event,) = bench.events("a")
    assert event.state == "confirmed"
    assert bench.ask(WhatIf("a", {}))["settings"]["false_alarm_every"] == period(bench)
    before = bench.head("a")
    bench.ask(EventFeedback("a", change=True, event=event.id))
    bench.ask(Move("a", "averaged"))
    after = bench.head("a")
    assert after.settings == before.settings._replace(model="averaged")
    assert after.pace == before.pace


def test_an_imported_stream_counts_anew_and_keeps_a_rule_of_its_own(fleet):
    for name, rule in (("own", {"confirm_after": 3}), ("ours", {})):
        fleet.ask(Configure(name, {**KNOWN, **rule}), status=201)
        fleet.observe(name, timed(5, noise(40)))
        fleet.put(f"{name} again", fleet.export(name))
        fleet.observe(f"{name} again", [Observation(y=0.0, time="2026-05-03T00:00:00Z")])
    assert period(fleet, "own again") is None
    assert period(fleet, "ours again") == 208 * 288
    assert fleet.head("ours").pace.per_day == 288
    assert fleet.head("ours again").pace.per_day is None


def test_an_imported_stream_has_the_default_where_there_is_no_rate(fleet):
    """Nobody here has stated the period that another service gave it."""
    for name, rule in (("own", {"false_alarm_every": 500.0}), ("ours", {})):
        fleet.ask(Configure(name, {**KNOWN, **rule}), status=201)
        fleet.observe(name, timed(5, noise(40)))
    fleet.quiet_days = None
    for name, expected in (("own", 500.0), ("ours", 10_000.0)):
        fleet.put(f"{name} again", fleet.export(name))
        fleet.observe(f"{name} again", [Observation(y=0.0, time="2026-05-03T00:00:00Z")])
        assert period(fleet, f"{name} again") == expected
