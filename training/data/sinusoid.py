"""Switching sinusoid: y = A sin(x - phase) + noise, where a regime is one (A, phase)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.data.base import Batch, Splits, below, checked_hazard, held, switches

INPUTS = (-5.0, 5.0)
AMPLITUDES = (0.1, 5.0)
PHASES = (0.0, math.pi)
NOISE_VARIANCE = 0.05
TASKS_SEED = 20_220_101  # of recurring tasks, for runs of any seed


class Sinusoid:
    """Generated windows: x (B, T, 1), y (B, T, 1) float64, switch (B, T).

    Appendix C of the paper: amplitude and phase are uniform and noise is Gaussian of variance
    0.05; inputs and the sign of the phase, which it leaves to its references, are those of MAML.
    (With x + phase instead, the law of y is that of -y here.) tasks: so many amplitudes and phases,
    the same for every source, recur; 0: every regime draws its own.
    """

    def __init__(self, hazard: float, tasks: int = 0) -> None:
        if tasks < 0:
            raise ValueError(f"expected 0 tasks or more, got {tasks}")
        self.hazard = checked_hazard(hazard)
        generator = torch.Generator().manual_seed(TASKS_SEED)
        amplitudes = _uniform(generator, (tasks,), AMPLITUDES)
        self.tasks = torch.stack((amplitudes, _uniform(generator, (tasks,), PHASES)), -1)

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` independent streams of `length`, each from the start of a regime."""
        switch = switches(generator, count, length, self.hazard)
        shape = (count, length, 1)
        amplitude, phase = (held(each, switch) for each in self._regimes(generator, shape))
        x = _uniform(generator, shape, INPUTS)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        y = amplitude * torch.sin(x - phase) + math.sqrt(NOISE_VARIANCE) * noise
        return Batch(x, y, switch)

    def _regimes(self, generator: torch.Generator, shape: tuple[int, ...]) -> list[Tensor]:
        """Amplitudes and phases of regimes that start at each observation."""
        if not len(self.tasks):
            return [_uniform(generator, shape, bounds) for bounds in (AMPLITUDES, PHASES)]
        chosen = self.tasks[below(generator, torch.full(shape, len(self.tasks)))]
        return list(chosen.unbind(-1))


def splits(hazard: float, tasks: int = 0) -> Splits:
    """One source for all splits: every draw is new, of recurring tasks if there are any."""
    source = Sinusoid(hazard, tasks)
    return Splits(source, source, source, x_dim=1, y_dim=1)


def _uniform(
    generator: torch.Generator, shape: tuple[int, ...], bounds: tuple[float, float]
) -> Tensor:
    low, high = bounds
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
