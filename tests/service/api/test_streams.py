"""Streams: settings, the list, reads, history, and changepoints with their hindsight."""

import asyncio
from types import SimpleNamespace

import pytest

from model_core.sentences import Explanation, Moments
from service import wire
from service.api.gateway import own_commands
from service.store import keys
from service.store.keys import partition_of
from tests.service.api.conftest import located, slug
from tests.stored import put_event, put_head, put_records, record
from tests.waiting import PATIENCE_S, Clock, until_async

P = partition_of("s", 4)
S = "/v1/streams/s"
PATH = f"{S}/changepoints"


async def test_create_change_look_delete(api, worker):
    created = await api.put(S, json={"hazard": 0.02, "location": 3, "scale": [2]})
    assert created.status_code == 201
    assert worker.commands[0].settings == {"hazard": 0.02, "location": [3.0], "scale": [2.0]}
    changed = await api.put(S, json={"hazard": None})
    assert changed.status_code == 200
    assert worker.commands[1].settings == {"hazard": None}
    answer = (await api.get(S)).json()
    assert answer == changed.json()
    assert answer["settings"]["scale"] == [2.0]
    assert (await api.put(S)).status_code == 200
    deleted = await api.delete(S)
    assert (deleted.status_code, deleted.content) == (204, b"")
    for response in (await api.get(S), await api.delete(S)):
        assert (response.status_code, slug(response)) == (404, "unknown-stream")


RIGHT_SETTINGS = [  # at the bounds
    {"hazard": {"mean": 1, "shape": 0.001}, "classes": 2, "order": 0, "season": 2, "warmup": 200},
    {"hazard": {"mean": 10_000, "shape": 1000}, "classes": 1000, "order": 32, "season": 10_000},
    {"hazard": [0, 1], "max_hypotheses": 2, "outlier_rate": 0, "confirm_after": 1, "warmup": 0},
    {"hazard": [0.5] * 64, "max_hypotheses": 2000, "false_alarm_every": 10.0, "history": 100_000},
    {"location": [0.0] * 256, "history": 0},
    {"interval": 0.001, "ttl": 1, "label_window": 1000, "anomaly_alarm": None, "classes": 84.0},
]


async def test_settings_at_the_bounds_are_taken_and_one_rule_of_confirmation(api, worker):
    both = {"false_alarm_every": 1000.0, "confirm_after": 10}
    assert located(await api.put(S, json=both)) == ["body.false_alarm_every"]
    assert worker.commands == []
    for body in RIGHT_SETTINGS:
        response = await api.put(S, json=body)
        assert response.is_success, (body, response.text)


async def test_a_misspelt_setting_or_parameter_is_answered_by_what_was_meant(api, worker):
    for response, loc, meant in (
        (await api.put(S, json={"hazzard": 0.1, "history": 10}), "body.hazzard", "hazard"),
        (await api.get("/v1/streams", params={"limt": 3}), "query.limt", "limit"),
        (await api.post(f"{S}/observations", params={"detial": "full"}), "query.detial", "detail"),
        (
            await api.post(f"{S}/what-if", json={"settings": {"hazard": {"maen": 9, "shape": 1}}}),
            "body.settings.hazard.maen",
            "mean",
        ),
    ):
        assert (response.status_code, slug(response)) == (422, "invalid-field")
        (error,) = [error for error in response.json()["errors"] if error["loc"] == loc]
        assert error["detail"] == f"unknown field; did you mean '{meant}'?"
    assert worker.commands == []


async def test_one_rule_of_confirmation_is_passed_on(api, worker):
    both = {"confirm_after": None, "false_alarm_every": None}
    for body, given in (
        ({}, {}),
        ({"confirm_after": 10}, {"confirm_after": 10}),
        ({"false_alarm_every": 10.0}, {"false_alarm_every": 10.0}),
        ({"confirm_after": 10, "false_alarm_every": None}, {"confirm_after": 10}),
        ({"confirm_after": None, "false_alarm_every": 1000.0}, {"false_alarm_every": 1000.0}),
        ({"confirm_after": None}, {"false_alarm_every": None}),
        ({"false_alarm_every": None}, {"false_alarm_every": None}),
        ({"hazard": None, **both}, {"hazard": None, "false_alarm_every": None}),
    ):
        assert (await api.put(S, json=body)).is_success
        assert worker.commands[-1].settings == given
        await api.post(f"{S}/what-if", json={"settings": body})
        assert worker.commands[-1].settings == given


async def test_predictions_have_defaults_and_new_seeds(api, worker):
    await api.post(f"{S}/observations", json={"y": 1})
    body = {"x": [[1, 2]], "quantiles": [0.1], "samples": 3, "components": True, "seed": 5}
    assert (await api.post(f"{S}/predictions", json=body)).json()["asked"] == "Predict"
    command = worker.commands[-1]
    assert (command.x, command.quantiles, command.samples) == ([[1.0, 2.0]], [0.1], 3)
    assert (command.components, command.seed) == (True, 5)
    await api.post(f"{S}/predictions")
    await api.post(f"{S}/predictions", json={})
    assert worker.commands[-1].quantiles == [0.05, 0.5, 0.95]
    assert worker.commands[-1].seed != worker.commands[-2].seed


async def test_samples_are_bounded_in_all(api):
    body = {"samples": 1000, "x": [[1]] * 200}
    assert located(await api.post(f"{S}/predictions", json=body)) == ["body.samples"]


async def test_history_comes_in_pages(api):
    await api.post(f"{S}/observations", json=[{"y": i} for i in range(25)])
    latest = (await api.get(f"{S}/history", params={"limit": 10})).json()
    assert [record["seq"] for record in latest["observations"]] == list(range(15, 25))
    assert (latest["seq"], latest["first"], latest["next"]) == (25, 0, None)
    found, start = [], 0
    while start is not None:
        page = await api.get(f"{S}/history", params={"limit": 10, "start": start})
        found += [record["y"] for record in page.json()["observations"]]
        start = page.json()["next"]
    assert found == list(range(25))
    beyond = (await api.get(f"{S}/history", params={"start": 99})).json()
    assert (beyond["observations"], beyond["next"]) == ([], None)


# --- changepoints -------------------------------------------------------------------------------


def put(store, seq=500, starts=(0, 250), name="s", **settings):
    """Store a stream whose online path has these starts, as a worker would."""
    p = partition_of(name, 4)
    previous = [-1] * seq
    for before, start in zip(starts, starts[1:], strict=False):
        previous[start] = before
    chosen = wire.StreamSettings(**settings)
    head = wire.Head(1, chosen, seq=seq, warm=True, best_start=starts[-1])
    head.oldest = head.retained_from
    kept = range(head.oldest, seq)
    records = (record(i, previous_start=previous[i]) for i in kept)
    put_records(store, p, name, records)
    put_head(store, p, name, head)


@pytest.mark.parametrize(
    ("history", "expected"), [(300, [(200, 250), (250, 500)]), (100, [(400, 500)])]
)
async def test_changepoints_follow_the_best_path_back(api, store, history, expected):
    put(store, starts=(0, 100, 250), history=history)
    told = {"after": Moments(9, 2.0, None), "explanation": Explanation("mean rose"), "start_ms": 0}
    events = {
        1: wire.Event(1, "confirmed", 250, 255, 265, 5, 0.9, "up", 2.0, **told),
        2: wire.Event(2, "withdrawn", 260, 261),
    }
    for event in events.values():
        put_event(store, P, "s", event)
    answer = (await api.get(PATH)).json()
    assert [(each["start"], each["end"]) for each in answer["segmentation"]] == expected
    (event,) = answer["events"]
    assert (event["before"], event["after"]) == (None, {"count": 9, "mean": 2.0, "sd": None})
    assert event["sentence"] == event["explanation"]["text"] == "mean rose"
    assert (event["start_time"], event["start_arrived"]) == ("1970-01-01T00:00:00.000+00:00", True)
    assert (event["id"], event["state"], event["start"]) == (1, "confirmed", 250)
    assert (event["probability"], event["direction"], event["size"]) == (0.9, "up", 2.0)
    assert answer["seq"] == 500
    answer = (await api.get(f"{PATH}?state=withdrawn")).json()
    assert [event["id"] for event in answer["events"]] == [2]


async def test_changepoints_have_the_kinds_that_are_asked_for(api, store):
    put(store, history=0)
    event = wire.Event(1, "confirmed", 50, 55, 65)
    put_event(store, P, "s", event)
    for at in (90, 1):
        event = wire.Event(at, "confirmed", at, at, at, kind="anomaly")
        put_event(store, P, "s", event)
    change, anomalies = ["change 1"], ["anomaly 1", "anomaly 90"]
    for query, expected in (
        ("", change),
        ("?kind=anomaly", anomalies),
        ("?kind=all", change + anomalies),
        ("?kind=anomaly&kind=change", change + anomalies),
    ):
        answer = (await api.get(PATH + query)).json()
        assert [f"{each['kind']} {each['id']}" for each in answer["events"]] == expected


async def test_a_segmentation_has_confirmed_changes_whatever_kinds_are_asked_for(api, store):
    put(store)
    event = wire.Event(1, "confirmed", 150, 155, 165)
    put_event(store, P, "s", event)
    for query, events in (("", 1), ("?kind=anomaly", 0), ("?state=withdrawn", 0)):
        answer = (await api.get(PATH + query)).json()
        assert len(answer["events"]) == events
        assert [each["start"] for each in answer["segmentation"]] == [0, 150, 250]


# --- hindsight ----------------------------------------------------------------------------------


def found_in_hindsight(seq, *starts, generation=1):
    return wire.StoredHindsight(generation, starts[0], seq, list(starts), 1_700_000_000_000)


def asked(worker):
    return sum(isinstance(each, wire.SegmentHistory) for each in worker.commands)


async def changepoints(api, **query):
    response = await api.get(PATH, params=query)
    assert response.status_code == 200, response.text
    answer = response.json()
    segments = answer["segmentation"]
    assert all(a["end"] == b["start"] for a, b in zip(segments, segments[1:], strict=False))
    assert not segments or segments[-1]["end"] == answer["seq"]
    return [each["start"] for each in segments], answer["hindsight"]


@pytest.fixture
def paused(worker):
    """Stop the worker; what it reads meanwhile it does not apply."""
    worker.pause()
    return worker


async def test_hindsight_is_computed_once_by_all_who_ask_and_then_kept(api, worker, store):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100, 260)
    responses = await asyncio.gather(*(changepoints(api) for _ in range(8)))
    said = {
        "status": "current", "first": 0, "seq": 500, "computed": "2023-11-14T22:13:20.000+00:00",
    }  # fmt: skip
    assert responses == [([0, 100, 250], said)] * 8
    assert await changepoints(api) == ([0, 100, 250], said)
    assert asked(worker) == 1


async def test_hindsight_is_computed_anew_beyond_a_tenth(api, worker, store):
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    put(store)
    await changepoints(api)
    put(store, seq=550)
    worker.hindsight["s"] = found_in_hindsight(551, 0, 101)
    starts, said = await changepoints(api)
    assert (starts, said["status"], said["seq"], asked(worker)) == (
        [0, 100, 250],
        "current",
        500,
        1,
    )
    put(store, seq=551)
    starts, said = await changepoints(api)
    assert (starts, said["status"], said["seq"], asked(worker)) == (
        [0, 101, 250],
        "current",
        551,
        2,
    )


async def test_without_a_worker_the_online_path_is_answered(api, paused, store, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(own_commands, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(own_commands, "HINDSIGHT_WAIT_S", 0.05)
    put(store)
    paused.hindsight["s"] = found_in_hindsight(500, 0, 100)
    pending = ([0, 250], {"status": "pending", "first": None, "seq": None, "computed": None})
    assert await changepoints(api, wait=False) == pending
    assert await changepoints(api) == pending
    clock.advance(60.0)  # the wait counts from the first on: others do not wait again
    monkeypatch.setattr(own_commands, "HINDSIGHT_WAIT_S", 60.0)
    async with asyncio.timeout(PATIENCE_S):
        assert await changepoints(api) == pending
    paused.running.set()
    await until_async(lambda: store.hexists(keys.hindsight(P), "s"))
    assert (await changepoints(api))[0] == [0, 100, 250]
    assert asked(paused) == 1


async def test_few_are_in_the_logs_at_a_time(api, paused, store, monkeypatch):
    """A client that reads all streams holds up the observations of a partition by two at most."""
    monkeypatch.setattr(own_commands, "HINDSIGHT_WAIT_S", 0.0)
    monkeypatch.setattr(own_commands, "HINDSIGHT_MOST", 5)
    names = [f"s{i}" for i in range(7)]
    for name in names:
        put(store, name=name)
        paused.hindsight[name] = found_in_hindsight(500, 0, 100)
    paths = [f"/v1/streams/{name}/changepoints" for name in names]
    responses = await asyncio.gather(*(api.get(path) for path in paths))
    assert [each.json()["hindsight"]["status"] for each in responses] == ["pending"] * 7
    assert len(api.app.state.context.replies.pending) == own_commands.HINDSIGHT_IN_LOGS
    paused.running.set()
    await until_async(lambda: asked(paused) == 5)
    monkeypatch.setattr(own_commands, "HINDSIGHT_WAIT_S", 60.0)
    responses = await asyncio.gather(*(api.get(path) for path in paths))
    assert [each.json()["hindsight"]["status"] for each in responses] == ["current"] * 7
    assert asked(paused) == 7


async def test_an_older_one_is_answered_meanwhile(api, worker, store, monkeypatch):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    assert (await changepoints(api))[1]["status"] == "current"
    monkeypatch.setattr(own_commands, "HINDSIGHT_WAIT_S", 0.0)
    worker.pause()
    put(store, seq=700, starts=(0, 250, 600))
    starts, said = await changepoints(api)
    assert (starts, said["status"], said["seq"]) == ([0, 100, 250, 600], "pending", 500)


async def test_a_refusal_fails_no_read(api, worker, store):
    put(store)  # the worker knows of no such stream
    starts, said = await changepoints(api)
    assert (starts, said["status"]) == ([0, 250], "unavailable")
    api.app.state.context.monitor.memory_short = True  # nothing more is stored
    before = len(worker.commands)
    assert (await changepoints(api))[1]["status"] == "unavailable"
    assert len(worker.commands) == before


async def test_a_damaged_one_is_an_error_and_one_of_another_life_not_answered(api, worker, store):
    put(store)
    store.hset(keys.hindsight(P), "s", b"nonsense")
    assert (await api.get(f"{S}/changepoints")).status_code == 500
    assert asked(worker) == 0
    none = {"status": "unavailable", "first": None, "seq": None, "computed": None}
    for other in (found_in_hindsight(400, 0, 100, generation=2), found_in_hindsight(501, 0, 100)):
        store.delete(keys.hindsight(P))
        worker.hindsight["s"] = other
        assert await changepoints(api) == ([0, 250], none)


async def test_a_tail_of_another_type_is_an_error_of_its_stream_alone(api, worker, store):
    put(store)
    put(store, name="t")
    store.delete(keys.tail(P, "s"))
    store.set(keys.tail(P, "s"), b"text")
    assert (await api.get(f"{S}/history")).status_code == 500
    page = (await api.get("/v1/overview?labels=2")).json()
    assert (page["unreadable"], [row["stream"] for row in page["streams"]]) == (["s"], ["t"])


async def test_nothing_is_asked_where_there_is_nothing_to_segment(api, worker, store):
    await api.post(f"{S}/observations", json={"y": 1})  # warming up
    assert (await changepoints(api))[1]["status"] == "none"
    put(store, history=0)
    starts, said = await changepoints(api)
    assert (starts, said["status"], asked(worker)) == ([], "none", 0)
