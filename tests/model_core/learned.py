"""References of the classifier and of the recurrent model, in numpy and scipy (see reference.py).

The recurrent one is the only one that goes through its window row by row: that is its definition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit, logsumexp

from tests.model_core.reference import SPREAD, Window

Layers = list[tuple[np.ndarray, np.ndarray]]


def network(layers: Layers, value: np.ndarray) -> np.ndarray:
    """Layers with ReLU between them and nothing after the last."""
    for i, (weight, bias) in enumerate(layers):
        value = value @ weight.T + bias
        if i < len(layers) - 1:
            value = np.maximum(value, 0)
    return value


class Pcoc(NamedTuple):
    """Gaussian discriminant analysis with diagonal covariances, from the whole window."""

    layers: Layers
    mean: np.ndarray
    precision: np.ndarray
    noise: np.ndarray
    dirichlet: np.ndarray
    x_scaling: tuple[np.ndarray, np.ndarray]

    def features(self, x):
        return network(self.layers, (x - self.x_scaling[0]) / self.x_scaling[1])

    def log_class(self, past: Window):
        classes = np.arange(len(self.dirichlet))
        counts = past.weight @ (past.y == classes) if len(past.y) else 0 * classes
        return np.log((self.dirichlet + counts) / (self.dirichlet + counts).sum())

    def log_joint(self, x, past: Window, spread: float = 1.0):
        """Log density of the features with each class."""
        phi, now, answer = self.features(past.x), self.features(x), self.log_class(past)
        for j in range(len(self.dirichlet)):
            weight = past.weight * (past.y[:, 0] == j)
            precision = self.precision[j] + weight.sum() / self.noise[j]
            natural = self.precision[j] * self.mean[j] + weight @ phi / self.noise[j]
            deviation = np.sqrt(spread * (1 / precision + self.noise[j]))
            answer[j] += stats.norm.logpdf(now, natural / precision, deviation).sum()
        return answer

    def log_input(self, x, past):
        return logsumexp(self.log_joint(x, past))

    def log_density(self, x, y, past):
        joint = self.log_joint(x, past)
        return joint[int(y[0])] - logsumexp(joint)

    def log_outlier_input(self, x):
        return logsumexp(self.log_joint(x, nothing(x), SPREAD))

    def log_outlier(self, x, y):
        return self.log_class(nothing(x))[int(y[0])]


class Lstm(NamedTuple):
    """A recurrent cell and its decoder; weights in the order input, forget, cell, output."""

    layers: Layers
    input_weight: np.ndarray
    hidden_weight: np.ndarray
    bias: np.ndarray
    decoder: Layers
    x_scaling: tuple[np.ndarray, np.ndarray]
    y_scaling: tuple[np.ndarray, np.ndarray]

    def features(self, x):
        return network(self.layers, (x - self.x_scaling[0]) / self.x_scaling[1])

    def _advance(self, x, state):
        hidden, cell, label = state
        gates = self.input_weight @ np.concatenate((self.features(x), label))
        i, f, g, o = np.split(gates + self.hidden_weight @ hidden + self.bias, 4)
        cell = expit(f) * cell + expit(i) * np.tanh(g)
        return expit(o) * np.tanh(cell), cell

    def _normal(self, x, past):
        size, outputs = self.hidden_weight.shape[1], len(self.y_scaling[0])
        state = np.zeros(size), np.zeros(size), np.zeros(outputs)
        for before, y, w in zip(past.x, past.y, past.weight, strict=True):
            new = *self._advance(before, state), (y - self.y_scaling[0]) / self.y_scaling[1]
            state = tuple((1 - w) * a + w * b for a, b in zip(state, new, strict=True))
        hidden, _ = self._advance(x, state)
        out = network(self.decoder, np.concatenate((hidden, self.features(x))))
        offset, scale = self.y_scaling
        return out[:outputs] * scale + offset, np.exp(out[outputs:] / 2) * scale

    def log_density(self, x, y, past):
        return stats.norm.logpdf(y, *self._normal(x, past)).sum()

    def log_outlier(self, x, y):
        mean, scale = self._normal(x, Window(x[None][:0], y[None][:0], np.zeros(0)))
        return stats.norm.logpdf(y, mean, scale * np.sqrt(SPREAD)).sum()


def nothing(x: np.ndarray) -> Window:
    """No observations, of inputs like `x` and one number for a label."""
    return Window(x[None][:0], np.zeros((0, 1)), np.zeros(0))
