"""Bayesian linear regression on features, shared by every model that is one (MOCA, app. A).

The posterior is `(K, P)`: the mean and `Lambda^-1`, in units of the noise. We keep the mean, not
the paper's `Q`: in float32 the natural parameters lose eight units of the mean over 20,000 steps,
the gain form 6e-3. `c` rows are absorbed at a time, for every hypothesis at once; `c = 1` is the
paper's recursion. Training, live steps and replays all go through `absorb`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model_core.components import Normal, StudentT
from model_core.lazy import Tensor, torch
from model_core.upm.base import (
    Block,
    Floats,
    Stats,
    UnderlyingModel,
    array_of,
    log_gamma,
    widened,
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


class Absorbed(NamedTuple):
    """What `c` rows said, each before it was absorbed, and the posterior after all of them.

    location: (B, S, c, y) predictive means. spread: (B, S, c) predictive variances in those of the
    noise. whitened: (B, S, c, y) residuals of unit variance in those of the noise, 0 where the
    weight is.
    """

    location: Tensor
    spread: Tensor
    whitened: Tensor
    mean: Tensor
    cov: Tensor


def absorb(mean: Tensor, cov: Tensor, features: Tensor, y: Tensor, weight: Tensor) -> Absorbed:
    """Predict and absorb rows `y = K' phi + noise / sqrt(weight)`.

    mean: (B, S, n, y). cov: (B, S, n, n), symmetric to the bit, and so is what comes back.
    features: (B, 1, c, n), or (B, S, c, n) where hypotheses differ. y: (B, c, y). weight: (B, S, c)
    in [0, 1]; a row of weight 0 is predicted and not absorbed.

    With `F~ = sqrt(w) F`: `A = I + F~ P F~' = L L'`, `V = L^-1 F~ P`, `Z = L^-1 sqrt(w) (Y - F K)`;
    then `P - V'V` and `K + V'Z`. Row `i` before it was absorbed: `U = L^-1 F~ P F'` has
    `1 + f_i' P f_i - sum_{j<i} U_ji^2` for its spread and `f_i' K + sum_{j<i} U_ji Z_j` for mean.
    """
    root = _root(weight).unsqueeze(-1)
    projected = _project(features, cov)
    fitted = _fit(features, mean)
    gram = projected @ features.mT
    error = y.unsqueeze(1) - fitted
    if weight.shape[-1] == 1:  # no factorisation, no rows before
        scaled = root / (1 + weight.unsqueeze(-1) * gram).sqrt()
        v = scaled * projected
        z = scaled * error
        return Absorbed(fitted, 1 + gram.squeeze(-1), z, mean + v.mT * z, cov - v.mT * v)
    sides = root * torch.cat((gram, error, projected), -1)
    u, z, v = torch.linalg.solve_triangular(_factor(root, gram), sides, upper=False).split(
        (gram.shape[-1], error.shape[-1], projected.shape[-1]), -1
    )
    before = u.triu(1)
    spread = 1 + gram.diagonal(dim1=-2, dim2=-1) - before.square().sum(-2)
    new = cov - v.mT @ v
    # A product by BLAS is symmetric to rounding only.
    new = 0.5 * (new + new.mT)
    return Absorbed(fitted + before.mT @ z, spread, z, mean + v.mT @ z, new)


def _root(weight: Tensor) -> Tensor:
    """Square root with gradient 0, not infinite, at 0."""
    some = weight > 0
    return torch.where(some, torch.where(some, weight, 1.0).sqrt(), 0.0)


def _factor(root: Tensor, gram: Tensor) -> Tensor:
    """Cholesky factor of `I + sqrt(w) gram sqrt(w)'`; nan where that is not positive definite.

    One stream's numbers must not raise for the rest of the batch.
    """
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    lower, failed = torch.linalg.cholesky_ex(eye + root * gram * root.mT)
    factor: Tensor = lower.masked_fill((failed > 0)[..., None, None], torch.nan)
    return factor


def noise_before(stats: NoisyStats, weight: Tensor, squares: Tensor) -> NoisyStats:
    """Statistics whose alpha and beta (B, S, c, y) are those before each of `c` rows.

    weight: (B, S, c, 1 or y) with which rows were absorbed. squares: (B, S, c, y) of whitened
    residuals.
    """
    # What the rows before it said, not it itself.
    count = weight.cumsum(-2) - weight
    total = squares.cumsum(-2) - squares
    return stats._replace(
        alpha=stats.alpha.unsqueeze(-2) + 0.5 * count, beta=stats.beta.unsqueeze(-2) + 0.5 * total
    )


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


def _project(features: Tensor, cov: Tensor) -> Tensor:
    """`F P` (B, S, c, n) of a symmetric `P`."""
    if features.shape[1] == 1:  # one product for all hypotheses
        return torch.einsum("bsnm,bcm->bscn", cov, features[:, 0])
    return features @ cov


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
    symmetric = ("cov",)
    in_place = ("cov",)

    def design(self, stats: Stats, phi: Tensor, weight: Tensor) -> tuple[Tensor, Stats]:
        """Features (B, 1 or S, c, n) of rows phi (B, c, m), and statistics ready to absorb them."""
        return phi.unsqueeze(1), stats

    def predictive(self, stats: Stats, phi: Tensor | None) -> Normal | StudentT:
        """`N(K' phi, (1 + phi' P phi) sigma^2)` (paper, app. A), or its Student-t."""
        rows = self.required(phi).unsqueeze(1)
        nothing = torch.zeros_like(stats.cov[..., 0, :1])
        features, stats = self.design(stats, rows, nothing)
        location = _fit(features, stats.mean).squeeze(-2)
        spread = 1 + (_project(features, stats.cov) * features).sum((-2, -1))
        return self._components(location, spread.unsqueeze(-1), stats)

    def outlier(self, prior: Stats, phi: Tensor | None) -> Normal | StudentT:
        """The prior predictive with ten times its squared scale."""
        return widened(self.predictive(prior, phi))

    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """Absorb one row; its noise variance is `sigma^2 / weight`, so 0 changes nothing."""
        rows = self.required(phi).unsqueeze(1)
        return self._absorb(stats, rows, y.unsqueeze(1), weight.unsqueeze(-1))[1]

    def learned(
        self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Stats]:
        """Log density (B, S) of a label before it is absorbed, and `update`."""
        rows = self.required(phi).unsqueeze(1)
        absorbed, after = self._absorb(stats, rows, y.unsqueeze(1), weight.unsqueeze(-1))
        predictive = self._components(absorbed.location.squeeze(-2), absorbed.spread, stats)
        return predictive.joint_log_density(y.unsqueeze(1)), after

    def block(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Block:
        """All rows at once."""
        absorbed, after = self._absorb(stats, self.required(phi), y, weight)
        if self.noise_variance is None:
            stats = noise_before(stats, weight.unsqueeze(-1), absorbed.whitened.square())
        predictive = self._components(absorbed.location, absorbed.spread.unsqueeze(-1), stats)
        return Block(predictive.joint_log_density(y.unsqueeze(1)), None, after)

    def means(self, stats: Stats, phi: Tensor) -> Tensor:
        """Posterior means `K' phi` (B, S, A, y) of the function at inputs phi (B, A, m)."""
        features, stats = self._at(stats, phi)
        return _fit(features, stats.mean) * self.y_scale + self.y_offset

    def draw(self, stats: Stats, phi: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One function of each hypothesis, without noise, at inputs phi (B, A, m): (B, S, A, y).

        Weights `w ~ N(K, sigma^2 P)` (paper, app. A), after `sigma^2 ~ InverseGamma(alpha, beta)`
        where it is unknown. A generator's state decides the function, whatever it is asked at.
        """
        features, stats = self._at(stats, phi)
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

    def _at(self, stats: Stats, phi: Tensor) -> tuple[Tensor, Stats]:
        """Features (B, 1 or S, A, n) of rows that nobody absorbs."""
        nothing = stats.mean.new_zeros(*stats.mean.shape[:2], phi.shape[1])
        return self.design(stats, phi, nothing)

    def _absorb(
        self, stats: Stats, phi: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Absorbed, Stats]:
        """The noise counts as `weight` of an observation (Murphy 2007, sec. 7, for a power)."""
        features, stats = self.design(stats, phi, weight)
        label = (y - self.y_offset) / self.y_scale
        absorbed = absorb(stats.mean, stats.cov, features, label, weight)
        stats = stats._replace(mean=absorbed.mean, cov=absorbed.cov)
        if self.noise_variance is None:
            stats = stats._replace(
                alpha=stats.alpha + 0.5 * weight.sum(-1, keepdim=True),
                beta=stats.beta + 0.5 * absorbed.whitened.square().sum(-2),
            )
        return absorbed, stats

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
