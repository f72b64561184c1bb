"""Time per step against the number of observations before (paper, app. D.5)."""

from __future__ import annotations

import math
import time

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from model_core import filter as moca
from model_core.filter import FilterState, Inputs, Prior
from model_core.upm.base import UnderlyingModel
from training.figures.chart import Chart
from training.figures.performance import Curve, curve, step_time
from training.statistics.intervals import Estimate, estimate, formatted

STEPS = (100, 500, 1000, 2500, 5000, 10_000, 15_000, 20_000, 25_000)
TRIALS = 10
WARM = 2
KEPT = 50  # hypotheses of a pruned filter


def measure(model: UnderlyingModel, device: str = "cpu") -> dict[str, list[Estimate]]:
    """Milliseconds of one step after each number of `STEPS`, with every hypothesis and with 50."""
    times: dict[str, list[Estimate]] = {"nothing pruned": [], f"{KEPT} hypotheses": []}
    for t in track(STEPS, "timing", transient=True):
        for name, hypotheses in zip(times, (t, KEPT), strict=True):
            times[name].append(_timed(model, t, hypotheses, device))
    return times


def report(model: UnderlyingModel, device: str, console: Console) -> Chart:
    """Print the table; returns the figure."""
    times = measure(model, device)
    title = f"Milliseconds a step on {device}, {TRIALS} trials, mean and 95 % interval"
    table = Table("observations", *times, box=SIMPLE_HEAD, title=title)
    for k, t in enumerate(STEPS):
        table.add_row(f"{t:,}", *(formatted(column[k], 2) for column in times.values()))
    console.print(table)
    curves: list[Curve] = [curve(name, STEPS, column) for name, column in times.items()]
    return step_time(curves, f"Time per step on {device}")


def _timed(model: UnderlyingModel, t: int, hypotheses: int, device: str) -> Estimate:
    """Time of a step of one stream after `t` observations with so many hypotheses."""
    zeros = torch.zeros(1, model.scaled, dtype=torch.float64, device=device)
    prior = moca.make_prior(model, zeros, zeros + 1)
    state = _full(prior, t, hypotheses)
    milliseconds = []
    for trial in range(WARM + TRIALS):
        _wait(device)
        begun = time.perf_counter()
        moca.step(model, state, prior, _inputs(model, trial, device))
        _wait(device)
        milliseconds.append(1000 * (time.perf_counter() - begun))
    return estimate(milliseconds[WARM:])


def _full(prior: Prior, t: int, hypotheses: int) -> FilterState:
    """A state with equally likely hypotheses in every slot but the free one."""
    state = moca.init(prior, hypotheses)
    run_length = t - torch.arange(hypotheses + 1, device=state.seq.device).expand(1, -1)
    log_prob = torch.full_like(state.belief.log_prob, -math.log(hypotheses))
    log_prob[:, -1] = -math.inf
    belief = state.belief._replace(log_prob=log_prob, run_length=run_length, score=log_prob.clone())
    return state._replace(belief=belief, seq=state.seq + t)


def _inputs(model: UnderlyingModel, trial: int, device: str) -> Inputs:
    one = torch.ones(1, dtype=torch.float64, device=device)
    hazard = model.hazard if isinstance(model.hazard, float) else model.hazard[0]
    x = torch.full((1, model.x_dim), 0.1 * trial, dtype=torch.float64, device=device)
    y = torch.zeros(1, model.y_dim, dtype=torch.float64, device=device)
    labelled = torch.ones(1, dtype=torch.bool, device=device)
    return Inputs(x, y, labelled, one[:, None] * hazard, one, one * math.nan, one * 0.0)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
