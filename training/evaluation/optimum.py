"""Bayes-optimal forecasts of the switching sinusoid: the bound of every model."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from training.data.base import Batch
from training.data.sinusoid import AMPLITUDES, NOISE_VARIANCE, PHASES

# Cells of the grid, by amplitude and phase. Finer grids change a mean by less than 1e-4 nats.
CELLS = (100, 160)
PART = 5  # sequences at once: their posteriors fit into a processor's cache


class Optimum(NamedTuple):
    """Negative log predictive (B, T) of one who does not know the switches, and of one who does."""

    unknown: Tensor
    known: Tensor


def optimum(
    batch: Batch,
    hazard: float,
    cells: tuple[int, int] = CELLS,
    tasks: Tensor | None = None,
) -> Optimum:
    """`-log p(y_t | x_1..t, y_1..t-1)` under the law of the data, by a filter over a grid of tasks.

    A task is an amplitude and a phase, both uniform. At a switch, which has probability `hazard`,
    the posterior over tasks is the prior again: run lengths are not needed. tasks: (K, 2) the only
    ones there are, equally probable, in place of the grid.
    """
    assert batch.x is not None
    assert batch.switch is not None
    alone = torch.ones(1, dtype=torch.float64)  # a task's wave has its amplitude
    amplitude = _centres(AMPLITUDES, cells[0]) if tasks is None else alone
    phase = _centres(PHASES, cells[1])
    basis = torch.stack((torch.cos(phase), -torch.sin(phase)))
    parts = []
    for first in range(0, len(batch.y), PART):
        at = slice(first, first + PART)
        x, y, switch = batch.x[at, :, 0].double(), batch.y[at, :, 0].double(), batch.switch[at]
        if tasks is None:
            waves = torch.stack((torch.sin(x), torch.cos(x)), -1) @ basis
        else:
            waves = tasks[:, 0] * torch.sin(x.unsqueeze(-1) - tasks[:, 1])
        parts.append(_filtered(waves, amplitude, y, switch, hazard))
    return Optimum(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _centres(bounds: tuple[float, float], count: int) -> Tensor:
    low, high = bounds
    return low + (high - low) * (torch.arange(count, dtype=torch.float64) + 0.5) / count


def _filtered(
    waves: Tensor, amplitude: Tensor, y: Tensor, switch: Tensor, hazard: float
) -> Optimum:
    """waves: (B, T, P) of every phase, of amplitude 1. amplitude: (A,)."""
    prior = 1 / (len(amplitude) * waves.shape[-1])
    start = torch.full((len(y), len(amplitude), waves.shape[-1]), prior, dtype=torch.float64)
    unknown, known = start, start
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for t in range(y.shape[1]):
        error = amplitude[:, None] * waves[:, t, None] - y[:, t, None, None]
        exponent = error.square_().mul_(-0.5 / NOISE_VARIANCE)
        # Relative to the largest, so that a label far from every task is not lost.
        top = exponent.amax((1, 2), keepdim=True)
        likelihood = exponent.sub_(top).exp_()
        constant = top.flatten() - 0.5 * math.log(2 * math.pi * NOISE_VARIANCE)
        if t > 0:
            unknown = unknown.mul_(1 - hazard).add_(hazard * prior)
            known = torch.where(switch[:, t, None, None], start, known)
        unknown, known = unknown * likelihood, known * likelihood
        for posterior, scores in zip((unknown, known), found, strict=True):
            total = posterior.sum((1, 2))
            scores.append(-(total.log() + constant))
            posterior.div_(total[:, None, None])
    return Optimum(*(torch.stack(each, 1) for each in found))
