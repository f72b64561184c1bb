"""Worker processes that are killed, stopped and continued under load."""

import json
import multiprocessing
import os
import signal
import time

import pytest

from service.store import keys
from service.wire import Observation, Observe
from service.worker import worker as loop
from service.worker.worker import Worker


def one(stream, y):
    return Observe(stream, [Observation(y=y)])


def _serve(settings):
    loop.IDLE_MS = 50
    worker = Worker(settings)
    signal.signal(signal.SIGTERM, worker.stop)
    worker.run()
    os._exit(0)


@pytest.fixture
def processes():
    """Start worker processes; all are killed in the end."""
    made = []

    def start(bench):
        context = multiprocessing.get_context("fork")
        made.append(context.Process(target=_serve, args=(bench.settings,), daemon=True))
        made[-1].start()
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.join()


def wait(bench, numbers, timeout_s=20.0):
    limit = time.monotonic() + timeout_s
    while True:
        found = [bench.outcome(*number) for number in numbers]
        if all(outcome is not None for outcome in found):
            return found
        assert time.monotonic() < limit, f"{found.count(None)} without an answer"
        time.sleep(0.005)


def test_killed_again_and_again(make_bench, close, processes):
    """SIGKILL at random points under load: every observation once, numbers to 1e-9."""
    settings = {"lease_ttl_ms": 400, "request_deadline_s": 20.0, "checkpoint_every": 16}
    bench, plain = make_bench(**settings), make_bench(db=1)
    streams = [f"s{i}" for i in range(6)]
    numbers, process = [], processes(bench)
    for step in range(90):
        for i, stream in enumerate(streams):
            seen = Observation(y=((step * 7 + i) % 5) + 4.0 * (step > 50))
            numbers += bench.append(Observe(stream, [seen], belief=step == 89))
        time.sleep(0.01)
        if step in (20, 41, 62):
            wait(bench, numbers[: len(numbers) // 2])
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            process = processes(bench)
    outcomes = wait(bench, numbers)
    process.kill()
    for step in range(90):
        expected = plain.send(*_of(plain, streams, step, 0)) + plain.send(
            *_of(plain, streams, step, 1)
        )
        by_stream = {json.loads(o.body[0])["stream"]: json.loads(o.body[0]) for o in expected}
        for i, stream in enumerate(streams):
            (body,) = outcomes[6 * step + i].body
            close(json.loads(body), by_stream[stream])
    for stream in streams:
        assert [record.seq for record in bench.records(stream)] == list(range(90))
        assert not bench.quarantine(stream)


def _of(bench, streams, step, partition):
    return [
        Observe(s, [Observation(y=((step * 7 + i) % 5) + 4.0 * (step > 50))], belief=step == 89)
        for i, s in enumerate(streams)
        if bench.partition(s) == partition
    ]


def test_stopped_past_its_lease_and_continued(make_bench, processes):
    bench = make_bench(partitions=2, lease_ttl_ms=300, request_deadline_s=20.0)
    first = processes(bench)
    numbers = [*bench.append(one("a", 1.0)), *bench.append(one("b", 1.0))]
    wait(bench, numbers)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        numbers = [n for _ in range(5) for s in "ab" for n in bench.append(one(s, 2.0))]
        processes(bench)
        wait(bench, numbers)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    numbers = [n for _ in range(20) for s in "ab" for n in bench.append(one(s, 3.0))]
    outcomes = wait(bench, numbers)
    assert {outcome.status for outcome in outcomes} == {200}
    time.sleep(0.4)
    assert first.is_alive()
    for stream in "ab":
        assert bench.head(stream).seq == 26
        assert [r.y for r in bench.records(stream)] == [1.0] + [2.0] * 5 + [3.0] * 20


def test_a_clean_stop_hands_over_at_once(make_bench, processes):
    bench = make_bench(partitions=2, lease_ttl_ms=10_000, request_deadline_s=30.0)
    process = processes(bench)
    wait(bench, bench.append(one("a", 1.0)))
    process.terminate()
    process.join(5)
    assert process.exitcode == 0
    assert [bench.client.exists(keys.lease(p)) for p in range(2)] == [0, 0]
    assert bench.head("a").checkpoint == 0  # it is still warming up
    assert [answer["seq"] for answer in bench.observe("a", [2.0])] == [1]
