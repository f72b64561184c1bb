"""Small instances of the classifier and of the recurrent model, each beside its reference."""

from __future__ import annotations

import numpy as np

from model_core.encoder import Mlp
from model_core.upm import lstm, pcoc
from tests.model_core import learned
from tests.model_core.case import Case, irregular, tensor


def network(*sizes: int) -> tuple[learned.Layers, Mlp]:
    """Irregular layers with ReLU between them, for the reference and for the model."""
    layers = [
        (irregular(b, a, seed=a + b) / a**0.5, 0.3 * irregular(b, seed=b))
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    weights, biases = ([tensor(a) for a in each] for each in zip(*layers, strict=True))
    return layers, Mlp(tuple(weights), tuple(biases))


def scaling(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return irregular(size, seed=seed), 1.2 + 0.5 * irregular(size, seed=seed + 1)


def pcoc_case(classes: int = 3, features: int = 4) -> Case:
    """Classes whose means and frequencies move between regimes."""
    layers, encoder = network(3, 5, features)
    mean = irregular(classes, features, seed=8)
    precision, noise = (np.exp(0.5 * irregular(classes, features, seed=s)) for s in (9, 10))
    dirichlet, x_scaling = np.exp(irregular(classes, seed=11)), scaling(3, 12)
    truth = learned.Pcoc(layers, mean, precision, noise, dirichlet, x_scaling)
    model = pcoc.Pcoc(
        encoder=encoder,
        prior_mean=tensor(mean),
        prior_precision=tensor(precision),
        noise_variance=tensor(noise),
        dirichlet=tensor(dirichlet),
        x_offset=tensor(x_scaling[0]),
        x_scale=tensor(x_scaling[1]),
        hazard=0.1,
    )

    def draw(rng, steps):
        late = np.arange(steps) >= steps // 2
        y = np.where(late, rng.integers(classes, size=steps), rng.integers(2, size=steps))
        centre = np.where(late, 1 - y, y)[:, None]
        return centre + rng.normal(size=(steps, 3)), y[:, None].astype(float)

    return Case(f"pcoc-{classes}", model, np.zeros(1), np.ones(1), truth, draw)


def lstm_case(y_dim: int = 2, features: int = 3, hidden: int = 4) -> Case:
    layers, encoder = network(2, 6, features)
    decoder_layers, decoder = network(hidden + features, 5, 2 * y_dim)
    into = irregular(4 * hidden, features + y_dim, seed=13)
    back, (bias, other) = irregular(4 * hidden, hidden, seed=14), irregular(2, 4 * hidden, seed=15)
    x_scaling, y_scaling = scaling(2, 16), scaling(y_dim, 18)
    truth = learned.Lstm(layers, into, back, bias + other, decoder_layers, x_scaling, y_scaling)
    model = lstm.Lstm(
        encoder=encoder,
        weight_ih=tensor(into),
        weight_hh=tensor(back),
        bias_ih=tensor(bias),
        bias_hh=tensor(other),
        decoder=decoder,
        x_offset=tensor(x_scaling[0]),
        x_scale=tensor(x_scaling[1]),
        y_offset=tensor(y_scaling[0]),
        y_scale=tensor(y_scaling[1]),
        hazard=0.1,
    )

    def draw(rng, steps):
        x = rng.normal(size=(steps, 2))
        return x, y_scaling[0] + y_scaling[1] * rng.normal(size=(steps, y_dim))

    return Case(f"lstm-{y_dim}", model, np.zeros(y_dim), np.ones(y_dim), truth, draw)
