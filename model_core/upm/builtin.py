"""The models that are always there, as `NAME@1`, in whatever size a stream needs."""

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
    "gaussian": lambda options: Gaussian(y_dim=options.y_dim),
    "averaged": lambda options: Averaged(y_dim=options.y_dim),
    "poisson": lambda options: Poisson(),
    "bernoulli": lambda options: BernoulliModel(),
    "linear": lambda options: Linear(y_dim=options.y_dim, x_dim=options.x_dim),
    "autoregressive": lambda options: Autoregressive(
        y_dim=options.y_dim, order=options.order, trend=options.trend, season=options.season
    ),
    "multivariate": lambda options: Multivariate(y_dim=options.y_dim),
    "categorical": lambda options: CategoricalModel(classes=options.classes),
    "exponential": lambda options: Exponential(),
}
