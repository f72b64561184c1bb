"""Learned models of any size as they are before training: for measurements, and to compile kernels.

Their encoders are small networks of random weights, the same in every run.
"""

from __future__ import annotations

from itertools import pairwise

from model_core.encoder import Mlp
from model_core.lazy import Tensor, torch
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.fleet import Fleet
from model_core.upm.pcoc import Pcoc

NOISE_ALPHA = 3.0
NOISE_BETA = 2.0


def alpaca(
    features: int = 32,
    inputs: int = 4,
    outputs: int = 1,
    widths: tuple[int, ...] = (64, 64),
    lags: int = 0,
    known_noise: bool = False,
    seed: int = 0,
) -> Alpaca:
    """Regression with a prior covariance that is no multiple of the identity.

    widths: of the encoder's hidden layers. inputs: 0 where the `lags` labels before are all.
    """
    draw = torch.Generator().manual_seed(seed)
    factor = torch.eye(features, dtype=torch.float64) + 0.3 * _normal(draw, features, features)
    cov = factor @ factor.T / features**0.5
    ones = torch.ones(outputs, dtype=torch.float64)
    return Alpaca(
        encoder=_network(draw, (inputs + lags * outputs, *widths, features)),
        x_offset=torch.zeros(inputs, dtype=torch.float64),
        x_scale=torch.ones(inputs, dtype=torch.float64),
        y_offset=0.5 * ones,
        y_scale=2.0 * ones,
        lags=lags,
        prior_mean=0.1 * _normal(draw, features, outputs),
        prior_cov=0.5 * (cov + cov.T),
        noise_variance=0.3 * ones if known_noise else None,
        noise_prior=None if known_noise else NoisePrior(NOISE_ALPHA * ones, NOISE_BETA * ones),
    )


def pcoc(
    classes: int = 5,
    features: int = 32,
    inputs: int = 4,
    widths: tuple[int, ...] = (64, 64),
    seed: int = 0,
) -> Pcoc:
    """Classifier whose classes differ by their means."""
    draw = torch.Generator().manual_seed(seed)
    ones = torch.ones(classes, features, dtype=torch.float64)
    return Pcoc(
        encoder=_network(draw, (inputs, *widths, features)),
        prior_mean=0.5 * _normal(draw, classes, features),
        prior_precision=torch.exp(0.3 * _normal(draw, classes, features)),
        noise_variance=ones,
        dirichlet=2.0 * ones[:, 0],
        x_offset=torch.zeros(inputs, dtype=torch.float64),
        x_scale=torch.ones(inputs, dtype=torch.float64),
    )


def fleet(
    features: int = 32,
    inputs: int = 4,
    outputs: int = 1,
    widths: tuple[int, ...] = (64, 64),
    lags: int = 0,
    chance: float = 0.5,
    seed: int = 0,
) -> Fleet:
    """The regression of `alpaca`, of unknown noise, among the parts of `averaged`."""
    learned = alpaca(features, inputs, outputs, widths, lags, seed=seed)
    assert learned.noise_prior is not None
    return Fleet(
        y_dim=outputs,
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


def _network(draw: torch.Generator, sizes: tuple[int, ...]) -> Mlp:
    weights = tuple(_normal(draw, b, a) / a**0.5 for a, b in pairwise(sizes))
    biases = tuple(0.1 * _normal(draw, b) for b in sizes[1:])
    return Mlp(weights, biases, "relu", "tanh")


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=torch.float64)
