"""That the two measurements work: requests to a server, and steps of the filter."""

import io
import json

import pytest
from rich.console import Console

from service.bench import BenchError, bench_serve, bench_step
from service.bench import serve as serving

pytestmark = pytest.mark.slow


def test_requests_are_measured_beside_an_echo(monkeypatch):
    monkeypatch.setattr(serving, "WARM_S", 0.1)
    console = Console(file=io.StringIO(), width=100)
    (result,) = bench_serve(seconds=0.3, connections=2, streams=4, rounds=2, console=console)
    assert result.service.errors() == {}
    assert len(result.service.reports) == len(result.echo.reports) == len(result.ratios()) == 2
    summary = json.loads(json.dumps(result.summary()))
    assert summary["service"]["per_s"]["rounds"] == [each.rate for each in result.service.reports]
    assert summary["ratio"]["median"] == pytest.approx(result.ratio())


def test_steps_are_measured():
    console = Console(file=io.StringIO(), width=100)
    small = {"batches": [1, 3], "max_hypotheses": 8, "early": 10, "late": 20, "rounds": 2}
    result = bench_step(models=["gaussian"], console=console, **small)
    assert result.steps
    assert all(len(each.us) == 2 and min(each.us) > 0 for each in result.steps)
    summary = json.loads(json.dumps(result.summary()))
    assert summary["steps"][0]["median"] == result.steps[0].interval().median
    with pytest.raises(BenchError, match="expected"):
        bench_step(models=["none"], console=console, **small)
