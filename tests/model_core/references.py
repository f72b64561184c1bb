"""Each model's likelihood from a window of data, in numpy and scipy.

Nothing is shared with model_core but a model's own numbers: a posterior is solved from all
(weighted) observations of the window. The recurrent model alone goes through it row by row: that
is its definition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit, gammaln, log_softmax, logsumexp

SPREAD = 10.0  # an outlier's squared scale, or dispersion, in those of the prior


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


class Window(NamedTuple):
    """Observations that a hypothesis has absorbed, and how much of each."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    @property
    def empty(self) -> Window:
        return Window(self.x[:0], self.y[:0], self.weight[:0])


class Reference:
    """Likelihood of one model: of an observation after a window, and as an outlier.

    A generative one has `log_input(x, past)` and `log_outlier_input(x, past)` too; what it says of
    the label is given the input. One that looks back has `described`, the series with what it
    takes from before for its input.
    """

    outliers = True

    def __init__(self, model, location: np.ndarray, scale: np.ndarray) -> None:
        self.model, self.location, self.scale = model, location, scale

    def log_density(self, x, y, past: Window, spread: float = 1.0) -> float:
        """spread: by which a predictive is wider, if it is an outlier's."""
        raise NotImplementedError

    def log_outlier(self, x, y, past: Window) -> float:
        return self.log_density(x, y, past.empty, SPREAD)


class Gaussian(Reference):
    def student(self, past: Window):
        """Degrees of freedom, centre and scale."""
        m, weight, total = self.model, past.weight[:, None], past.weight.sum()
        mean = (weight * past.y).sum(0) / total if total > 0 else self.location
        squares = (weight * (past.y - mean) ** 2).sum(0)
        kappa, alpha = m.kappa + total, m.alpha + total / 2
        shift = m.kappa * total * (mean - self.location) ** 2 / (2 * kappa)
        beta = m.beta * self.scale**2 + squares / 2 + shift
        centre = (m.kappa * self.location + total * mean) / kappa
        return 2 * alpha, centre, np.sqrt(beta * (kappa + 1) / (alpha * kappa))

    def log_density(self, x, y, past, spread=1.0):
        df, centre, scale = self.student(past)
        return stats.t.logpdf(y, df, centre, scale * np.sqrt(spread)).sum()


class Multivariate(Reference):
    def student(self, past: Window):
        """Centre, shape and degrees of freedom."""
        m, weight, total = self.model, past.weight[:, None], past.weight.sum()
        mean = (weight * past.y).sum(0) / total if total > 0 else self.location
        scatter = (weight * (past.y - mean)).T @ (past.y - mean)
        shift = np.outer(mean - self.location, mean - self.location)
        kappa, df = m.kappa + total, 2 * m.alpha + total
        psi = np.diag(2 * m.beta * self.scale**2) + scatter + m.kappa * total / kappa * shift
        centre = (m.kappa * self.location + total * mean) / kappa
        return centre, psi * (kappa + 1) / (kappa * df), df

    def log_density(self, x, y, past, spread=1.0):
        centre, shape, df = self.student(past)
        return float(stats.multivariate_t.logpdf(y, centre, spread * shape, df))


class Poisson(Reference):
    """Every gamma's own posterior, each weighted by how well it explained the whole window."""

    def log_density(self, x, y, past, spread=1.0):
        m, evidence, label = self.model, [], []
        weights = m.weights if spread == 1 else m.outlier_weights
        shape, seen = m.shape + past.weight @ past.y, past.weight.sum()
        for factor, weight in zip(m.factors, weights, strict=True):
            first = m.shape / (factor * self.location)
            # The integral of gamma times likelihood, but for what all of them have in common.
            explained = m.shape * np.log(first) - shape * np.log(first + seen)
            evidence.append(np.log(weight) + explained)
            chance = (first + seen) / (first + seen + 1)
            label.append(evidence[-1] + stats.nbinom.logpmf(y, shape, chance))
        return float(logsumexp(label) - logsumexp(evidence))


class Bernoulli(Reference):
    outliers = False

    def log_density(self, x, y, past, spread=1.0):
        ones = self.model.ones + past.weight @ past.y
        zeros = self.model.zeros + past.weight @ (1 - past.y)
        return stats.bernoulli.logpmf(y, ones / (ones + zeros)).sum()


class Categorical(Reference):
    outliers = False

    def log_density(self, x, y, past, spread=1.0):
        seen = [past.weight @ (past.y[:, 0] == j) for j in range(self.model.classes)]
        counts = self.model.concentration + np.array(seen)
        return float(np.log(counts[int(y[0])] / counts.sum()))


class Exponential(Reference):
    def log_density(self, x, y, past, spread=1.0):
        rate = spread * (self.model.shape - 1) * self.location + past.weight @ past.y
        return stats.lomax.logpdf(y, self.model.shape + past.weight.sum(), scale=rate).sum()


class Gamma(Reference):
    """Every shape's own posterior of the rate, weighted by how well it explained the window."""

    def log_density(self, x, y, past, spread=1.0):
        m, evidence, label = self.model, [], []
        total, seen = past.weight @ past.y[:, 0], past.weight.sum()
        logs = past.weight @ np.log(past.y[:, 0])
        for k in m.shapes:
            first = (m.prior_shape - 1) * float(self.location[0]) / k
            tail = m.prior_shape + k * seen
            # The integral of gamma times likelihood, but for what all of them have in common.
            explained = m.prior_shape * np.log(first) + gammaln(tail) - tail * np.log(first + total)
            evidence.append(explained + k * logs - seen * gammaln(k))
            scale = spread * (first + total)
            label.append(evidence[-1] + stats.betaprime.logpdf(y[0], k, tail, scale=scale))
        return float(logsumexp(label) - logsumexp(evidence))


# --- regressions ----------------------------------------------------------------------------------


def network(model, value: np.ndarray) -> np.ndarray:
    """Layers with ReLU between them; tanh after the last, or nothing."""
    layers = list(zip(model.weights, model.biases, strict=True))
    for i, (weight, bias) in enumerate(layers):
        value = value @ weight.numpy().T + bias.numpy()
        if i < len(layers) - 1:
            value = np.maximum(value, 0)
    return np.tanh(value) if model.output_activation == "tanh" else value


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


class Regression(Reference):
    """Bayesian linear regression on features, solved from all rows; noise known or unknown.

    Subclasses have `features(x, past)` of an input (n,) or, without a window, of many, prior
    coefficients `mean` (n, d) with `precision` in units of the noise's, and the noise.
    """

    mean: np.ndarray
    precision: np.ndarray
    offset: np.ndarray
    noise: tuple[np.ndarray, ...]  # variances, or alpha and beta of an inverse gamma

    def features(self, x, past: Window | None) -> np.ndarray:
        raise NotImplementedError

    def rows(self, x, past: Window) -> np.ndarray:
        """Features of an input and of the window's."""
        return self.features(np.concatenate((x[None], past.x)), past)

    def posterior(self, phi, past: Window):
        """Mean and precision of the coefficients, after rows of features."""
        label, weight = (past.y - self.offset) / self.scale, past.weight[:, None]
        precision = self.precision + phi.T @ (weight * phi)
        natural = self.precision @ self.mean + phi.T @ (weight * label)
        return np.linalg.solve(precision, natural), precision

    def predictive(self, x, past: Window):
        """Degrees of freedom (none of a normal), centre and scale of a label."""
        phi = self.rows(x, past)
        now, phi, weight = phi[0], phi[1:], past.weight[:, None]
        centre, precision = self.posterior(phi, past)
        wide, df, noise = 1 + now @ np.linalg.solve(precision, now), None, self.noise[0]
        if len(self.noise) == 2:
            moved, label = centre - self.mean, (past.y - self.offset) / self.scale
            squares = (weight * (label - phi @ centre) ** 2).sum(0)
            squares = squares + (moved * (self.precision @ moved)).sum(0)
            alpha = self.noise[0] + past.weight.sum() / 2
            df, noise = 2 * alpha, (self.noise[1] + squares / 2) / alpha
        return df, now @ centre * self.scale + self.offset, np.sqrt(wide * noise) * self.scale

    def log_density(self, x, y, past, spread=1.0):
        df, centre, scale = self.predictive(x, past)
        scale = scale * np.sqrt(spread)
        known = df is None
        each = (
            stats.norm.logpdf(y, centre, scale) if known else stats.t.logpdf(y, df, centre, scale)
        )
        return each.sum()


class Alpaca(Regression):
    """Features of a network; some of its inputs may be the stream's own labels before."""

    def __init__(self, model, location, scale) -> None:
        super().__init__(model, location, model.y_scale.numpy())
        self.offset, self.mean = model.y_offset.numpy(), model.prior_mean.numpy()
        self.precision = np.linalg.inv(model.prior_cov.numpy())
        unknown = model.noise_prior
        self.noise = (model.noise_variance,) if unknown is None else tuple(unknown)
        self.noise = tuple(each.numpy() for each in self.noise)
        if model.lags:
            self.described = self._described

    def features(self, x, past):
        scaled = x if self.model.lags else self._scaled(x)
        return network(self.model.encoder, scaled)

    def _scaled(self, x):
        return (x - self.model.x_offset.numpy()) / self.model.x_scale.numpy()

    def _described(self, series: Series) -> Series:
        lags = lags_of((series.y - self.offset) / self.scale, series.labelled, self.model.lags)
        pairs = zip(self._scaled(series.x), lags, strict=True)
        return series._replace(x=np.array([np.r_[a, *b] for a, b in pairs]))


class AlpacaMixture(Reference):
    """Several of them, weighted by how well each explained the window.

    Their probabilities are the prior's times a product of forecasts; with outliers about, those of
    the definition, which goes row by row.
    """

    def __init__(self, model, location, scale) -> None:
        super().__init__(model, location, scale)
        self.log_weight = model.log_weight.numpy()
        self.types = [Alpaca(model.alone(m), location, scale) for m in range(len(self.log_weight))]

    def log_types(self, past: Window) -> np.ndarray:
        found = self.log_weight
        for i in np.flatnonzero(past.weight):
            before = Window(past.x[:i], past.y[:i], past.weight[:i])
            now = [one.log_density(past.x[i], past.y[i], before) for one in self.types]
            told = log_softmax(found + now)
            with np.errstate(divide="ignore"):
                parts = np.log(past.weight[i]) + told, np.log1p(-past.weight[i]) + found
            found = np.logaddexp(*parts)
        return found

    def log_density(self, x, y, past, spread=1.0):
        now = [one.log_density(x, y, past, spread) for one in self.types]
        return float(logsumexp(self.log_types(past) + now))


class Linear(Regression):
    """Intercept and scaled inputs; variances of their coefficients, in the noise's."""

    def __init__(self, model, location, scale) -> None:
        d = model.y_dim
        super().__init__(model, location, scale[:d])
        self.offset, self.inputs = location[:d], (location[d:], scale[d:])
        self.noise = np.array(model.alpha), np.array(model.beta)
        variances = self.variances()
        self.mean, self.precision = np.zeros((len(variances), d)), np.diag(1 / variances)

    def variances(self) -> np.ndarray:
        return np.array([self.model.level] + [self.model.slope] * self.model.x_dim)

    def features(self, x, past):
        offset, scale = self.inputs
        return np.column_stack((np.ones(len(x)), (x - offset) / scale))


class Autoregressive(Linear):
    """Lags of all outputs, sines of a season, a trend from the first label of the regime."""

    def variances(self):
        m = self.model
        sines = min(m.season - 1, 6) if m.season else 0
        lags = [m.lag / m.y_dim] * (m.order * m.y_dim)
        return np.array([m.level, *lags] + [m.swing] * sines + [m.slope] * m.trend)

    def described(self, series: Series) -> Series:
        """With the time and the lags of each observation for its input."""
        order, scaled = self.model.order, (series.y - self.offset) / self.scale
        lags = lags_of(scaled, series.labelled, max(order, 1))
        rows = [np.concatenate(([t], *each[:order])) for t, each in enumerate(lags)]
        return series._replace(x=np.array(rows))

    def features(self, x, past):
        time, season = x[:, 0], self.model.season
        columns = [np.ones(len(x)), *x[:, 1:].T]
        for k in range(1, 4):
            angle = 2 * np.pi * k * time / (season or 1)
            if 2 * k <= season:
                columns.append(np.cos(angle))
            if 2 * k < season:
                columns.append(np.sin(angle))
        if self.model.trend:
            used = past.x[past.weight > 0, 0]
            columns.append(np.maximum(time - used.min(initial=x[0, 0]), 0) / 20)
        return np.column_stack(columns)


# --- learned otherwise ----------------------------------------------------------------------------


class Pcoc(Reference):
    """Gaussian discriminant analysis with diagonal covariances, from the whole window."""

    def features(self, x):
        offset, scale = self.model.x_offset.numpy(), self.model.x_scale.numpy()
        return network(self.model.encoder, (x - offset) / scale)

    def log_class(self, past: Window):
        dirichlet = self.model.dirichlet.numpy()
        counts = dirichlet + past.weight @ (past.y == np.arange(len(dirichlet)))
        return np.log(counts / counts.sum())

    def log_joint(self, x, past: Window, spread: float = 1.0):
        """Log density of the features with each class."""
        phi, now, answer = self.features(past.x), self.features(x), self.log_class(past)
        noise, start = self.model.noise_variance.numpy(), self.model.prior_precision.numpy()
        for j in range(len(answer)):
            weight = past.weight * (past.y[:, 0] == j)
            precision = start[j] + weight.sum() / noise[j]
            natural = start[j] * self.model.prior_mean.numpy()[j] + weight @ phi / noise[j]
            deviation = np.sqrt(spread * (1 / precision + noise[j]))
            answer[j] += stats.norm.logpdf(now, natural / precision, deviation).sum()
        return answer

    def log_input(self, x, past):
        return logsumexp(self.log_joint(x, past))

    def log_density(self, x, y, past, spread=1.0):
        joint = self.log_joint(x, past)
        return joint[int(y[0])] - logsumexp(joint)

    def log_outlier_input(self, x, past):
        return logsumexp(self.log_joint(x, past.empty, SPREAD))

    def log_outlier(self, x, y, past):
        return self.log_class(past.empty)[int(y[0])]


class Lstm(Reference):
    """A recurrent cell and its decoder; weights in the order input, forget, cell, output."""

    def features(self, x):
        offset, scale = self.model.x_offset.numpy(), self.model.x_scale.numpy()
        return network(self.model.encoder, (x - offset) / scale)

    def advance(self, x, state):
        (hidden, cell, label), m = state, self.model
        gates = m.weight_ih.numpy() @ np.concatenate((self.features(x), label))
        gates = gates + m.weight_hh.numpy() @ hidden + (m.bias_ih + m.bias_hh).numpy()
        i, f, g, o = np.split(gates, 4)
        cell = expit(f) * cell + expit(i) * np.tanh(g)
        return expit(o) * np.tanh(cell), cell

    def log_density(self, x, y, past, spread=1.0):
        offset, scale = self.model.y_offset.numpy(), self.model.y_scale.numpy()
        size, outputs = self.model.weight_hh.shape[1], len(offset)
        state = np.zeros(size), np.zeros(size), np.zeros(outputs)
        for before, label, w in zip(past.x, past.y, past.weight, strict=True):
            new = *self.advance(before, state), (label - offset) / scale
            state = tuple((1 - w) * a + w * b for a, b in zip(state, new, strict=True))
        hidden, _ = self.advance(x, state)
        out = network(self.model.decoder, np.concatenate((hidden, self.features(x))))
        mean, deviation = out[:outputs] * scale + offset, np.exp(out[outputs:] / 2) * scale
        return stats.norm.logpdf(y, mean, deviation * np.sqrt(spread)).sum()


_BY_CLASS = {
    "Gaussian": Gaussian,
    "Multivariate": Multivariate,
    "Poisson": Poisson,
    "BernoulliModel": Bernoulli,
    "CategoricalModel": Categorical,
    "Exponential": Exponential,
    "Gamma": Gamma,
    "Alpaca": Alpaca,
    "AlpacaMixture": AlpacaMixture,
    "Linear": Linear,
    "Autoregressive": Autoregressive,
    "Pcoc": Pcoc,
    "Lstm": Lstm,
}


def of(model, location: np.ndarray, scale: np.ndarray) -> Reference | None:
    """The reference of a model; None where a window has no likelihood of its own."""
    kind = _BY_CLASS.get(type(model).__name__)
    return None if kind is None else kind(model, location, scale)
