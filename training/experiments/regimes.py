"""Switching regimes without inputs: level, trend, memory and noise, redrawn at a switch."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from training.data.files import Place
from training.data.windows import Batch, Splits, held, switches, uniform
from training.paper import Protocol

PROTOCOL = Protocol(200, 200)
LEVEL = 3.0  # standard deviation of levels
TREND = 0.05  # of slopes, per observation
MEMORY = (0.0, 0.95)  # coefficients of the autoregression
NOISE = (0.1, 1.0)  # scales of its innovations, uniform in the logarithm


def regime_series(generator: torch.Generator, count: int, length: int, hazard: float) -> Batch:
    """Generated windows: no x, y (B, T, 1) float64, switch (B, T).

    In a regime that starts at s, `y_t = level + trend (t - s) + a_t` with `a_t = memory a_{t-1} +
    noise e_t`, started from its stationary distribution.
    """
    switch = switches(generator, count, length, hazard)
    level = held(LEVEL * _normal(generator, switch), switch)
    trend = held(TREND * _normal(generator, switch), switch)
    memory = held(uniform(generator, switch.shape, MEMORY), switch)
    scales = math.log(NOISE[0]), math.log(NOISE[1])
    noise = held(uniform(generator, switch.shape, scales).exp(), switch)
    step = torch.arange(length, dtype=torch.float64).expand(count, -1)
    since = step - held(step, switch)
    around = _autoregression(switch, memory, noise * _normal(generator, switch))
    return Batch(None, (level + trend * since + around).unsqueeze(-1), switch)


def splits(place: Place, hazard: float) -> Splits:
    """One source for all splits: every draw is new."""
    source = partial(regime_series, hazard=hazard)
    return Splits(source, source, source, x_dim=0, y_dim=1)


def _autoregression(switch: Tensor, memory: Tensor, innovation: Tensor) -> Tensor:
    """The autoregression (B, T) of innovations (B, T)."""
    values = []
    last = innovation[:, 0]
    for t in range(switch.shape[1]):
        stationary = innovation[:, t] / (1 - memory[:, t].square()).sqrt()
        continued = memory[:, t] * last + innovation[:, t]
        last = torch.where(switch[:, t], stationary, continued)
        values.append(last)
    return torch.stack(values, 1)


def _normal(generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)
