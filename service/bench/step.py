"""`moca bench step`: the time of one filter step early and late in a stream's life.

Memory is bounded, so a step at t = 20,000 must cost what one at t = 500 does. Both states are kept
and stepped in turn, so that a machine that slows down slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from service.bench.processes import BenchError

if TYPE_CHECKING:
    from torch import Tensor

    from model_core.filter import FilterState, Inputs, Prior
    from model_core.upm.base import UnderlyingModel

REGIME = 250  # observations between shifts of the made-up series


@dataclass
class StepBench:
    """Result of `bench_step`: milliseconds per step, one entry per round."""

    model: str
    streams: int
    max_hypotheses: int
    early: int
    late: int
    early_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """Median over the rounds of late over early."""
        pairs = zip(self.late_ms, self.early_ms, strict=True)
        return statistics.median(late / early for late, early in pairs)


def bench_step(
    *,
    model: str = "gaussian",
    streams: int = 32,
    max_hypotheses: int = 50,
    early: int = 500,
    late: int = 20_000,
    rounds: int = 21,
    steps: int = 50,
    console: Console | None = None,
) -> StepBench:
    """Time `steps` filter steps from t = `early` and from t = `late`, in turn; print and return.

    One batch of `streams` streams of a built-in model, on one CPU thread as in a worker.
    """
    from model_core.upm.builtin import NEWEST, Options, build

    if model not in NEWEST:
        raise BenchError(f"expected one of {', '.join(NEWEST)}, got {model!r}")
    if not (0 < early < late and rounds > 0 and steps > 0 and streams > 0):
        raise BenchError("expected 0 < early < late, and positive rounds, steps and streams")
    console = console or Console()
    result = StepBench(model, streams, max_hypotheses, early, late)
    with _one_thread():
        chosen = build(model, Options())
        prior = _prior(chosen, streams)
        series = _series(chosen.label, streams, late + steps)
        states = _walk(chosen, prior, series, (early, late), max_hypotheses, console)
        for _ in range(rounds):
            for start, times in ((early, result.early_ms), (late, result.late_ms)):
                window = series[start : start + steps]
                times.append(_time_ms(chosen, states[start], prior, window))
    console.print(report_line(result), highlight=False)
    return result


def _walk(
    model: UnderlyingModel,
    prior: Prior,
    series: list[Tensor],
    wanted: tuple[int, int],
    max_hypotheses: int,
    console: Console,
) -> dict[int, FilterState]:
    """Step through the series; return the states before the wanted times."""
    from model_core import filter as filtering

    states: dict[int, FilterState] = {}
    state = filtering.init(prior, max_hypotheses)
    last = max(wanted)
    for t in track(range(last), f"{last:,} steps", console=console, transient=True):
        if t in wanted:
            states[t] = state
        state, _ = filtering.step(model, state, prior, _inputs(series[t]))
    return {**states, last: state}


def report_line(result: StepBench) -> str:
    """Return what is printed."""
    early, late = statistics.median(result.early_ms), statistics.median(result.late_ms)
    return (
        f"{result.model}, {result.streams} streams, {result.max_hypotheses} hypotheses: "
        f"{early:.3f} ms per step at t = {result.early:,}, {late:.3f} ms at t = {result.late:,}, "
        f"ratio {result.ratio():.3f} (median of {len(result.early_ms)} rounds)"
    )


def _time_ms(
    model: UnderlyingModel, state: FilterState, prior: Prior, window: list[Tensor]
) -> float:
    from model_core import filter as filtering

    inputs = [_inputs(y) for y in window]
    started = time.perf_counter()
    for each in inputs:
        state, _ = filtering.step(model, state, prior, each)
    return 1e3 * (time.perf_counter() - started) / len(window)


def _inputs(y: Tensor) -> Inputs:
    import torch

    from model_core.filter import Inputs

    rows = y.shape[0]

    def constant(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float64)

    labelled = torch.ones(rows, dtype=torch.bool)
    nothing = constant(float("nan"))
    hazard = constant(1 / 250)[:, None]
    return Inputs(None, y, labelled, hazard, constant(1.0), nothing, constant(0.01))


def _prior(chosen: UnderlyingModel, streams: int) -> Prior:
    import torch

    from model_core.filter import make_prior

    location = {"count": 3.0, "binary": 0.5, "positive": 3.0}.get(chosen.label, 0.0)
    ones = torch.ones(streams, 1, dtype=torch.float64)
    return make_prior(chosen, location * ones, ones)


def _series(label: str, streams: int, length: int) -> list[Tensor]:
    """Draw a series with a shift every `REGIME` observations; each entry is (streams, 1)."""
    import torch

    draw = torch.Generator().manual_seed(1)
    shape = (-(-length // REGIME), streams, 1)
    level = torch.rand(shape, generator=draw, dtype=torch.float64)
    level = level.repeat_interleave(REGIME, 0)[:length]
    if label == "binary":
        return list(torch.bernoulli(level, generator=draw))
    if label == "count":
        return list(torch.poisson(1 + 5 * level, generator=draw))
    if label == "positive":
        noise = torch.rand(level.shape, generator=draw, dtype=torch.float64)
        return list(-(1 + 5 * level) * torch.log1p(-noise))  # exponential
    noise = torch.randn(level.shape, generator=draw, dtype=torch.float64)
    return list(6 * level + noise)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)
