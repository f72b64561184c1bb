"""Worker processes that are killed, stopped or end: only what ends them each time is set aside."""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import time

import pytest

from model_core.upm.conjugate import Gaussian
from service.runtime.supervisor import _by_itself
from service.store import keys
from service.store import log as log_module
from service.wire import Configure, Observation, Observe
from service.worker import worker as loop
from service.worker.worker import Worker
from tests.waiting import PATIENCE_S, until

POISON, TTL_MS = 13.0, 1000
IDS = itertools.count()
SLOW = pytest.mark.slow


def one(stream, y):
    return Observe(stream, [Observation(y=y)])


class Stalls:
    """Makes a worker tell the test where it is, and wait there, the first few times."""

    def __init__(self, where, times, seconds):
        self.where, self.left, self.seconds = where, times, seconds
        context = multiprocessing.get_context("fork")
        self.hear, self.say = context.Pipe(duplex=False)

    def here(self):
        if self.left > 0:
            self.left -= 1
            self.say.send_bytes(b"here")
            time.sleep(self.seconds)

    def install(self, worker):
        """At what it read, but has not named yet; in computing; or before its commit is sent."""
        read, begin, apply = worker.log.end_read, worker.log.begin_commit, loop.Job.advance

        def read_and_wait(*arguments):
            entries = read(*arguments)
            if entries:
                self.here()
            return entries

        def wait_and_apply(job):
            self.here()
            return apply(job)

        def wait_and_commit(commits):
            self.here()
            return begin(commits)

        if self.where == "read":
            worker.log.end_read = read_and_wait
        elif self.where == "computing":
            loop.Job.advance = wait_and_apply  # this process is the worker's alone
        else:
            worker.log.begin_commit = wait_and_commit


def _serve(settings, name, stalls):
    loop.IDLE_MS = 20
    loop.BACKOFF_S = 0.05
    worker = Worker(settings, name)
    signal.signal(signal.SIGTERM, worker.stop)
    if stalls is not None:
        stalls.install(worker)
    worker.run()
    os._exit(0)


class Life:
    """One worker process."""

    def __init__(self, bench, stalls=None):
        self.bench, self.stalls, self.name = bench, stalls, f"life{next(IDS)}"
        context = multiprocessing.get_context("fork")
        arguments = (bench.settings, self.name, stalls)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()

    def wait_until_there(self):
        assert self.stalls.hear.poll(PATIENCE_S), f"nothing came to {self.stalls.where}"
        self.stalls.hear.recv_bytes()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def bury(self):
        """What its supervisor does."""
        self.process.join()
        verdict = "failed" if _by_itself(self.process.exitcode) else "unknown"
        self.bench.worker.log.release_worker(self.name, verdict)
        self.bench.client.zrem(keys.WORKERS, self.name)


@pytest.fixture
def live():
    """Start worker processes; all are killed in the end."""
    lives = []

    def start(bench, stalls=None):
        lives.append(Life(bench, stalls))
        return lives[-1]

    yield start
    for life in lives:
        with contextlib.suppress(ProcessLookupError):
            life.process.kill()
        life.process.join()


def wait(bench, numbers):
    until(lambda: all(bench.outcome(*number) is not None for number in numbers))
    return [bench.outcome(*number) for number in numbers]


def tries(bench):
    return json.loads(bench.client.hget(keys.meta(0), "tries") or "{}")


def check_applied_once(bench, numbers):
    outcomes = wait(bench, numbers)
    assert [outcome.status for outcome in outcomes] == [200] * len(numbers)
    for stream in "ab":
        assert [record.y for record in bench.records(stream)] == [0.5, 1.5, 2.5]
    assert not bench.quarantine("a")
    assert tries(bench) == {}


def innocent(bench):
    return [n for y in (0.5, 1.5, 2.5) for n in bench.append(one("a", y), one("b", y))]


@pytest.mark.parametrize(
    ("kills", "where"),
    [(3, "any"), *(pytest.param(8, w, marks=SLOW) for w in ("read", "computing", "commit", "any"))],
)
def test_killed_between_lease_and_commit(make_bench, live, kills, where):
    bench = make_bench(partitions=1, lease_ttl_ms=60_000)
    numbers, rng = innocent(bench), random.Random(kills)
    named = 0
    for _ in range(kills):
        place = rng.choice(["read", "computing", "commit"]) if where == "any" else where
        life = live(bench, Stalls(place, 1, 600.0))
        life.wait_until_there()
        life.signal(signal.SIGKILL)
        life.bury()
        named = max(named, len(tries(bench)))
    if where != "any":
        # The first two with all that waits; then alone, and named unless it came before.
        assert named == (0 if where == "read" else kills - 2)
    live(bench)
    check_applied_once(bench, numbers)


@SLOW
@pytest.mark.parametrize("where", ["computing", "commit"])
def test_stopped_past_its_lease_again_and_again(make_bench, live, monkeypatch, where):
    """It takes its trial back when it goes on: nothing else keeps the command from quarantine."""
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", 0)
    bench = make_bench(partitions=1, lease_ttl_ms=TTL_MS, request_deadline_s=200.0)
    numbers, stops = innocent(bench), 6
    life = live(bench, Stalls(where, stops, 0.5))
    for stop in range(stops):
        life.wait_until_there()
        life.signal(signal.SIGSTOP)
        assert len(tries(bench)) == (stop >= 2)
        until(lambda: not bench.client.exists(keys.lease(0)))
        life.signal(signal.SIGCONT)
    check_applied_once(bench, numbers)
    assert life.process.is_alive()


def _spin():
    while True:
        pass


DEEDS = {
    "exit": lambda: os._exit(9),
    "fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "spin": _spin,
    "sleep": lambda: time.sleep(600),
}


@SLOW
@pytest.mark.parametrize("deed", DEEDS)
def test_a_poison_is_set_aside_alone(make_bench, live, monkeypatch, deed):
    """Whether it ends its process, is killed or hangs."""
    update = Gaussian.update

    class Poisonous(Gaussian):
        def update(self, stats, phi, y, weight):
            if (y == POISON).any():
                DEEDS[deed]()
            return update(self, stats, phi, y, weight)

    monkeypatch.setattr("model_core.upm.conjugate.Gaussian", Poisonous)
    # Were it certain that a worker that did not come back died of it, this would change nothing.
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", 300 if deed == "killed" else 10**9)
    bench = make_bench(partitions=1, lease_ttl_ms=500, worker_hang_s=3.0, request_deadline_s=200.0)
    for stream in "ab":
        bench.ask(Configure(stream, {"location": [0.0], "scale": [1.0]}), status=201)
    bench.stop()
    numbers = [
        *bench.append(one("a", 1.0), one("b", 1.0), one("a", POISON), one("b", 2.0)),
        *bench.append(one("a", 3.0)),
    ]
    lives = [live(bench)]

    def answered():
        if not lives[-1].process.is_alive():
            lives[-1].bury()
            lives.append(live(bench))
        return all(bench.outcome(*number) is not None for number in numbers)

    until(answered)
    assert len(lives) - 1 <= (12 if deed == "killed" else 5)
    outcomes = wait(bench, numbers)
    assert [outcome.status for outcome in outcomes] == [200, 200, 500, 200, 200]
    assert json.loads(outcomes[2].body[0])["type"].endswith("quarantined")
    assert [record.y for record in bench.records("a")] == [1.0, 3.0]
    assert [record.y for record in bench.records("b")] == [1.0, 2.0]
    assert len(bench.quarantine("a")) == 1
    assert tries(bench) == {}
