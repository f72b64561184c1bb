"""Damaged parts over REST: what needs them is an error, everything else goes on."""

import httpx
import pytest

from service.store import keys
from service.store.connection import connect
from tests.conftest import _binary, running_server
from tests.e2e.deployment import wait_ready
from tests.ports import free_port


@pytest.fixture
def deployed(processes):
    """A client of an API, and one of the store that it and a worker are on."""
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        port, environment = free_port(), {"MOCA_REDIS_URL": redis_url, "MOCA_PARTITIONS": "1"}
        processes.environment |= {**environment, "MOCA_LEASE_TTL_MS": "1000"}
        processes.start("worker", "worker")
        processes.start("api", "api", "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        with httpx.Client(base_url=url, timeout=60) as api, connect(redis_url) as store:
            yield api, store
        processes.stop_all()


def flip(store, key, field):
    blob = store.hget(key, field)
    store.hset(key, field, blob[:-5] + bytes([blob[-5] ^ 16]) + blob[-4:])
    return blob


def slug(response):
    assert response.status_code == 500, response.text
    return response.json()["type"].rpartition("/")[2]


@pytest.mark.slow
def test_damage_is_answered_where_it_is(deployed, processes):
    api, store = deployed
    body = [{"y": 0.1 * (i % 5) + (8.0 if i >= 40 else 0.0)} for i in range(150)]
    for stream in ("a", "b"):
        for first in range(0, 150, 50):
            path = f"/v1/streams/{stream}/observations"
            assert api.post(path, json=body[first : first + 50]).status_code == 200
    api.put("/v1/streams/a", json={"hazard": 0.02})
    key = {"Idempotency-Key": "k"}
    seen = api.post("/v1/streams/a/observations", json={"y": 8.0}, headers=key).json()

    whole = api.get("/v1/streams/a/changepoints").json()
    good = flip(store, keys.events(0, "a"), "1")
    found = api.get("/v1/streams/a/changepoints").json()
    assert (found["unreadable"], found["segmentation"]) == (["1"], whole["segmentation"])
    assert found["events"] == [each for each in whole["events"] if each["id"] != 1]
    store.hset(keys.events(0, "a"), "1", good)
    assert api.get("/v1/streams/a/changepoints").json() == whole

    (field,) = store.hkeys(keys.changes(0, "a"))
    good = flip(store, keys.changes(0, "a"), field)
    assert api.get("/v1/streams/a/history").json()["unreadable"] == [field.decode()]
    store.hset(keys.changes(0, "a"), field, good)

    good = flip(store, keys.history(0, "a"), "0")
    assert slug(api.get("/v1/streams/a/history", params={"start": 0})) == "corrupt-state"
    assert api.get("/v1/streams/a/history", params={"start": 130}).status_code == 200
    assert slug(api.post("/v1/streams/a/what-if", json={})) == "corrupt-state"
    assert slug(api.get("/v1/streams/a/snapshot")) == "corrupt-state"
    assert api.post("/v1/streams/a/observations", json={"y": 8.0}).json()["seq"] == 151
    store.hset(keys.history(0, "a"), "0", good)
    assert api.post("/v1/streams/a/what-if", json={}).status_code == 200

    processes.kill("worker")
    record = flip(store, keys.idempotency(0, "a"), "k\x000")
    processes.start("worker", "worker")
    again = api.post("/v1/streams/a/observations", json={"y": 8.0}, headers=key)
    assert slug(again) == "corrupt-state"
    assert api.post("/v1/streams/a/observations", json={"y": 8.0}).json()["seq"] == 152

    processes.kill("worker")
    store.hset(keys.idempotency(0, "a"), "k\x000", record)
    good = flip(store, keys.heads(0), "a")
    assert api.get("/v1/overview").json()["unreadable"] == ["a"]
    processes.start("worker", "worker")
    items = [{"stream": "a", "y": 8.0}, {"stream": "b", "y": 8.0}]
    bad, fine = api.post("/v1/observations", json=items).json()
    assert (bad["status"], fine["status"], fine["seq"]) == (500, 200, 150)
    for path in ("", "/history", "/changepoints"):
        assert slug(api.get(f"/v1/streams/a{path}")) == "corrupt-state"
    store.hset(keys.heads(0), "a", good)
    again = api.post("/v1/streams/a/observations", json={"y": 8.0}, headers=key).json()
    assert (again["seq"], again["duplicate"]) == (seen["seq"], True)
    assert "moca_corrupt_states_total" in api.get("/metrics").text
    assert store.hlen(keys.quarantine(0)) >= 2
