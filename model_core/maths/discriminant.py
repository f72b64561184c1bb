"""Gaussian discriminant analysis with diagonal covariances (MOCA, app. B.3); see `upm.pcoc`."""

from __future__ import annotations

from model_core.maths.ops import log


def log_class(weight: float, total: float) -> float:
    """Log probability of a class without its input; weight: concentration and count."""
    return log(weight) - log(total)


def surprise(
    feature: float,
    precision: float,
    natural: float,
    noise: float,
    inverse: float,
    count: float,
    total: float,
    spread: float,
) -> float:
    """`-2 log p(feature | class)` less `log(2 pi)`, of one feature.

    precision, natural: of the prior of its mean, and that times the mean. noise, inverse: variance
    within the class, and 1 over it. count, total: observations of the class, and the sum of their
    features. spread: what the predictive variance is multiplied by.
    """
    covariance = 1.0 / (precision + count * inverse)
    variance = (covariance + noise) * spread
    error = feature - (natural + total * inverse) * covariance
    return error * error / variance + log(variance)
