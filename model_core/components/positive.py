"""Families of positive labels: their functions, as of `maths`, and draws.

Torch and kernels have all else: a model may have a family of its own in its module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from model_core.components.base import Components
from model_core.lazy import Tensor, torch
from model_core.maths import counterpart
from model_core.maths.ops import expm1, log, log1p, maximum, where
from model_core.maths.special import ROOT_2_PI
from model_core.tensor_ops import maths


class PositiveFunctions(NamedTuple):
    """What a family of positive labels computes of its parameters, which come last.

    log_density: of a label, -inf below zero. reached: CDF, density and the density's derivative, of
    `y >= 0`. width: standard deviation of a normal whose peak is as high. A mean and a variance
    that do not exist are inf.
    """

    log_density: Callable[..., float]
    reached: Callable[..., tuple[float, float, float]]
    mean: Callable[..., float]
    variance: Callable[..., float]
    width: Callable[..., float]


class Positive(Components):
    """Quantiles need a mean."""

    functions: PositiveFunctions
    support = "positive"

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each output; -inf below zero."""
        density: Tensor = self._of_tensors.log_density(value, *self.parameters())
        return density

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability."""
        return self._reached(value)[0]

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density, of the same terms."""
        cdf, density, _ = self.rebuilt(*table)._reached(value)
        return cdf, density

    def mean(self) -> Tensor:
        """Inf where it does not exist."""
        mean: Tensor = self._of_tensors.mean(*self.parameters())
        return mean

    def variance(self) -> Tensor:
        """Inf where it does not exist."""
        variance: Tensor = self._of_tensors.variance(*self.parameters())
        return variance

    def width(self) -> Tensor:
        """Standard deviation of a normal whose peak is as high."""
        width: Tensor = self._of_tensors.width(*self.parameters())
        return width

    def _reached(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reached: tuple[Tensor, Tensor, Tensor]
        reached = self._of_tensors.reached(value.clamp(min=0.0), *self.parameters())
        return reached

    @property
    def _of_tensors(self) -> Any:
        return PositiveFunctions(*(counterpart(function, maths) for function in self.functions))


def lomax_log_density(y: float, shape: float, scale: float) -> float:
    """Log density of a duration that is exponential with a gamma rate; -inf below zero."""
    inside = log(shape / scale) - (shape + 1.0) * log1p(maximum(y, 0.0) / scale)
    return where(y < 0, -math.inf, inside)


def lomax_reached(y: float, shape: float, scale: float) -> tuple[float, float, float]:
    """CDF, of all digits however small, density and its derivative."""
    inverse = 1.0 / (scale + y)
    cdf = -expm1(-shape * log1p(y / scale))
    density = shape * inverse * (1.0 - cdf)
    return cdf, density, -density * (shape + 1.0) * inverse


def lomax_mean(shape: float, scale: float) -> float:
    """`scale / (shape - 1)`; inf for `shape <= 1`."""
    return where(shape > 1.0, scale / (shape - 1.0), math.inf)


def lomax_variance(shape: float, scale: float) -> float:
    """`mean^2 shape / (shape - 2)`; inf for `shape <= 2`."""
    mean = lomax_mean(shape, scale)
    return where(shape > 2.0, mean * mean * shape / (shape - 2.0), math.inf)


def lomax_width(shape: float, scale: float) -> float:
    """The peak is at zero."""
    return scale / (shape * ROOT_2_PI)


class _Lomax(NamedTuple):
    shape: Tensor
    scale: Tensor


class Lomax(_Lomax, Positive):
    """Durations, exponential with a gamma rate: `P(Y > y) = (1 + y / scale)^-shape`.

    The mean exists for `shape > 1`, the variance for `shape > 2`.
    """

    functions = PositiveFunctions(
        lomax_log_density, lomax_reached, lomax_mean, lomax_variance, lomax_width
    )

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The inverse of the distribution function at a uniform draw below one."""
        uniform = torch.rand(
            self.scale.shape, generator=generator, dtype=self.scale.dtype, device=self.scale.device
        )
        return self.scale * torch.expm1(-torch.log1p(-uniform) / self.shape)
