"""`moca evaluate bandit`: regret of every method with its own trained model on the same worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from model_core.upm.alpaca import Alpaca
from training.data import wheel
from training.data.wheel import World
from training.errors import BadConfig, BadRun
from training.evaluation import comparison as comparisons
from training.evaluation.bandit import trials as bandit
from training.evaluation.bandit.agents import AGENTS, Random
from training.evaluation.bandit.trials import STRATEGIES
from training.evaluation.comparison import Comparison
from training.evaluation.paper import Wanted, about
from training.evaluation.trained import Trained, best, digest, load, trained
from training.experiments import catalogue

SEED = 20_200_108  # of worlds and of choices, the same for all agents
STEPS = 1000
METRIC = "regret, % of the random agent's"
SHOWN = ("MOCA", "oracle", "SW5", "SW10", "SW50", "TOE")


class Played(NamedTuple):
    """Regret of one agent's trials.

    percent: (trials,) in % of the random agent's. cumulative: (trials, T).
    """

    percent: NDArray[np.float64]
    cumulative: NDArray[np.float32]


Results = Mapping[tuple[str, str, str], Played]  # by hazard, method, strategy
Runs = Mapping[tuple[str, str], Trained]  # by hazard, method


def evaluate(wanted: Wanted, trials: int, strategies: Sequence[str]) -> tuple[Runs, Results]:
    """Print and write a table for each strategy; raises BadRun or BadConfig."""
    torch.set_num_threads(1)
    console = Console()
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        raise BadConfig(f"--strategy: expected one of {', '.join(STRATEGIES)}, got {unknown[0]!r}")
    runs = {
        (f"{hazard:g}", method): run
        for (hazard, method), run in best(list(trained(wanted.folder))).items()
        if method in SHOWN
    }
    if not runs:
        raise BadRun(f"{wanted.folder}: no finished run; run moca train bandit")
    jobs = [(key, strategy) for strategy in strategies for key in runs]
    results = {
        (*key, strategy): play(runs[key], wanted, trials, strategy)
        for key, strategy in track(jobs, "playing", console=console, transient=True)
    }
    details = {key: about(run) for key, run in runs.items()}
    for strategy in strategies:
        comparison = compared(results, strategy)
        table = comparisons.table(comparison)
        console.print(table.for_terminal())
        comparisons.save(comparison, table, details, wanted.out / strategy)
    return runs, results


def compared(results: Results, strategy: str) -> Comparison:
    """Regret of each method at each hazard under one strategy."""
    values = {
        (hazard, method): played.percent
        for (hazard, method, chosen), played in results.items()
        if chosen == strategy
    }
    return Comparison(f"bandit, {strategy}", METRIC, -1, values)


def world(hazard: float, trials: int) -> World:
    """The world of all agents."""
    return wheel.world(torch.Generator().manual_seed(SEED), trials, STEPS, hazard)


def model(run: Trained, wanted: Wanted) -> Alpaca:
    """A run's best model; raises BadRun where its kind is not alpaca."""
    best_model = load(run, catalogue.splits(run.config, wanted.place)).model()
    if not isinstance(best_model, Alpaca):
        raise BadRun(f"{run.run.folder}: expected a model of kind alpaca, got {best_model.kind!r}")
    return best_model


def play(run: Trained, wanted: Wanted, trials: int, strategy: str) -> Played:
    """An agent's trials with its own model, cached in the run's folder."""
    file = run.run.folder / f"regret-{digest(run, trials, STEPS, strategy, SEED)}.npz"
    if file.exists():
        cached = np.load(file)
        return Played(cached["percent"], cached["cumulative"])
    if run.hazard is None:
        raise BadRun(f"{run.run.folder}: the run's data have no hazard setting")
    with torch.no_grad():
        shared = world(run.hazard, trials)
        own = model(run, wanted)
        chosen = STRATEGIES[strategy]
        random = bandit.run(Random(), own, shared, chosen, _generator())
        ours = bandit.run(AGENTS[run.method], own, shared, chosen, _generator())
    percent = ours.percent_of(random).numpy()
    played = Played(percent, ours.cumulative().numpy().astype(np.float32))
    np.savez_compressed(file, **played._asdict())
    return played


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)
