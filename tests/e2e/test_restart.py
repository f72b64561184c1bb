"""What a kill of all processes leaves as it was: planned windows, and periods of false alarms."""

import random
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from moca_client import Client
from tests.e2e.calling import KNOWN, ask, moca, post
from tests.e2e.deployment import Processes
from tests.waiting import PATIENCE_S, until

BEGAN = datetime(2024, 5, 1, tzinfo=UTC)
OPTIONS = ("--false-alarms-per-day", "0.5")
PACED = ("a", "b", "c", "own")
SITES = {"n": "north", "s": "south"}
WINDOW = {
    "start": "2024-05-01T02:40",
    "end": "2024-05-01T03:20",
    "time_zone": "Europe/Berlin",
    "match": ['{site="north"}'],
}


def minutes(level, first, seed):
    """40 observations, one a minute."""
    rng = random.Random(seed)
    times = (BEGAN + timedelta(minutes=first + i) for i in range(40))
    return [{"y": rng.gauss(level, 1), "time": time.isoformat()} for time in times]


def hours(first, last):
    """Observations every five minutes, from one hour to another."""
    at = (BEGAN + timedelta(minutes=5 * i) for i in range(12 * first, 12 * last))
    return [{"y": i % 3, "time": time.isoformat()} for i, time in enumerate(at)]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Address of a service that was killed after the first observations, and started again."""
    with Processes(tmp_path_factory.mktemp("restart"), {"MOCA_PARTITIONS": "16"}) as processes:
        url = processes.serve(*OPTIONS)
        with Client(url, timeout_s=PATIENCE_S) as client:
            window = client.put_window("works", **WINDOW)
            assert client.window("works") == window
            for stream, site in SITES.items():
                client.put_stream(stream, {**KNOWN, "tags": {"site": site}})
                client.observe(stream, minutes(0, 0, 1))
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            for name in PACED:
                rule = {"false_alarm_every": 20_000} if name == "own" else {}
                ask(client, "PUT", name, 201, json=KNOWN | rule)
            for name in ("a", "own"):
                post(client, name, hours(0, 1))
            assert ask(client, "GET", "a")["settings"]["false_alarm_every"] == 10_000
        processes.kill_with_children("serve")
        yield processes.serve(*OPTIONS)


def test_the_alarm_period_is_by_pace_and_number_of_streams(url):
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        until(lambda: "moca_redis_up 1.0" in client.get("/metrics").text)  # streams are counted
        for name in ("a", "own"):
            post(client, name, hours(1, 2))
        stream = ask(client, "GET", "a")
        assert ask(client, "GET", "own")["settings"]["false_alarm_every"] == 20_000
        (row,) = client.get("/v1/overview", params={"contains": "a"}).json()["streams"]
    days = (len(PACED) + len(SITES)) / 0.5
    every = 288 * days
    assert stream["alarm_period"] == {
        "observations_per_day": 288,
        "false_alarm_every": every,
        "days": days,
    }
    assert stream["settings"]["false_alarm_every"] == every
    assert row["alarm_period"] == stream["alarm_period"]


def confirmed(client, stream):
    changes = client.changepoints(stream).events
    return [event for event in changes if event.state == "confirmed"]


def test_a_window_is_in_force_and_a_change_is_excluded_and_taken_back(url):
    with Client(url, timeout_s=PATIENCE_S) as client:
        for stream in SITES:
            client.observe(stream, minutes(6, 40, 2))  # from 02:40 to 03:20 in Berlin
            client.observe(stream, minutes(0, 80, 3))
        assert confirmed(client, "n") == []
        up, down = confirmed(client, "s")
        (page,) = client.history("n")
        windows = [one.excluded and one.excluded.window for one in page.observations]
        assert windows == [None] * 40 + ["works"] * 40 + [None] * 40
        assert page.observations[50].y > 3  # as it was posted
        (time,) = client.calendar(since=BEGAN, until=BEGAN + timedelta(days=1), stream="n").times
        assert time.start == "2024-05-01T00:40:00.000+00:00"
        assert client.calendar(stream="s").windows == []

        answer = client.exclude("s", event=up.id)
        assert (answer.start, answer.end) == (up.start, down.start)
        assert [event.excluded for event in confirmed(client, "s")] == [True, True]
        assert client.run_length("s").run_length.map == 119
        client.exclude("s", event=up.id, excluded=False)
        assert [event.excluded for event in confirmed(client, "s")] == [False, False]
        assert "works" in moca("calendar", "list", at=client.url).output
        moca("calendar", "remove", "works", at=client.url)
        set_ = ("--start", "2024-05-04", "--end", "2024-05-05", "--repeat", "FREQ=WEEKLY")
        told = moca("calendar", "set", "saturdays", *set_, at=client.url).output
        assert "window 'saturdays' is set, next from" in told
        assert [one.name for one in client.calendar().windows] == ["saturdays"]
