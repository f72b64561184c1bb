"""What agents of a bandit hold of the reward between choices: MOCA, and what it is compared with.

An agent says how it begins; a holder is its trials underway. Each learns one reward at a time and
gives the hypotheses that the next action is chosen from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from model_core import actions
from model_core import filter as moca
from model_core.actions import Hypotheses
from model_core.filter import FilterState, Inputs, Prior
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import select


class Holder(Protocol):
    """What an agent holds during its trials; it changes with `learn`."""

    def held(self, switch: Tensor) -> Hypotheses:
        """Before the coming reward; switch: (B,) whether the radius was drawn anew."""
        ...

    def learn(self, x: Tensor, y: Tensor) -> Hypotheses | None:
        """Take in a reward y (B, 1) for input x (B, 7); the belief after it, if there is one."""
        ...


class Agent(Protocol):
    """A way to hold what was seen."""

    @property
    def hypotheses(self) -> int:
        """Posteriors kept for each trial."""
        ...

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """At the first step of the trials that the prior is of."""
        ...


@dataclass(frozen=True)
class Moca:
    """The filter with a constant hazard, the model's unless given.

    At `hypotheses + 1` or more steps nothing is pruned.
    """

    hazard: float | None = None
    hypotheses: int = 100

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """No observation yet."""
        hazard = model.hazard if self.hazard is None else self.hazard
        return _Filtered(model, prior, moca.init(prior, self.hypotheses), hazard)


@dataclass(frozen=True)
class Window:
    """The posterior of the last `length` observations; 0, the prior, trains on everything (TOE)."""

    length: int
    hypotheses: int = 1

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """Nothing seen."""
        return _Sliding(model, prior, self.length)


@dataclass(frozen=True)
class Oracle:
    """The posterior of all since the last true switch."""

    hypotheses: int = 1

    def begin(self, model: Alpaca, prior: Prior) -> Holder:
        """The prior."""
        return _Reset(model, prior)


@dataclass(frozen=True)
class Random:
    """Any action, whatever the strategy."""


AGENTS: Mapping[str, Agent | Random] = {
    "moca": Moca(),
    "window-5": Window(5),
    "window-10": Window(10),
    "window-50": Window(50),
    "toe": Window(0),
    "oracle": Oracle(),
    "random": Random(),
}


class _Filtered:
    """MOCA."""

    def __init__(self, model: Alpaca, prior: Prior, state: FilterState, hazard: float) -> None:
        self._model, self._prior, self._state = model, prior, state
        ones = torch.ones_like(prior.location[:, 0])
        labelled, nothing = ones > 0, torch.full_like(ones, torch.nan)
        # Growth reads neither input nor label.
        self._inputs = Inputs(
            None, prior.location, labelled, hazard * ones[:, None], ones, nothing, 0 * ones
        )
        self._grown = moca.grow(state, prior, self._inputs)

    def held(self, switch: Tensor) -> Hypotheses:
        """The mixture; MOCA is not told of switches."""
        self._grown = moca.grow(self._state, self._prior, self._inputs)
        return actions.hypotheses(self._grown[0])

    def learn(self, x: Tensor, y: Tensor) -> Hypotheses:
        """A step of the filter."""
        told = self._inputs._replace(x=x, y=y)
        self._state, info = moca.learn(self._model, self._state, *self._grown, self._prior, told)
        if not bool(info.ok.all()):
            raise FloatingPointError("a step of the filter did not stay finite")
        return actions.hypotheses(self._state)


class _Sliding:
    """The last observations, refitted each time: nothing to take out again, no error piles up."""

    def __init__(self, model: Alpaca, prior: Prior, length: int) -> None:
        self._model, self._prior, self._length = model, prior, length
        self._phi = prior.location.new_zeros(len(prior.location), 0, len(model.prior_cov))
        self._y = prior.location.new_zeros(len(prior.location), 0, 1)

    def held(self, switch: Tensor) -> Hypotheses:
        """The prior and the window."""
        stats, rows = self._prior.stats, self._y.shape[1]
        if rows:
            weight = torch.ones_like(self._y.mT)
            stats = self._model.block(stats, self._phi, self._y, weight).stats
        return _certain(stats, self._prior)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """The oldest goes when there are too many."""
        phi = self._model.encode(x, self._prior.context)
        first = max(0, self._y.shape[1] + 1 - self._length)
        self._phi = torch.cat((self._phi, phi.unsqueeze(1)), 1)[:, first:]
        self._y = torch.cat((self._y, y.unsqueeze(1)), 1)[:, first:]


class _Reset:
    """One posterior, the prior again at each switch."""

    def __init__(self, model: Alpaca, prior: Prior) -> None:
        self._model, self._prior, self._stats = model, prior, prior.stats

    def held(self, switch: Tensor) -> Hypotheses:
        """The prior where there is a switch."""
        self._stats = select(switch.unsqueeze(-1), self._prior.stats, self._stats)
        return _certain(self._stats, self._prior)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """One observation more."""
        phi = self._model.encode(x, self._prior.context)
        self._stats = self._model.update(self._stats, phi, y, torch.ones_like(y))


def _certain(stats: object, prior: Prior) -> Hypotheses:
    nothing = torch.zeros_like(prior.location[:, :1])
    return Hypotheses(nothing, nothing.long(), stats, prior.context)
