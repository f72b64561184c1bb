"""Trials of agents on the switching wheel bandit, and their regret.

Agents meet the same states, switches and noise of the reward (`wheel.World`), so that they may be
compared trial by trial. All choose by `model_core.actions` from their hypotheses: MOCA from its
mixture, the others from one. Regret is that of Garivier and Moulines (2011): the mean reward of the
best action, with switches and radius known, less that of the action taken.

`B` trials of `T` steps; actions are 0 to 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import actions
from model_core import filter as moca
from model_core.actions import Hypotheses, Strategy
from model_core.upm.alpaca import Alpaca
from training.data import wheel
from training.data.wheel import World
from training.evaluation.bandit.agents import Agent, Moca, Random

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


def run(
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
    """The first trial of a world as in `run`, with MOCA's belief; `at` is a step of it."""
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
