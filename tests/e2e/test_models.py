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
import torch

import service
from model_core import artifact
from service.runtime.process import EXIT_REFUSED
from tests.e2e.calling import ask, close, labels, post, slug
from tests.model_core.test_vectors_pcoc import write_artifact

TRAINED = Path(service.__file__).parent / "samples" / "models" / "regimes" / "1"
DOCS = Path(__file__).parents[2] / "docs"
FOLDER = os.environ.get("MOCA_TEST_VECTORS")
FILES = sorted(Path(FOLDER).glob("*.npz")) if FOLDER else []


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
    found = ask(http, "GET", f"{names[3]}/run-length")
    assert found["model"] == f"{pump}@2"
    close(found["belief"], ask(http, "GET", f"{prefix}fresh/run-length")["belief"])


@pytest.fixture
def python_path(processes):
    """Put a folder where the processes' Python finds modules."""

    def put(folder):
        known = os.environ.get("PYTHONPATH")
        found = os.pathsep.join([str(folder), *([known] if known else [])])
        processes.environment["PYTHONPATH"] = found

    return put


@pytest.mark.slow
def test_a_kind_of_ones_own_and_a_kind_that_nobody_registered(serve, processes, python_path):
    python_path(DOCS / "examples")
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
    with httpx.Client(base_url=serve(), timeout=60) as client:
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
    with httpx.Client(base_url=serve(), timeout=60) as client:  # its state is read back
        close(ask(client, "GET", "a/run-length")["belief"], before["belief"])


@pytest.mark.slow
def test_a_plugin_that_cannot_be_imported_ends_the_service(processes, python_path, tmp_path):
    """For good: starting the worker again would not help."""
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)")
    python_path(tmp_path)
    options = ["--data-dir", tmp_path / "data", "--port", "0", "--plugins", "json,leaving"]
    text = processes.run("serve", *options, status=EXIT_REFUSED)
    assert text.count("leaving") == 1
    assert "restarting in" not in text


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="MOCA_TEST_VECTORS names no folder of vectors")
def test_reference_vectors_through_rest(serve, processes):
    """Posted one by one with pruning off: scores, forecasts and beliefs are those of the paper."""
    for file in FILES:
        with np.load(file, allow_pickle=False) as vector:
            write = {"alpaca": write_alpaca, "pcoc": write_artifact}[str(vector["kind"])]
            write(processes.folder / "models" / file.stem / "1", vector)
    with httpx.Client(base_url=serve(), timeout=60) as client:
        for file in FILES:
            with np.load(file, allow_pickle=False) as vector:
                check_vector(client, file.stem, vector)


def write_alpaca(folder, v):
    sizes = [v["W1"].shape[1], *(v[f"W{i}"].shape[0] for i in (1, 2, 3))]
    encoder = {"type": "mlp", "layers": sizes, "activation": "relu", "output_activation": "tanh"}
    description = {
        "kind": "alpaca",
        "x_dim": v["x"].shape[1],
        "y_dim": v["y"].shape[1],
        "feature_dim": sizes[-1],
        "encoder": encoder,
        "hazard": float(v["hazard"]),
    }
    tensors = {
        "prior_mean": v["K0"],
        "prior_covariance_factor": v["L_asym"],
        "log_noise_variance": np.log(v["sigma_eps"]),
    }
    for i in range(3):
        tensors[f"encoder.{i}.weight"] = v[f"W{i + 1}"]
        tensors[f"encoder.{i}.bias"] = v[f"b{i + 1}"]
    as_tensors = {name: torch.tensor(each, dtype=torch.float64) for name, each in tensors.items()}
    artifact.save(folder, description, as_tensors)


def check_vector(client, name, v):
    x, y = v["x"], v["y"] if "y" in v else v["y_label"]
    ask(client, "PUT", name, 201, json={"model": name, "max_hypotheses": max(2, len(x))})
    log_b = v["log_b_x"] if "log_b_x" in v else v["log_b_prior"]
    answers = []
    for t in range(len(x)):
        if t % 9 == 0:  # the mixture's weights are the belief after the input alone
            body = {"x": [x[t].tolist()], "components": True}
            (found,) = ask(client, "POST", f"{name}/predictions", json=body)["predictions"]
            weights = {c["run_length"]: c["weight"] for c in found["components"]}
            got = [weights.pop(r, 0.0) for r in range(t + 1)]
            np.testing.assert_allclose(got, np.exp(log_b[t, : t + 1]), rtol=0, atol=1e-6)
            assert not weights
        body = {"x": x[t].tolist(), "y": y[t].tolist()}
        answers.append(ask(client, "POST", f"{name}/observations", json=body))
        assert answers[-1]["run_length"]["pruned_mass"] == 0.0
    scores = np.array([answer["log_score"] for answer in answers])
    np.testing.assert_allclose(-scores, v["nll"], rtol=0, atol=1e-6)
    if str(v["kind"]) == "alpaca":
        means = np.array([answer["predictive"]["mean"] for answer in answers])
        np.testing.assert_allclose(means, v["mix_mean"], rtol=1e-8, atol=1e-6)
    else:
        shares = np.array([answer["predictive"]["probabilities"] for answer in answers])
        np.testing.assert_allclose(np.log(shares), v["log_pred"], rtol=0, atol=1e-6)
    got = np.zeros(len(x))
    for each in ask(client, "GET", f"{name}/run-length")["belief"]:
        got[each["run_length"]] = each["probability"]
    np.testing.assert_allclose(got, np.exp(v["log_b_xy"][-1]), rtol=0, atol=1e-6)
