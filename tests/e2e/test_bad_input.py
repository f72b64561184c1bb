"""Every kind of bad input gets its problem document; the stream is bitwise as before."""

import json

import httpx
import pytest

from model_core import artifact
from service.store import keys
from service.store.connection import connect
from tests.conftest import _binary, running_server
from tests.e2e.deployment import Processes

LIST = "/v1/streams/good/observations"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    found = Processes(tmp_path_factory.mktemp("bad"), {"MOCA_PARTITIONS": "16"})
    yield found
    found.stop_all()


@pytest.fixture(scope="module")
def separate(processes):
    """As in conftest.py, for all tests here: most leave it as it was."""
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        yield processes.start_separate(redis_url)
        processes.stop_all()


@pytest.fixture
def client(separate, processes):
    with httpx.Client(base_url=separate, timeout=60) as found:
        for name in ("good", "count", "keyed", "torn", "fine"):
            found.delete(f"/v1/streams/{name}")
        body = {"model": "gaussian", "location": 0.0, "scale": 1.0}
        found.put("/v1/streams/good", json=body).raise_for_status()
        found.post(LIST, json=[{"y": float(i % 3)} for i in range(40)]).raise_for_status()
        # A partition that changes hands afterwards would have its states written.
        processes.wait_for("owns 8 partitions", *(set(processes.running) - {"api"}))
        yield found


BAD = {
    "wrong dimension": (LIST, '{"y": [1.0, 2.0]}', 422, "dimension-mismatch"),
    "input for a model without": (LIST, '{"x": [1.0], "y": 1.0}', 422, "dimension-mismatch"),
    "empty label": (LIST, '{"y": []}', 422, "invalid-field"),
    "NaN": (LIST, '{"y": NaN}', 422, "invalid-field"),
    "Infinity": (LIST, '{"y": -Infinity}', 422, "invalid-field"),
    "overflow": (LIST, '{"y": 1e999}', 422, "invalid-field"),
    "far too large": (LIST, '{"y": 1e200}', 422, "label-out-of-range"),
    "text": (LIST, '{"y": "1.0"}', 422, "invalid-field"),
    "unknown field": (LIST, '{"y": 1.0, "z": 2}', 422, "invalid-field"),
    "elapsed": (LIST, '{"y": 1.0, "elapsed": 0}', 422, "invalid-field"),
    "time": (LIST, '{"y": 1.0, "time": "yesterday"}', 422, "invalid-field"),
    "supervision": (LIST, '{"y": 1, "supervision": {"changepoint": 2}}', 422, "invalid-field"),
    "expected position": (LIST, '{"y": 1.0, "seq": 7}', 409, "seq-conflict"),
    "second of a list": (LIST, '[{"y": 1.0}, {"y": [1.0, 2.0]}]', 422, "dimension-mismatch"),
    "second not a number": (LIST, '[{"y": 1.0}, {"y": NaN}]', 422, "invalid-field"),
    "not JSON": (LIST, '{"y": 1.0', 400, "malformed-body"),
    "not an object": (LIST, "7", 422, "invalid-field"),
    "deep": (LIST, "[" * 10_000 + "]" * 10_000, 400, "malformed-body"),
    "too many": (LIST, json.dumps([{"y": 1.0}] * 10_001), 422, "invalid-field"),
    "too large": (LIST, " " * (9 << 20) + '{"y": 1.0}', 413, "body-too-large"),
    "forbidden id": ("/v1/streams/a%20b/observations", '{"y": 1.0}', 422, "invalid-field"),
    "id of 10 kB": (f"/v1/streams/{'a' * 10_000}/observations", '{"y": 1}', 422, "invalid-field"),
}


@pytest.fixture
def raw_state(client, processes):
    """Everything that Redis keeps of the stream."""
    partition = keys.partition_of("good", 16)
    names = (keys.tail, keys.history, keys.checkpoint, keys.events)

    def read():
        with connect(processes.redis_url) as redis:
            parts = [redis.hgetall(name(partition, "good")) for name in names]
            return redis.hget(keys.heads(partition), "good"), parts

    return read


def test_bad_input_leaves_the_stream_bitwise_as_it_was(client, raw_state):
    before = raw_state()
    wrong = []
    for name, (path, body, status, slug) in BAD.items():
        response = client.post(path, content=body, headers=JSON)
        document = response.json() if "json" in response.headers["content-type"] else {}
        kind = document.get("type", "").rsplit("/", 1)[-1]
        if (response.status_code, kind) != (status, slug):
            wrong.append(f"{name}: {response.status_code} {response.text[:200]}")
            continue
        assert response.headers["content-type"] == "application/problem+json"
        assert document["detail"], name
        assert document["status"] == status
        if slug == "invalid-field":
            assert document["errors"][0]["loc"], name
    assert wrong == []
    assert raw_state() == before


def test_settings_and_reads_are_checked(client):
    put = {"model": "nobody"}, {"hazard": 2.0}, {"max_hypotheses": 1}, {"scale": -1.0}, {"a": 1}
    for body in put:
        response = client.put("/v1/streams/other", json=body)
        assert response.status_code == 422, (body, response.text)
    assert client.get("/v1/streams/other").status_code == 404
    assert client.put("/v1/streams/good", json={"warmup": 3}).status_code == 409
    for path in ("", "/run-length", "/changepoints", "/history"):
        assert client.get(f"/v1/streams/nobody{path}").status_code == 404
    assert client.post("/v1/streams/nobody/predictions", json={}).status_code == 404
    body = {"x": [[1.0]]}
    assert client.post("/v1/streams/good/predictions", json=body).status_code == 422
    assert client.delete("/v1/streams/nobody").status_code == 404
    assert client.get("/v1/nothing").headers["content-type"] == "application/problem+json"


def test_the_rest_of_a_batch_is_served(client):
    items = [
        {"stream": "good", "y": 1.0},
        {"stream": "good", "y": [1.0, 2.0]},
        {"stream": "good", "y": 1.0},
        {"stream": "count", "y": 2.0},
        {"stream": "bad id", "y": 2.0},
    ]
    response = client.post("/v1/observations", json=items)
    assert response.status_code == 200
    assert [item["status"] for item in response.json()] == [200, 422, 424, 200, 422]
    assert client.get("/v1/streams/good").json()["seq"] == 41


def test_a_key_for_many_streams_is_refused(client):
    """It would promise that a repeat has no second effect; each item has a key of its own."""
    items = [{"stream": "keyed", "y": 1.0, "key": "k"}]
    header = {"Idempotency-Key": "k"}
    refused = client.post("/v1/observations", json=items, headers=header)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == "header.idempotency-key"
    for repeated in (False, True):
        (answer,) = client.post("/v1/observations", json=items).json()
        assert (answer["seq"], answer["duplicate"]) == (0, repeated)


def test_levels_that_are_close_are_answered_each_under_its_name(client):
    levels = [0.05, 0.1234561, 0.1234564, 0.9999999]
    asked = client.post("/v1/streams/good/predictions", json={"quantiles": levels}).json()
    found = asked["predictions"][0]["predictive"]["quantiles"]
    assert [float(name) for name in found] == levels


def test_a_corrupt_checkpoint_and_a_broken_model_hurt_their_stream_alone(
    client, processes, separate
):
    partition = keys.partition_of("good", 16)
    client.post(LIST, json=[{"y": 0.0}] * 80).raise_for_status()
    models = processes.folder / "models"
    artifact.save(models / "torn" / "1", {"kind": "alpaca", "x_dim": 1, "y_dim": 1}, {})
    torn = client.put("/v1/streams/torn", json={"model": "torn"})
    assert torn.status_code == 422
    assert "torn" in torn.json()["detail"]
    for name in set(processes.running) - {"api"}:
        processes.kill(name)
    with connect(processes.redis_url) as redis:
        key = keys.checkpoint(partition, "good")
        (field, blob) = next(iter(redis.hgetall(key).items()))
        redis.hset(key, field, blob[:-1] + bytes([blob[-1] ^ 1]))
        for name in ("worker-c", "worker-d"):
            processes.start(name, "worker", "--worker-id", name)
        broken = client.post(LIST, json={"y": 1.0})
        assert broken.status_code == 500
        assert broken.json()["type"].endswith("/corrupt-state")
        assert "checksum" in broken.json()["detail"]
        assert client.post("/v1/streams/fine/observations", json={"y": 1.0}).status_code == 200
        assert any(b"good" in field for field in redis.hkeys(keys.quarantine(partition)))
        redis.hset(key, field, blob)
        assert client.post(LIST, json={"y": 1.0}).json()["seq"] == 120
