"""Bayesian linear regression on features, shared by every model that is one (MOCA, app. A).

The posterior is `(K, P)`: the mean and `Lambda^-1`, in units of the noise. We keep the mean, not
the paper's `Q`: in float32 the natural parameters lose eight units of the mean over 20,000 steps,
the gain form 6e-3. With a label `y`, features `f` and `s = sqrt(w / (1 + w f' P f))` for a weight
`w` of the label,

    v = s P f,    z = s (y - K' f),    P' = P - v v',    K' = K + v z'.

All starts of a sequence at once are `lattice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model_core.components import Normal, StudentT
from model_core.lazy import Tensor, torch
from model_core.upm.base import (
    Floats,
    Stats,
    UnderlyingModel,
    array_of,
    log_gamma,
)

# Share of what a regime knows more than the prior that it has lost when it returns: regimes drift.
FORGOTTEN = 0.02


class NoisyStats(NamedTuple):
    """Normal-inverse-gamma: the variance of each output's noise is unknown.

    mean: (B, S, n, y) `K`; cov: (B, S, n, n) `Lambda^-1`, shared by the outputs, in noise
    variances; alpha, beta: (B, S, y) of the inverse gamma.
    """

    mean: Tensor
    cov: Tensor
    alpha: Tensor
    beta: Tensor


class Row(NamedTuple):
    """A row of features as a posterior sees it.

    projected: (B, S, n) `P f`. fitted: (B, S, y) `K' f`. gram: (B, S, 1) `f' P f`.
    """

    projected: Tensor
    fitted: Tensor
    gram: Tensor


def covariance_root(cov: Tensor) -> Tensor:
    """A root `R` with `R R' = cov` (..., n, n): Cholesky's, or where that fails the symmetric one.

    It fails where a direction has no variance left; eigenvalues below zero are rounding, and count
    as zero. What is not finite has a root of nan.
    """
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(cov)
    if not bool((failed > 0).any()):
        return root
    finite = torch.isfinite(cov).all(-1).all(-1)[..., None, None]
    value, vector = torch.linalg.eigh(torch.where(finite, cov, 0.0))
    symmetric = (vector * value.clamp(min=0).sqrt().unsqueeze(-2)) @ vector.mT
    root = torch.where((failed > 0)[..., None, None], symmetric, root)
    return root.masked_fill(~finite, torch.nan)


def _fit(features: Tensor, mean: Tensor) -> Tensor:
    """`F K` (B, S, c, y)."""
    if features.shape[1] == 1:
        return torch.einsum("bsny,bcn->bscy", mean, features[:, 0])
    return features @ mean


class Regression(UnderlyingModel):
    """A model that is a linear regression on its features: `y = y_offset + y_scale (K' phi + e)`.

    Noise of known variance gives Gaussian predictives, else they are Student-t; statistics have
    `mean` and `cov`, and `alpha` and `beta` where the noise is unknown.
    """

    y_offset: Tensor | float = 0.0
    y_scale: Tensor | float = 1.0
    noise_variance: Tensor | None = None  # (y,); None: unknown
    outliers = True
    symmetric = ("cov",)
    in_place = ("cov",)

    def design(self, stats: Stats, phi: Tensor) -> Tensor:
        """Features (B, 1 or S, A, n) of rows phi (B, A, m)."""
        return phi.unsqueeze(1)

    def begun(self, stats: Stats, phi: Tensor, weight: Tensor) -> Stats:
        """Statistics that are ready to absorb a row phi (B, m) with a weight (B, S)."""
        return stats

    def predictive(self, stats: Stats, phi: Tensor | None) -> Normal | StudentT:
        """`N(K' phi, (1 + phi' P phi) sigma^2)` (paper, app. A), or its Student-t."""
        row = self._row(stats, self.required(phi))
        return self._components(row.fitted, 1 + row.gram, stats)

    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """Absorb one row; its noise variance is `sigma^2 / weight`, so 0 changes nothing."""
        phi = self.required(phi)
        stats = self.begun(stats, phi, weight)
        return self._absorb(stats, self._row(stats, phi), y, weight)

    def learned(
        self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Stats]:
        """Log density (B, S) of a label before it is absorbed, and `update`."""
        row = self._row(stats, self.required(phi))
        predictive = self._components(row.fitted, 1 + row.gram, stats)
        return predictive.joint_log_density(y.unsqueeze(1)), self._absorb(stats, row, y, weight)

    def means(self, stats: Stats, phi: Tensor) -> Tensor:
        """Posterior means `K' phi` (B, S, A, y) of the function at inputs phi (B, A, m)."""
        return _fit(self.design(stats, phi), stats.mean) * self.y_scale + self.y_offset

    def draw(self, stats: Stats, phi: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One function of each hypothesis, without noise, at inputs phi (B, A, m): (B, S, A, y).

        Weights `w ~ N(K, sigma^2 P)` (paper, app. A), after `sigma^2 ~ InverseGamma(alpha, beta)`
        where it is unknown. A generator's state decides the function, whatever it is asked at.
        """
        features = self.design(stats, phi)
        noise = self.noise_variance
        like = stats.mean[0]
        if noise is None:
            chance = zip(stats.alpha, generators, strict=True)
            gamma = [
                torch._standard_gamma(alpha, generator=generator) for alpha, generator in chance
            ]
            noise = (stats.beta / torch.stack(gamma)).unsqueeze(-2)
        normal = [
            torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            for generator in generators
        ]
        spread = covariance_root(stats.cov) @ torch.stack(normal) * noise.sqrt()
        return _fit(features, stats.mean + spread) * self.y_scale + self.y_offset

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """With the mean that it had, and a covariance that is a little of the prior's again."""
        stats = self._begun_anew(stats)
        stats = stats._replace(cov=stats.cov + FORGOTTEN * (prior.cov - stats.cov))
        if self.noise_variance is not None:
            return stats
        labels = 2 * (stats.alpha - prior.alpha)
        share = np.minimum(1.0, most / np.maximum(labels, most))
        return stats._replace(
            alpha=prior.alpha + share * (stats.alpha - prior.alpha),
            beta=prior.beta + share * (stats.beta - prior.beta),
        )

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """In natural parameters, `Lambda` and `Lambda K`."""
        precision, moved, squares = (
            a + b - start for a, b, start in zip(*map(_natural, (one, other, prior)), strict=True)
        )
        cov = np.linalg.inv(precision)
        mean = cov @ moved
        both = self._begun_anew(one)._replace(mean=mean, cov=0.5 * (cov + np.swapaxes(cov, -1, -2)))
        if self.noise_variance is None:
            beta = one.beta + other.beta - prior.beta
            both = both._replace(
                alpha=one.alpha + other.alpha - prior.alpha,
                beta=beta + 0.5 * (squares - (mean * moved).sum(-2)),
            )
        factor = self._log_evidence(both) + self._log_evidence(prior)
        return factor - self._log_evidence(one) - self._log_evidence(other), both

    def _log_evidence(self, stats: Stats) -> float:
        """Log normaliser of the posterior, arrays, but for what is linear in the labels."""
        _, log_det = np.linalg.slogdet(stats.cov[0, 0])
        outputs = stats.mean.shape[-1]
        if self.noise_variance is None:
            noise = log_gamma(stats.alpha) - stats.alpha * np.log(stats.beta)
        else:
            noise = 0.5 * _natural(stats)[2] / array_of(self.noise_variance)
        return float(0.5 * outputs * log_det + noise.sum())

    def _begun_anew(self, stats: Stats) -> Stats:
        """Statistics, arrays, of a regime that has seen no label since it began."""
        return stats

    def _row(self, stats: Stats, phi: Tensor) -> Row:
        rows = self.design(stats, phi.unsqueeze(1))
        features = rows.squeeze(2)
        if features.shape[1] == 1:  # one product for all hypotheses
            projected = torch.einsum("bsnm,bm->bsn", stats.cov, features[:, 0])
        else:
            projected = (stats.cov @ features.unsqueeze(-1)).squeeze(-1)
        gram = (projected * features).sum(-1, keepdim=True)
        return Row(projected, _fit(rows, stats.mean).squeeze(2), gram)

    def _absorb(self, stats: Stats, row: Row, y: Tensor, weight: Tensor) -> Stats:
        """The noise counts as `weight` of an observation (Murphy 2007, sec. 7, for a power)."""
        share = weight.unsqueeze(-1)
        scaled = (share / (1 + share * row.gram)).sqrt()
        gain = scaled * row.projected
        whitened = scaled * (((y - self.y_offset) / self.y_scale).unsqueeze(1) - row.fitted)
        stats = stats._replace(
            mean=stats.mean + gain.unsqueeze(-1) * whitened.unsqueeze(-2),
            cov=stats.cov - gain.unsqueeze(-1) * gain.unsqueeze(-2),
        )
        if self.noise_variance is not None:
            return stats
        return stats._replace(
            alpha=stats.alpha + 0.5 * share, beta=stats.beta + 0.5 * whitened.square()
        )

    def _components(self, location: Tensor, spread: Tensor, stats: Stats) -> Normal | StudentT:
        """Predictives in the units of the labels; location: (..., y), spread: (..., 1 or y)."""
        variance = self.noise_variance
        noise = stats.beta / stats.alpha if variance is None else variance
        scale = (spread * noise).sqrt() * self.y_scale
        location = location * self.y_scale + self.y_offset
        if variance is None:
            return StudentT((2 * stats.alpha).expand_as(location), location, scale)
        return Normal(location, scale)


def _natural(stats: Stats) -> tuple[Floats, Floats, Floats]:
    """`Lambda` (1, 1, n, n), `Lambda K` (1, 1, n, y) and `K' Lambda K` (1, 1, y) of arrays."""
    precision = np.linalg.inv(stats.cov)
    moved = precision @ stats.mean
    return precision, moved, (stats.mean * moved).sum(-2)
