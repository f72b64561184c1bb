"""Conjugate models: parameters of the predictive of one output, and updates of its statistics.

For each model by its name: the predictive's parameters, those of an outlier (`wide_`, where one
may be), and the statistics after a label (`update_`). Statistics are tuples; a weight is the inlier
responsibility of the label, which counts as that fraction of an observation. Murphy, *Conjugate
Bayesian analysis of the Gaussian distribution* (2007).

A model whose prior is a mixture states the parameters under one `part` of it, with the log weight
of the part as the last, less what all parts have in common.
"""

from __future__ import annotations

from model_core.maths.ops import log1p

Numbers = tuple[float, ...]
OUTLIER_SPREAD = 10.0  # squared scale (or dispersion) of an outlier, in those of the prior


def gaussian(stats: Numbers) -> Numbers:
    """Student-t with `2 alpha` degrees of freedom: half of these, location, squared scale.

    stats: normal-inverse-gamma: mean, kappa, alpha, beta (eq. 110).
    """
    mean, kappa, alpha, beta = stats
    return alpha, mean, beta * (kappa + 1.0) / (alpha * kappa)


def wide_gaussian(parameters: Numbers) -> Numbers:
    """The prior predictive with ten times its squared scale."""
    half, location, square = parameters
    return half, location, square * OUTLIER_SPREAD


def update_gaussian(stats: Numbers, y: float, weight: float) -> Numbers:
    """Eq. 86-89 for n = weight."""
    mean, kappa, alpha, beta = stats
    error = y - mean
    gain = weight / (kappa + weight)
    grown = beta + 0.5 * kappa * gain * (error * error)
    return mean + gain * error, kappa + weight, alpha + 0.5 * weight, grown


def exponential(stats: Numbers) -> Numbers:
    """Lomax: `p(y) = shape scale^shape / (scale + y)^(shape + 1)`.

    stats: gamma over the rate: shape and rate.
    """
    shape, rate = stats
    return shape, rate


def wide_exponential(parameters: Numbers) -> Numbers:
    """The prior predictive with ten times its scale, which is its spread."""
    shape, scale = parameters
    return shape, scale * OUTLIER_SPREAD


def update_exponential(stats: Numbers, y: float, weight: float) -> Numbers:
    """Count the events and add up the time."""
    shape, rate = stats
    return shape + weight, rate + weight * y


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


def wide_poisson(parameters: Numbers, part: Numbers) -> Numbers:
    """The prior predictive, more often far off."""
    shape, rate, log_weight = parameters
    return shape, rate, log_weight + part[3]


def update_poisson(stats: Numbers, y: float, weight: float) -> Numbers:
    """Add the counts and the exposure."""
    shape, exposure = stats
    return shape + weight * y, exposure + weight
