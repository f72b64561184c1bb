"""`moca evaluate bandit`: agents on the switching wheel bandit, their trials and their regret.

An agent is a posterior of the reward: MOCA's or a baseline's. It creates a holder, its state during
trials, which learns one reward at a time and gives the hypotheses that the next action is chosen
from. Agents meet the same states, switches and noise of the reward (`wheel.World`), so that they
may be compared trial by trial. All choose by `model_core.actions` from their hypotheses: MOCA from
its mixture, the others from one. Regret is that of Garivier and Moulines (2011): the mean reward of
the best action, with switches and radius known, less that of the action taken.

`B` trials of `T` steps; actions are 0 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from model_core import actions
from model_core import filter as moca
from model_core.actions import Hypotheses, Strategy
from model_core.filter import FilterState, Inputs, Prior
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import select
from training.data import wheel
from training.data.wheel import World
from training.errors import BadConfig, BadRun
from training.evaluation.paper import Comparison, Study, about, method_table, save_table
from training.evaluation.trained import Trained, best, digest, load, trained
from training.experiments import catalogue


class Holder(Protocol):
    """An agent's state during its trials; `learn` changes it."""

    def held(self, switch: Tensor) -> Hypotheses:
        """Hypotheses before the next reward; switch: (B,) whether the radius was drawn anew.

        Valid until `learn`, which may change the statistics in place.
        """
        ...

    def learn(self, x: Tensor, y: Tensor) -> Hypotheses | None:
        """Learn from a reward y (B, 1) for input x (B, 7); the belief after it, if it has one."""
        ...


class Agent(Protocol):
    """A policy for which past rewards count."""

    @property
    def hypotheses(self) -> int:
        """Posteriors kept for each trial."""
        ...

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """Holder at the first step of the trials of a prior."""
        ...


@dataclass(frozen=True)
class Moca:
    """The filter with a constant hazard, by default the model's.

    Nothing is pruned in the first `hypotheses` steps. Their number hardly matters: with 32
    trained features, 10 trials of 1000 steps and hazards 0.005, 0.02 and 0.1, Thompson sampling
    with 20 to 1000 of them had regrets within 0.3 % of the random agent's.
    """

    hazard: float | None = None
    hypotheses: int = 100

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """Holder without an observation."""
        hazard = model.hazard if self.hazard is None else self.hazard
        if not isinstance(hazard, float):
            raise ValueError("expected a constant hazard, got one that depends on the run length")
        return _Filtered(model, prior, hazard, self.hypotheses)


@dataclass(frozen=True)
class Window:
    """The posterior of the last `length` observations; 0, the prior, trains on everything (TOE)."""

    length: int
    hypotheses: int = 1

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """Holder with an empty window."""
        return _Sliding(model, prior, self.length)


@dataclass(frozen=True)
class Oracle:
    """The posterior of all observations since the last true switch."""

    hypotheses: int = 1

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """Holder with the prior."""
        return _Reset(model, prior)


@dataclass(frozen=True)
class Random:
    """Uniformly random actions, whatever the strategy."""


AGENTS: Mapping[str, Agent | Random] = {
    "MOCA": Moca(),
    "SW5": Window(5),
    "SW10": Window(10),
    "SW50": Window(50),
    "TOE": Window(0),
    "oracle": Oracle(),
    "random": Random(),
}


class _Filtered:
    """The filter, one reward after another."""

    def __init__(self, model: Alpaca, prior: Prior, hazard: float, hypotheses: int) -> None:
        self._model = model
        self._prior = prior
        self._state = moca.init(prior, hypotheses)
        ones = torch.ones_like(prior.location[:, 0])
        nothing = prior.location.new_zeros(len(ones), wheel.X_DIM)
        self._inputs = Inputs(
            x=nothing,
            y=nothing[:, :1],
            labelled=ones > 0,
            hazard=ones[:, None] * hazard,
            elapsed=ones,
            changepoint=ones * torch.nan,
            outlier_rate=ones * 0,
        )

    def held(self, switch: Tensor) -> Hypotheses:
        """The mixture with the new hypothesis; MOCA does not use `switch`."""
        grown, _ = moca.grow(self._state, self._prior, self._inputs)
        return self._hypotheses(grown)

    def learn(self, x: Tensor, y: Tensor) -> Hypotheses:
        """One step of the filter."""
        inputs = self._inputs._replace(x=x, y=y)
        self._state, info = moca.step(self._model, self._state, self._prior, inputs)
        if not bool(info.ok.all()):
            raise FloatingPointError(
                "a step of the filter gave a log probability that is not finite"
            )
        return self._hypotheses(self._state)

    def _hypotheses(self, state: FilterState) -> Hypotheses:
        belief = state.belief
        return Hypotheses(belief.log_prob, belief.run_length, state.stats, self._prior.context)


class _Sliding:
    """The last observations, refitted each time: no downdates, so no error accumulates."""

    def __init__(self, model: Alpaca, prior: Prior, length: int) -> None:
        self._model = model
        self._prior = prior
        self._length = length
        self._phi = prior.location.new_zeros(len(prior.location), 0, len(model.prior_cov))
        self._y = prior.location.new_zeros(len(prior.location), 0, 1)

    def held(self, switch: Tensor) -> Hypotheses:
        """The posterior of the window."""
        stats = self._prior.stats
        if self._y.shape[1]:
            weight = torch.ones_like(self._y.mT)
            stats = self._model.block(stats, self._phi, self._y, weight).stats
        return _certain(stats, self._prior)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Append the observation; drop the oldest of a full window."""
        phi = self._model.encode(x, self._prior.context)
        first = max(0, self._y.shape[1] + 1 - self._length)
        self._phi = torch.cat((self._phi, phi.unsqueeze(1)), 1)[:, first:]
        self._y = torch.cat((self._y, y.unsqueeze(1)), 1)[:, first:]


class _Reset:
    """One posterior, reset to the prior at each switch."""

    def __init__(self, model: Alpaca, prior: Prior) -> None:
        self._model = model
        self._prior = prior
        self._stats = prior.stats

    def held(self, switch: Tensor) -> Hypotheses:
        """The prior at a switch, else the posterior."""
        self._stats = select(switch.unsqueeze(-1), self._prior.stats, self._stats)
        return _certain(self._stats, self._prior)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Update the posterior."""
        phi = self._model.encode(x, self._prior.context)
        self._stats = self._model.update(self._stats, phi, y, torch.ones_like(y))


def _certain(stats: object, prior: Prior) -> Hypotheses:
    zeros = torch.zeros_like(prior.location[:, :1])
    return Hypotheses(zeros, zeros.long(), stats, prior.context)


STRATEGIES = {
    "thompson": Strategy("thompson"),
    "optimistic-3": Strategy("optimistic", 3),
    "optimistic-5": Strategy("optimistic", 5),
    "greedy": Strategy("greedy"),
}
CACHED = 2**24  # bytes of covariances done together: more trials at once go slower on a CPU


class Trials(NamedTuple):
    """An agent's actions (B, T), rewards (B, T), and regret of each step (B, T)."""

    action: Tensor
    reward: Tensor
    regret: Tensor

    def cumulative(self) -> Tensor:
        """Regret up to and including each step (B, T)."""
        return self.regret.cumsum(-1)

    def percent_of(self, other: Trials) -> Tensor:
        """Total regret of each trial (B,) in percent of another agent's."""
        return 100 * self.regret.sum(-1) / other.regret.sum(-1)


class Belief(NamedTuple):
    """One trial of MOCA, for a figure.

    belief: (T, T) by [t, r], `b_t(r | x_t, y_t)`, float32. switch: (T,) true switches. delta: (T,).
    mean: (G, G) mean of the mixture for action 1 before the reward of step `at`, at states
    [i, j] = (x_2, x_1) of `axis` (G,); nan outside the disc.
    """

    trials: Trials
    belief: Tensor
    switch: Tensor
    delta: Tensor
    at: int
    axis: Tensor
    mean: Tensor


def simulate(
    agent: Agent | Random,
    model: Alpaca,
    world: World,
    strategy: Strategy,
    generator: torch.Generator,
) -> Trials:
    """All trials of a world.

    The generator gives each trial a seed of its own, so a trial is the same whatever others are run
    beside it. The model and the world are on one device, in float64.
    """
    chance = _generators(generator, world)
    if isinstance(agent, Random):
        return _score(world, _random_actions(world, chance))
    count = _batch_size(agent, model, world)
    parts = []
    for first in range(0, len(world.delta), count):
        at = slice(first, first + count)
        parts.append(_play(agent, model, world.part(at), strategy, chance[at]))
    return Trials(*(torch.cat(field) for field in zip(*parts, strict=True)))


def follow(
    agent: Moca,
    model: Alpaca,
    world: World,
    strategy: Strategy,
    generator: torch.Generator,
    at: int = 135,
    points: int = 101,
) -> Belief:
    """The first trial of a world as in `simulate`, with MOCA's belief; `at` is a step of it."""
    steps = world.delta.shape[1]
    if not 0 <= at < steps:
        raise ValueError(f"expected a step from 0 to {steps - 1}, got {at}")
    one = world.part(slice(0, 1))
    axis = torch.linspace(-1, 1, points, dtype=torch.float64, device=world.delta.device)
    grid = torch.stack((axis.expand(points, -1), axis.unsqueeze(-1).expand(-1, points)), -1)
    first = torch.ones_like(grid[..., 0], dtype=torch.int64)
    belief = torch.zeros(steps, steps)
    mean = torch.full_like(grid[..., 0], torch.nan)

    def before(t: int, held: Hypotheses) -> None:
        if t == at:
            inputs = wheel.inputs(grid, first).reshape(1, points**2, wheel.X_DIM)
            mean.copy_(actions.mean(model, held, inputs).reshape(points, points))

    def after(t: int, held: Hypotheses | None) -> None:
        assert held is not None
        probability = held.log_prob[0].exp().float().cpu()
        belief[t].index_add_(0, held.run_length[0].clamp(0, steps - 1).cpu(), probability)

    watch = _Watch(before, after)
    trials = _play(agent, model, one, strategy, _generators(generator, world)[:1], watch)
    outside = grid.norm(dim=-1) > 1
    delta = one.delta[0]
    mean = mean.masked_fill(outside, torch.nan)
    return Belief(trials, belief, one.switch[0], delta, at, axis, mean)


class _Watch(NamedTuple):
    """Callbacks with the hypotheses before the action and after the reward of each step."""

    before: Callable[[int, Hypotheses], None]
    after: Callable[[int, Hypotheses | None], None]


@torch.no_grad()
def _play(
    agent: Agent,
    model: Alpaca,
    world: World,
    strategy: Strategy,
    chance: list[torch.Generator],
    watch: _Watch | None = None,
) -> Trials:
    count, steps = world.delta.shape
    zeros = world.delta.new_zeros(count, 1)
    holder = agent.begin(model, moca.make_prior(model, zeros, zeros + 1))
    every = torch.arange(wheel.ACTIONS, device=zeros.device).expand(count, -1)
    rows = torch.arange(count, device=zeros.device)
    taken = []
    for t in range(steps):
        state = world.states[:, t]
        delta = world.delta[:, t]
        candidates = wheel.inputs(state.unsqueeze(1).expand(-1, wheel.ACTIONS, -1), every)
        held = holder.held(world.switch[:, t])
        if watch is not None:
            watch.before(t, held)
        action = actions.choose(model, held, candidates, strategy, chance).chosen
        reward = wheel.reward_mean(state, action, delta) + world.noise[:, t]
        after = holder.learn(candidates[rows, action], reward.unsqueeze(-1))
        taken.append(action)
        if watch is not None:
            watch.after(t, after)
    return _score(world, torch.stack(taken, 1))


def _score(world: World, action: Tensor) -> Trials:
    mean = wheel.reward_mean(world.states, action, world.delta)
    regret = wheel.best_mean(world.states, world.delta) - mean
    return Trials(action, mean + world.noise, regret)


def _random_actions(world: World, chance: list[torch.Generator]) -> Tensor:
    steps = world.delta.shape[1]
    device = world.delta.device
    drawn = [torch.randint(wheel.ACTIONS, (steps,), generator=one, device=device) for one in chance]
    return torch.stack(drawn)


def _generators(generator: torch.Generator, world: World) -> list[torch.Generator]:
    """A generator for each trial, on the world's device."""
    seeds = torch.randint(2**62, (len(world.delta),), generator=generator).tolist()
    return actions.seeded(seeds, world.delta.device)


def _batch_size(agent: Agent, model: Alpaca, world: World) -> int:
    """Number of trials to run together."""
    if world.delta.device.type != "cpu":
        return len(world.delta)
    trial = (agent.hypotheses + 1) * model.prior_cov.numel() * model.prior_cov.element_size()
    return max(1, CACHED // trial)


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


def evaluate(wanted: Study, trials: int, strategies: Sequence[str]) -> tuple[Runs, Results]:
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
        table = method_table(comparison)
        console.print(table.for_terminal())
        save_table(comparison, table, details, wanted.out / strategy)
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


def model(run: Trained, wanted: Study) -> Alpaca:
    """A run's best model; raises BadRun where its kind is not alpaca."""
    best_model = load(run, catalogue.splits(run.config, wanted.place)).model()
    if not isinstance(best_model, Alpaca):
        raise BadRun(f"{run.run.folder}: expected a model of kind alpaca, got {best_model.kind!r}")
    return best_model


def play(run: Trained, wanted: Study, trials: int, strategy: str) -> Played:
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
        random = simulate(Random(), own, shared, chosen, _generator())
        ours = simulate(AGENTS[run.method], own, shared, chosen, _generator())
    percent = ours.percent_of(random).numpy()
    played = Played(percent, ours.cumulative().numpy().astype(np.float32))
    np.savez_compressed(file, **played._asdict())
    return played


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)
