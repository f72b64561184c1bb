"""Figures of the bandit: regret against hazard and over time, the reward and the belief."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from training import bandit
from training.agents import Moca
from training.bandit import STRATEGIES
from training.data import wheel
from training.evaluation.bandit import SEED, Results, Runs, compared, model, world
from training.evaluation.comparison import chart
from training.evaluation.drawing.sinusoid import trained_losses
from training.evaluation.experiments import Wanted
from training.figures.bandit import Samples, Surface
from training.figures.bandit import wheel as disc
from training.figures.chart import Chart
from training.figures.performance import Curve, Facet, over_time
from training.intervals import student_t_quantile

PAPER_HAZARD, AT, STEPS = "0.02", 135, 200  # of the paper's figure
SAMPLES = 600
EVERY = 5  # steps between points of a regret curve


def draw(
    wanted: Wanted, runs: Runs, results: Results, strategies: Sequence[str]
) -> list[tuple[str, Chart]]:
    """Each figure under the name of its files."""
    charts = []
    for strategy in strategies:
        found = compared(results, strategy)
        if len(found.settings()) > 1:
            charts.append((f"regret-{strategy}", chart(found)))
        charts.append((f"cumulative-{strategy}", _cumulative(results, strategy)))
    for (hazard, method), each in runs.items():
        if method == "MOCA":
            charts.append((f"losses-{hazard}", trained_losses(each)))
    if (PAPER_HAZARD, "MOCA") in runs:
        charts.append(("wheel", _wheel(wanted, runs)))
    return charts


def _cumulative(results: Results, strategy: str) -> Chart:
    """Regret so far of each method, one panel for each hazard."""
    settings = sorted({hazard for hazard, _, chosen in results if chosen == strategy}, key=float)
    facets = []
    for setting in settings:
        curves = [
            _curve(method, each.cumulative)
            for (hazard, method, chosen), each in results.items()
            if (hazard, chosen) == (setting, strategy)
        ]
        facets.append(Facet(f"hazard {setting}", "cumulative regret", curves))
    return over_time(facets, f"Cumulative regret, {strategy}")


def _curve(method: str, cumulative: np.ndarray) -> Curve:
    count = len(cumulative)
    mean, spread = cumulative.mean(0), cumulative.std(0, ddof=1) / np.sqrt(count)
    reach = student_t_quantile(0.975, count - 1) * spread
    x = np.arange(1, 1 + cumulative.shape[1], dtype=np.float64)
    columns = (each[::EVERY].astype(np.float64) for each in (x, mean, mean - reach, mean + reach))
    return Curve(method, *columns)


def _wheel(wanted: Wanted, runs: Runs) -> Chart:
    """The paper's figure of the bandit: rewards, their posterior mean at t = 135, the belief."""
    each = runs[PAPER_HAZARD, "MOCA"]
    met = world(float(PAPER_HAZARD), 1)
    short = wheel.World(*(value[:, :STEPS] for value in met))
    chance = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        mine = model(each, wanted)
        found = bandit.follow(Moca(), mine, short, STRATEGIES["thompson"], chance, AT)
    states = wheel.world(torch.Generator().manual_seed(SEED + 1), 1, SAMPLES, 0.5).states[0]
    delta = found.delta[AT].expand(SAMPLES)
    noise = wheel.NOISE * torch.randn(SAMPLES, generator=chance, dtype=states.dtype)
    reward = wheel.reward_mean(states, torch.ones(SAMPLES, dtype=torch.int64), delta) + noise
    axis = found.axis.numpy()
    return disc(
        Samples(states.numpy(), reward.numpy()),
        Surface(axis, axis, found.mean.numpy()),
        found.belief.double().numpy(),
        found.switch.numpy(),
        f"Switching wheel bandit: action 1 at t = {AT}, hazard {PAPER_HAZARD}",
    )
