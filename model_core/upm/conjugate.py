"""Conjugate models: they need no training, and torch and their kernels compute the same text.

A model of this kind is its `Equations`, functions as of `maths`, and a class with its statistics
and its prior: those of `upm.gamma` are in a module of their own (docs/architecture.md). Equations
are of one output: the parameters of its predictive, its statistics after a label, and the
parameters of an outlier, where one may be. Statistics are tuples; a weight is the inlier
responsibility of the label, which counts as that fraction of an observation. Murphy, *Conjugate
Bayesian analysis of the Gaussian distribution* (2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from model_core.components import (
    Bernoulli,
    Blend,
    Categorical,
    Components,
    Lomax,
    NegativeBinomial,
    StudentT,
)
from model_core.lazy import Tensor, torch
from model_core.maths import counterpart
from model_core.maths.ops import log1p
from model_core.tensor_ops import maths
from model_core.transfer import constant
from model_core.upm.base import (
    OUTLIER_SPREAD,
    ClosedForm,
    Floats,
    Stats,
    Summed,
    log_gamma,
    of_arrays,
    spread_out,
)

Numbers = tuple[float, ...]


class Equations(NamedTuple):
    """What a model computes, for each output: functions of numbers, which see nothing else.

    predictive: (stats) parameters of the predictive. update: (stats, y, weight) statistics after a
    label. wide: (parameters) those of an outlier; None: no label is one. If the prior is a mixture
    they are stated under one part of it, (stats, part, location), the last of the parameters its
    log weight less what all parts have in common, and (parameters, part).
    """

    predictive: Callable[..., Numbers]
    update: Callable[..., Numbers]
    wide: Callable[..., Numbers] | None = None


class Conjugate(Summed, ClosedForm):
    """A model whose statistics are a few numbers for each output, or for all outputs together.

    `weight` of an update is the inlier responsibility of the observation under each hypothesis; it
    counts as that fraction of an observation.
    """

    equations: Equations
    statistics: type[Any]  # a NamedTuple of the model's own: its kernel is known by it
    shared: tuple[str, ...] = ()  # names of the statistics that all outputs have together
    family: Any  # class of the predictives
    exchangeable = True

    @property
    def mixture(self) -> tuple[tuple[float, ...], ...]:
        """What the equations need of each part of a prior that is a mixture; else empty.

        Such a model has its location in its context, and shapes (B, S, 1) of its statistics.
        """
        return ()

    def predictive(self, stats: Stats, phi: Tensor | None) -> Components:
        """What the equations state."""
        return self._components(stats, phi)

    def outlier(self, prior: Stats, phi: Tensor | None) -> Components | None:
        """The prior predictive, widened, if the equations say how."""
        widen = self.equations.wide
        return None if widen is None else self._components(prior, phi, counterpart(widen, maths))

    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """Conjugate update with a weighted observation."""
        update = counterpart(self.equations.update, maths)
        return self.statistics(*update(stats, self.labels(y).unsqueeze(1), weight.unsqueeze(-1)))

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor | None:
        """Of a mixture the location (B, 1), which is its context."""
        return context if self.mixture else x

    def labels(self, y: Tensor) -> Tensor:
        """Labels (B, d) as the equations have them."""
        return y

    def _components(
        self, stats: Stats, phi: Tensor | None, widen: Callable[..., Any] | None = None
    ) -> Components:
        more: tuple[Any, ...] = ()
        of_part: tuple[Any, ...] = ()
        if self.mixture:
            stats = tuple(statistic.unsqueeze(-1) for statistic in stats)
            part = constant(self.mixture, stats[0]).unbind(-1)
            of_part = (part,)
            more = (part, self.required(phi)[:, None, :, None])
        parameters = counterpart(self.equations.predictive, maths)(stats, *more)
        if widen is not None:
            parameters = widen(parameters, *of_part)
        if not self.mixture:
            stated: Components = self.family.stated(*parameters)
            return stated
        *parameters, log_weight = parameters
        return Blend(self.family.stated(*parameters), torch.log_softmax(log_weight, -1))


class GaussianStats(NamedTuple):
    """Normal-inverse-gamma: mean (B, S, d), kappa and alpha (B, S, 1), beta (B, S, d)."""

    mean: Tensor
    kappa: Tensor
    alpha: Tensor
    beta: Tensor


def gaussian(stats: Numbers) -> Numbers:
    """Student-t with `2 alpha` degrees of freedom: half of these, location, squared scale.

    stats: normal-inverse-gamma: mean, kappa, alpha, beta (eq. 110).
    """
    mean, kappa, alpha, beta = stats
    return alpha, mean, beta * (kappa + 1.0) / (alpha * kappa)


def update_gaussian(stats: Numbers, y: float, weight: float) -> Numbers:
    """Eq. 86-89 for n = weight."""
    mean, kappa, alpha, beta = stats
    error = y - mean
    gain = weight / (kappa + weight)
    grown = beta + 0.5 * kappa * gain * (error * error)
    return mean + gain * error, kappa + weight, alpha + 0.5 * weight, grown


def wide_gaussian(parameters: Numbers) -> Numbers:
    """The prior predictive with ten times its squared scale."""
    half, location, square = parameters
    return half, location, square * OUTLIER_SPREAD


@dataclass(frozen=True)
class Gaussian(Conjugate):
    """Unknown mean and variance, independent per dimension; Student-t predictives.

    `kappa`, `alpha` and `beta` are those of a series with location 0 and scale 1.
    """

    y_dim: int = 1
    kappa: float = 0.3
    alpha: float = 2.0
    beta: float = 1.0
    kind = "gaussian"
    equations = Equations(gaussian, update_gaussian, wide_gaussian)
    statistics = GaussianStats
    shared = ("kappa", "alpha")
    family = StudentT

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Prior centred on the location, its expected variance in units of the scale."""
        mean = location[:, None]
        ones = np.ones_like(mean[..., :1])
        beta = self.beta * scale[:, None] ** 2
        stats = of_arrays(GaussianStats, mean, self.kappa * ones, self.alpha * ones, beta)
        return stats, location[:, :0]

    def natural(self, stats: GaussianStats, prior: GaussianStats) -> GaussianStats:
        """Kappa times the mean's distance from the prior's, and beta about that mean."""
        error = stats.mean - prior.mean
        moved = stats.kappa * error
        return stats._replace(mean=moved, beta=stats.beta + 0.5 * moved * error)

    def from_natural(self, stats: GaussianStats, prior: GaussianStats) -> GaussianStats:
        """Mean, and beta about it."""
        error = stats.mean / stats.kappa
        return stats._replace(mean=prior.mean + error, beta=stats.beta - 0.5 * stats.mean * error)

    def spread(self, stored: Stats, prior: Stats) -> Stats:
        """By the means' distances from the location, which outputs share."""
        distances = (stored.mean - prior.mean) ** 2 * stored.alpha / stored.beta
        kappa = spread_out(self.kappa, distances.mean(-1, keepdims=True))
        return prior._replace(kappa=np.minimum(prior.kappa, kappa))

    def log_evidence(self, stats: GaussianStats, context: Floats) -> float:
        """Of the normal-inverse-gamma, eq. 95."""
        of_output = log_gamma(stats.alpha) - stats.alpha * np.log(stats.beta)
        return float((of_output - 0.5 * np.log(stats.kappa)).sum())

    def count(self, stats: GaussianStats, prior: GaussianStats) -> float:
        """By kappa."""
        return float((stats.kappa - prior.kappa).item())


class GammaStats(NamedTuple):
    """Gamma over a rate: shape and rate (B, S, 1)."""

    shape: Tensor
    rate: Tensor


def exponential(stats: Numbers) -> Numbers:
    """Lomax: `p(y) = shape scale^shape / (scale + y)^(shape + 1)`.

    stats: gamma over the rate: shape and rate.
    """
    shape, rate = stats
    return shape, rate


def update_exponential(stats: Numbers, y: float, weight: float) -> Numbers:
    """Count the events and add up the time."""
    shape, rate = stats
    return shape + weight, rate + weight * y


def wide_exponential(parameters: Numbers) -> Numbers:
    """The prior predictive with ten times its scale, which is its spread."""
    shape, scale = parameters
    return shape, scale * OUTLIER_SPREAD


@dataclass(frozen=True)
class Exponential(Conjugate):
    """Positive durations with an unknown rate; Lomax predictives.

    `shape` is the prior's, above 2 so that a variance exists: its predictive mean is the stream's
    location.
    """

    shape: float = 2.5
    kind = "exponential"
    label = "positive"
    equations = Equations(exponential, update_exponential, wide_exponential)
    statistics = GammaStats
    family = Lomax

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Gamma over the rate, under which a duration's mean is the location."""
        shape = np.full_like(location[:, None], self.shape)
        return of_arrays(GammaStats, shape, (shape - 1) * location[:, None]), location[:, :0]

    def log_evidence(self, stats: GammaStats, context: Floats) -> float:
        """Of the gamma."""
        return float((log_gamma(stats.shape) - stats.shape * np.log(stats.rate)).item())

    def count(self, stats: GammaStats, prior: GammaStats) -> float:
        """By the shape."""
        return float((stats.shape - prior.shape).item())


class BetaStats(NamedTuple):
    """Beta over a probability: pseudo-counts of ones and zeros (B, S, 1)."""

    ones: Tensor
    zeros: Tensor


def bernoulli(stats: Numbers) -> Numbers:
    """Posterior mean of the probability of a one.

    stats: beta: pseudo-counts of ones and zeros.
    """
    ones, zeros = stats
    return (ones / (ones + zeros),)


def update_bernoulli(stats: Numbers, y: float, weight: float) -> Numbers:
    """Count the one or the zero."""
    ones, zeros = stats
    return ones + weight * y, zeros + weight * (1.0 - y)


@dataclass(frozen=True)
class BernoulliModel(Conjugate):
    """Zeros and ones with an unknown probability; uniform prior. Neither is ever an outlier."""

    ones: float = 1.0
    zeros: float = 1.0
    outlier_rate: float = field(default=0.0, kw_only=True)
    kind = "bernoulli"
    label = "binary"
    needs_scale = False
    equations = Equations(bernoulli, update_bernoulli)
    statistics = BetaStats
    family = Bernoulli

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Beta(ones, zeros) for every stream."""
        like = location[:, None]
        ones = np.full_like(like, self.ones)
        return of_arrays(BetaStats, ones, np.full_like(like, self.zeros)), location[:, :0]

    def log_evidence(self, stats: BetaStats, context: Floats) -> float:
        """Of the beta."""
        ones, zeros = stats
        value = log_gamma(ones) + log_gamma(zeros) - log_gamma(ones + zeros)
        return float(value.item())

    def count(self, stats: BetaStats, prior: BetaStats) -> float:
        """By both pseudo-counts."""
        return float((stats.ones + stats.zeros - prior.ones - prior.zeros).item())


class DirichletStats(NamedTuple):
    """Dirichlet over probabilities: pseudo-counts of the classes (B, S, J)."""

    counts: Tensor


def categorical(stats: Numbers) -> Numbers:
    """Posterior mean of the probability of a class, but for a factor that all classes share.

    stats: Dirichlet: pseudo-count of the class.
    """
    (count,) = stats
    return (count,)


def update_categorical(stats: Numbers, y: float, weight: float) -> Numbers:
    """Count the class; y: 1 where the label is of this class, else 0."""
    (count,) = stats
    return (count + weight * y,)


@dataclass(frozen=True)
class CategoricalModel(Conjugate):
    """Class indices with unknown probabilities; uniform prior. None is ever an outlier."""

    classes: int = 2
    concentration: float = 1.0
    outlier_rate: float = field(default=0.0, kw_only=True)
    kind = "categorical"
    label = "class"
    needs_scale = False
    equations = Equations(categorical, update_categorical)
    statistics = DirichletStats
    family = Categorical

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """The same pseudo-count of every class for every stream."""
        counts = np.full((len(location), 1, self.classes), self.concentration)
        return of_arrays(DirichletStats, counts), location[:, :0]

    def log_evidence(self, stats: DirichletStats, context: Floats) -> float:
        """Of the Dirichlet."""
        total = stats.counts.sum(-1)
        return float((log_gamma(stats.counts).sum(-1) - log_gamma(total)).item())

    def count(self, stats: DirichletStats, prior: DirichletStats) -> float:
        """By all pseudo-counts."""
        return float((stats.counts - prior.counts).sum())

    def labels(self, y: Tensor) -> Tensor:
        """Whether the label is of each class, (B, J)."""
        return (y == torch.arange(self.classes, device=y.device)).to(y.dtype)


class CountStats(NamedTuple):
    """Shape `A` of the gammas and exposure `N`, both (B, S, 1)."""

    shape: Tensor
    exposure: Tensor


def poisson(stats: Numbers, part: Numbers, location: float) -> Numbers:
    """Negative binomial: shape, mean and log weight under one gamma of the prior.

    With `pi_k Gamma(a, r_k)`, `r_k = a / (c_k m)` around the location `m`, after labels whose
    weights add up to `N`, and they with their counts to `A - a`,

        p(rate | data) = sum_k w_k Gamma(A, r_k + N),    w_k ~ pi_k r_k^a (r_k + N)^-A.

    stats: shape `A` and exposure `N`. part: `a / c_k`, the least of these, `log pi_k - a log c_k`,
    and what to add to that for outliers.
    """
    shape, exposure = stats
    start, least, log_weight, _ = part
    start = start / location
    least = least / location
    # In terms of the least: a shape of 1e12 times a logarithm would leave no digits.
    seen = shape * log1p((start - least) / (least + exposure))
    return shape, shape / (start + exposure), log_weight - seen


def update_poisson(stats: Numbers, y: float, weight: float) -> Numbers:
    """Add the counts and the exposure."""
    shape, exposure = stats
    return shape + weight * y, exposure + weight


def wide_poisson(parameters: Numbers, part: Numbers) -> Numbers:
    """The prior predictive, more often far off."""
    shape, rate, log_weight = parameters
    return shape, rate, log_weight + part[3]


@dataclass(frozen=True)
class Poisson(Conjugate):
    """Counts whose rate may jump by a large factor, and stay there: a mixture of gammas as prior.

    `factors` (ascending) are the means of the gammas in locations, `shape` is that of all.
    Their probabilities in a new regime and in outliers add up to one.

    An outlier is drawn from the prior predictive with other probabilities. Under a single gamma
    the predictive of a count far above the location is so much smaller than that of any wider
    outlier that a regime of such counts would look like outliers for ever. The two gammas far off
    are rare, since the means of all forecasts contain theirs; for outliers twice as probable as
    for regimes, so that one strange count is rather an outlier where the hazard is as large as the
    outlier rate.
    """

    shape: float = 0.5
    factors: tuple[float, ...] = (0.01, 1.0, 100.0)
    weights: tuple[float, ...] = (0.01, 0.98, 0.01)
    outlier_weights: tuple[float, ...] = (0.02, 0.96, 0.02)
    kind = "poisson"
    label = "count"
    equations = Equations(poisson, update_poisson, wide_poisson)
    statistics = CountStats
    family = NegativeBinomial

    @property
    def mixture(self) -> tuple[tuple[float, ...], ...]:
        """Of each gamma; see `poisson`."""
        least = self.shape / self.factors[-1]
        gammas = zip(self.factors, self.weights, self.outlier_weights, strict=True)
        return tuple(
            (
                self.shape / factor,
                least,
                math.log(weight) - self.shape * math.log(factor),
                math.log(strange) - math.log(weight),
            )
            for factor, weight, strange in gammas
        )

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Nothing seen."""
        shape = np.full_like(location[:, None], self.shape)
        return of_arrays(CountStats, shape, np.zeros_like(shape)), location

    def log_evidence(self, stats: CountStats, context: Floats) -> float:
        """Of the mixture of gammas."""
        rate = self.shape / (np.array(self.factors) * context.item())
        shape = stats.shape.item()
        explained = self.shape * np.log(rate) - shape * np.log(rate + stats.exposure.item())
        each = np.log(self.weights) + explained
        return math.lgamma(shape) + float(np.logaddexp.reduce(each))

    def count(self, stats: CountStats, prior: CountStats) -> float:
        """The exposure."""
        return float(stats.exposure.item())
