"""Changes of all streams, against a recount of each stream's own answers, with real processes."""

import csv
import io
import random
import signal
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import pytest

from model_core.segmentation import NEAR
from service.client import AsyncClient, Client, InvalidRequest
from service.client.frames import to_frame
from tests.e2e.deployment import wait_ready
from tests.ports import free_port

KNOWN = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02, "confirm_after": 4}
LEVELS, EACH = (0.0, 6.0, -3.0, 0.0), 30
START = datetime(2024, 5, 1, 12, tzinfo=UTC)
SAME = (
    "id",
    "state",
    "start",
    "suspected_at",
    "confirmed_at",
    "probability",
    "direction",
    "size",
    "verdict",
    "before",
    "after",
    "explanation",
)


@pytest.fixture
def prefix():
    return f"p{random.randrange(10**9)}-"


def time_of(stream, seq):
    """Those of every other stream have times, each stream later than the one before."""
    return (START + timedelta(days=stream, seconds=seq)).isoformat()


def fill(client, prefix, streams=10, seed=0):
    rng = np.random.default_rng(seed)
    for i in range(streams):
        name = f"{prefix}{i}"
        client.put(f"/v1/streams/{name}", json=KNOWN).raise_for_status()
        values = np.repeat(LEVELS, EACH) + rng.normal(size=EACH * len(LEVELS))
        body = [
            {"y": float(y)} | ({"time": time_of(i, seq)} if i % 2 else {})
            for seq, y in enumerate(values)
        ]
        client.post(f"/v1/streams/{name}/observations", json=body).raise_for_status()


def changes(client, prefix, **query):
    params = {"prefix": prefix, "limit": 500} | query
    return client.get("/v1/changes", params=params).raise_for_status().json()


def recount(client, prefix):
    """Every change of every stream by its own call, with times of its own history."""
    found = {}
    for each in client.get("/v1/streams", params={"prefix": prefix}).json()["streams"]:
        name = each["stream"]
        history = client.get(f"/v1/streams/{name}/history?start=0&limit=1000").json()
        records = history["observations"]
        for event in client.get(f"/v1/streams/{name}/changepoints").json()["events"]:
            kept = {field: event[field] for field in SAME}
            kept["start_time"] = records[event["start"]]["time"]
            for field in ("suspected", "confirmed"):
                at = event[f"{field}_at"]
                kept[f"{field}_time"] = None if at is None else records[at]["time"]
            found[name, event["id"]] = kept
    return found


def check(rows, expected):
    assert {(row["stream"], row["id"]) for row in rows} == expected.keys()
    assert len(rows) == len(expected)
    for row in rows:
        of = expected[row["stream"], row["id"]]
        assert {field: row[field] for field in SAME} == {field: of[field] for field in SAME}
        for field in ("suspected_time", "confirmed_time"):
            if of[field] is not None:
                assert row[field] == of[field]
            elif field == "suspected_time" or of["confirmed_at"] is not None:  # the arrival
                age = datetime.now(UTC) - datetime.fromisoformat(row[field])
                assert abs(age.total_seconds()) < 600
        if row["state"] != "withdrawn":
            assert row["start_time"] == of["start_time"]


def test_all_of_them_as_each_stream_has_them(emptied, prefix):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        fill(client, prefix)
        expected = recount(client, prefix)
        assert len(expected) >= 25
        page = changes(client, prefix)
        assert (page["total"], page["cursor"], page["unreadable"]) == (len(expected), None, [])
        check(page["changes"], expected)
        confirmed = [row for row in page["changes"] if row["state"] == "confirmed"]
        assert len(confirmed) >= 25
        assert sum(recounted(client, row, expected) for row in confirmed) >= len(confirmed) - 5
        kinds = [row["explanation"]["kind"] for row in confirmed]
        assert kinds.count("mean") >= 0.8 * len(kinds), kinds
        judged = confirmed[3]
        path = f"/v1/streams/{judged['stream']}/changepoints/{judged['id']}"
        client.put(path, json={"change": False}).raise_for_status()
        check(changes(client, prefix)["changes"], recount(client, prefix))


def recounted(client, row, expected):
    """Both sides of a change are the labels of the history between it and its neighbours.

    Returns whether the regime before begins at one of those: it may have a start that came to none.
    """
    events = [each for (name, _), each in expected.items() if name == row["stream"]]
    others = [each["start"] for each in events if each["state"] != "withdrawn"]
    before = max((each for each in others if each < row["start"] - NEAR), default=0)
    later = [each for each in others if each > row["start"] + NEAR]
    count = EACH * len(LEVELS) - row["start"]
    count -= count % 10 if count >= 20 else 0  # while a regime goes on it is looked at in tens
    after = min(later, default=row["start"] + count)
    history = client.get(f"/v1/streams/{row['stream']}/history?start=0&limit=1000").json()
    labels = np.array([each["y"] for each in history["observations"]])
    assert row["before"]["count"] <= row["start"] - before
    before = row["start"] - row["before"]["count"]
    sides = (labels[before : row["start"]], labels[row["start"] : after])
    for side, known in zip(("before", "after"), sides, strict=True):
        assert row[side]["count"] == len(known)
        assert row[side]["mean"] == pytest.approx(known.mean())
        assert row[side]["sd"] == pytest.approx(known.std(ddof=1))
    verb = "rose" if row["direction"] == "up" else "fell"
    if row["explanation"]["kind"] == "mean":
        assert row["explanation"]["text"].startswith(f"mean {verb} by ")
    assert row["link"] == f"/#/streams/{row['stream']}?at={row['start']}"
    return before in (0, *others)


def when(row):
    return datetime.fromisoformat(row["confirmed_time"] or row["suspected_time"])


def test_filters_orders_and_pages(emptied, prefix):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        fill(client, prefix)
        every = changes(client, prefix)["changes"]
        assert [when(row) for row in every] == sorted(map(when, every), reverse=True)
        middle = (START + timedelta(days=5)).isoformat()
        filters = {
            ("state", "confirmed"): lambda row: row["state"] == "confirmed",
            ("state", "withdrawn"): lambda row: row["state"] == "withdrawn",
            ("min_size", 5): lambda row: abs(row["size"] or 0) >= 5,
            ("min_probability", 0.6): lambda row: row["probability"] >= 0.6,
            ("since", middle): lambda row: when(row) >= datetime.fromisoformat(middle),
            ("until", middle): lambda row: when(row) < datetime.fromisoformat(middle),
            ("since", "1h"): lambda row: (datetime.now(UTC) - when(row)).total_seconds() < 3600,
            ("model", "gaussian"): lambda row: True,
            ("model", "poisson"): lambda row: False,
            ("prefix", f"{prefix}3"): lambda row: row["stream"] == f"{prefix}3",
            ("contains", f"{prefix}3"[1:]): lambda row: row["stream"] == f"{prefix}3",
        }
        for (name, value), fits in filters.items():
            page = changes(client, **({"prefix": prefix} | {name: value}))
            assert page["changes"] == [row for row in every if fits(row)], name
            assert page["total"] == len(page["changes"])
        sizes = [abs(row["size"] or 0) for row in changes(client, prefix, sort="size")["changes"]]
        assert sizes == sorted(sizes, reverse=True)
        for order in ("time", "size", "probability"):
            seen, cursor = [], None
            while True:
                query = {"sort": order, "limit": 7} | ({"cursor": cursor} if cursor else {})
                page = changes(client, prefix, **query)
                seen += page["changes"]
                assert page["total"] == len(every)
                if (cursor := page["cursor"]) is None:
                    break
            assert seen == changes(client, prefix, sort=order)["changes"]
        bare = changes(client, prefix, explain="false")["changes"]
        assert all(row["explanation"] is row["before"] is row["start_time"] is None for row in bare)


def test_as_csv(emptied, prefix):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        fill(client, prefix, streams=4)
        every = changes(client, prefix)["changes"]
        rows, path = [], f"/v1/changes?prefix={prefix}&format=csv&limit=5"
        while path:
            response = client.get(path)
            assert response.headers["content-type"].startswith("text/csv")
            rows += csv.DictReader(io.StringIO(response.text))
            link = response.headers.get("link", "")
            assert link == "" or link.endswith('; rel="next"')
            path = link.partition(">")[0].removeprefix("<")
        assert [(row["stream"], int(row["id"])) for row in rows] == [
            (row["stream"], row["id"]) for row in every
        ]
        for row, of in zip(rows, every, strict=True):
            explanation = of["explanation"] or {"text": "", "kind": ""}
            assert row["explanation"] == explanation["text"]
            assert row["kind"] == (explanation["kind"] or "")
            assert row["before_mean"] == ("" if of["before"] is None else str(of["before"]["mean"]))
            assert float(row["size"]) == of["size"]


def test_a_stream_of_the_same_name_is_another_one(emptied, prefix):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        fill(client, prefix, streams=1)
        first = changes(client, prefix)["changes"]
        client.delete(f"/v1/streams/{prefix}0").raise_for_status()
        gone = changes(client, prefix)["changes"]
        assert [(row["id"], row["start"]) for row in gone] == [
            (row["id"], row["start"]) for row in first
        ]
        assert all(row["link"] is row["explanation"] is row["before"] is None for row in gone)
        fill(client, prefix, streams=1, seed=1)
        both = changes(client, prefix)["changes"]
        linked = [row for row in both if row["link"] is not None]
        check(linked, recount(client, prefix))
        assert len(both) == len(first) + len(linked)


@pytest.mark.parametrize(
    ("model", "labels", "kind"),
    [
        ("poisson", lambda rng, i: float(rng.poisson(9 if i >= 90 else 2)), "rate"),
        ("bernoulli", lambda rng, i: float(rng.random() < (0.9 if i >= 90 else 0.1)), "share"),
        ("joint", lambda rng, i: [rng.normal(), rng.normal() + 5 * (i >= 90)], "mean"),
    ],
)
def test_what_changed_is_said_of_other_labels(emptied, prefix, model, labels, kind):
    rng = np.random.default_rng(3)
    with httpx.Client(base_url=emptied, timeout=60) as client:
        client.put(f"/v1/streams/{prefix}a", json={"model": model}).raise_for_status()
        body = [{"y": labels(rng, i)} for i in range(150)]
        client.post(f"/v1/streams/{prefix}a/observations", json=body).raise_for_status()
        (row, *_) = changes(client, prefix, state="confirmed", sort="size")["changes"]
        assert abs(row["start"] - 90) < 5
        assert row["explanation"]["kind"] == kind
        if model == "joint":
            assert row["explanation"]["output"] == 1
            assert len(row["before"]["mean"]) == len(row["size"]) == 2
            assert row["explanation"]["text"].startswith("output 2: mean rose by ")


async def test_both_clients_and_frames(emptied, prefix):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        fill(client, prefix, streams=4)
        every = changes(client, prefix)["changes"]
    keys = [(row["stream"], row["id"]) for row in every]
    with Client(emptied) as client:
        found = list(client.changes(prefix=prefix, limit=3))
        assert [(each.stream, each.id) for each in found] == keys
        assert found[0].explanation.text == every[0]["explanation"]["text"]
        frame = to_frame(found, "pandas")
        assert list(frame["explanation"])[0] == found[0].explanation.text
        middle = START + timedelta(days=2)
        later = list(client.changes(prefix=prefix, since=middle, states=["confirmed"]))
        assert {each.stream for each in later} == {f"{prefix}{i}" for i in (0, 2, 3)}
        with pytest.raises(InvalidRequest, match="time zone"):
            list(client.changes(since=datetime(2024, 5, 1)))  # noqa: DTZ001
        with pytest.raises(InvalidRequest, match="list of states"):
            list(client.changes(states="confirmed"))
    async with AsyncClient(emptied) as client:
        also = [each async for each in client.changes(prefix=prefix, limit=3)]
        assert also == found


def test_every_api_process_says_the_same_after_restarts(separate, processes, prefix):
    with httpx.Client(base_url=separate, timeout=60) as client:
        fill(client, prefix, streams=6)
        expected = recount(client, prefix)
        known = changes(client, prefix)["changes"]
        check(known, expected)
        first = changes(client, prefix, limit=4)
    port = free_port()
    processes.start("other", "api", "--port", str(port))
    wait_ready(f"http://127.0.0.1:{port}")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        assert changes(client, prefix)["changes"] == known
        rest = changes(client, prefix, cursor=first["cursor"])["changes"]
        assert first["changes"] + rest == known
    processes.kill("worker-a")
    processes.signal("api", signal.SIGTERM)
    processes.running.pop("api").wait(20)
    processes.start("api", "api", "--port", separate.rpartition(":")[2])
    wait_ready(separate)
    with httpx.Client(base_url=separate, timeout=60) as client:
        assert changes(client, prefix)["changes"] == known
        fill(client, f"{prefix}x", streams=2, seed=2)
        check(changes(client, prefix)["changes"], recount(client, prefix))
