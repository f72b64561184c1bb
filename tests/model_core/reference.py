"""The filter by enumeration, and each model's likelihood from a window of data, in numpy and scipy.

Nothing here is recursive over time and nothing is shared with model_core: a posterior is solved
from all (weighted) observations of the window, a belief is a sum over every segmentation.
"""

from __future__ import annotations

from itertools import product
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
    """Likelihood of one model: of an observation after a window, and as an outlier."""

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


class Alpaca(NamedTuple):
    """Bayesian linear regression on tanh features; scaled inputs and labels."""

    layers: list[tuple[np.ndarray, np.ndarray]]
    prior_mean: np.ndarray
    factor: np.ndarray
    noise: np.ndarray
    x_scaling: tuple[np.ndarray, np.ndarray]
    y_scaling: tuple[np.ndarray, np.ndarray]

    def features(self, x):
        value = (x - self.x_scaling[0]) / self.x_scaling[1]
        for i, (weight, bias) in enumerate(self.layers):
            value = value @ weight.T + bias
            last = i == len(self.layers) - 1
            value = np.tanh(value) if last else np.maximum(value, 0)
        return value

    def _normal(self, x, past):
        offset, scale = self.y_scaling
        phi, label = self.features(past.x), (past.y - offset) / scale
        prior = np.linalg.inv(self.factor @ self.factor.T)
        precision = prior + phi.T @ (past.weight[:, None] * phi)
        natural = prior @ self.prior_mean + phi.T @ (past.weight[:, None] * label)
        now = self.features(x)
        mean = now @ np.linalg.solve(precision, natural)
        variance = (1 + now @ np.linalg.solve(precision, now)) * self.noise
        return mean * scale + offset, np.sqrt(variance) * scale

    def log_density(self, x, y, past):
        return stats.norm.logpdf(y, *self._normal(x, past)).sum()

    def log_outlier(self, x, y):
        nothing = Window(x[None][:0], y[None][:0], np.zeros(0))
        mean, scale = self._normal(x, nothing)
        return stats.norm.logpdf(y, mean, scale * np.sqrt(SPREAD)).sum()


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


class Truth(NamedTuple):
    """What holds after a step, by start: belief, best log joint, starts before it that reach it."""

    log_evidence: float
    belief: dict[int, float]
    score: dict[int, float]
    previous: dict[int, set[int]]


def segment(reference: Reference, series: Series, start: int) -> np.ndarray:
    """Log likelihood of each observation from `start` on, were it all one segment."""
    weight, answer = [], []
    for t in range(start, len(series.y)):
        if not series.labelled[t]:
            weight.append(0.0)
            answer.append(0.0)
            continue
        past = Window(series.x[start:t], series.y[start:t], np.array(weight))
        inside = reference.log_density(series.x[t], series.y[t], past)
        outside, rate = reference.log_outlier(series.x[t], series.y[t]), series.outlier_rate[t]
        if outside is None or rate == 0:
            weight.append(1.0)
            answer.append(inside)
            continue
        answer.append(np.logaddexp(np.log(1 - rate) + inside, np.log(rate) + outside))
        weight.append(np.exp(np.log(1 - rate) + inside - answer[-1]))
    return np.array(answer)


def change_probability(series: Series) -> np.ndarray:
    """Probability [t, r] that the regime changed just before t, had it reached run length r."""
    table = series.hazard.reshape(len(series.y), -1)
    reached = np.minimum(np.arange(len(series.y)), table.shape[1] - 1)
    elapsed = 1 - (1 - table[:, reached]) ** series.elapsed[:, None]
    told = series.changepoint[:, None]
    return np.where(np.isnan(told), elapsed, told)


def enumerate_segmentations(reference: Reference, series: Series) -> list[Truth]:
    """The truth after every step, as sums and maxima over all segmentations up to it."""
    change = change_probability(series)
    whole = [np.cumsum(segment(reference, series, s)) for s in range(len(series.y))]
    answer = []
    for t in range(len(series.y)):
        paths = [path(cuts, change, whole) for cuts in product((False, True), repeat=t)]
        evidence = logsumexp([joint for _, joint in paths])
        belief, score, previous = {}, {}, {}
        for start in range(t + 1):
            here = [(starts, joint) for starts, joint in paths if starts[-1] == start]
            belief[start] = float(np.exp(logsumexp([joint for _, joint in here]) - evidence))
            score[start] = max(joint for _, joint in here)
            best = [starts for starts, joint in here if joint >= score[start] - 1e-9]
            previous[start] = {starts[-2] if len(starts) > 1 else -1 for starts in best}
        answer.append(Truth(float(evidence), belief, score, previous))
    return answer


def path(cuts, change, whole) -> tuple[list[int], float]:
    """Starts of a segmentation and its log joint probability with the data."""
    starts, prior = [0], 0.0
    for t, cut in enumerate(cuts):
        probability = change[t + 1, t - starts[-1]]
        with np.errstate(divide="ignore"):
            prior += np.log(probability if cut else 1 - probability)
        if cut:
            starts.append(t + 1)
    ends = [*starts[1:], len(cuts) + 1]
    data = sum(whole[start][end - start - 1] for start, end in zip(starts, ends, strict=True))
    return starts, float(prior + data)
