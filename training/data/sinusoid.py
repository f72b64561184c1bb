"""Switching sinusoid: y = A sin(x - phase) + noise, where a regime is one (A, phase)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.data.base import Batch, Splits
from training.data.regimes import checked_hazard, held, switches

INPUTS = (-5.0, 5.0)
AMPLITUDES = (0.1, 5.0)
PHASES = (0.0, math.pi)
NOISE_VARIANCE = 0.05


class Sinusoid:
    """Generated windows: x (B, T, 1), y (B, T, 1) float64, switch (B, T).

    Appendix C of the paper: amplitude and phase are uniform and noise is Gaussian of variance
    0.05; inputs and the sign of the phase, which it leaves to its references, are those of MAML.
    (With x + phase instead, the law of y is that of -y here.)
    """

    def __init__(self, hazard: float) -> None:
        self.hazard = checked_hazard(hazard)

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` independent streams of `length`, each from the start of a regime."""
        switch = switches(generator, count, length, self.hazard)
        shape = (count, length, 1)
        amplitude = held(_uniform(generator, shape, AMPLITUDES), switch)
        phase = held(_uniform(generator, shape, PHASES), switch)
        x = _uniform(generator, shape, INPUTS)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        y = amplitude * torch.sin(x - phase) + math.sqrt(NOISE_VARIANCE) * noise
        return Batch(x, y, switch)


def splits(hazard: float) -> Splits:
    """One source for all splits: every draw is new."""
    source = Sinusoid(hazard)
    return Splits(source, source, source, x_dim=1, y_dim=1)


def _uniform(
    generator: torch.Generator, shape: tuple[int, ...], bounds: tuple[float, float]
) -> Tensor:
    low, high = bounds
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
