"""`moca evaluate bandit`: regret of every method's own trained model on the same worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from model_core.upm.alpaca import Alpaca
from training import bandit, experiments
from training.agents import AGENTS, Random
from training.bandit import STRATEGIES, Trials
from training.data import wheel
from training.data.wheel import World
from training.errors import BadConfig, BadRun
from training.evaluation import comparison as tables
from training.evaluation.comparison import Comparison
from training.evaluation.experiments import Wanted, about
from training.evaluation.trained import Trained, best, digest, load, trained

SEED = 20_200_108  # of worlds and of choices, the same for all agents
STEPS = 1000
METRIC = "regret, % of the random agent's"
SHOWN = ("MOCA", "oracle", "SW5", "SW10", "SW50", "TOE")


class Played(NamedTuple):
    """percent: (trials,) regret in % of the random agent's. cumulative: (trials, T) regret."""

    percent: NDArray[np.float64]
    cumulative: NDArray[np.float32]


Results = Mapping[tuple[str, str, str], Played]  # by hazard, method, strategy
Runs = Mapping[tuple[str, str], Trained]  # by hazard, method


def evaluate(wanted: Wanted, trials: int, strategies: Sequence[str]) -> tuple[Runs, Results]:
    """Print and write a table for each strategy; raises BadRun or BadConfig."""
    torch.set_num_threads(1)
    console = Console()
    unknown = [each for each in strategies if each not in STRATEGIES]
    if unknown:
        raise BadConfig(f"--strategy {unknown[0]}: expected one of {', '.join(STRATEGIES)}")
    runs = {
        (f"{hazard:g}", method): each
        for (hazard, method), each in best(list(trained(wanted.folder))).items()
        if method in SHOWN
    }
    if not runs:
        raise BadRun(f"{wanted.folder}: no run that is done; moca train bandit")
    jobs = [(key, strategy) for strategy in strategies for key in runs]
    results = {
        (*key, strategy): play(runs[key], wanted, trials, strategy)
        for key, strategy in track(jobs, "playing", console=console, transient=True)
    }
    said = {key: about(each) for key, each in runs.items()}
    for strategy in strategies:
        found = compared(results, strategy)
        for table in tables.tables(found):
            console.print(table)
        tables.save(found, said, wanted.out / strategy)
    return runs, results


def compared(results: Results, strategy: str) -> Comparison:
    """Regret of each method at each hazard under one strategy."""
    values = {
        (hazard, method): each.percent
        for (hazard, method, chosen), each in results.items()
        if chosen == strategy
    }
    return Comparison(f"bandit, {strategy}", METRIC, -1, values)


def world(hazard: float, trials: int) -> World:
    """What all agents meet."""
    return wheel.world(torch.Generator().manual_seed(SEED), trials, STEPS, hazard)


def model(each: Trained, wanted: Wanted) -> Alpaca:
    """A run's best model; raises BadRun where it is none that an agent can hold."""
    found = load(each, experiments.splits(each.config, wanted.place)).model()
    if not isinstance(found, Alpaca):
        raise BadRun(f"{each.run.folder}: agents need a model of kind alpaca, not {found.kind!r}")
    return found


def play(each: Trained, wanted: Wanted, trials: int, strategy: str) -> Played:
    """An agent's trials with its own model, kept beside the run once they are known."""
    file = each.run.folder / f"regret-{digest(each, trials, STEPS, strategy, SEED)}.npz"
    if file.exists():
        kept = np.load(file)
        return Played(kept["percent"], kept["cumulative"])
    if each.hazard is None:
        raise BadRun(f"{each.run.folder}: has no hazard")
    with torch.no_grad():
        met, mine = world(each.hazard, trials), model(each, wanted)
        anything = bandit.run(Random(), mine, met, STRATEGIES[strategy], _generator())
        found: Trials = bandit.run(
            AGENTS[each.method], mine, met, STRATEGIES[strategy], _generator()
        )
    percent = found.percent_of(anything).numpy()
    played = Played(percent, found.cumulative().numpy().astype(np.float32))
    np.savez_compressed(file, **played._asdict())
    return played


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)
