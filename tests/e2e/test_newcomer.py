"""From nothing to an answer of a trained model, and of one that is published meanwhile."""

import json
import math
import random
import shutil

import httpx

from service.models.catalogue import SHIPPED


def series(count, seed=1):
    """A level that jumps half-way, with some memory."""
    rng, around, made = random.Random(seed), 0.0, []
    for t in range(count):
        around = 0.5 * around + rng.gauss(0, 0.3)
        made.append({"y": (1.0 if t < count / 2 else -4.0) + around})
    return made


def test_what_ships_is_listed_and_answers_and_a_published_model_is_taken_up(serve, processes):
    with httpx.Client(base_url=serve(), timeout=60) as client:
        listed = {each["name"]: each for each in client.get("/v1/models").json()["models"]}
        regimes = listed["regimes"]
        assert (regimes["default"], regimes["kind"]) == ("regimes@1", "alpaca")
        assert regimes["description"]
        (version,) = client.get("/v1/models/regimes").json()["versions"]
        assert version["training"]["experiment"] == "regimes"
        assert version["report"]["metrics"][0]["unit"] == "nats"

        assert client.put("/v1/streams/a", json={"model": "regimes"}).status_code == 201
        answers = client.post("/v1/streams/a/observations", json=series(120)).json()
        assert {answer["model"] for answer in answers} == {"regimes@1"}
        assert not any(answer["warming_up"] for answer in answers)  # its scale was learned
        settled = answers[40:60]
        assert abs(sum(each["predictive"]["mean"][0] for each in settled) / 20 - 1) < 0.5
        assert sum(each["log_score"] for each in settled) / 20 > -1
        assert all(math.isfinite(each["log_score"]) for each in answers)
        events = client.get("/v1/streams/a/changepoints").json()["events"]
        confirmed = [each["start"] for each in events if each["state"] == "confirmed"]
        assert any(abs(start - 60) <= 2 for start in confirmed)

        assert client.put("/v1/streams/b", json={"model": "mine"}).status_code == 422
        models = processes.folder / "models" / "mine"
        models.mkdir(parents=True)
        shutil.copytree(SHIPPED / "regimes" / "1", models / ".new")
        (models / ".new").rename(models / "1")
        assert client.put("/v1/streams/b", json={"model": "mine"}).status_code == 201
        answer = client.post("/v1/streams/b/observations", json={"y": 1.0}).json()
        assert answer["model"] == "mine@1"
        described = json.loads((models / "1" / "model.json").read_text())
        assert client.get("/v1/models/mine").json()["hazard"] == described["hazard"]
