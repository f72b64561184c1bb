"""Figures of the bandit: regret against hazard and over time, reward and belief."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from training.data import wheel
from training.evaluation.bandit import trials as bandit
from training.evaluation.bandit.agents import Moca
from training.evaluation.bandit.regret import SEED, Results, Runs, compared, model, world
from training.evaluation.bandit.trials import STRATEGIES
from training.evaluation.comparison import chart
from training.evaluation.paper import Wanted
from training.evaluation.paper_figures.sinusoid import trained_losses
from training.figures.bandit import Samples, Surface
from training.figures.bandit import wheel as disc
from training.figures.chart import Chart
from training.figures.performance import Curve, Facet, over_time
from training.statistics.intervals import student_t_quantile

PAPER_HAZARD = "0.02"  # of the paper's figure
AT = 135  # its step of the disc
STEPS = 200  # its length
SAMPLES = 600
EVERY = 5  # steps between points of a regret curve
ACROSS = 3  # panels in a row


def draw(
    wanted: Wanted, runs: Runs, results: Results, strategies: Sequence[str]
) -> list[tuple[str, Chart]]:
    """Each figure with the name of its files."""
    charts = []
    for strategy in strategies:
        comparison = compared(results, strategy)
        if len(comparison.settings()) > 1:
            charts.append((f"regret-{strategy}", chart(comparison)))
        charts.append((f"cumulative-{strategy}", _cumulative(results, strategy)))
    for (hazard, method), run in runs.items():
        if method == "MOCA":
            charts.append((f"losses-{hazard}", trained_losses(run)))
    if (PAPER_HAZARD, "MOCA") in runs:
        charts.append(("wheel", _wheel(wanted, runs)))
    return charts


def _cumulative(results: Results, strategy: str) -> Chart:
    """Regret so far of each method, one panel for each hazard, in rows of at most `ACROSS`."""
    settings = sorted({hazard for hazard, _, chosen in results if chosen == strategy}, key=float)
    facets = []
    for setting in settings:
        curves = [
            _curve(method, played.cumulative)
            for (hazard, method, chosen), played in results.items()
            if (hazard, chosen) == (setting, strategy)
        ]
        facets.append(Facet(f"hazard {setting}", "cumulative regret", curves))
    whole = over_time(facets, f"Cumulative regret, {strategy}")
    panels = whole.rows[0]
    rows = tuple(panels[first : first + ACROSS] for first in range(0, len(panels), ACROSS))
    return whole._replace(rows=rows)


def _curve(method: str, cumulative: np.ndarray) -> Curve:
    count = len(cumulative)
    mean = cumulative.mean(0)
    spread = cumulative.std(0, ddof=1) / np.sqrt(count)
    reach = student_t_quantile(0.975, count - 1) * spread
    x = np.arange(1, 1 + cumulative.shape[1], dtype=np.float64)
    columns = (x, mean, mean - reach, mean + reach)
    return Curve(method, *(column[::EVERY].astype(np.float64) for column in columns))


def _wheel(wanted: Wanted, runs: Runs) -> Chart:
    """The paper's figure of the bandit: rewards, their posterior mean at t = 135, the belief."""
    run = runs[PAPER_HAZARD, "MOCA"]
    whole = world(float(PAPER_HAZARD), 1)
    short = wheel.World(*(value[:, :STEPS] for value in whole))
    chance = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        moca = model(run, wanted)
        followed = bandit.follow(Moca(), moca, short, STRATEGIES["thompson"], chance, AT)
    states = wheel.world(torch.Generator().manual_seed(SEED + 1), 1, SAMPLES, 0.5).states[0]
    delta = followed.delta[AT].expand(SAMPLES)
    noise = wheel.NOISE * torch.randn(SAMPLES, generator=chance, dtype=states.dtype)
    reward = wheel.reward_mean(states, torch.ones(SAMPLES, dtype=torch.int64), delta) + noise
    axis = followed.axis.numpy()
    return disc(
        Samples(states.numpy(), reward.numpy()),
        Surface(axis, axis, followed.mean.numpy()),
        followed.belief.double().numpy(),
        followed.switch.numpy(),
        f"Switching wheel bandit: action 1 at t = {AT}, hazard {PAPER_HAZARD}",
        (AT,),
    )
