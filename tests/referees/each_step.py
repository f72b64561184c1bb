"""SIGKILL at each call to the store, held against a calm run: `python -m tests.referees.each_step`.

An API and two workers run as processes of their own on a store. A hook in the store's connections
counts what a process sends, and kills it before or right after the n-th sending, so that no place
is named by hand. While it counts, one sequence of requests is sent: observations of all forms,
settings, verdicts, beliefs, moves, snapshots, deletions, with streams that are written out and
loaded again; or a backup is taken, or restored. Killed processes are started again, and the story's
requests repeated, with their keys, until they are answered. Then every stream has to be what the
same story makes of it without a kill.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import redis
import redis.asyncio.connection
import redis.connection

from service.settings import Settings
from tests.clusters import running_server, valkey
from tests.ports import free_port
from tests.referees.forked import Context, ForkedProcesses
from tests.referees.history import difference
from tests.waiting import PATIENCE_S, barring, until

AGAIN = {429, 503, 504}  # no definite answer, or refused for the time being
TARGETS = ("worker", "api", "backup", "restore")
BEFORE, AFTER = "before", "after"
LEASE_MS = 1000
RESIDENT_BYTES = 60_000  # a few streams: the others are written out
SETTINGS = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
OBSERVATIONS = 24
TOLERANCE = 1e-9


class Point(NamedTuple):
    """A call to the store: the n-th of the processes of a target, from 1 on."""

    target: str
    n: int
    when: str


class Fuse:
    """Kills the process that comes to a point, once it is armed. Shared by all processes."""

    def __init__(self) -> None:
        self._count = Context.Value("q", 0)
        self._at = Context.Value("q", 0)  # 0: not armed; below 0: after the sending
        self._target = Context.Value("q", 0)

    def arm(self, point: Point) -> None:
        """Count from 1 on."""
        self._count.value = 0
        self._target.value = TARGETS.index(point.target)
        self._at.value = point.n if point.when == BEFORE else -point.n

    def disarm(self) -> bool:
        """Stop; return whether the point was reached."""
        at, self._at.value = abs(self._at.value), 0
        return self._count.value >= at

    def install(self, name: str) -> None:
        """Have this process, of such a name, count what it sends to the store."""
        number = TARGETS.index(name.partition("-")[0])
        kind: Any = redis.connection.AbstractConnection
        send = kind.send_packed_command
        asynchronous: Any = redis.asyncio.connection.AbstractConnection
        send_async = asynchronous.send_packed_command

        def counted(*arguments: Any, **options: Any) -> Any:
            end = self._passing(number)
            result = send(*arguments, **options)
            end()
            return result

        async def counted_async(*arguments: Any, **options: Any) -> Any:
            end = self._passing(number)
            result = await send_async(*arguments, **options)
            end()
            return result

        kind.send_packed_command = counted
        asynchronous.send_packed_command = counted_async

    def _passing(self, number: int) -> Callable[[], None]:
        """Count a sending; dies here, or returns what is to be called after it."""
        at = self._at.value
        if not at or self._target.value != number:
            return lambda: None
        with self._count.get_lock():
            self._count.value += 1
            reached = self._count.value == abs(at)
        if reached and at > 0:
            die()
        return die if reached else lambda: None


def die() -> None:
    """End this process as SIGKILL does."""
    os.kill(os.getpid(), signal.SIGKILL)


# --- processes ------------------------------------------------------------------------------------


class Restarted:
    """An API and two workers, started again as soon as they end."""

    def __init__(self, settings: Settings, folder: Path, fuse: Fuse) -> None:
        self._settings = settings.model_copy(update={"port": free_port()})
        self._processes = ForkedProcesses(folder, fuse.install)
        self.url = f"http://127.0.0.1:{self._settings.port}"
        self.ends = 0
        self._lives = itertools.count()
        self._stopping = threading.Event()
        for name in ("api", "worker-a", "worker-b"):
            self._start(name)
        self._watch = threading.Thread(target=self._start_again, daemon=True)
        self._watch.start()

    def _start(self, name: str) -> None:
        self._processes.start(name, self._settings, f"{name}-{next(self._lives)}")

    def _start_again(self) -> None:
        while not self._stopping.wait(0.01):
            for name, process in list(self._processes.running.items()):
                if not process.is_alive():
                    self.ends += 1
                    self._start(name)

    def hand_over(self) -> None:
        """Ask a worker to end; the other one takes over, until the next has begun."""
        self._processes.signal("worker-a", signal.SIGTERM)

    def command(self, target: str, arguments: list[str]) -> int | None:
        """Run a command to its end; returns its status."""
        return self._processes.command(target, arguments)

    def close(self) -> None:
        """Kill them all."""
        self._stopping.set()
        self._watch.join()
        self._processes.close()


# --- the story ------------------------------------------------------------------------------------


class Story:
    """Requests about the streams of one telling, each repeated until its answer is definite."""

    def __init__(self, processes: Restarted, name: str) -> None:
        self._processes, self.name = processes, name
        self._rng = random.Random(5)
        self._http = httpx.Client(base_url=processes.url, timeout=20)
        self._keys = itertools.count()
        self.answers: list[Any] = []

    def tell(self) -> None:
        """Everything that a service does, once."""
        for stream in "abcdef":  # more than stay in memory
            self.ask("PUT", stream, {200, 201}, json=SETTINGS)
        for stream in "abcdef":
            self.observe(stream, self.labels(OBSERVATIONS))
        for y in self.labels(3):
            self.observe("a", y)
        self.bulk("abc")
        self.observe("b", [{"y": None}, {"y": None}, *self.labels(20, 6.0)])
        self.ask("PUT", "b/changepoints/1", {200, 404}, json={"change": True})
        self.ask("PUT", "a/run-length", json={"belief": [{"run_length": 3, "probability": 1.0}]})
        self.ask("PUT", "c", json={"hazard": 0.1, "confirm_after": 5})
        self.ask("POST", "c/model", json={"model": "averaged"})
        self._processes.hand_over()
        self.observe("c", self.labels(4))
        snapshot = self.ask("GET", "d/snapshot").content
        binary = {"Content-Type": "application/octet-stream"}
        # 409: it is there already, from a try without an answer.
        self.ask("PUT", "g/snapshot", {200, 201, 409}, content=snapshot, headers=binary)
        self.observe("g", self.labels(4))
        self.ask("DELETE", "e", {204, 404})
        self.observe("e", self.labels(3))
        self.ask("POST", "f/predictions", json={})
        self.bulk("defg")

    def labels(self, count: int, level: float = 0.0) -> list[dict[str, float]]:
        """Random observations."""
        return [{"y": self._rng.gauss(level, 1.0)} for _ in range(count)]

    def observe(self, stream: str, body: Any) -> None:
        """Post observations with a key."""
        key = {"Idempotency-Key": f"k{next(self._keys)}"}
        answer = self.ask("POST", f"{stream}/observations", json=body, headers=key)
        self.answers.append(answer.json())

    def bulk(self, streams: str) -> None:
        """Post one observation to each of several streams, and what failed for a while again."""
        items = [
            {"stream": self.name + s, "key": f"k{next(self._keys)}", **self.labels(1)[0]}
            for s in streams
        ]
        answers: dict[str, Any] = {}
        while items:
            found = self._until("POST", "/v1/observations", {200}, json=items).json()
            answers |= {a["stream"]: a for a in found if a["status"] == 200}
            again = [item for item, a in zip(items, found, strict=True) if a["status"] in AGAIN]
            assert len(again) + sum(a["status"] == 200 for a in found) == len(items), found
            items = again
        self.answers.append([answers[self.name + s] for s in streams])

    def ask(self, method: str, path: str, wanted: frozenset | set = frozenset({200}), **more):
        """Send a request about a stream until its answer is definite."""
        return self._until(method, f"/v1/streams/{self.name}{path}", wanted, **more)

    def _until(self, method: str, path: str, wanted, **more) -> httpx.Response:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                answer = self._http.request(method, path, **more)
                if answer.status_code in wanted:
                    return answer
                assert answer.status_code in AGAIN, f"{method} {path}: {answer.text}"
            time.sleep(0.02)
        raise AssertionError(f"{method} {path}: no answer in {PATIENCE_S:g} s")

    def state(self) -> dict[str, Any]:
        """What can be read of every stream, without times."""
        parts = ("/run-length", "/changepoints", "/history?limit=1000&detail=full")
        state = {s + part: self.ask("GET", s + part).json() for s in "abcdefg" for part in parts}
        for answer in state.values():
            answer.pop("hindsight", None)
            answer.pop("segmentation", None)
        return state

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def agree(story: Story, calm: Story) -> float:
    """Hold a telling against the calm one; returns the largest difference, raises others."""
    difference(plain(story.state()), plain(calm.state()), "state")
    return difference(plain(story.answers), plain(calm.answers), "answers")


def plain(value: Any) -> Any:
    """A value without what differs between tellings: times, names, repeats."""
    if isinstance(value, dict):
        dropped = {"stream", "time", "at", "duplicate", "created", "updated", "link", "start_time"}
        return {k: plain(v) for k, v in value.items() if k not in dropped and "_at" not in k}
    return [plain(item) for item in value] if isinstance(value, list) else value


# --- points ---------------------------------------------------------------------------------------


class Referee:
    """A service on a store of its own, and the calm telling."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.fuse = Fuse()
        self._settings, self._folder = settings, folder
        self._tellings = itertools.count()
        self._processes = Restarted(settings, folder, self.fuse)
        ready = lambda: httpx.get(f"{self._processes.url}/readyz", timeout=20).is_success  # noqa: E731
        until(barring(httpx.TransportError, ready))
        self._calm = self._tell()

    def close(self) -> None:
        """Stop the service."""
        self._calm.close()
        self._processes.close()

    def _tell(self) -> Story:
        story = Story(self._processes, f"t{next(self._tellings)}-")
        story.tell()
        return story

    def hold(self, point: Point) -> bool:
        """Kill at a point and compare; returns whether the point was reached."""
        if point.target in ("backup", "restore"):
            return self._hold_command(point)
        ends = self._processes.ends
        self.fuse.arm(point)
        story = self._tell()
        reached = self.fuse.disarm()
        if reached:
            until(lambda: self._processes.ends > ends)
        found = agree(story, self._calm)
        assert found <= TOLERANCE, f"{point}: {found}"
        self._forget(story)
        return reached

    def _forget(self, story: Story) -> None:
        for stream in "abcdefg":
            story.ask("DELETE", stream, {204, 404})
        story.close()

    def _hold_command(self, point: Point) -> bool:
        """Kill a backup, or a restore to another database, and repeat it."""
        file = self._folder / "backup.zip"
        source = ["--redis-url", str(self._settings.redis_url)]
        target = ["--redis-url", f"{self._settings.redis_url}?db=1", "--replace"]
        with redis.Redis.from_url(target[1]) as other:
            other.flushdb()
        models = ["--models-dir", str(self._settings.models_dir)]
        commands = {
            "backup": ["backup", str(file), "--force", *source, *models],
            "restore": ["restore", str(file), *target, *models],
        }
        reached = False
        for name, arguments in commands.items():
            if name == point.target:
                self.fuse.arm(point)
                self._processes.command(name, arguments)
                reached = self.fuse.disarm()
            status = self._processes.command(name, arguments)
            assert status == 0, f"{point}: {name} ended with status {status}"
        restored = self._settings.model_copy(update={"redis_url": target[1]})
        processes = Restarted(restored, self._folder, Fuse())
        try:
            again = Story(processes, self._calm.name)
            until(barring(httpx.TransportError, lambda: again.ask("GET", "a")))
            found = difference(plain(again.state()), plain(self._calm.state()), "restored")
            again.close()
        finally:
            processes.close()
        assert found <= TOLERANCE, f"{point}: {found}"
        return reached


@contextlib.contextmanager
def refereeing() -> Iterator[Referee]:
    """Run a service to be killed."""
    folder = Path(tempfile.mkdtemp(prefix="each-step-"))
    with running_server(valkey()) as url:
        settings = Settings(
            redis_url=url,
            models_dir=folder,
            partitions=2,
            lease_ttl_ms=LEASE_MS,
            request_deadline_s=10.0,
            checkpoint_every=8,
            max_wait_s=0,
        )
        referee = Referee(settings.model_copy(update={"resident_bytes": RESIDENT_BYTES}), folder)
        try:
            yield referee
        finally:
            referee.close()
            shutil.rmtree(folder, ignore_errors=True)


def hold_each(
    referee: Referee,
    target: str,
    stride: int,
    first: int = 1,
    moments: Sequence[str] = (BEFORE, AFTER),
    say=print,
) -> int:
    """Kill at calls so far apart, until the story ends before one; returns how many kills.

    moments: relative to the call, taken in turn.
    """
    kills = 0
    for n in itertools.count(first, stride):
        when = moments[kills % len(moments)]
        if not referee.hold(Point(target, n, when)):
            return kills
        kills += 1
        say(f"{target}: killed {when} its call {n}")
    return kills


def said(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=TARGETS)
    parser.add_argument("--stride", type=int, default=1, help="kill at every so manieth call")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--when", nargs="*", choices=(BEFORE, AFTER), help="in turn by default")
    given = parser.parse_args()
    moments = given.when or (BEFORE, AFTER)
    kills: Counter[str] = Counter()
    began = time.monotonic()
    with refereeing() as referee:
        for target in given.targets:
            kills[target] = hold_each(referee, target, given.stride, given.first, moments, said)
    seconds = time.monotonic() - began
    print(f"kills: {dict(kills)}, in {seconds:.0f} s; nothing was lost, doubled or reordered")


if __name__ == "__main__":
    main()
