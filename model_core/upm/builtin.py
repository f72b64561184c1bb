"""The models that are always there, as `NAME@VERSION`, in whatever size a stream needs.

A stream stays on the version that it was made with, and its stored states must be read: a model
that comes to say something else is a new version beside the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from model_core.upm.averaged import Averaged
from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import (
    BernoulliModel,
    CategoricalModel,
    Exponential,
    Gaussian,
    Poisson,
)
from model_core.upm.linear import Autoregressive, Linear
from model_core.upm.mixed_poisson import MixedPoisson
from model_core.upm.multivariate import Multivariate


class Options(NamedTuple):
    """What shapes a built-in model, from a stream's settings and its first observation."""

    y_dim: int = 1
    x_dim: int = 0
    classes: int = 0  # of a categorical model
    order: int = 1  # labels that an autoregressive model looks back
    trend: bool = False  # whether it has one
    season: int = 0  # its period in observations; 0: none


BUILTIN: dict[str, Callable[[Options], UnderlyingModel]] = {
    "gaussian@1": lambda options: Gaussian(y_dim=options.y_dim),
    "averaged@1": lambda options: Averaged(y_dim=options.y_dim),
    "poisson@1": lambda options: Poisson(),
    "poisson@2": lambda options: MixedPoisson(),
    "bernoulli@1": lambda options: BernoulliModel(),
    "linear@1": lambda options: Linear(y_dim=options.y_dim, x_dim=options.x_dim),
    "autoregressive@1": lambda options: Autoregressive(
        y_dim=options.y_dim, order=options.order, trend=options.trend, season=options.season
    ),
    "multivariate@1": lambda options: Multivariate(y_dim=options.y_dim),
    "categorical@1": lambda options: CategoricalModel(classes=options.classes),
    "exponential@1": lambda options: Exponential(),
}

# What a name without a version means: the last that is listed.
NEWEST = {full.partition("@")[0]: full for full in BUILTIN}


def build(reference: str, options: Options) -> UnderlyingModel:
    """Model of NAME or NAME@VERSION; raises KeyError."""
    return BUILTIN[NEWEST.get(reference, reference)](options)
