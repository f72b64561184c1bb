"""Each model's likelihood from a window of data, in numpy and scipy.

Nothing is shared with model_core: a posterior is solved from all (weighted) observations of the
window.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from scipy import stats
from scipy.special import logsumexp

SPREAD = 10.0  # an outlier's squared scale, or dispersion, in those of the prior


class Window(NamedTuple):
    """Observations that a hypothesis has absorbed, and how much of each."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


class Reference(Protocol):
    """Likelihood of one model: of an observation after a window, and as an outlier.

    A generative one has `log_input(x, past)` and `log_outlier_input(x)` too; what it says of the
    label is given the input.
    """

    def log_density(self, x, y, past: Window) -> float: ...

    def log_outlier(self, x, y) -> float | None: ...


class Gaussian(NamedTuple):
    location: np.ndarray
    scale: np.ndarray
    kappa: float
    alpha: float
    beta: float

    def _student(self, past: Window):
        weight = past.weight[:, None]
        total = weight.sum()
        mean = (weight * past.y).sum(0) / total if total > 0 else self.location
        squares = (weight * (past.y - mean) ** 2).sum(0)
        kappa, alpha = self.kappa + total, self.alpha + total / 2
        shift = self.kappa * total * (mean - self.location) ** 2 / (2 * kappa)
        beta = self.beta * self.scale**2 + squares / 2 + shift
        centre = (self.kappa * self.location + total * mean) / kappa
        return 2 * alpha, centre, np.sqrt(beta * (kappa + 1) / (alpha * kappa))

    def log_density(self, x, y, past):
        return stats.t.logpdf(y, *self._student(past)).sum()

    def log_outlier(self, x, y):
        df, centre, scale = self._student(Window(None, y[None][:0], np.zeros(0)))
        return stats.t.logpdf(y, df, centre, scale * np.sqrt(SPREAD)).sum()


class Poisson(NamedTuple):
    location: np.ndarray
    shape: float

    def log_density(self, x, y, past):
        shape = self.shape + past.weight @ past.y
        rate = self.shape / self.location + past.weight.sum()
        return stats.nbinom.logpmf(y, shape, rate / (rate + 1)).sum()

    def log_outlier(self, x, y):
        shape = self.shape / SPREAD
        return stats.nbinom.logpmf(y, shape, shape / (shape + self.location)).sum()


class MixedPoisson(NamedTuple):
    """Every gamma's own posterior, each weighted by how well it explained the whole window."""

    location: np.ndarray
    shape: float
    factors: tuple[float, ...]
    weights: tuple[float, ...]
    outlier_weights: tuple[float, ...]

    def log_density(self, x, y, past):
        shape, seen = self.shape + past.weight @ past.y, past.weight.sum()
        each = []
        for factor, weight in zip(self.factors, self.weights, strict=True):
            first = self.shape / (factor * self.location)
            rate = first + seen
            # The integral of gamma times likelihood, but for what all of them have in common.
            explained = self.shape * np.log(first) - shape * np.log(rate)
            now = stats.nbinom.logpmf(y, shape, rate / (rate + 1))
            each.append((np.log(weight) + explained, now))
        evidence, label = (np.concatenate(part) for part in zip(*each, strict=True))
        return float(logsumexp(evidence + label) - logsumexp(evidence))

    def log_outlier(self, x, y):
        strange = self._replace(weights=self.outlier_weights)
        return strange.log_density(x, y, Window(None, y[None][:0], np.zeros(0)))


class Bernoulli(NamedTuple):
    ones: float
    zeros: float

    def log_density(self, x, y, past):
        ones, zeros = past.weight @ past.y, past.weight @ (1 - past.y)
        one = (self.ones + ones) / (self.ones + self.zeros + ones + zeros)
        return stats.bernoulli.logpmf(y, one).sum()

    def log_outlier(self, x, y):
        return None


class Multivariate(NamedTuple):
    location: np.ndarray
    scale: np.ndarray
    kappa: float
    alpha: float
    beta: float

    def _student(self, past: Window, spread: float = 1.0):
        weight, total = past.weight[:, None], past.weight.sum()
        mean = (weight * past.y).sum(0) / total if total > 0 else self.location
        scatter = (weight * (past.y - mean)).T @ (past.y - mean)
        shift = np.outer(mean - self.location, mean - self.location)
        kappa, df = self.kappa + total, 2 * self.alpha + total
        psi = np.diag(2 * self.beta * self.scale**2) + scatter + self.kappa * total / kappa * shift
        centre = (self.kappa * self.location + total * mean) / kappa
        return centre, spread * psi * (kappa + 1) / (kappa * df), df

    def log_density(self, x, y, past):
        return float(stats.multivariate_t.logpdf(y, *self._student(past)))

    def log_outlier(self, x, y):
        nothing = Window(None, y[None][:0], np.zeros(0))
        return float(stats.multivariate_t.logpdf(y, *self._student(nothing, SPREAD)))


class Categorical(NamedTuple):
    classes: int
    concentration: float

    def log_density(self, x, y, past):
        counts = np.array([past.weight @ (past.y[:, 0] == j) for j in range(self.classes)])
        counts = counts + self.concentration
        return float(np.log(counts[int(y[0])] / counts.sum()))

    def log_outlier(self, x, y):
        return None


class Exponential(NamedTuple):
    location: np.ndarray
    shape: float

    def log_density(self, x, y, past):
        rate = (self.shape - 1) * self.location + past.weight @ past.y
        return stats.lomax.logpdf(y, self.shape + past.weight.sum(), scale=rate).sum()

    def log_outlier(self, x, y):
        rate = SPREAD * (self.shape - 1) * self.location
        return stats.lomax.logpdf(y, self.shape, scale=rate).sum()


class Series(NamedTuple):
    """One stream's observations, (T, ...), and what the filter is told with them.

    hazard: (T,), or a table by run length for each step (T, H).
    """

    x: np.ndarray
    y: np.ndarray
    labelled: np.ndarray
    hazard: np.ndarray
    elapsed: np.ndarray
    changepoint: np.ndarray
    outlier_rate: np.ndarray
