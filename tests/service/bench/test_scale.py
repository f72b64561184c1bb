"""The benchmark with many streams, on a real service and on answers made up."""

import io
import math

import pytest
from rich.console import Console

from service.bench import BenchError, bench_scale, scale
from service.bench.load import Job, requests_of
from service.bench.scale import Held, Housekeeping, ScaleBench


def quiet():
    return Console(file=io.StringIO(), width=100)


@pytest.mark.timeout(120)
def test_bench_scale(monkeypatch):
    monkeypatch.setattr(scale, "PRIMING", 3)
    monkeypatch.setattr(scale, "EXPIRY_S", 0)
    monkeypatch.setattr(scale, "WARM_S", 0.2)
    monkeypatch.setattr(scale, "wait_until_compiled", lambda server: None)
    monkeypatch.setattr(scale, "PROBE_S", 1.5)
    console = quiet()
    result = bench_scale(streams=600, seconds=2.0, rounds=1, console=console)
    assert (result.few, result.streams) == (300, 600)
    assert len(result.rates) == len(result.few_rates) == 1
    assert [held.streams for held in result.held] == [300, 600]
    assert result.per_stream("store") > 100
    assert result.busy.share < 1
    assert result.idle.longest_s > 0
    written = result.summary()
    assert written["rate_ratio"] == result.ratio()
    assert written["rates"] == result.rates
    assert f"ratio of the rates: {result.ratio():.3f}" in console.file.getvalue()


def test_the_time_for_beginning_is_bounded(monkeypatch):
    posted = []
    monkeypatch.setattr(scale, "_post", lambda client, rows: posted.append(rows))
    server, console = scale.Server("http://127.0.0.1:9", None), quiet()
    names = [f"s{i}" for i in range(100)]
    assert scale.begin(server, names, console, "streams") == 100
    assert sorted({row["stream"] for rows in posted for row in rows}) == sorted(names)
    assert scale.begin(server, names, console, "streams", limit_s=-1.0) == 0
    assert "0 streams were begun" in console.file.getvalue()


def test_what_is_shed_is_sent_again_in_order():
    rows = [{"stream": s, "y": y} for s, y in (("a", 1), ("b", 2), ("b", 3), ("b", 4), ("c", 5))]
    items = [{"status": status} for status in (200, 200, 429, 409, 429)]
    assert [row["y"] for row in scale._shed(rows, items)] == [3, 4, 5]
    with pytest.raises(BenchError, match="refused"):
        scale._shed(rows, [{"status": 422}, *items[1:]])


def test_housekeeping_between_two_readings():
    name = "moca_housekeeping_seconds"
    before = {f"{name}_bucket 0.01": 5.0, f"{name}_bucket 0.02": 6.0, f"{name}_count": 6.0,
              f"{name}_sum": 0.05}  # fmt: skip
    after = {f"{name}_bucket 0.01": 7.0, f"{name}_bucket 0.02": 9.0, f"{name}_count": 9.0,
             f"{name}_sum": 0.15}  # fmt: skip
    spent = scale._between(before, after, 2.0)
    assert spent.share == pytest.approx(0.05)
    assert spent.longest_s == 0.02
    after[f"{name}_count"] = 10.0  # one was longer than any bound
    assert math.isinf(scale._between(before, after, 2.0).longest_s)


def test_what_a_stream_takes_is_the_growth():
    result = ScaleBench("gaussian", 10, 110, few_rates=[100, 50], rates=[90, 20])
    result.held = [Held(10, 5_000, 1_000), Held(110, 705_000, 101_000)]
    result.busy = Housekeeping(0.015, math.inf)
    assert (result.per_stream("worker"), result.per_stream("store")) == (7_000, 1_000)
    assert result.ratio() == pytest.approx(0.65)
    console = quiet()
    for line in scale.report_lines(result):
        console.print(line)
    said = console.file.getvalue()
    assert "7,000 bytes of the worker" in said
    assert "1.50 % of a core, longest round more than 1,000 ms" in said


def test_staggered_connections_begin_apart():
    job = Job("h", 1, ["/"] * 2, ["a", "b", "c", "d"], connections=2, seconds=1, staggered=True)
    first = [next(requests_of(job, c))[-1:] for c in range(2)]
    assert first == [b"a", b"c"]


@pytest.mark.parametrize("bad", [{"streams": 10}, {"rounds": 0}, {"seconds": 0}])
def test_bench_scale_refuses(bad):
    with pytest.raises(BenchError, match="expected"):
        bench_scale(**bad, console=quiet())
