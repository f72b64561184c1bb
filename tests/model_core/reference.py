"""Each model's likelihood from a window of data, in numpy and scipy.

Nothing is shared with model_core: a posterior is solved from all (weighted) observations of the
window.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from scipy import stats

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


class Noise(NamedTuple):
    """Inverse gamma over the noise variance of each output."""

    alpha: np.ndarray
    beta: np.ndarray


def student(now, phi, label, weight, mean, precision, noise: Noise):
    """Degrees of freedom, centre and scale of a label with features `now`, after rows `phi`.

    Normal-inverse-gamma regression, solved from all the rows; prior coefficients `mean` with
    precision in units of the noise's.
    """
    after = precision + phi.T @ (weight[:, None] * phi)
    natural = precision @ mean + phi.T @ (weight[:, None] * label)
    centre = np.linalg.solve(after, natural)
    moved = centre - mean
    squares = (weight[:, None] * (label - phi @ centre) ** 2).sum(0)
    squares = squares + (moved * (precision @ moved)).sum(0)
    alpha, beta = noise.alpha + weight.sum() / 2, noise.beta + squares / 2
    spread = 1 + now @ np.linalg.solve(after, now)
    return 2 * alpha, now @ centre, np.sqrt(spread * beta / alpha)


class NoisyAlpaca(NamedTuple):
    """Alpaca whose noise variance is unknown."""

    known: Alpaca
    noise: Noise

    def _student(self, x, past):
        known = self.known
        offset, scale = known.y_scaling
        precision = np.linalg.inv(known.factor @ known.factor.T)
        rows = known.features(past.x), (past.y - offset) / scale, past.weight
        prior = known.prior_mean, precision, self.noise
        df, centre, spread = student(known.features(x), *rows, *prior)
        return df, centre * scale + offset, spread * scale

    def log_density(self, x, y, past):
        return stats.t.logpdf(y, *self._student(x, past)).sum()

    def log_outlier(self, x, y):
        df, centre, scale = self._student(x, Window(x[None][:0], y[None][:0], np.zeros(0)))
        return stats.t.logpdf(y, df, centre, scale * np.sqrt(SPREAD)).sum()


class Linear(NamedTuple):
    """Intercept and scaled inputs; variances of their coefficients, in the noise's."""

    y_scaling: tuple[np.ndarray, np.ndarray]
    x_scaling: tuple[np.ndarray, np.ndarray]
    variances: np.ndarray
    noise: Noise

    def features(self, x, past: Window):
        """Of an input and of a window's."""
        scaled = (np.concatenate((x[None], past.x)) - self.x_scaling[0]) / self.x_scaling[1]
        return np.column_stack((np.ones(len(scaled)), scaled))

    def _student(self, x, past):
        location, scale = self.y_scaling
        phi = self.features(x, past)
        mean = np.zeros((len(self.variances), len(location)))
        prior = mean, np.diag(1 / self.variances), self.noise
        label = (past.y - location) / scale
        df, centre, spread = student(phi[0], phi[1:], label, past.weight, *prior)
        return df, centre * scale + location, spread * scale

    log_density = NoisyAlpaca.log_density
    log_outlier = NoisyAlpaca.log_outlier


def lags_of(scaled: np.ndarray, labelled: np.ndarray, order: int) -> list[list[np.ndarray]]:
    """Of each observation the labels before it, the latest first, none far beyond its two."""
    nothing = np.zeros_like(scaled[0])
    seen, lags, found = [nothing] * 2, [nothing] * order, []
    for y, there in zip(scaled, labelled, strict=True):
        found.append(lags[::-1][:order])
        near = np.clip(y, np.minimum(*seen[-2:]) - 2, np.maximum(*seen[-2:]) + 2)
        lags.append(near if there else lags[-1])
        seen += [y] if there else []
    return found


class Autoregressive(NamedTuple):
    """Lags of all outputs, sines of a season, a trend from the first label of the regime."""

    y_scaling: tuple[np.ndarray, np.ndarray]
    variances: np.ndarray
    noise: Noise
    order: int
    season: int
    trend: bool

    def described(self, series: Series) -> Series:
        """With the time and the lags of each observation for its input."""
        scaled = (series.y - self.y_scaling[0]) / self.y_scaling[1]
        lags = lags_of(scaled, series.labelled, max(self.order, 1))
        rows = [np.concatenate(([t], *each[: self.order])) for t, each in enumerate(lags)]
        return series._replace(x=np.array(rows))

    def features(self, x, past: Window):
        rows = np.concatenate((x[None], past.x))
        time, columns = rows[:, 0], [np.ones(len(rows)), *rows[:, 1:].T]
        for k in range(1, 4):
            angle = 2 * np.pi * k * time / (self.season or 1)
            if 2 * k <= self.season:
                columns.append(np.cos(angle))
            if 2 * k < self.season:
                columns.append(np.sin(angle))
        if self.trend:
            used = past.x[past.weight > 0, 0]
            columns.append(np.maximum(time - used.min(initial=x[0]), 0) / 20)
        return np.column_stack(columns)

    _student = Linear._student
    log_density = NoisyAlpaca.log_density
    log_outlier = NoisyAlpaca.log_outlier


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
