"""That the two measurements work: requests to a server, and steps of the filter."""

import io
import json
import sys
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from rich.console import Console

from service.bench import serve as serving
from service.bench import step as stepping
from service.bench.report import BenchError, write_json
from service.bench.serve import ServePlan, bench_serve
from service.bench.step import bench_device, bench_step


class Cusum:
    """In the place of a package's detector."""

    def __init__(self, type):
        self.seen = []

    def update(self, y):
        self.seen.append(y)

    def get_statistics(self, family):
        return {"stat": max(self.seen)}


@pytest.mark.slow
def test_requests_are_measured_beside_an_echo(monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "WARM_S", 0.1)
    console = Console(file=io.StringIO(), width=100)
    plan = ServePlan(seconds=2, connections=2, streams=4, rounds=2, lists=10, replay=100)
    results = bench_serve(plan, ["gaussian", "multivariate"], console=console)
    assert list(results) == ["gaussian", "multivariate"]
    for measures in results.values():
        assert measures["single observations: failures"] == [0, 0]
        assert {len(rounds) for name, rounds in measures.items() if "CPU" not in name} == {2}
        cpu_us = [measures[f"single observations: CPU us, {part}"] for part in ("api", "worker")]
        assert all(sum(rounds) > 0 for rounds in cpu_us)  # a round is a few ticks of the clock
        assert "lists of 10 of as many streams: per s of the worker's CPU" in measures
        for single, bare, ratio in zip(
            measures["single observations: per s"],
            measures["echo: per s"],
            measures["single observations: per s, over the echo's"],
            strict=True,
        ):
            assert ratio == pytest.approx(single / bare)
    write_json(tmp_path / "serve.json", results)
    assert json.loads((tmp_path / "serve.json").read_text())["results"] == results


@pytest.mark.slow
def test_compiled_steps_are_measured(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(stepping, "COPIED_BYTES", 1 << 20)
    console = Console(file=io.StringIO(), width=100)
    small = {"device": "cpu", "streams": 3, "max_hypotheses": 8, "early": 10, "rounds": 2}
    (measures,) = bench_device(models=["gaussian"], console=console, **small).values()
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in measures.values())
    assert "share of the bandwidth" in console.file.getvalue()
    with pytest.raises(BenchError, match="expected models of"):
        bench_device(models=["none"], console=console, **small)
    with pytest.raises(BenchError, match="guarded"):
        bench_device(models=["gaussian"], console=console, **small | {"device": "guarded"})
    monkeypatch.setattr(torch, "compile", mock.Mock(side_effect=RuntimeError("no gcc")))
    with pytest.raises(BenchError, match="no gcc"):
        bench_device(models=["gaussian"], console=console, **small | {"max_hypotheses": 9})


def test_steps_are_measured_beside_other_packages(monkeypatch):
    installed = SimpleNamespace(Detector=Cusum)
    monkeypatch.setitem(sys.modules, "focus_cpt", installed)
    monkeypatch.setitem(sys.modules, "fast_bocpd", None)  # as if it were not installed
    console = Console(file=io.StringIO(), width=100)
    small = {"batches": [1, 3], "max_hypotheses": 8, "early": 10, "late": 20, "rounds": 2}
    results = bench_step(models=["gaussian", "poisson"], console=console, **small)
    assert list(results) == ["gaussian", "poisson"]
    assert "FOCuS, change of a normal mean: us" in results["gaussian"]
    assert "FOCuS, change of a normal mean: us" not in results["poisson"]  # its labels are counts
    assert "fast-bocpd, normal-gamma, 200 run lengths: not installed" in console.file.getvalue()
    for measures in results.values():
        own = [name for name in measures if "FOCuS" not in name]
        assert len(own) == 2 * len(small["batches"]) + 1
        assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in measures.values())
    assert "3 streams at once" in console.file.getvalue()
    with pytest.raises(BenchError, match="expected models of"):
        bench_step(models=["none"], console=console, **small)
    with pytest.raises(BenchError, match="expected 0 < early < late"):
        bench_step(models=["gaussian"], console=console, **small | {"late": 5})
