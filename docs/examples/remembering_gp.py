"""A model of one's own: Gaussian process regression on a regime's last few observations."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import artifact
from model_core.components import Normal
from model_core.upm.base import UnderlyingModel, select


class Memory(NamedTuple):
    """Newest first: x (B, S, m, d), y (B, S, m), how much of each counts (B, S, m)."""

    x: Tensor
    y: Tensor
    share: Tensor


@dataclass(frozen=True, kw_only=True)
class RememberingGp(UnderlyingModel):
    """Squared-exponential kernel and an unknown level; Rasmussen & Williams, eq. 2.23-2.24."""

    x_dim: int
    memory: int
    length: float  # of the kernel; amplitude, level and noise are variances
    amplitude: float
    level: float
    noise: float
    hazard: float | tuple[float, ...]
    outlier_rate: float
    kind: str = "remembering-gp"
    outliers = True  # labels of no regime, from the prior predictive but much wider

    def prior(self, location: Tensor, scale: Tensor) -> Memory:
        """Nothing remembered."""
        empty = location.new_zeros(len(location), 1, self.memory)
        return Memory(empty.unsqueeze(-1).repeat(1, 1, 1, self.x_dim), empty, empty)

    def predictive(self, stats: Memory, phi: Tensor | None) -> Normal:
        """Posterior of the function at the input, and the noise (B, S)."""
        # Root shares on both sides of the kernel: an empty place is a row of the identity.
        root, now = stats.share.sqrt(), self.required(phi)[:, None, None]
        inner = root.unsqueeze(-1) * self.kernel(stats.x, stats.x) * root.unsqueeze(-2)
        factor = torch.linalg.cholesky(inner + self.noise * torch.eye(self.memory).to(inner))
        known = torch.stack((root * self.kernel(now, stats.x).squeeze(-2), root * stats.y), -1)
        cross, label = torch.linalg.solve_triangular(factor, known, upper=False).unbind(-1)
        spread = self.level + self.amplitude + self.noise - cross.square().sum(-1)
        return Normal((cross * label).sum(-1).unsqueeze(-1), spread.sqrt().unsqueeze(-1))

    def update(self, stats: Memory, phi: Tensor | None, y: Tensor, weight: Tensor) -> Memory:
        """Remember the observation, forget the oldest; its noise variance is noise / weight."""
        new = self.required(phi)[:, None, None], y[:, None], weight.unsqueeze(-1)
        pairs = zip(new, stats, strict=True)
        moved = [torch.cat((a.expand_as(b[:, :, :1]), b[:, :, :-1]), 2) for a, b in pairs]
        return select(weight > 0, Memory(*moved), stats)

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """Covariances (..., p, q) of function values at inputs (..., p, d) and (..., q, d)."""
        squared = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
        return self.level + self.amplitude * torch.exp(-0.5 * squared / self.length**2)


def build(parts: artifact.Parts) -> RememberingGp:
    """From the fields of a `model.json`; it has no tensors."""
    numbers = {name: parts.number(name, 0) for name in ("length", "amplitude", "level", "noise")}
    sizes = {name: parts.size(name) for name in ("x_dim", "memory")}
    return RememberingGp(**sizes, **numbers, **parts.defaults())


artifact.register("remembering-gp", build)
