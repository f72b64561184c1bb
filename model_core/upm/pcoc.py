"""PCOC: Bayesian Gaussian discriminant analysis on learned features (MOCA, sec. 4 and app. B.3).

`y ~ Cat(p)`, `p ~ Dir(alpha)`, `z | y ~ N(m_y, Sigma_y)`, `m_y ~ N(mu_y, Lambda_y^-1)`, all
covariances diagonal. What a regime has taught is running sums; the posterior is computed from them
where it is needed, so that nothing drifts and many run lengths come from one product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Categorical
from model_core.encoder import Encoder
from model_core.tensor_ops import maths
from model_core.upm.base import OUTLIER_SPREAD, Block, Starts, Stats, UnderlyingModel
from model_core.upm.discriminant import Classes, densities

_DISCRIMINANT = maths("discriminant")
COLUMNS = 100  # observations whose densities are spread out over all starts at once


class PcocStats(NamedTuple):
    """counts: (B, S, J) observations of each class; sums: (B, S, J, n) of their features."""

    counts: Tensor
    sums: Tensor


@dataclass(frozen=True, kw_only=True)
class Pcoc(UnderlyingModel):
    """Classifier whose inputs tell of the regime, before the label does (paper, eq. 2).

    prior_mean, prior_precision, noise_variance: (J, n), of features given a class. dirichlet: (J,)
    concentrations. Labels are class indices; inputs are scaled by `(x - offset) / scale`, and
    `log p(x | eta)` is the density of their features. A missing label leaves the statistics alone,
    but its input still moves the belief.
    """

    encoder: Encoder
    prior_mean: Tensor
    prior_precision: Tensor
    noise_variance: Tensor
    dirichlet: Tensor
    x_offset: Tensor
    x_scale: Tensor
    hazard: float | tuple[float, ...] = 0.01
    outlier_rate: float = 0.0
    kind: str = "pcoc"
    in_place: tuple[str, ...] = ("sums",)
    label: str = "class"

    @property
    def x_dim(self) -> int:  # type: ignore[override]
        """Numbers in an input."""
        return len(self.x_offset)

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return len(self.dirichlet)

    def prior(self, location: Tensor, scale: Tensor) -> PcocStats:
        """Nothing seen, the same for every stream."""
        batch = len(location)
        classes, features = self.prior_mean.shape
        like = self.prior_mean
        return PcocStats(
            like.new_zeros(batch, 1, classes), like.new_zeros(batch, 1, classes, features)
        )

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Features (B, n) of scaled inputs."""
        return self.encoder((self.required(x) - self.x_offset) / self.x_scale)

    def log_joint(self, stats: PcocStats, phi: Tensor, spread: float = 1.0) -> Tensor:
        """`log p(z, y | eta)` (..., J) of every class, its variances `spread` times as large.

        phi: (..., n), which broadcasts over `stats.counts` (..., J) less its last axis.
        """
        terms: Tensor = _DISCRIMINANT.surprise(
            phi.unsqueeze(-2),
            self.prior_precision,
            self.prior_precision * self.prior_mean,
            self.noise_variance,
            1 / self.noise_variance,
            stats.counts.unsqueeze(-1),
            stats.sums,
            spread,
        )
        size = math.log(2 * math.pi) * phi.shape[-1]
        return self._log_class(stats) - 0.5 * (terms.sum(-1) + size)

    def _log_class(self, stats: PcocStats) -> Tensor:
        """`log p(y | eta)` (..., J), without the input."""
        weight = self.dirichlet + stats.counts
        log_class: Tensor = _DISCRIMINANT.log_class(weight, weight.sum(-1, keepdim=True))
        return log_class

    def input_log_prob(self, stats: PcocStats, phi: Tensor | None) -> Tensor:
        """`log p(z | eta)` (B, S), summed over the classes."""
        return self.log_joint(stats, self.required(phi).unsqueeze(1)).logsumexp(-1)

    def predictive(self, stats: PcocStats, phi: Tensor | None) -> Categorical:
        """Class probabilities given the input: Bayes' rule."""
        return Categorical(self.log_joint(stats, self.required(phi).unsqueeze(1)).log_softmax(-1))

    def outlier(self, prior: PcocStats, phi: Tensor | None) -> Categorical:
        """The prior's class probabilities, whatever the input."""
        return Categorical(self._log_class(prior))

    def outlier_input_log_prob(self, prior: PcocStats, phi: Tensor | None) -> Tensor:
        """`log p(z)` (B, 1) under the prior with ten times its predictive variances."""
        features = self.required(phi).unsqueeze(1)
        return self.log_joint(prior, features, OUTLIER_SPREAD).logsumexp(-1)

    def update(self, stats: PcocStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> PcocStats:
        """Add to the label's class, as `weight` of an observation (paper, app. B.3)."""
        added = weight.unsqueeze(-1) * self.chosen(y).unsqueeze(1)
        features = self.required(phi)[:, None, None]
        return PcocStats(stats.counts + added, stats.sums + added.unsqueeze(-1) * features)

    def block(self, stats: PcocStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Block:
        """All rows at once: the sums before each row are products with a triangle of weights."""
        features = self.required(phi)
        chosen = self.chosen(y)
        shape = self.prior_mean.shape
        batch, starts, length = weight.shape
        earlier = torch.ones(length, length, dtype=weight.dtype, device=weight.device).tril(-1)
        # Rows before each, and then all of them: (B, S * (c + 1), c).
        absorbed = torch.cat((weight.unsqueeze(2) * earlier, weight.unsqueeze(2)), 2).flatten(1, 2)
        moved = (chosen.unsqueeze(-1) * features.unsqueeze(2)).flatten(2)
        counts = (absorbed @ chosen).reshape(batch, starts, length + 1, -1)
        sums = (absorbed @ moved).reshape(batch, starts, length + 1, *shape)
        before = PcocStats(
            stats.counts.unsqueeze(2) + counts[:, :, :-1], stats.sums.unsqueeze(2) + sums[:, :, :-1]
        )
        joint = self.log_joint(before, features.unsqueeze(1))
        log_class = Categorical(joint.log_softmax(-1)).joint_log_density(y.unsqueeze(1))
        after = PcocStats(stats.counts + counts[:, :, -1], stats.sums + sums[:, :, -1])
        return Block(log_class, joint.logsumexp(-1), after)

    def every_joint(
        self, phi: Tensor, y: Tensor, weight: Tensor, longest: int | None = None
    ) -> Iterator[Tensor]:
        """`log p(z_t, y = j | rows s..t-1)` by [s, j, t], parts (B, T, J, c) of all t in order.

        phi: (B, T, n). y: (B, T, 1). weight: (B, T), 0 or 1: whether a row is ever absorbed. Only
        windows of at most `longest` rows are asked for; anything stands elsewhere.
        """
        classes = Classes(self.prior_mean, self.prior_precision, self.noise_variance)
        present = weight > 0
        label = torch.where(present, y.squeeze(-1), 0.0).long()
        log_densities = densities(classes, phi, label, present, longest)
        for first in range(0, y.shape[1], COLUMNS):
            part = slice(first, first + COLUMNS)
            concentration = self.dirichlet.unsqueeze(-1) + log_densities.counts(part)
            log_class = _DISCRIMINANT.log_class(concentration, concentration.sum(2, keepdim=True))
            yield log_densities.columns(part) + log_class

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Starts:
        """Every density that differs from all others once: the prior knows of no observation."""
        label = torch.where(weight > 0, y.squeeze(-1), 0.0).long()
        labels = []
        inputs = []
        first = 0
        for joint in self.every_joint(self.required(phi), y, weight, longest):
            evidence = joint.logsumexp(2)
            shape = evidence.shape
            index = label[:, None, None, first : first + shape[-1]].expand(-1, shape[1], -1, -1)
            labels.append(joint.gather(2, index).squeeze(2) - evidence)
            inputs.append(evidence)
            first += shape[-1]
        return Starts(torch.cat(labels, -1), torch.cat(inputs, -1))

    def chosen(self, y: Tensor) -> Tensor:
        """Class indices (..., 1) as indicators (..., J)."""
        return (y == torch.arange(self.classes, device=y.device)).to(self.dirichlet.dtype)
