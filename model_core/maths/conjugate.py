"""Conjugate families: parameters of the predictive, and updates, of one output.

Murphy, *Conjugate Bayesian analysis of the Gaussian distribution* (2007).

A weight is the inlier responsibility of the observation; it counts as that fraction of one.
"""

from __future__ import annotations


def gaussian(mean: float, kappa: float, alpha: float, beta: float) -> tuple[float, float]:
    """Location and squared scale of a Student-t, `2 alpha` degrees of freedom (eq. 110)."""
    return mean, beta * (kappa + 1.0) / (alpha * kappa)


def learn_gaussian(
    mean: float, kappa: float, alpha: float, beta: float, y: float, weight: float
) -> tuple[float, float, float, float]:
    """Normal-inverse-gamma with a weighted observation (eq. 86-89 for n = weight)."""
    error = y - mean
    gain = weight / (kappa + weight)
    grown = beta + 0.5 * kappa * gain * (error * error)
    return mean + gain * error, kappa + weight, alpha + 0.5 * weight, grown
