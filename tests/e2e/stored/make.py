"""Data folders that a version wrote, with its answers: `python -m tests.e2e.stored.make`.

Run once for each released version, in a checkout of it; later versions must open every folder.
VERSION.tar.gz holds `data`, the data folder of `moca serve` after `write`, and `answers.json`: what
`read` and then `go_on` answered on a copy of it, and the key to call it with.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import httpx

from service.runtime.embedded import Embedded
from service.store.connection import connect
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port

FOLDER = Path(__file__).parent
PARTITIONS = "4"
SHORT = {"MOCA_REQUEST_DEADLINE_S": "11"}
OUTCOMES_S = 23  # outcomes are kept for twice the deadline
LENGTH, AFTER = 150, 8  # observations of each stream when written, and when gone on with
CHANGE = 90
SCOPES = ("--scope", "read", "--scope", "write")
RARE = {"sensitivity": {"false_alarms_per_1000": 0.5}}
TIMED = {"interval": 60.0, "hazard": {"mean": 80.0, "shape": 3.0}}
SETTINGS = {
    "averaged": {},
    "gaussian": {
        "model": "gaussian",
        "sensitivity": {"false_alarms_per_1000": 0.5},
        "pinned": True,
    },
    "timed": {"model": "gaussian", **TIMED},
    "multivariate": {"model": "multivariate", "max_hypotheses": 20, "history": 100},
    "linear": {"model": "linear", "outlier_rate": 0.02},
    "autoregressive": {"model": "autoregressive", "order": 2, "trend": True, "ttl": 1e9},
    "poisson": {"model": "poisson", "hazard": [0.05, 0.02, 0.01]},
    "exponential": {"model": "exponential"},
    "bernoulli": {"model": "bernoulli"},
    "categorical": {"model": "categorical", "classes": 3},
    "regimes": {"model": "regimes"},
    "waiting": {"model": "gaussian", "label_window": 5},
    "short": {"model": "gaussian"},  # still in its warm-up
    "gone": {"model": "gaussian"},  # deleted
}


def _level(rng: random.Random, late: bool) -> float:
    return 10 + 4 * late + rng.gauss(0, 1)


LABELS = {  # of a stream, by whether the change was before; a level where none is named
    "multivariate": lambda rng, late: [_level(rng, late), 3 * rng.gauss(0, 1) - 5 * late],
    "poisson": lambda rng, late: int(max(0, _level(rng, late))),
    "exponential": lambda rng, late: rng.expovariate(0.1 + 0.9 * late),
    "bernoulli": lambda rng, late: int(rng.random() < 0.1 + 0.7 * late),
    "categorical": lambda rng, late: rng.choice([1, 2, 2, 2] if late else [0, 0, 0, 1]),
}


def observations(name: str) -> list[dict]:
    """The observations of a stream, those that come after it was stored at the end."""
    rng = random.Random(name)
    return [_observation(name, rng, i) for i in range(LENGTH + AFTER)]


def _observation(name: str, rng: random.Random, i: int) -> dict:
    late = i >= CHANGE
    if name == "linear":
        x = [1.0, rng.uniform(-1, 1)]
        return {"x": x, "y": (2 - 3 * late) * x[1] + rng.gauss(0, 0.1)}
    y = LABELS.get(name, _level)(rng, late)
    if name == "timed":
        time = f"2026-05-01T{i // 60:02d}:{i % 60:02d}:00Z"
        return {"y": None if i % 17 == 5 else y, "time": time}
    return {"y": y}


def write(client: httpx.Client) -> None:
    """Make every stream, and everything else that a stream can have."""
    for name, settings in SETTINGS.items():
        _call(client, "PUT", f"/v1/streams/{name}", settings)
        length = {"short": 7, "waiting": 120}.get(name, LENGTH)
        rows = observations(name)[:length]
        for at in range(0, len(rows), 50):
            key = {"Idempotency-Key": f"{name}-{at}"}
            path = f"/v1/streams/{name}/observations"
            _call(client, "POST", path, rows[at : at + 50], headers=key)
    _call(client, "DELETE", "/v1/streams/gone")
    _call(client, "POST", "/v1/streams/waiting/observations", {"pending": True})
    for row in observations("waiting")[121:123]:
        _call(client, "POST", "/v1/streams/waiting/observations", row)
    _call(client, "PUT", "/v1/streams/waiting", {"hazard": 0.02})
    _call(client, "PUT", "/v1/streams/averaged", {"hazard": 0.005, "confirm_after": 12})
    events = _call(client, "GET", "/v1/streams/averaged/changepoints")["events"]
    _call(client, "PUT", f"/v1/streams/averaged/changepoints/{events[0]['id']}", {"change": True})
    belief = [{"run_length": 0, "probability": 0.5}, {"run_length": 3, "probability": 0.5}]
    _call(client, "PUT", "/v1/streams/exponential/run-length", {"belief": belief})


def read(client: httpx.Client) -> dict:
    """What is answered of every stream."""
    found: dict = {}
    for name in SETTINGS:
        for part in ("", "/run-length", "/changepoints", "/history?limit=40"):
            path = f"/v1/streams/{name}{part}"
            response = client.get(path)
            found[path] = [response.status_code, response.json()]
    return found


def go_on(client: httpx.Client) -> dict:
    """What is answered to the next observations: one by one, and as lists."""
    found: dict = {}
    label = {"seq": 120, "y": observations("waiting")[120]["y"]}
    found["label"] = _call(client, "POST", "/v1/streams/waiting/observations", label)
    for name in SETTINGS:
        path = f"/v1/streams/{name}/observations"
        first, *rest = observations(name)[LENGTH:]
        found[name] = [_call(client, "POST", path, first), *_call(client, "POST", path, rest)]
    return found


def serve(processes: Processes, data: Path) -> str:
    """Start `moca serve` on a data folder; returns its URL."""
    port = free_port()
    processes.start("serve", "serve", "--data-dir", str(data), "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    wait_ready(url)
    return url


def caller(url: str, key: str) -> httpx.Client:
    """A client with a key."""
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, timeout=60, headers=headers)


def _call(client: httpx.Client, method: str, path: str, body=None, **more):
    response = client.request(method, path, json=body, **more)
    assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
    return response.json() if response.content else None


def make(name: str) -> None:
    """Write the folder and the answers of this version."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        processes = Processes(folder, {"MOCA_PARTITIONS": PARTITIONS, **SHORT})
        try:
            key = _create_key(folder / "data")
            with caller(serve(processes, folder / "data"), key) as client:
                write(client)
            time.sleep(OUTCOMES_S)  # they would be most of the file, and expire unread
            _compact(folder / "data")
            processes.stop_all()
            ignored = shutil.ignore_patterns("*.lock", "*.log", "server.json")
            shutil.copytree(folder / "data", folder / "stored" / "data", ignore=ignored)
            with caller(serve(processes, folder / "data"), key) as client:
                answers = {"key": key, "read": read(client), "next": go_on(client)}
        finally:
            processes.stop_all()
        text = json.dumps(answers, separators=(",", ":"))
        (folder / "stored" / "answers.json").write_text(re.sub(r"(\d\.\d{12})\d+", r"\1", text))
        with tarfile.open(FOLDER / f"{name}.tar.gz", "w:gz") as archive:
            for part in ("data", "answers.json"):
                archive.add(folder / "stored" / part, part, filter=_anonymous)


def _create_key(data: Path) -> str:
    command = [sys.executable, "-m", "service.commands.main", "keys", "create", "fixture", *SCOPES]
    environment = {**os.environ, "MOCA_PARTITIONS": PARTITIONS, "MOCA_DATA_DIR": str(data)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return made.stdout.strip()


def _compact(data: Path) -> None:
    """Have the running store keep what there is instead of every command since its start."""
    with connect(Embedded(data).url) as client:
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.05)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    make(sys.argv[1] if len(sys.argv) > 1 else version("moca-service"))
