"""Sensitivity through real processes: asked for over HTTP, seen in summaries, events and curves."""

import random
import subprocess
import sys
import time

import httpx
import pytest

ASKED = {"sensitivity": {"false_alarms_per_1000": 0.1}}


def test_from_the_setting_to_the_event(serve, processes):
    url = serve()
    rng = random.Random(11)
    y = [rng.gauss(50, 4) for _ in range(120)] + [rng.gauss(62, 4) for _ in range(30)]
    with httpx.Client(base_url=url, timeout=60) as client:
        made = client.put("/v1/streams/pump", json={"model": "gaussian", **ASKED})
        assert made.status_code == 201, made.text
        found = made.json()["sensitivity"]
        assert client.get("/v1/streams/pump").json()["sensitivity"] == found
        posted = client.post("/v1/streams/pump/observations", json=[{"y": each} for each in y])
        answers = posted.json()
        high = [a["seq"] for a in answers if (a["changed_probability"] or 0) >= found["threshold"]]
        events = client.get("/v1/streams/pump/changepoints").json()["events"]
        (event,) = [each for each in events if each["state"] == "confirmed"]
        assert event["confirmed_at"] == high[0] < 130
        assert abs(event["start"] - 120) <= 2
        detail = client.get("/v1/models/gaussian").json()["versions"][0]
        points = detail["sensitivity"]["curves"][0]["points"]
        assert points[0]["false_alarms_per_1000"] > 10 > 0.1 > points[-1]["false_alarms_per_1000"]
        refused = client.put("/v1/streams/pump", json={**ASKED, "hazard": 0.7})
        assert (refused.status_code, refused.json()["field"]) == (422, "sensitivity")
        assert client.get("/v1/streams/pump").json()["sensitivity"] == found
    processes.stop_all()
    with httpx.Client(base_url=serve(), timeout=60) as client:
        assert client.get("/v1/streams/pump").json()["sensitivity"] == found


@pytest.mark.slow
def test_a_stream_of_skewed_noise_is_calibrated_on_its_labels(serve, processes):
    pytest.importorskip("numba")
    processes.environment["MOCA_NO_KERNELS"] = "false"
    url = serve()
    rng = random.Random(5)
    asked = {"model": "averaged", "sensitivity": {"false_alarms_per_1000": 2.0}}
    with httpx.Client(base_url=url, timeout=60) as client:

        def observe(count):
            y = [{"y": rng.lognormvariate(0, 0.75)} for _ in range(count)]
            assert client.post("/v1/streams/latency/observations", json=y).status_code == 200

        def state():
            return client.get("/v1/streams/latency").json()

        before = client.put("/v1/streams/latency", json=asked).json()["sensitivity"]
        for _ in range(4):
            observe(200)
        give_up = time.monotonic() + 150
        while (found := state()["sensitivity"])["calibration"] is None:
            assert time.monotonic() < give_up, "it was not calibrated"
            time.sleep(1)
            observe(1)  # kernels may have been compiled meanwhile
        seq = found["calibration"]["seq"]
        assert found["threshold"] > before["threshold"]
        assert 800 <= seq <= state()["seq"]
        assert found["calibration"]["labels"] == seq - 20
        assert found["calibration"]["false_alarms_per_1000"] >= 2.0
    processes.stop_all()
    with httpx.Client(base_url=serve(), timeout=60) as client:
        assert client.get("/v1/streams/latency").json()["sensitivity"] == found


@pytest.mark.slow
def test_a_model_is_calibrated_while_it_is_served(serve, processes):
    url = serve()
    folder = processes.folder / "models" / "level" / "1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(
        '{"format": 1, "kind": "lstm", "x_dim": 1, "y_dim": 1, "feature_dim": 1, "hazard": 0.1,'
        ' "encoder": {"type": "identity"}}'
    )
    with httpx.Client(base_url=url, timeout=60) as client:
        refused = client.put("/v1/streams/a", json={"model": "regimes", "hazard": 0.9, **ASKED})
        assert refused.status_code == 422
        broken = client.put("/v1/streams/a", json={"model": "level", **ASKED})
        assert (broken.status_code, "cannot load model level" in broken.text) == (422, True)
    command = [sys.executable, "-m", "service.commands.main", "calibrate", "level"]
    said = subprocess.run(
        command, env=processes.environment, capture_output=True, text=True, timeout=120
    )
    assert said.returncode == 1
    assert "level" in said.stderr
