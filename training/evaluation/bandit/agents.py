"""Agents of the bandit: MOCA and the baselines, each a posterior of the reward.

An agent creates a holder, its state during trials. A holder learns one reward at a time and gives
the hypotheses that the next action is chosen from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from model_core import filter as moca
from model_core.actions import Hypotheses
from model_core.filter import FilterState, Inputs, Prior
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import select
from training.data import wheel


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
