"""`moca serve --false-alarms-per-day`: every stream gets its period, through a kill."""

from datetime import UTC, datetime, timedelta

import httpx

from tests.e2e.calling import KNOWN, ask, post
from tests.waiting import PATIENCE_S, until

BEGAN = datetime(2026, 5, 1, tzinfo=UTC)


def hours(first, last):
    """Observations every five minutes, from one hour to another."""
    at = (BEGAN + timedelta(minutes=5 * i) for i in range(12 * first, 12 * last))
    return [{"y": i % 3, "time": time.isoformat()} for i, time in enumerate(at)]


def test_the_period_is_by_pace_and_number_of_streams_and_outlives_a_kill(serve, processes):
    options = ("--false-alarms-per-day", "0.5")
    with httpx.Client(base_url=serve(*options), timeout=PATIENCE_S) as client:
        for name in ("a", "b", "c", "own"):
            rule = {"false_alarm_every": 20_000} if name == "own" else {}
            ask(client, "PUT", name, 201, json=KNOWN | rule)
        for name in ("a", "own"):
            post(client, name, hours(0, 1))
        assert ask(client, "GET", "a")["settings"]["false_alarm_every"] == 10_000
    processes.kill_with_children("serve")
    with httpx.Client(base_url=serve(*options), timeout=PATIENCE_S) as client:
        until(lambda: "moca_redis_up 1.0" in client.get("/metrics").text)  # streams are counted
        for name in ("a", "own"):
            post(client, name, hours(1, 2))
        stream = ask(client, "GET", "a")
        assert ask(client, "GET", "own")["settings"]["false_alarm_every"] == 20_000
        (row,) = client.get("/v1/overview", params={"contains": "a"}).json()["streams"]
    period = stream["alarm_period"]
    assert period == {"observations_per_day": 288, "false_alarm_every": 2304, "days": 8}
    assert stream["settings"]["false_alarm_every"] == 2304
    assert row["alarm_period"] == period
