"""The switching wheel bandit (MOCA, app. on problem settings, after Riquelme et al. 2018).

States are uniform in the unit disc. Action 0 has reward `MEDIUM`; actions 1 to 4 belong to a
quadrant each, and have `HIGH` for states of theirs farther out than the radius `delta`, else `LOW`;
rewards are `N(mean, NOISE^2)`. At each step, with probability `hazard`, the radius is drawn anew
from U[0, 1]. Inputs are the state and the action as one-hot, labels the reward.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from training.data.base import Batch, Splits
from training.data.windows import Series, Windows

LOW = 0.0
MEDIUM = 1.0
HIGH = 2.0
NOISE = 0.5
ACTIONS = 5
X_DIM = 2 + ACTIONS
TRAIN_STEPS = 64 * 562
VALIDATION_STEPS = 16 * 562
EXPLORE = 0.5  # probability that the data collection takes a random action


class World(NamedTuple):
    """Environment of B agents over T steps, independent of their actions.

    states: (B, T, 2). delta: (B, T). switch: (B, T) whether the radius was drawn anew; at the first
    step it was. noise: (B, T) of the reward of any action.
    """

    states: Tensor
    delta: Tensor
    switch: Tensor
    noise: Tensor

    def part(self, trials: slice) -> World:
        """Some of the trials."""
        return World(*(field[trials] for field in self))

    def to(self, device: torch.device | str) -> World:
        """The world on another device."""
        return World(*(field.to(device) for field in self))


def world(generator: torch.Generator, count: int, steps: int, hazard: float) -> World:
    """`count` independent runs of the process, in float64."""

    def uniform() -> Tensor:
        return torch.rand(count, steps, generator=generator, dtype=torch.float64)

    radius = uniform().sqrt()
    angle = 2 * math.pi * uniform()
    states = torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    switch = uniform() < hazard
    switch[:, :1] = True
    last = torch.where(switch, torch.arange(steps), 0).cummax(-1).values
    delta = uniform().gather(-1, last)
    noise = torch.randn(count, steps, generator=generator, dtype=torch.float64)
    return World(states, delta, switch, NOISE * noise)


def quadrant(states: Tensor) -> Tensor:
    """Quadrant (...), 1 to 4, of states (..., 2), and so the action that belongs to it.

    Counted as in geometry: upper right, upper left, lower left, lower right. The paper does not
    specify the order; the problem is the same for any.
    """
    right = states[..., 0] > 0
    upper = states[..., 1] > 0
    return torch.where(upper, torch.where(right, 1, 2), torch.where(right, 4, 3))


def reward_mean(states: Tensor, action: Tensor, delta: Tensor) -> Tensor:
    """Mean reward (...) of actions (...) in states (..., 2) under radii (...)."""
    wins = (action == quadrant(states)) & (states.norm(dim=-1) > delta)
    low = torch.full_like(states[..., 0], LOW)
    return torch.where(action == 0, MEDIUM, torch.where(wins, HIGH, low))


def best_mean(states: Tensor, delta: Tensor) -> Tensor:
    """Mean reward (...) of the best action in states (..., 2) under radii (...)."""
    return torch.where(states.norm(dim=-1) > delta, HIGH, MEDIUM).to(delta)


def inputs(states: Tensor, action: Tensor) -> Tensor:
    """Inputs (..., 7) of states (..., 2) and actions (...): the state, then one-hot actions."""
    hot = torch.nn.functional.one_hot(action, ACTIONS).to(states)
    return torch.cat((states, hot), -1)


def collected(generator: torch.Generator, count: int, steps: int, hazard: float) -> Batch:
    """Collected data: half random actions, half that of the state's quadrant."""
    drawn = world(generator, count, steps, hazard)
    explore = torch.rand(count, steps, generator=generator) < EXPLORE
    anything = torch.randint(ACTIONS, (count, steps), generator=generator)
    action = torch.where(explore, anything, quadrant(drawn.states))
    reward = reward_mean(drawn.states, action, drawn.delta) + drawn.noise
    return Batch(inputs(drawn.states, action), reward.unsqueeze(-1), drawn.switch)


class _Fresh(NamedTuple):
    """New streams at each draw."""

    hazard: float

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` streams from their first steps on."""
        return collected(generator, count, length, self.hazard)


def splits(hazard: float, seed: int) -> Splits:
    """Training on 64 x 562 steps and validation on 16 x 562, each one stream; test is fresh."""
    generator = torch.Generator().manual_seed(seed)
    train = collected(generator, 1, TRAIN_STEPS, hazard)
    validation = collected(generator, 1, VALIDATION_STEPS, hazard)
    return Splits(
        Windows([_series(train, "train")]),
        Windows([_series(validation, "validation")]),
        _Fresh(hazard),
        X_DIM,
        1,
    )


def _series(stream: Batch, name: str) -> Series:
    """The one stream of a batch."""
    assert stream.x is not None
    assert stream.switch is not None
    return Series(stream.x[0], stream.y[0], stream.switch[0], name)
