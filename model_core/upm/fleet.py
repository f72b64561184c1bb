"""`averaged` with a regression on learned features among its experts.

An encoder, which a fleet's history has taught, makes features `f` of inputs and of the labels
before. One more expert of each regime is a Bayesian linear regression on them, with weights `k` and
their covariance `P` in those of the noise, of labels less their location and over their scale:
docs/mathematics.md, `fleet`. It has the prior weight `chance`, all others together the rest. So
where a fleet has taught nothing of use, forecasts are those of `averaged` after the few labels that
show it, output by output. `P` is the same for all outputs, and learns the average of their
precisions, that of a missing one 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from model_core.components import Blend
from model_core.lazy import Tensor, torch
from model_core.maths.regression import SCALES
from model_core.tensor_ops import maths
from model_core.upm.averaged import Averaged, AveragedStats, ExpertsReading
from model_core.upm.base import Beside, Reading, UnderlyingModel, mixed
from model_core.upm.learned import Encoded

_REGRESSION = maths("regression")


class FleetStats(NamedTuple):
    """Those of `AveragedStats`, whose log_weight has one more expert; then of the learned one.

    weights: (B, S, n, d) `k`. cov: (B, S, n, n) `P`. shape, rate: (B, S, d) alpha and beta.
    """

    level: Tensor
    slope: Tensor
    precision: Tensor
    cross: Tensor
    slope_precision: Tensor
    alpha: Tensor
    beta: Tensor
    log_weight: Tensor
    origin: Tensor
    weights: Tensor
    cov: Tensor
    shape: Tensor
    rate: Tensor

    @property
    def alone(self) -> AveragedStats:
        """Of the experts that need no training."""
        return AveragedStats(*self[: len(AveragedStats._fields)])._replace(
            log_weight=self.log_weight[..., :-1]
        )


@dataclass(frozen=True, kw_only=True)
class Fleet(Encoded, Averaged):
    """As `Averaged`, with a learned expert.

    encoder: of scaled inputs, then of the last `lags` labels as believed, in the stream's units,
    the latest first; 0 stands for those before the first. prior_mean: (n, d). prior_cov: (n, n).
    noise_alpha, noise_beta: (d,). chance: prior probability of the learned expert, below 1.
    """

    prior_mean: Tensor
    prior_cov: Tensor
    noise_alpha: Tensor
    noise_beta: Tensor
    lags: int = 0
    chance: float = 0.5
    kind = "fleet"
    recalls = False
    skews = (*Averaged.skews, 1.0)
    parts = len(skews) * len(SCALES)
    symmetric = ("cov",)
    in_place = ("cov",)

    @property
    def seasonal(self) -> bool:
        """What the fleet taught may have the seasons."""
        return False

    def prior(self, location: Tensor, scale: Tensor) -> FleetStats:
        """That of `averaged`, and the learned one, the same for every stream."""
        alone: AveragedStats = super().prior(location, scale)
        learned = torch.full_like(alone.log_weight[..., :1], math.log(self.chance))
        others = alone.log_weight + math.log1p(-self.chance)
        first = (len(location), 1)
        return FleetStats(
            *alone._replace(log_weight=torch.cat((others, learned), -1)),
            self.prior_mean.expand(*first, -1, -1),
            self.prior_cov.expand(*first, -1, -1),
            self.noise_alpha.expand(*first, -1),
            self.noise_beta.expand(*first, -1),
        )

    start = UnderlyingModel.start  # its prior is learned

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """That of `averaged`, then the lags (p d)."""
        lags = location.new_zeros(len(location), self.lags * self.y_dim)
        return torch.cat((super().context(location, scale), lags), -1)

    def beside(self, context: Tensor) -> Beside:
        """The random walk."""
        return super().beside(self._split(context)[0])

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """That of `averaged`, whose lag is the latest of the lags."""
        own, lags = self._split(context)
        own = super().remember(own, y, labelled, reading)
        if self.lags:
            latest = self._parts(own)[5]
            lags = torch.cat((latest, lags[:, : -self.y_dim]), -1)
        return torch.cat((own, lags), -1)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """What `averaged` reads; location and scale (d each), learned features (n)."""
        own, _ = self._split(context)
        units = own[:, 1 : 1 + 2 * self.y_dim]
        return torch.cat((super().encode(None, own), units, self.features(x, context)), -1)

    def features(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Learned features (B, n)."""
        return self.encoded(x, self._split(context)[1] if self.lags else None)

    def outlier(self, prior: FleetStats, phi: Tensor | None) -> Blend:  # type: ignore[override]
        """As in `averaged`, of which the learned expert is none."""
        phi = self.required(phi)
        alone = Averaged(self.y_dim).outlier(prior.alone, phi)
        shape = (*alone.log_weight.shape[:-1], self.parts)
        many = len(SCALES)
        padded = [torch.cat((p, p[..., :many]), -1) for p in alone.parts]
        others = alone.log_weight - math.log1p(-self.chance)  # they have all of the weight
        never = others.new_full((*shape[:-1], many), -torch.inf)
        return Blend(alone.parts.rebuilt(*padded), torch.cat((others, never), -1))

    def _learned(  # type: ignore[override]
        self,
        stats: FleetStats,
        phi: Tensor,
        y: Tensor,
        weight: Tensor,
        reading: ExpertsReading,
    ) -> FleetStats:
        d = self.y_dim
        others = ExpertsReading(
            reading.error[..., :-1],
            reading.variance[..., :-1],
            reading.log_posterior[..., :-1],
            reading.responsibilities[..., :-1, :],
        )
        alone = Averaged(d)._learned(stats.alone, phi, y, weight, others)
        share = self._shares(reading, weight)[..., -1]
        error = reading.error[..., -1] / self._units(phi)[1].unsqueeze(1)
        gram = reading.variance[..., -1]
        log_weight = mixed(
            weight[..., None, None], reading.log_posterior[..., -1:], stats.log_weight[..., -1:]
        )
        average = share.mean(-1)
        projected = _project(stats.cov, self._units(phi)[2])
        gain = _REGRESSION.gain(share, gram)
        downdate = _REGRESSION.gain(average, gram[..., 0])
        outer = projected.unsqueeze(-1) * projected.unsqueeze(-2)
        counted = torch.where(torch.isnan(y).unsqueeze(1), 0.0, weight.unsqueeze(-1))
        return FleetStats(
            *alone._replace(log_weight=torch.cat((alone.log_weight, log_weight), -1)),
            stats.weights + projected.unsqueeze(-1) * (gain * error).unsqueeze(-2),
            stats.cov - downdate[..., None, None] * outer,
            stats.shape + 0.5 * counted,
            stats.rate + 0.5 * gain * error.square(),
        )

    def _forecast(  # type: ignore[override]
        self, stats: FleetStats, phi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of all experts, the learned one the last."""
        own, variance = super()._forecast(stats.alone, phi)
        location, scale, features = self._units(phi)
        gram = (_project(stats.cov, features) * features.unsqueeze(1)).sum(-1).clamp(min=0)
        fitted = torch.einsum("bsny,bn->bsy", stats.weights, features)
        mean = location.unsqueeze(1) + scale.unsqueeze(1) * fitted
        learned = self._bounded(mean.unsqueeze(-1), phi)
        every = gram[..., None, None].expand_as(learned)
        return torch.cat((own, learned), -1), torch.cat((variance, every), -1)

    def _noise(self, stats: FleetStats, phi: Tensor) -> Tensor:  # type: ignore[override]
        own = super()._noise(stats.alone, phi)
        learned = self._units(phi)[1].unsqueeze(1).square() * (stats.rate / stats.shape)
        return torch.cat((own, learned.unsqueeze(-1)), -1)

    def _freedom(self, stats: FleetStats) -> Tensor:  # type: ignore[override]
        own = super()._freedom(stats.alone).expand(-1, -1, self.y_dim, len(Averaged.skews))
        return torch.cat((own, 2 * stats.shape.unsqueeze(-1)), -1)

    def _units(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Location and scale (B, d), learned features (B, n)."""
        d = self.y_dim
        places = [1 + 7 * d, 1 + 8 * d, 1 + 9 * d]
        _, location, scale, features = torch.tensor_split(phi, places, -1)
        return location, scale, features

    def _split(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Context of `averaged`, and the lags."""
        end = context.shape[-1] - self.lags * self.y_dim
        return context[..., :end], context[..., end:]


def _project(cov: Tensor, features: Tensor) -> Tensor:
    """`P f` (B, S, n)."""
    return torch.einsum("bsnm,bm->bsn", cov, features)
