"""Features of time: seasons of known periods, and a trend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from model_core.lazy import Tensor, torch


@dataclass(frozen=True)
class Time:
    """`[1, t if trend, sin(2 pi t / p_1), cos(2 pi t / p_1), ...]` of an input that is a time `t`.

    The constant is always there: a season has a level. Periods are in the unit of the time, after
    the model's input scaling.
    """

    periods: tuple[float, ...]
    trend: bool = False

    @property
    def features(self) -> int:
        """How many there are."""
        return 1 + self.trend + 2 * len(self.periods)

    def __call__(self, x: Tensor) -> Tensor:
        """Features (..., n) of times (..., 1)."""
        features = [torch.ones_like(x), x] if self.trend else [torch.ones_like(x)]
        for period in self.periods:
            # The remainder is exact where the angle of a late time would not be.
            angle = 2 * math.pi * torch.remainder(x, period) / period
            features += [torch.sin(angle), torch.cos(angle)]
        return torch.cat(features, -1)
