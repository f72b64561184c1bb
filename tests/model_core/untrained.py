"""Learned models of any size as they are before training.

Their encoders are small networks of random weights, the same in every run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from model_core.encoder import Mlp
from model_core.lazy import Tensor, torch
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.fleet import Fleet
from model_core.upm.pcoc import Pcoc

NOISE_ALPHA = 3.0
NOISE_BETA = 2.0


def alpaca(
    features: int = 32, inputs: int = 4, widths: tuple[int, ...] = (64, 64), lags: int = 0
) -> Alpaca:
    """Regression with a prior covariance that is no multiple of the identity.

    widths: of the encoder's hidden layers. inputs: 0 where the `lags` labels before are all.
    """
    draw = torch.Generator().manual_seed(0)
    factor = torch.eye(features, dtype=torch.float64) + 0.3 * _normal(draw, features, features)
    cov = factor @ factor.T / features**0.5
    one = torch.ones(1, dtype=torch.float64)
    return Alpaca(
        **_encoded(draw, inputs, (inputs + lags, *widths, features)),
        y_offset=0.5 * one,
        y_scale=2.0 * one,
        lags=lags,
        prior_mean=0.1 * _normal(draw, features, 1),
        prior_cov=0.5 * (cov + cov.T),
        noise_prior=NoisePrior(NOISE_ALPHA * one, NOISE_BETA * one),
    )


def pcoc(classes: int = 5) -> Pcoc:
    """Classifier of 4 inputs whose classes differ by their means."""
    features = 32
    draw = torch.Generator().manual_seed(0)
    ones = torch.ones(classes, features, dtype=torch.float64)
    return Pcoc(
        **_encoded(draw, 4, (4, 64, 64, features)),
        prior_mean=0.5 * _normal(draw, classes, features),
        prior_precision=torch.exp(0.3 * _normal(draw, classes, features)),
        noise_variance=ones,
        dirichlet=2.0 * ones[:, 0],
    )


def fleet(
    features: int = 32,
    inputs: int = 4,
    widths: tuple[int, ...] = (64, 64),
    lags: int = 0,
    chance: float = 0.5,
) -> Fleet:
    """The regression of `alpaca`, of unknown noise, among the parts of `averaged`."""
    learned = alpaca(features, inputs, widths, lags)
    assert learned.noise_prior is not None
    return Fleet(
        y_dim=1,
        encoder=learned.encoder,
        x_offset=learned.x_offset,
        x_scale=learned.x_scale,
        prior_mean=learned.prior_mean,
        prior_cov=learned.prior_cov,
        noise_alpha=learned.noise_prior.alpha,
        noise_beta=learned.noise_prior.beta,
        lags=lags,
        chance=chance,
    )


def _encoded(draw: torch.Generator, inputs: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Encoder with layers of these sizes, of inputs that are not scaled."""
    weights = tuple(_normal(draw, b, a) / a**0.5 for a, b in pairwise(sizes))
    biases = tuple(0.1 * _normal(draw, b) for b in sizes[1:])
    return {
        "encoder": Mlp(weights, biases, "relu", "tanh"),
        "x_offset": torch.zeros(inputs, dtype=torch.float64),
        "x_scale": torch.ones(inputs, dtype=torch.float64),
    }


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=torch.float64)
