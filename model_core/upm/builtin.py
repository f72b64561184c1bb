"""The built-in models, by name, in whatever size a stream needs.

One line of the table for each; no torch here until a model is built. Tests then ask for a case with
its reference, a kind for the worker's tests, and a row in docs/models.md. Only published trained
models have versions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from model_core.upm.base import UnderlyingModel


class Options(NamedTuple):
    """What shapes a built-in model, from a stream's settings and its first observation."""

    y_dim: int = 1
    x_dim: int = 0
    classes: int = 0  # of a categorical model
    order: int = 1  # labels that an autoregressive model looks back
    trend: bool = False  # whether it has one
    season: int = 0  # its period in observations; 0: none


class BuiltIn(NamedTuple):
    """A built-in model.

    path: module and class below `model_core.upm`. takes: options that its class has. x_dim, y_dim:
    None where a stream's first input or label decides. needs: settings without which no stream is
    made. example: a shape in which its kernel is compiled, and its step measured.
    """

    name: str
    path: str
    description: str
    takes: tuple[str, ...] = ()
    y_dim: int | None = 1
    x_dim: int | None = 0
    needs: tuple[str, ...] = ()
    example: Options = Options()

    def build(self, options: Options) -> UnderlyingModel:
        """Return the model in this shape."""
        module, _, name = self.path.partition(":")
        made = getattr(import_module(f"model_core.upm.{module}"), name)
        return cast(
            "UnderlyingModel", made(**{option: getattr(options, option) for option in self.takes})
        )


_TABLE = (
    BuiltIn(
        "gaussian", "conjugate:Gaussian",
        "Unknown mean and variance per regime; one or more independent numeric labels.",
        takes=("y_dim",), y_dim=None,
    ),
    BuiltIn(
        "averaged", "averaged:Averaged",
        "A level, a line or an autoregression per regime, averaged by evidence; numeric labels.",
        takes=("y_dim",), y_dim=None,
    ),
    BuiltIn(
        "poisson", "conjugate:Poisson",
        "Counts with an unknown rate per regime, and lasting jumps by large factors.",
    ),
    BuiltIn(
        "bernoulli", "conjugate:BernoulliModel",
        "Labels 0 and 1 with an unknown probability per regime.",
    ),
    BuiltIn(
        "linear", "linear:Linear",
        "Linear regression on the inputs with unknown noise; one or more numeric labels.",
        takes=("y_dim", "x_dim"), y_dim=None, x_dim=None, example=Options(x_dim=1),
    ),
    BuiltIn(
        "autoregressive", "linear:Autoregressive",
        "Regression on the stream's own last `order` labels, with a `trend` and a `season` if set.",
        takes=("y_dim", "order", "trend", "season"), y_dim=None,
    ),
    BuiltIn(
        "multivariate", "multivariate:Multivariate",
        "Unknown means and covariance per regime; correlated numeric labels.",
        takes=("y_dim",), y_dim=None, example=Options(y_dim=2),
    ),
    BuiltIn(
        "joint", "joint:Joint",
        "Independent outputs or outputs with a covariance per regime, averaged by evidence.",
        takes=("y_dim",), y_dim=None, example=Options(y_dim=2),
    ),
    BuiltIn(
        "categorical", "conjugate:CategoricalModel",
        "Class indices with unknown probabilities per regime; requires the setting `classes`.",
        takes=("classes",), needs=("classes",), example=Options(classes=4),
    ),
    BuiltIn(
        "exponential", "conjugate:Exponential",
        "Positive durations with an unknown rate per regime.",
    ),
    BuiltIn(
        "gamma", "gamma:Gamma",
        "Positive durations with an unknown rate and shape per regime.",
    ),
)  # fmt: skip

BUILTIN = {entry.name: entry for entry in _TABLE}


def build(name: str, options: Options) -> UnderlyingModel:
    """A built-in model by name; raises KeyError."""
    return BUILTIN[name].build(options)
