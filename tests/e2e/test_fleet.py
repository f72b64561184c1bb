"""Many streams at a glance: changes, overview, tags; each against the streams' own answers."""

import random
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import pytest

from moca_client import Client
from tests.deploy.dashboards import check_columns
from tests.e2e.calling import KNOWN, ask, history, post
from tests.waiting import PATIENCE_S

LEVELS = (0.0, 6.0, -3.0, 0.0)
EACH = 30
NOT_LISTED = ("delay", "kind", "time", "refined_at")
STATES = ["suspected", "confirmed", "withdrawn"]
START = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def fleet(shared):
    """The prefix of six streams with three changes each, of which every other one has times."""
    prefix = f"fleet{random.randrange(10**9)}-"
    rng = np.random.default_rng(0)
    with httpx.Client(base_url=shared.url, timeout=PATIENCE_S) as client:
        for i in range(6):
            site = "north" if i % 3 == 0 else "south"
            settings = KNOWN | {"confirm_after": 4, "tags": {"site": site, "number": f"{i:02}"}}
            ask(client, "PUT", f"{prefix}{i}", 201, json=settings)
            values = np.repeat(LEVELS, EACH) + rng.normal(size=EACH * len(LEVELS))
            post(client, f"{prefix}{i}", [
                {"y": float(y)} | ({"time": time_of(i, seq)} if i % 2 else {})
                for seq, y in enumerate(values)
            ])  # fmt: skip
    return prefix


def time_of(stream, seq):
    return (START + timedelta(days=stream, seconds=seq)).isoformat()


def changes(client, prefix, **query):
    params = {"prefix": prefix, "limit": 500} | query
    return client.get("/v1/changes", params=params).raise_for_status().json()


def recount(client, prefix):
    """Every change of every stream by its own call, with times of its own history.

    A start without a time has that of its arrival, of which the history has none.
    """
    found = {}
    for each in client.get("/v1/streams", params={"prefix": prefix}).json()["streams"]:
        name = each["stream"]
        records = history(client, name)
        summary = ask(client, "GET", name)
        page = ask(client, "GET", f"{name}/changepoints", params={"state": STATES})
        for event in page["events"]:
            kept = {name: value for name, value in event.items() if name not in NOT_LISTED}
            if event["state"] == "confirmed":  # suspicions are not looked at
                sent = records[event["start"]]["time"]
                assert event["start_arrived"] == (sent is None)
                if sent is None:
                    assert summary["created"] <= event["start_time"] <= summary["updated"]
                else:
                    kept["start_time"] = sent
            for field in ("suspected", "confirmed"):
                at = event[f"{field}_at"]
                if at is not None and records[at]["time"] is not None:
                    kept[f"{field}_time"] = records[at]["time"]
            found[name, event["id"]] = kept
    return found


def test_changes_are_those_of_each_stream_and_follow_feedback(http, fleet):
    expected = recount(http, fleet)
    page = changes(http, fleet, state=STATES)
    assert (page["total"], page["cursor"], page["unreadable"]) == (len(expected), None, [])
    for rows in (page["changes"], changes(http, fleet, state=STATES)["changes"]):
        assert {(row["stream"], row["id"]) for row in rows} == expected.keys()
        for row in rows:
            of = expected[row["stream"], row["id"]]
            assert {field: row[field] for field in of} == of
    confirmed = [row for row in page["changes"] if row["state"] == "confirmed"]
    assert len(confirmed) >= 15
    kinds = [row["explanation"]["kind"] for row in confirmed]
    assert kinds.count("mean") >= 0.8 * len(kinds), kinds
    for row in confirmed:  # `before` begins at the change before
        starts = [other["start"] for other in confirmed if other["stream"] == row["stream"]]
        previous = max((start for start in starts if start < row["start"]), default=0)
        assert row["before"]["count"] == row["start"] - previous, row
    judged = confirmed[3]
    assert judged["link"] == f"/#/streams/{judged['stream']}?at={judged['start']}"
    path = f"{judged['stream']}/changepoints/{judged['id']}"
    ask(http, "PUT", path, json={"change": False})
    key = (judged["stream"], judged["id"])
    rows = changes(http, fleet, state=STATES)["changes"]
    (row,) = [row for row in rows if (row["stream"], row["id"]) == key]
    assert (row["state"], row["verdict"]) == ("withdrawn", False)
    assert changes(http, fleet)["changes"] == [row for row in rows if row["state"] != "withdrawn"]


def test_what_is_said_of_a_change_does_not_depend_on_when_it_was_asked(http, prefix):
    """It is of the labels that were retained 100 observations after its start, ever after."""
    rng = np.random.default_rng(3)
    values = np.repeat((0.0, 6.0), (60, 240)) + rng.normal(size=300)
    observations = [{"y": float(y), "time": time_of(0, seq)} for seq, y in enumerate(values)]
    asked, never = f"{prefix}asked", f"{prefix}never"

    def of(name):
        (event,) = ask(http, "GET", f"{name}/changepoints")["events"]
        return event

    for name in (asked, never):
        ask(http, "PUT", name, 201, json=KNOWN | {"history": 150})
        for first in range(0, 200, 10):
            post(http, name, observations[first : first + 10])
            if name == asked:
                ask(http, "GET", f"{name}/changepoints")
    one = of(asked)
    assert (one["start"], one["start_time"]) == (60, time_of(0, 60))
    assert one["before"]["count"] == 50  # from 10 on: at 159 it was explained for the last time
    assert one["after"]["count"] == 100
    assert one["before"]["mean"] == pytest.approx(values[10:60].mean(), rel=1e-4)
    assert one == of(never)
    for name in (asked, never):
        post(http, name, observations[200:])
        assert history(http, name)[0]["seq"] > 60
        assert of(name) == one


def when(row):
    return datetime.fromisoformat(row["confirmed_time"] or row["suspected_time"])


def test_changes_are_filtered_and_the_newest_comes_first(http, fleet):
    every = changes(http, fleet, state=STATES)["changes"]
    assert [when(row) for row in every] == sorted(map(when, every), reverse=True)
    middle = (START + timedelta(days=3)).isoformat()
    one = f"{fleet}3"
    evidence = sorted(row["evidence"] for row in every)[len(every) // 2]
    filters = {
        ("state", "confirmed"): lambda row: row["state"] == "confirmed",
        ("min_size", 5): lambda row: abs(row["size"] or 0) >= 5,
        ("min_evidence", evidence): lambda row: row["evidence"] >= evidence,
        ("since", middle): lambda row: when(row) >= datetime.fromisoformat(middle),
        ("until", middle): lambda row: when(row) < datetime.fromisoformat(middle),
        ("model", "poisson"): lambda row: False,
        ("contains", one[1:]): lambda row: row["stream"] == one,
        ("match", '{site="north"}'): lambda row: row["tags"]["site"] == "north",
    }
    for (name, value), fits in filters.items():
        page = changes(http, fleet, **{"state": STATES, name: value})
        assert page["changes"] == [row for row in every if fits(row)], name
        assert page["total"] == len(page["changes"])


def test_the_overview_says_what_each_stream_says(http, prefix):
    """Last labels are those of the history, however many; the rest the summary's."""
    rng = random.Random(2)
    seen = {
        f"{prefix}{n:03}": [rng.gauss(10 if i < n // 2 else 14, 0.5) for i in range(n)]
        for n in (1, 70, 129, 200)
    }
    for stream, y in seen.items():
        ask(http, "PUT", stream, 201, json={"model": "gaussian"})
        post(http, stream, y)
    seen[f"{prefix}empty"] = []
    ask(http, "PUT", f"{prefix}empty", 201, json={})
    short = [1.0, None, *([2.0] * 30), None, 3.5]
    ask(http, "PUT", f"{prefix}short", 201, json={"model": "gaussian", "history": 5})
    post(http, f"{prefix}short", short)
    seen[f"{prefix}short"] = short[-5:]
    ask(http, "PUT", f"{prefix}wide", 201, json={"model": "gaussian"})
    post(http, f"{prefix}wide", [[1.0, 2.0], [3.0, 4.0]])
    seen[f"{prefix}wide"] = [1.0, 3.0]
    post(http, f"{prefix}gone", [1.0])
    ask(http, "DELETE", f"{prefix}gone", 204)
    page = http.get(f"/v1/overview?labels=64&prefix={prefix}").json()
    assert (page["total"], page["cursor"]) == (len(seen), None)
    assert [row["stream"] for row in page["streams"]] == sorted(seen)
    for row in page["streams"]:
        assert row["labels"] == seen[row["stream"]][-64:]
        summary = ask(http, "GET", row["stream"])
        alike = row.keys() & summary.keys()
        assert {key: row[key] for key in alike} == {key: summary[key] for key in alike}


def test_the_overview_is_searched_and_ordered(url, http, fleet):
    with Client(url) as client:

        def listed(**query):
            return [each.stream for each in client.overview(limit=100, labels=1, **query).streams]

        assert listed(prefix=fleet) == [f"{fleet}{i}" for i in range(6)]
        assert listed(contains=f"{fleet}3"[1:]) == [f"{fleet}3"]
        sure = client.overview(fleet, sort="changed_probability", limit=100).streams
        recent = listed(prefix=fleet, sort="change")
    values = [each.changed_probability for each in sure]
    assert values == sorted(values, reverse=True)
    newest = [row["stream"] for row in changes(http, fleet, state="confirmed")["changes"]]
    assert recent == list(dict.fromkeys(newest))


def test_streams_are_selected_by_tags(url, http, fleet):
    query = {"prefix": fleet, "match": '{site="south"}', "limit": 3}
    first = http.get("/v1/streams", params=query).json()
    second = http.get("/v1/streams", params=query | {"cursor": first["cursor"]}).json()
    names = [row["stream"] for row in first["streams"] + second["streams"]]
    assert names == [f"{fleet}{i}" for i in (1, 2, 4, 5)]
    assert second["cursor"] is None
    assert first["streams"][0]["tags"] == {"site": "south", "number": "01"}
    either = ['{number="01"}', f'{{stream=~"{fleet}[2-4]",site!="north"}}']
    with Client(url) as client:
        assert list(client.streams(fleet, 2, match=either)) == [f"{fleet}{i}" for i in (1, 2, 4)]


def test_tags_are_replaced_as_a_whole_and_other_settings_leave_them(http, prefix):
    stream = f"{prefix}a"
    ask(http, "PUT", stream, 201, json={"tags": {"site": "south", "number": "1"}})
    changed = ask(http, "PUT", stream, json={"hazard": 0.03})
    assert changed["settings"]["tags"] == {"site": "south", "number": "1"}
    ask(http, "PUT", stream, json={"tags": {"site": "east"}})
    assert ask(http, "GET", stream)["settings"]["tags"] == {"site": "east"}
    refused = ask(http, "PUT", stream, 422, json={"tags": {"stream": "x"}})
    assert refused["errors"][0]["loc"] == "body.tags"


def test_dashboards_find_every_column_they_ask_the_service_for(http, fleet):
    now = datetime.now(UTC)
    given = {
        "$state": "confirmed",
        "$min_size": "0.5",
        "$sort": "size",
        "${__from:date:iso}": "2024-01-01T00:00:00.000Z",
        "${__to:date:iso}": (now + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    }
    check_columns(http, "changes", given, fleet)
