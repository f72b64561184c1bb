"""The models that are always there: `NAME@1`, for any number of outputs that makes sense."""

from __future__ import annotations

from collections.abc import Callable

from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import BernoulliModel, Gaussian, Poisson

BUILTIN: dict[str, Callable[[int], UnderlyingModel]] = {
    "gaussian": lambda y_dim: Gaussian(y_dim=y_dim),
    "poisson": lambda y_dim: Poisson(),
    "bernoulli": lambda y_dim: BernoulliModel(),
}
