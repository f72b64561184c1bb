"""New versions, broken ones, canaries and moves of many streams, while the service runs."""

import itertools
import shutil
from pathlib import Path

import httpx
import pytest

import service
from tests.e2e.test_calls import ask, close, labels, post

TRAINED = Path(service.__file__).parent / "samples" / "models" / "regimes" / "1"


NUMBER = itertools.count(1)


@pytest.fixture
def pump():
    """Name of a model, of each test its own: they share a service."""
    return f"pump{next(NUMBER)}"


@pytest.fixture
def publish(shared, pump):
    def put(version, damage=False):
        folder = shared[0].folder / "models" / pump / str(version)
        part = folder.with_name(f".{version}")
        shutil.copytree(TRAINED, part)
        if damage:
            weights = part / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-100])
        part.rename(folder)

    return put


@pytest.fixture
def client(emptied, publish):
    publish(1)
    with httpx.Client(base_url=emptied, timeout=60) as made:
        yield made


def model_of(client, stream):
    return ask(client, "GET", stream)["model"]


def test_a_new_version_is_there_at_once_and_streams_stay_on_theirs(client, publish, pump):
    ask(client, "PUT", "old", 201, json={"model": pump})
    post(client, "old", labels(10))
    publish(2)
    ask(client, "PUT", "new", 201, json={"model": pump})
    assert (model_of(client, "old"), model_of(client, "new")) == (f"{pump}@1", f"{pump}@2")
    post(client, "old", labels(5))
    assert model_of(client, "old") == f"{pump}@1"


def test_a_broken_version_takes_nothing_down(client, publish, pump):
    ask(client, "PUT", "old", 201, json={"model": pump})
    publish(2, damage=True)
    refused = ask(client, "PUT", "new", 422, json={"model": pump})
    assert refused["type"].endswith("/unknown-model")
    post(client, "old", labels(5))
    post(client, "other", labels(5))
    moved = ask(client, "POST", "old/model", 422, json={"model": f"{pump}@2"})
    assert moved["type"].endswith("/unknown-model")
    assert client.get("/readyz").status_code == 200
    publish(3)
    ask(client, "PUT", "new", 201, json={"model": pump})
    assert model_of(client, "new") == f"{pump}@3"


def test_a_canary_gets_its_share_of_new_streams(client, publish, pump):
    publish(2)
    put = client.put(f"/v1/models/{pump}/canary", json={"version": "2", "share": 0.25})
    assert (put.status_code, put.json()) == (200, {"version": "2", "share": 0.25})
    names = [f"s{i}" for i in range(120)]
    for name in names:
        ask(client, "PUT", name, 201, json={"model": pump})
    on = [model_of(client, name) for name in names]
    assert set(on) == {f"{pump}@1", f"{pump}@2"}
    assert 15 <= on.count(f"{pump}@2") <= 47  # 30 expected; 3.6 standard deviations
    ask(client, "PUT", "s0", 200, json={"model": pump})
    ask(client, "PUT", "named", 201, json={"model": f"{pump}@2"})
    assert model_of(client, "named") == f"{pump}@2"
    again = ask(client, "DELETE", "s1", 204)
    assert again is None
    ask(client, "PUT", "s1", 201, json={"model": pump})
    assert model_of(client, "s1") == on[1]
    assert client.delete(f"/v1/models/{pump}/canary").status_code == 204
    assert client.get(f"/v1/models/{pump}/canary").status_code == 404
    ask(client, "PUT", "after", 201, json={"model": pump})
    assert model_of(client, "after") == f"{pump}@2"


@pytest.mark.parametrize(
    ("name", "form", "status"),
    [
        ("pump", {"version": "9", "share": 0.1}, 422),
        ("pump", {"version": "1", "share": 0.1}, 422),
        ("pump", {"version": "1", "share": 1.5}, 422),
        ("nothing", {"version": "1", "share": 0.1}, 404),
    ],
)
def test_canaries_that_cannot_be(client, pump, name, form, status):
    name = pump if name == "pump" else name
    assert client.put(f"/v1/models/{name}/canary", json=form).status_code == status


def test_many_streams_move_by_the_beginning_of_their_ids(client, publish, pump):
    publish(2)
    seen = labels(40)
    for i in range(5):
        ask(client, "PUT", f"pump-{i}", 201, json={"model": f"{pump}@1"})
        post(client, f"pump-{i}", seen)
    ask(client, "PUT", "pump-x", 201, json={"model": "categorical", "classes": 3})
    post(client, "pump-x", [{"y": 2}])
    ask(client, "PUT", "else", 201, json={"model": f"{pump}@1"})
    form, moved, failed = {"prefix": "pump-", "model": f"{pump}@2", "limit": 4}, [], []
    while True:
        page = client.post("/v1/moves", json=form).json()
        moved += page["moved"]
        failed += page["failed"]
        if page["cursor"] is None:
            break
        form["cursor"] = page["cursor"]
    assert moved + [each["stream"] for each in failed] == [
        *(f"pump-{i}" for i in range(5)),
        "pump-x",
    ]
    assert model_of(client, "else") == f"{pump}@1"
    ask(client, "PUT", "fresh", 201, json={"model": f"{pump}@2"})
    post(client, "fresh", seen)
    found = ask(client, "GET", "pump-3/run-length")
    assert found["model"] == f"{pump}@2"
    close(found["belief"], ask(client, "GET", "fresh/run-length")["belief"])
