"""Clocks that differ or jump: order, exactly once and reads do not depend on them."""

import time

import pytest

from service.wire import Observation, Observe, Predict, RunLength

HOUR_MS = 3_600_000


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("command", [RunLength("a"), Predict("a")])
def test_reads_are_answered_where_clocks_differ(bench, monkeypatch, skew_ms, command):
    bench.observe("a", [1.0])
    bench.now_ms += skew_ms  # the API's clock
    (read,) = bench.send(command, deadline_ms=bench.now_ms + 30_000)
    assert read.status == 200
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + skew_ms / 1000)  # the worker's, too
    bench.turn()
    (read,) = bench.send(command, deadline_ms=bench.now_ms + 30_000)
    assert read.status == 200
    (late,) = bench.send(command, deadline_ms=bench.now_ms - 1)
    assert late.status == 504


def test_an_api_whose_clock_jumps(bench):
    """Order is the log's, and what was done is known by its key."""
    for at, jump_ms in enumerate((0, -24 * HOUR_MS, 48 * HOUR_MS, -24 * HOUR_MS)):
        bench.now_ms += jump_ms
        for again in (False, True):
            keyed = Observe("a", [Observation(y=float(at))], key=f"k{at}", digest="d")
            answer = bench.ask(keyed)
            assert (answer["seq"], answer["duplicate"]) == (at, again)
    bench.crash()
    repeated = bench.ask(Observe("a", [Observation(y=1.0)], key="k1", digest="d"))
    assert (repeated["seq"], repeated["duplicate"]) == (1, True)
    assert [record.y for record in bench.records("a")] == [0.0, 1.0, 2.0, 3.0]
