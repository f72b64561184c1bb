"""Real processes of the service, started and stopped one by one, and what is posted to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np

from model_core.stream import season
from tests.answers import close
from tests.e2e.calling import KNOWN
from tests.ports import free_port
from tests.waiting import PATIENCE_S as PATIENCE_S  # others have it from here
from tests.waiting import barring, until

PHASES_APART = 1e-5  # of searches for seasons that hardly ever differ
MOCA = (sys.executable, "-m", "service.commands.main")


class Processes:
    """Processes by name; all are stopped at the end of a `with` block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        # What a busy machine cannot do in time is neither to be shed nor to be given up.
        patient = {"MOCA_MAX_WAIT_S": "0", "MOCA_REQUEST_DEADLINE_S": f"{PATIENCE_S - 10:g}"}
        models = {"MOCA_MODELS_DIR": str(folder / "models")}
        self.environment = {**os.environ, **patient, **models, **environment}
        self.own: dict[str, dict[str, str]] = {}  # variables of one process beside the others
        self.running: dict[str, subprocess.Popen] = {}
        self.port = 0  # of `moca serve`

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*MOCA, *arguments],
                env={**self.environment, **self.own.get(name, {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_separate(self, redis_url: str) -> str:
        """Start two workers and an API on a store; returns the API's URL once it is ready."""
        self.redis_url = self.environment["MOCA_REDIS_URL"] = redis_url
        port = free_port()
        for name in ("worker-a", "worker-b"):
            self.start(name, "worker", "--worker-id", name)
        self.start("api", "api", "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        return url

    def serve(self, *options: str) -> str:
        """Start `moca serve`, on the same folder and port each time; returns its URL once ready."""
        self.port = self.port or free_port()
        place = ("--data-dir", str(self.folder / "data"), "--port", str(self.port))
        self.start("serve", "serve", *place, *options)
        url = f"http://127.0.0.1:{self.port}"
        wait_ready(url)
        return url

    def run(self, *arguments: object, status: int = 0) -> str:
        """Run a command of `moca` to its end; returns what it printed."""
        command = [*MOCA, *map(str, arguments)]
        plain = {**self.environment, "COLUMNS": "200", "NO_COLOR": "1"}
        done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=600)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.running.pop(name).wait()

    def children(self, name: str) -> dict[str, int]:
        """Pids of what a supervisor started, by command; the store's is that of its program."""
        command = ["pgrep", "-a", "-P", str(self.running[name].pid)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        children = {}
        for pid, *words in map(str.split, lines.splitlines()):
            program = words[words.index(MOCA[-1]) + 1] if MOCA[-1] in words else words[0]
            children[program] = int(pid)
        return children

    def kill_with_children(self, name: str) -> None:
        """Kill the supervisor first, then whatever it started: nobody gets to tidy up."""
        pids = self.children(name).values()
        self.kill(name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self, name: str) -> int:
        """Ask a process to end; returns its exit status."""
        self.signal(name, signal.SIGTERM)
        return self.running.pop(name).wait(PATIENCE_S)

    def stop_all(self) -> None:
        running, self.running = self.running, {}
        for process in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in running.values():
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait_for(self, text: str, *names: str) -> None:
        """Wait until the logs of some processes have a text."""
        logs = lambda: [self.log_of(name) for name in names]  # noqa: E731
        until(lambda: all(text in log for log in logs()), logs)

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[Processes, str]]:
    """Run `moca serve` on a store of its own; yields its processes and its URL."""
    with Processes(folder, {"MOCA_PARTITIONS": "16"}) as processes:
        yield processes, processes.serve()


def wait_ready(url: str) -> None:
    ready = lambda: httpx.get(f"{url}/readyz", timeout=PATIENCE_S).is_success  # noqa: E731
    until(barring(httpx.TransportError, ready), lambda: f"{url} was not ready")


def series(streams: int, length: int) -> np.ndarray:
    """Labels (streams, length) of regimes that switch once."""
    rng = np.random.default_rng(7)
    level = np.where(np.arange(length) < rng.integers(10, length - 5, (streams, 1)), 0.0, 4.0)
    return level + rng.normal(size=(streams, length))


class Load:
    """One poster per stream, each its observations in order at a steady pace."""

    def __init__(self, url: str, labels: np.ndarray, per_second: float, retry: bool = False):
        self.url, self.labels, self.retry = url, labels, retry
        self.length = labels.shape[1]
        self.pause_s = len(labels) / per_second
        self.answers: dict[tuple[int, int], dict] = {}
        self.failures: list[str] = []

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self.url, timeout=PATIENCE_S, limits=limits
        ) as client:
            self.started = time.monotonic()
            await asyncio.gather(*(self._post(client, i) for i in range(len(self.labels))))

    def run_with(self, *steps: tuple[float, Callable[[], object]]) -> None:
        """Run to the end, and each step once so many of all observations were answered."""

        async def step(share: float, act: Callable[[], object]) -> None:
            while len(self.answers) < share * self.labels.size:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.to_thread(act)

        async def everything() -> None:
            await asyncio.gather(self.run(), *(step(*each) for each in steps))

        asyncio.run(everything())

    async def _post(self, client: httpx.AsyncClient, i: int) -> None:
        for at, y in enumerate(self.labels[i]):
            if at == self.length:
                return
            due = self.started + (at + i / len(self.labels)) * self.pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._one(client, i, at, float(y))

    async def _one(self, client: httpx.AsyncClient, i: int, at: int, y: float) -> None:
        # Settings known beforehand: no warm-up, so that each observation moves the belief.
        headers = {"Idempotency-Key": f"k{at}"} if self.retry else {}
        while True:
            try:
                path = f"/v1/streams/load-{i}/observations?detail=full"
                response = await client.post(path, json={"y": y}, headers=headers)
            except httpx.TransportError as error:
                if not self.retry:
                    self.failures.append(repr(error))
                    return
                await asyncio.sleep(0.1)
                continue
            if self.retry and response.status_code in (503, 504):
                await asyncio.sleep(0.1)
                continue
            if response.status_code != 200:
                self.failures.append(response.text)
            else:
                self.answers[i, at] = response.json()
            return


def create_streams(url: str, prefix: str, count: int) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for i in range(count):
            assert client.put(f"/v1/streams/{prefix}-{i}", json=KNOWN).status_code == 201


def twin_of(name: str, count: int) -> str:
    """A name whose stream looks for seasons after the same observations, of so many.

    These depend on the name; a stream that found a season has other moments of its labels.
    """
    phase = season.phase_of(name)
    names = (f"calm-{i}-{name}" for i in itertools.count())
    return next(twin for twin in names if _alike(phase, season.phase_of(twin), count))


def _alike(one: float, other: float, count: int) -> bool:
    if abs(one - other) > PHASES_APART:
        return False
    seen = 0
    while seen < count:
        if season.next_search(seen, one) != season.next_search(seen, other):
            return False
        seen = season.next_search(seen, one)
    return True


def check_as_uninterrupted(url: str, load: Load) -> None:
    """Every observation was applied once, and beliefs are those of streams never interrupted."""
    streams, length = load.labels.shape
    assert not load.failures, load.failures[:3]
    assert len(load.answers) == streams * length
    for (_, at), answer in load.answers.items():
        assert answer["seq"] == at
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for i in range(streams):
            twin = f"/v1/streams/{twin_of(f'load-{i}', length)}"
            assert client.put(twin, json=KNOWN).status_code == 201
            body = [{"y": float(y)} for y in load.labels[i]]
            answers: list[dict] = []
            for begin in range(0, length, 1000):
                part = body[begin : begin + 1000]  # no request may have all of a long load
                answers += client.post(f"{twin}/observations?detail=full", json=part).json()
            for at, answer in enumerate(answers):
                close(load.answers[i, at]["log_score"], answer["log_score"])
            mine = client.get(f"/v1/streams/load-{i}/run-length").json()
            calm = client.get(f"{twin}/run-length").json()
            assert mine["seq"] == calm["seq"] == length - 1
            close(mine["belief"], calm["belief"])
