"""Streams: settings, summaries, the list; reads of a stream."""

import pytest

from service import wire
from service.store import keys
from service.store.keys import partition_of
from service.store.worker_reads import chunk_of, seal

JSON = {"Content-Type": "application/json"}


async def test_create_change_look_delete(api, worker):
    created = await api.put("/v1/streams/s", json={"hazard": 0.02, "location": 3, "scale": [2]})
    assert created.status_code == 201
    assert worker.commands[0].settings == {"hazard": 0.02, "location": [3.0], "scale": [2.0]}
    changed = await api.put("/v1/streams/s", json={"hazard": None})
    assert changed.status_code == 200
    assert worker.commands[1].settings == {"hazard": None}
    found = (await api.get("/v1/streams/s")).json()
    assert found == changed.json()
    assert found["settings"]["scale"] == [2.0]
    assert (await api.put("/v1/streams/s")).status_code == 200
    deleted = await api.delete("/v1/streams/s")
    assert (deleted.status_code, deleted.content) == (204, b"")
    for response in (await api.get("/v1/streams/s"), await api.delete("/v1/streams/s")):
        assert response.status_code == 404
        assert response.json()["type"].endswith("/unknown-stream")


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"hazard": {"mean": 0.5, "shape": 1}}, "hazard.mean"),
        ({"hazard": {"mean": 5}}, "hazard.shape"),
        ({"hazard": [0.5, 1.5]}, "hazard[1]"),
        ({"hazard": []}, "hazard"),
        ({"hazard": [0, 0.0]}, "hazard"),
        ({"hazard": [0.5] * 65}, "hazard"),
        ({"hazard": [True]}, "hazard[0]"),
        ({"hazard": {"mean": 10_001, "shape": 1}}, "hazard.mean"),
        ({"hazard": {"mean": 5, "shape": 0}}, "hazard.shape"),
        ({"hazard": {"mean": 5, "shape": 1e-9}}, "hazard.shape"),
        ({"hazard": {"mean": 5, "shape": 1, "sd": 1}}, "hazard.sd"),
        ({"model": "categorical", "classes": 1}, "classes"),
        ({"model": "categorical", "classes": 1001}, "classes"),
        ({"model": "categorical", "classes": 2.5}, "classes"),
        ({"order": -1}, "order"),
        ({"order": 33}, "order"),
        ({"trend": 1}, "trend"),
        ({"seasonal": 1}, "seasonal"),
        ({"season": 1}, "season"),
        ({"season": 10_001}, "season"),
        ({"sensitivity": 0.1}, "sensitivity"),
        ({"sensitivity": {}}, "sensitivity.false_alarms_per_1000"),
        ({"sensitivity": {"false_alarms_per_1000": 0}}, "sensitivity.false_alarms_per_1000"),
        ({"sensitivity": {"false_alarms_per_1000": 1001}}, "sensitivity.false_alarms_per_1000"),
        ({"sensitivity": {"false_alarms_per_1000": True}}, "sensitivity.false_alarms_per_1000"),
        ({"sensitivity": {"false_alarms_per_1000": 1, "sd": 2}}, "sensitivity.sd"),
        ({"hazard": 0}, "hazard"),
        ({"hazard": 1}, "hazard"),
        ({"hazard": "0.1"}, "hazard"),
        ({"max_hypotheses": 1}, "max_hypotheses"),
        ({"max_hypotheses": 2001}, "max_hypotheses"),
        ({"max_hypotheses": None}, "max_hypotheses"),
        ({"outlier_rate": 1}, "outlier_rate"),
        ({"confirm_after": 0}, "confirm_after"),
        ({"anomaly_alarm": 0.5}, "anomaly_alarm"),
        ({"anomaly_alarm": 1}, "anomaly_alarm"),
        ({"anomaly_alarm": True}, "anomaly_alarm"),
        ({"confirm_probability": 0.49}, "confirm_probability"),
        ({"confirm_probability": 1}, "confirm_probability"),
        ({"confirm_probability": True}, "confirm_probability"),
        ({"confirm_probability": 0.9, "confirm_after": 10}, "confirm_probability"),
        ({"warmup": 201}, "warmup"),
        ({"history": 100_001}, "history"),
        ({"location": []}, "location"),
        ({"location": True}, "location"),
        ({"location": [0.0] * 257}, "location"),
        ({"scale": 0}, "scale"),
        ({"scale": [1, -1]}, "scale[1]"),
        ({"model": ""}, "model"),
        ({"model": "../x"}, "model"),
        ({"model": 3}, "model"),
        ({"lifetime": 3}, "lifetime"),
        ([], ""),
    ],
)
async def test_wrong_settings_are_refused_by_name(api, worker, body, loc):
    response = await api.put("/v1/streams/s", json=body)
    assert response.status_code == 422
    found = [error["loc"] for error in response.json()["errors"]]
    assert found == [f"body.{loc}" if loc else "body"]
    assert worker.commands == []


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ({}, {}),
        ({"confirm_after": 10}, {"confirm_after": 10}),
        ({"anomaly_alarm": None}, {"anomaly_alarm": None}),
        ({"confirm_probability": 0.5}, {"confirm_probability": 0.5}),
        ({"confirm_after": 10, "confirm_probability": None}, {"confirm_after": 10}),
        ({"confirm_after": None, "confirm_probability": 0.9}, {"confirm_probability": 0.9}),
        ({"confirm_after": None}, {"confirm_probability": 0.99}),
        ({"confirm_probability": None}, {"confirm_probability": 0.99}),
        (
            {"hazard": None, "confirm_after": None, "confirm_probability": None},
            {"hazard": None, "confirm_probability": 0.99},
        ),
    ],
)
async def test_one_rule_of_confirmation_is_passed_on(api, worker, body, given):
    assert (await api.put("/v1/streams/s", json=body)).status_code == 201
    assert worker.commands[0].settings == given
    await api.post("/v1/streams/s/what-if", json={"settings": body})
    assert worker.commands[1].settings == given


async def test_list_in_pages(api):
    names = sorted(f"{kind}-{i}" for kind in ("pump", "fan") for i in range(13))
    await api.post("/v1/observations", json=[{"stream": name, "y": 1} for name in names])
    found, cursor = [], None
    while True:
        params = {"limit": 5} | ({} if cursor is None else {"cursor": cursor})
        page = (await api.get("/v1/streams", params=params)).json()
        found += [each["stream"] for each in page["streams"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == names
    pumps = (await api.get("/v1/streams", params={"prefix": "pump-"})).json()["streams"]
    assert len(pumps) == 13
    for params in ({"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"page": 1}):
        response = await api.get("/v1/streams", params=params)
        assert response.status_code == 422
        assert response.json()["errors"][0]["loc"] == f"query.{next(iter(params))}"


async def test_predictions_and_run_length_go_through_the_log(api, worker):
    await api.post("/v1/streams/s/observations", json={"y": 1})
    body = {"x": [[1, 2]], "quantiles": [0.1], "samples": 3, "components": True, "seed": 5}
    assert (await api.post("/v1/streams/s/predictions", json=body)).json()["asked"] == "Predict"
    found = worker.commands[-1]
    assert (found.x, found.quantiles, found.samples) == ([[1.0, 2.0]], [0.1], 3)
    assert (found.components, found.seed) == (True, 5)
    await api.post("/v1/streams/s/predictions")
    await api.post("/v1/streams/s/predictions", json={})
    assert worker.commands[-1].quantiles == [0.05, 0.5, 0.95]
    assert worker.commands[-1].seed != worker.commands[-2].seed
    assert (await api.get("/v1/streams/s/run-length")).json()["asked"] == "RunLength"
    for response in (
        await api.post("/v1/streams/none/predictions"),
        await api.get("/v1/streams/none/run-length"),
        await api.get("/v1/streams/none/changepoints"),
        await api.get("/v1/streams/none/history"),
    ):
        assert response.status_code == 404


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"x": []}, "x"),
        ({"x": [[]]}, "x[0]"),
        ({"x": [1]}, "x[0]"),
        ({"x": [[1]] * 1001}, "x"),
        ({"x": [[1.0] * 257]}, "x[0]"),
        ({"quantiles": [0]}, "quantiles[0]"),
        ({"quantiles": [0.5] * 100}, "quantiles"),
        ({"samples": 1001}, "samples"),
        ({"samples": 1000, "x": [[1]] * 200}, "samples"),
        ({"samples": -1}, "samples"),
        ({"components": 1}, "components"),
        ({"seed": 2**63}, "seed"),
        ({"elapsed": 0}, "elapsed"),
    ],
)
async def test_wrong_predictions_are_refused_by_name(api, body, loc):
    response = await api.post("/v1/streams/s/predictions", json=body)
    assert response.status_code == 422
    assert [error["loc"] for error in response.json()["errors"]] == [f"body.{loc}"]


async def test_history_in_pages(api):
    await api.post("/v1/streams/s/observations", json=[{"y": i} for i in range(25)])
    latest = (await api.get("/v1/streams/s/history", params={"limit": 10})).json()
    assert [record["seq"] for record in latest["observations"]] == list(range(15, 25))
    assert (latest["seq"], latest["first"], latest["next"]) == (25, 0, None)
    found, start = [], 0
    while start is not None:
        page = await api.get("/v1/streams/s/history", params={"limit": 10, "start": start})
        found += [record["y"] for record in page.json()["observations"]]
        start = page.json()["next"]
    assert found == list(range(25))
    beyond = (await api.get("/v1/streams/s/history", params={"start": 99})).json()
    assert (beyond["observations"], beyond["next"]) == ([], None)


def put_history(client, stream, head, previous_starts):
    """Store a head and sealed records, as a worker would."""
    p = partition_of(stream, 4)
    records = [
        wire.Record(i, 0.0, None, None, 1.0, None, 0.01, 0.0, previous_start=previous)
        for i, previous in enumerate(previous_starts)
    ]
    chunks = {}
    for record in records[max(0, head.seq - head.settings.history) :]:
        chunks.setdefault(chunk_of(stream, record.seq), []).append(record)
    for number, chunk in chunks.items():
        client.hset(keys.history(p, stream), str(number), seal(stream, number, chunk))
    client.hset(keys.heads(p), stream, wire.encode(head))


@pytest.mark.parametrize(
    ("history", "expected", "counts"),
    [
        (1000, [(0, 100), (100, 250), (250, 500)], [150, 100]),
        (300, [(200, 250), (250, 500)], [50, 100]),
        (100, [(400, 500)], None),
        (0, [], None),
    ],
)
async def test_changepoints_follow_the_best_path_back(api, settings, history, expected, counts):
    from service.store.connection import connect

    previous = [-1] * 500
    previous[250], previous[100] = 100, 0
    head = wire.Head(
        1, wire.StreamSettings(history=history), seq=500, warm=True, sealed=500, best_start=250
    )
    event = wire.Event(1, "confirmed", 250, 255, 265, 5, 0.9, "up", 2.0)
    with connect(settings.redis_url) as client:
        put_history(client, "s", head, previous)
        client.hset(keys.events(partition_of("s", 4), "s"), "1", wire.encode(event))
    found = (await api.get("/v1/streams/s/changepoints")).json()
    assert [(each["start"], each["end"]) for each in found["segmentation"]] == expected
    (event,) = found["events"]
    sides = [event.pop(name) for name in ("before", "after", "explanation")]
    if counts is None:  # it lies before what is retained
        assert sides == [None] * 3
    else:
        assert [side["count"] for side in sides[:2]] == counts
    assert event == {
        "id": 1, "state": "confirmed", "start": 250, "suspected_at": 255, "confirmed_at": 265,
        "delay": 5, "probability": 0.9, "direction": "up", "size": 2.0, "time": None,
        "verdict": None, "kind": "change",
    }  # fmt: skip
    assert found["seq"] == 500


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["change 1"]),
        ("?kind=change", ["change 1"]),
        ("?kind=anomaly", ["anomaly 1", "anomaly 90"]),
        ("?kind=all", ["change 1", "anomaly 1", "anomaly 90"]),
        ("?kind=anomaly&kind=change", ["change 1", "anomaly 1", "anomaly 90"]),
    ],
)
async def test_changepoints_have_the_kinds_that_are_asked_for(api, settings, query, expected):
    from service.store.connection import connect

    head, p = wire.Head(1, wire.StreamSettings(history=0), seq=100), partition_of("s", 4)
    with connect(settings.redis_url) as client:
        client.hset(keys.heads(p), "s", wire.encode(head))
        change = wire.Event(1, "confirmed", 50, 55, 65)
        client.hset(keys.events(p, "s"), "1", wire.encode(change))
        for at in (90, 1):
            event = wire.Event(at, "confirmed", at, at, at, kind="anomaly")
            client.hset(keys.anomalies(p, "s"), str(at), wire.encode(event))
    found = (await api.get(f"/v1/streams/s/changepoints{query}")).json()
    assert [f"{each['kind']} {each['id']}" for each in found["events"]] == expected
    refused = await api.get("/v1/streams/s/changepoints?kind=point")
    assert refused.json()["errors"][0]["loc"] == "query.kind[0]"


async def test_stored_bytes_that_cannot_be_read(api, settings):
    from service.store.connection import connect

    with connect(settings.redis_url) as client:
        client.hset(keys.heads(partition_of("s", 4)), "s", b"\x00nonsense")
    response = await api.get("/v1/streams/s")
    assert response.status_code == 500
    assert response.json()["type"].endswith("/corrupt-state")
