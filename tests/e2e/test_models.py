"""Models on real processes: shipped, published meanwhile, broken, moved to, and one's own."""

import json
import math
import os
import random
import re
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest

import service
from tests.answers import close
from tests.e2e.calling import ask, labels, post, slug
from tests.waiting import PATIENCE_S

TRAINED = Path(service.__file__).parent / "samples" / "models" / "regimes" / "1"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def pump(prefix):
    """Name of a model of the test's own."""
    return f"pump-{prefix}".rstrip("-")


@pytest.fixture
def publish(shared, pump):
    def put(version, damage=False):
        folder = shared.models / pump / str(version)
        part = folder.with_name(f".{version}")
        shutil.copytree(TRAINED, part)
        if damage:
            weights = part / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-100])
        part.rename(folder)

    return put


def model_of(client, stream):
    return ask(client, "GET", stream)["model"]


def test_a_model_that_ships_is_listed_with_its_report_and_answers(http, prefix):
    listed = {each["name"]: each for each in http.get("/v1/models").json()["models"]}
    assert listed["regimes"]["kind"] == "alpaca"
    (version,) = http.get("/v1/models/regimes").json()["versions"]
    assert version["report"]["metrics"][0]["unit"] == "nats"
    ask(http, "PUT", f"{prefix}a", 201, json={"model": "regimes"})
    rng, level, y = random.Random(1), 0.0, []
    for t in range(120):  # a level that jumps half-way, with some memory
        level = 0.5 * level + rng.gauss(0, 0.3)
        y.append((1.0 if t < 60 else -4.0) + level)
    answers = post(http, f"{prefix}a", y)
    assert not any(answer["warming_up"] for answer in answers)  # its scale was learned
    assert abs(np.mean([each["predictive"]["mean"][0] for each in answers[40:60]]) - 1) < 0.5
    events = ask(http, "GET", f"{prefix}a/changepoints")["events"]
    assert any(e["state"] == "confirmed" and abs(e["start"] - 60) <= 2 for e in events)


def test_new_streams_get_a_version_that_is_published_meanwhile_unless_it_is_broken(
    http, prefix, publish, pump
):
    old, new = f"{prefix}old", f"{prefix}new"
    publish(1)
    ask(http, "PUT", old, 201, json={"model": pump})
    publish(2, damage=True)
    for refused in (
        http.put(f"/v1/streams/{new}", json={"model": pump}),
        http.post(f"/v1/streams/{old}/model", json={"model": f"{pump}@2"}),
    ):
        assert (refused.status_code, slug(refused)) == (422, "unknown-model")
    post(http, old, labels(5))
    assert http.get("/readyz").status_code == 200
    publish(3)
    ask(http, "PUT", new, 201, json={"model": pump})
    post(http, old, labels(5))
    assert (model_of(http, old), model_of(http, new)) == (f"{pump}@1", f"{pump}@3")


def test_a_canary_gets_its_share_of_new_streams(http, prefix, publish, pump):
    publish(1)
    publish(2)
    path = f"/v1/models/{pump}/canary"
    for form in ({"version": "9", "share": 0.1}, {"version": "2", "share": 1.5}):
        assert http.put(path, json=form).status_code == 422
    form = {"version": "2", "share": 0.25}
    put = http.put(path, json=form)
    assert (put.status_code, put.json()) == (200, form)
    names = [f"{prefix}s{i}" for i in range(60)]
    for name in names:
        ask(http, "PUT", name, 201, json={"model": pump})
    on = [model_of(http, name) for name in names]
    assert set(on) == {f"{pump}@1", f"{pump}@2"}
    assert on.count(f"{pump}@2") < 35  # 15 expected; 6 standard deviations
    other = names[on.index(f"{pump}@2")]
    ask(http, "DELETE", other, 204)
    ask(http, "PUT", other, 201, json={"model": pump})
    assert model_of(http, other) == f"{pump}@2"  # a name keeps its lot
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == 404


def test_many_streams_move_by_the_beginning_of_their_ids(http, prefix, publish, pump):
    publish(1)
    publish(2)
    seen = labels(40)
    names = [f"{prefix}pump-{i}" for i in range(5)]
    for name in names:
        ask(http, "PUT", name, 201, json={"model": f"{pump}@1"})
        post(http, name, seen)
    odd = f"{prefix}pump-x"
    ask(http, "PUT", odd, 201, json={"model": "gaussian"})
    post(http, odd, [[1.0, 2.0]])
    ask(http, "PUT", f"{prefix}else", 201, json={"model": f"{pump}@1"})
    form = {"prefix": f"{prefix}pump-", "model": f"{pump}@2", "limit": 4}
    moved, failed = [], []
    while True:
        page = http.post("/v1/moves", json=form).json()
        moved += page["moved"]
        failed += [each["stream"] for each in page["failed"]]
        if page["cursor"] is None:
            break
        form["cursor"] = page["cursor"]
    assert (moved, failed) == (names, [odd])
    assert model_of(http, f"{prefix}else") == f"{pump}@1"
    ask(http, "PUT", f"{prefix}fresh", 201, json={"model": f"{pump}@2"})
    post(http, f"{prefix}fresh", seen)
    answer = ask(http, "GET", f"{names[3]}/run-length")
    assert answer["model"] == f"{pump}@2"
    close(answer["belief"], ask(http, "GET", f"{prefix}fresh/run-length")["belief"])


@pytest.mark.slow
def test_a_kind_of_ones_own_and_a_kind_that_nobody_registered(serve, processes):
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(DOCS / "examples"), *([known] if known else [])])
    processes.environment["PYTHONPATH"] = path
    processes.environment["MOCA_PLUGINS"] = " remembering_gp , json"
    page = (DOCS / "own-model.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    alien = json.dumps({**json.loads(text), "kind": "from-mars"})
    for name, document in (("sensor", text), ("alien", alien)):
        folder = processes.folder / "models" / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text(document)
    rng, seen = random.Random(1), []
    for i in range(80):
        x = rng.uniform(-2, 2)
        y = (1 if i < 40 else -1) * math.sin(2 * x) + rng.gauss(0, 0.2)
        seen.append({"x": [x], "y": y})
    with httpx.Client(base_url=serve(), timeout=PATIENCE_S) as client:
        models = {each["name"]: each for each in client.get("/v1/models").json()["models"]}
        assert models["sensor"]["kind"] == "remembering-gp"
        refused = client.put("/v1/streams/b", json={"model": "alien"})
        assert (refused.status_code, slug(refused)) == (422, "unknown-model")
        ask(client, "PUT", "a", 201, json={"model": "sensor"})
        post(client, "a", seen)
        events = ask(client, "GET", "a/changepoints")["events"]
        (event,) = [event for event in events if event["state"] == "confirmed"]
        assert abs(event["start"] - 40) <= 3
        before = ask(client, "GET", "a/run-length")
        assert "remembering-gp" in processes.run("models")
    processes.stop_all()
    with httpx.Client(base_url=serve(), timeout=PATIENCE_S) as client:  # its state is read back
        close(ask(client, "GET", "a/run-length")["belief"], before["belief"])
