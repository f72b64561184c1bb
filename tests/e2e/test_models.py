"""Models through real processes: one's own as plugins, those that cannot be used, and replays."""

import csv
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.runtime.process import EXIT_REFUSED

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = str(DOCS / "examples")


@pytest.fixture
def python_path(processes):
    """Put folders where the processes' Python finds modules."""

    def put(*folders):
        known = os.environ.get("PYTHONPATH")
        processes.environment["PYTHONPATH"] = os.pathsep.join(
            [*folders, *([known] if known else [])]
        )

    return put


def publish(processes, name, text):
    folder = processes.folder / "models" / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(text)


def moca(processes, *arguments):
    """Run a command of `moca` to its end."""
    command = [sys.executable, "-m", "service.commands.main", *arguments]
    environment = {**processes.environment, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def documented():
    (text,) = re.findall(r"```json\n(.*?)```", (DOCS / "own-model.md").read_text(), re.DOTALL)
    return text


def sensor(count, seed=1):
    rng = random.Random(seed)
    made = []
    for i in range(count):
        x = rng.uniform(-2, 2)
        made.append(
            {"x": [x], "y": (1 if i < count / 2 else -1) * math.sin(2 * x) + rng.gauss(0, 0.2)}
        )
    return made


@pytest.mark.slow
def test_a_kind_of_ones_own_and_kinds_that_nobody_registered(
    serve, processes, python_path, tmp_path
):
    python_path(EXAMPLES)
    processes.environment["MOCA_PLUGINS"] = " remembering_gp , json"
    publish(processes, "sensor", documented())
    publish(processes, "alien", json.dumps({**json.loads(documented()), "kind": "from-mars"}))
    with httpx.Client(base_url=serve(), timeout=60) as client:
        models = {each["name"]: each for each in client.get("/v1/models").json()["models"]}
        assert models["sensor"]["kind"] == "remembering-gp"
        assert models["alien"]["kind"] == "from-mars"
        for call in (
            client.put("/v1/streams/b", json={"model": "alien"}),
            client.put("/v1/streams/b", json={"model": "alien@1"}),
        ):
            assert call.status_code == 422
            assert call.json()["type"].endswith("/unknown-model")
            assert "unknown kind 'from-mars'" in call.json()["detail"]
        assert client.get("/v1/streams/b").status_code == 404
        assert client.get("/v1/models").status_code == 200

        assert client.put("/v1/streams/a", json={"model": "sensor"}).status_code == 201
        answers = client.post("/v1/streams/a/observations", json=sensor(80)).json()
        assert [answer["seq"] for answer in answers] == list(range(80))
        assert answers[-1]["model"] == "sensor@1"
        events = client.get("/v1/streams/a/changepoints").json()["events"]
        (event,) = [event for event in events if event["state"] == "confirmed"]
        assert abs(event["start"] - 40) <= 3
        asked = {"x": [[0.0], [0.8], [5.0]], "samples": 2, "components": True}
        found = client.post("/v1/streams/a/predictions", json=asked).json()["predictions"]
        spread = [each["predictive"]["variance"][0][0] for each in found]
        assert spread[2] > 2 * spread[0]
        wrong = client.post("/v1/streams/a/observations", json={"y": 1.0, "x": [1.0, 2.0]})
        assert wrong.json()["type"].endswith("/dimension-mismatch")
        before = client.get("/v1/streams/a/run-length").json()
        replays(client, processes, tmp_path)
    processes.stop_all()
    with httpx.Client(base_url=serve(), timeout=60) as client:  # its state is read back
        after = client.get("/v1/streams/a/run-length").json()
        assert [each["start"] for each in after["belief"]] == [b["start"] for b in before["belief"]]
        found = [each["probability"] for each in after["belief"]]
        assert found == pytest.approx([each["probability"] for each in before["belief"]], abs=1e-9)


def replays(client, processes, tmp_path):
    """Files of class labels and of inputs, streamed by `moca replay`; tables and plots of both."""
    rng, url = random.Random(2), str(client.base_url)
    classes = [
        [rng.choices(range(3), [1, 1 + 6 * (i > 60), 6 - 5 * (i > 60)])[0]] for i in range(120)
    ]
    classes[7] = [""]
    x = [[rng.gauss(0, 1), rng.gauss(0, 1)] for _ in range(120)]
    lines = [[*v, (3 if i < 60 else -3) * v[0] + rng.gauss(0, 0.3)] for i, v in enumerate(x)]
    for name, header, rows, options, columns in (
        ("classes", ["y"], classes, ["--model", "categorical", "--set", "classes=3"],
         ["probability0", "probability1", "probability2"]),
        ("lines", ["x1", "x2", "y"], lines, ["--model", "linear"], ["x1", "x2", "mean"]),
        ("waves", ["y1", "y2"], x, ["--model", "autoregressive", "--set", "season=7",
                                    "--set", 'hazard={"mean": 50, "shape": 3}'],
         ["mean1", "mean2", "quantile_0.05_1"]),
    ):  # fmt: skip
        file, out = tmp_path / f"{name}.csv", tmp_path / "out"
        with file.open("w", newline="") as handle:
            csv.writer(handle).writerows([header, *rows])
        done = moca(processes, "replay", str(file), "--url", url, "--out", str(out), *options)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        with (out / f"{name}-answers.csv").open(newline="") as handle:
            answers = list(csv.DictReader(handle))
        assert len(answers) == 120
        assert all(float(answers[-1][column]) == pytest.approx(float(answers[-1][column]))
                   for column in columns)  # fmt: skip
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (out / f"{name}-answers.parquet").stat().st_size
    wrong = moca(processes, "replay", str(tmp_path / "lines.csv"), "--url", url, "--model",
                 "categorical", "--stream", "wrong", "--out", str(tmp_path / "out"))  # fmt: skip
    assert wrong.returncode == 1
    assert "classes" in wrong.stderr
    listed = moca(processes, "models").stdout
    for name in ("categorical@1", "linear@1", "sensor@1", "alien@1", "remembering-gp"):
        assert name in listed


def test_a_plugin_that_cannot_be_imported_ends_the_service(processes, python_path, tmp_path):
    """With its name and why, and for good: starting the worker again would not help."""
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)")
    python_path(str(tmp_path))
    options = ["--data-dir", str(tmp_path / "data"), "--port", "0", "--plugins", "json,leaving"]
    processes.start("serve", "serve", *options)
    assert processes.running["serve"].wait(60) == EXIT_REFUSED
    said = processes.log_of("serve")
    assert said.count("cannot import plugin 'leaving': SystemExit(0)") == 1, said
    assert "worker 1 cannot run with this configuration, see above" in said
    assert "restarting in" not in said
