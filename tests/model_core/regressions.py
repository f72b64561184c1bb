"""Likelihoods of the regressions from a window of data, in numpy and scipy; see `reference`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import log_softmax, logsumexp

from tests.model_core.reference import SPREAD, Series, Window


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


class AlpacaMixture(NamedTuple):
    """Several of them, weighted by how well each explained the window.

    Their probabilities are the prior's times a product of forecasts; with outliers about, those of
    the definition, which goes row by row.
    """

    log_weight: np.ndarray
    each: list[Alpaca] | list[NoisyAlpaca]

    def _log_weight(self, past: Window):
        found = self.log_weight
        for i in np.flatnonzero(past.weight):
            before = Window(past.x[:i], past.y[:i], past.weight[:i])
            now = [one.log_density(past.x[i], past.y[i], before) for one in self.each]
            told = log_softmax(found + now)
            with np.errstate(divide="ignore"):
                parts = np.log(past.weight[i]) + told, np.log1p(-past.weight[i]) + found
            found = np.logaddexp(*parts)
        return found

    def log_density(self, x, y, past):
        now = [one.log_density(x, y, past) for one in self.each]
        return float(logsumexp(self._log_weight(past) + now))

    def log_outlier(self, x, y):
        now = [one.log_outlier(x, y) for one in self.each]
        return float(logsumexp(self.log_weight + now))


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


class Lagged(NamedTuple):
    """ALPaCA on inputs and the stream's own last labels, the latest first."""

    plain: Alpaca  # of inputs that are scaled already
    x_scaling: tuple[np.ndarray, np.ndarray]
    order: int

    def described(self, series: Series) -> Series:
        """With scaled inputs and lags for its input."""
        offset, scale = self.plain.y_scaling
        lags = lags_of((series.y - offset) / scale, series.labelled, self.order)
        x = (series.x - self.x_scaling[0]) / self.x_scaling[1]
        return series._replace(x=np.array([np.r_[a, *b] for a, b in zip(x, lags, strict=True)]))

    def log_density(self, x, y, past):
        return self.plain.log_density(x, y, past)

    def log_outlier(self, x, y):
        return self.plain.log_outlier(x, y)


KINDS = 3  # level, line, autoregression


class Averaged(NamedTuple):
    """Three regressions for each output, averaged by how well each explained the window.

    Their probabilities are those of a whole window's joint density, a multivariate Student-t. With
    outliers about they are not: there the definition itself goes row by row, and this does, too.
    """

    y_scaling: tuple[np.ndarray, np.ndarray]
    kappa: float
    seconds: tuple[float, float, float]  # prior precision of the second coefficient, by kind
    noise: Noise

    def described(self, series: Series) -> Series:
        """With the time and the label before each observation for its input."""
        scaled = (series.y - self.y_scaling[0]) / self.y_scaling[1]
        lags = lags_of(scaled, series.labelled, 1)
        return series._replace(x=np.array([np.r_[t, each[0]] for t, each in enumerate(lags)]))

    def features(self, x, past: Window, kind: int, output: int):
        """Of an input and of a window's, in one of the regressions."""
        rows = np.concatenate((x[None], past.x))
        used = past.x[past.weight > 0, 0]
        age = (rows[:, 0] - used.min(initial=x[0])) / 10
        second = (np.zeros(len(rows)), age, rows[:, 1 + output])[kind]
        return np.column_stack((np.ones(len(rows)), second))

    def _prior(self, kind: int):
        return np.zeros((2, 1)), np.diag((self.kappa, self.seconds[kind])), self.noise

    def _log_evidence(self, phi, label, kind: int) -> float:
        if not len(label):
            return 0.0
        _, precision, noise = self._prior(kind)
        spread = np.eye(len(label)) + phi @ np.linalg.solve(precision, phi.T)
        shape = spread * noise.beta / noise.alpha
        return float(
            stats.multivariate_t.logpdf(label, np.zeros(len(label)), shape, 2 * noise.alpha)
        )

    def _log_weight(self, phi, label, weight) -> np.ndarray:
        """Log probabilities of the three, from the features of each (3, T, 2)."""
        whole = weight > 0
        if (weight[whole] == 1).all():
            rows = [self._log_evidence(phi[k][whole], label[whole], k) for k in range(KINDS)]
            return log_softmax(rows)
        found = np.full(KINDS, -np.log(KINDS))
        for i in np.flatnonzero(whole):
            now = [
                self._alone(k, phi[k][i], phi[k][:i], label[:i], weight[:i]) for k in range(KINDS)
            ]
            told = log_softmax(found + [stats.t.logpdf(label[i], *each) for each in now])
            with np.errstate(divide="ignore"):
                parts = np.log(weight[i]) + told, np.log1p(-weight[i]) + found
            found = np.logaddexp(*parts)
        return found

    def _alone(self, kind: int, now, phi, label, weight):
        df, centre, spread = student(now, phi, label[:, None], weight, *self._prior(kind))
        return df, centre[0], spread[0]

    def log_density(self, x, y, past):
        location, scale = self.y_scaling
        total = 0.0
        for output in range(len(location)):
            label = (past.y[:, output] - location[output]) / scale[output]
            now = (y[output] - location[output]) / scale[output]
            phi = np.stack([self.features(x, past, k, output) for k in range(KINDS)])
            each = [
                stats.t.logpdf(now, *self._alone(k, phi[k, 0], phi[k, 1:], label, past.weight))
                for k in range(KINDS)
            ]
            total += logsumexp(self._log_weight(phi[:, 1:], label, past.weight) + each)
        return float(total - np.log(scale).sum())

    def log_outlier(self, x, y):
        location, scale = self.y_scaling
        spread = np.sqrt(SPREAD * (1 + 1 / self.kappa) * self.noise.beta / self.noise.alpha)
        return stats.t.logpdf(y, 2 * self.noise.alpha, location, scale * spread).sum()
