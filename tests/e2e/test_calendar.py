"""Planned windows and exclusions on real processes: client, commands, and a kill between."""

import random
from datetime import UTC, datetime, timedelta

from moca_client import Client
from tests.e2e.calling import KNOWN, moca
from tests.waiting import PATIENCE_S

BEGAN = datetime(2024, 5, 1, tzinfo=UTC)
EACH = 40


def minutes(level, first, seed):
    rng = random.Random(seed)
    times = (BEGAN + timedelta(minutes=first + i) for i in range(EACH))
    return [{"y": rng.gauss(level, 1), "time": time.isoformat()} for time in times]


def confirmed(client, stream):
    changes = client.changepoints(stream).events
    return [event for event in changes if event.state == "confirmed"]


def test_a_window_outlives_a_kill_and_a_change_is_excluded_and_taken_back(serve, processes):
    url = serve()
    with Client(url, timeout_s=PATIENCE_S) as client:
        window = client.put_window(
            "works",
            start="2024-05-01T02:40",
            end="2024-05-01T03:20",
            time_zone="Europe/Berlin",
            match=['{site="north"}'],
        )
        assert client.window("works") == window
        for stream, site in (("n", "north"), ("s", "south")):
            client.put_stream(stream, {**KNOWN, "tags": {"site": site}})
            client.observe(stream, minutes(0, 0, 1))
    processes.kill_with_children("serve")
    with Client(serve(), timeout_s=PATIENCE_S) as client:
        for stream in "ns":
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
