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


def test_a_stream_moves_to_another_version_if_that_takes_what_is_retained(
    http, prefix, publish, pump
):
    publish(1)
    publish(2)
    seen = labels(40)
    stream, odd, fresh = (f"{prefix}{name}" for name in ("pump", "odd", "fresh"))
    for name, version in ((stream, 1), (fresh, 2)):
        ask(http, "PUT", name, 201, json={"model": f"{pump}@{version}"})
        post(http, name, seen)
    ask(http, "PUT", odd, 201, json={"model": "gaussian"})
    post(http, odd, [[1.0, 2.0]])
    moved = ask(http, "POST", f"{stream}/model", json={"model": f"{pump}@2"})
    assert moved["model"] == f"{pump}@2"
    refused = http.post(f"/v1/streams/{odd}/model", json={"model": f"{pump}@2"})
    assert refused.status_code == 422
    assert model_of(http, odd) == "gaussian"
    beliefs = [ask(http, "GET", f"{name}/run-length")["belief"] for name in (stream, fresh)]
    close(*beliefs)


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
