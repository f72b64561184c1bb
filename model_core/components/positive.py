"""Families of positive labels: what `maths.families` has by their names, and draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from model_core.components.base import Family
from model_core.lazy import Tensor, torch
from model_core.tensor_ops import maths


class Positive(Family):
    """Quantiles need a mean."""

    name: str  # of its functions in `maths.families`
    support = "positive"

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each output; -inf below zero."""
        density: Tensor = self._function("log_density")(value, *self.parameters())
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
        mean: Tensor = self._function("mean")(*self.parameters())
        return mean

    def variance(self) -> Tensor:
        """Inf where it does not exist."""
        variance: Tensor = self._function("variance")(*self.parameters())
        return variance

    def width(self) -> Tensor:
        """Standard deviation of a normal whose peak is as high."""
        width: Tensor = self._function("width")(*self.parameters())
        return width

    def _reached(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reached: tuple[Tensor, Tensor, Tensor]
        reached = self._function("reached")(value.clamp(min=0.0), *self.parameters())
        return reached

    def _function(self, suffix: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(maths("families"), f"{self.name}_{suffix}")
        return function


class _Lomax(NamedTuple):
    shape: Tensor
    scale: Tensor


class Lomax(_Lomax, Positive):
    """Durations, exponential with a gamma rate: `P(Y > y) = (1 + y / scale)^-shape`.

    The mean exists for `shape > 1`, the variance for `shape > 2`.
    """

    name = "lomax"

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The inverse of the distribution function at a uniform draw below one."""
        uniform = torch.rand(
            self.scale.shape, generator=generator, dtype=self.scale.dtype, device=self.scale.device
        )
        return self.scale * torch.expm1(-torch.log1p(-uniform) / self.shape)
