"""The models that are always there, as `NAME@VERSION`, in whatever size a stream needs.

One line of the table for each; no torch here until a model is built. Tests then ask for the rest:
a case with its reference, golden states, a kind for the worker's tests, curves of sensitivity, and
a row in docs/models.md and docs/streams.md. A stream stays on the version
that it was made with, and its stored states must be read: a model that comes to say something else
is a new version beside the old one.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
    """One version of a built-in model.

    kind: name of the family, kept in stored states. path: module and class below `model_core.upm`.
    takes: options that its class has. x_dim, y_dim: None where a stream's first input or label
    decides. needs: settings without which no stream is made. simulated: the shape in which its
    sensitivity is calibrated.
    """

    reference: str
    kind: str
    path: str
    description: str
    takes: tuple[str, ...] = ()
    y_dim: int | None = 1
    x_dim: int | None = 0
    needs: tuple[str, ...] = ()
    simulated: Options = Options()

    def build(self, options: Options) -> UnderlyingModel:
        """Return the model in this shape."""
        module, _, name = self.path.partition(":")
        made = getattr(import_module(f"model_core.upm.{module}"), name)
        return cast(
            "UnderlyingModel", made(**{each: getattr(options, each) for each in self.takes})
        )


_TABLE = (
    BuiltIn(
        "gaussian@1", "gaussian", "conjugate:Gaussian",
        "Unknown mean and variance per regime; one or more independent numeric labels.",
        takes=("y_dim",), y_dim=None,
    ),
    BuiltIn(
        "averaged@1", "averaged", "averaged:Averaged",
        "Earlier version: normal noise alone, and forecasts that may run away.",
        takes=("y_dim",), y_dim=None,
    ),
    BuiltIn(
        "averaged@2", "robust-averaged", "robust_averaged:RobustAveraged",
        "A level, a line or an autoregression per regime, averaged by evidence; numeric labels.",
        takes=("y_dim",), y_dim=None,
    ),
    BuiltIn(
        "poisson@1", "poisson", "conjugate:Poisson",
        "Earlier version: treats a lasting jump by a factor of 100 as outliers forever.",
    ),
    BuiltIn(
        "poisson@2", "mixed-poisson", "mixed_poisson:MixedPoisson",
        "Counts with an unknown rate per regime, and lasting jumps by large factors.",
    ),
    BuiltIn(
        "bernoulli@1", "bernoulli", "conjugate:BernoulliModel",
        "Labels 0 and 1 with an unknown probability per regime.",
    ),
    BuiltIn(
        "linear@1", "linear", "linear:Linear",
        "Linear regression on the inputs with unknown noise; one or more numeric labels.",
        takes=("y_dim", "x_dim"), y_dim=None, x_dim=None, simulated=Options(x_dim=1),
    ),
    BuiltIn(
        "autoregressive@1", "autoregressive", "linear:Autoregressive",
        "Regression on the stream's own last `order` labels, with a `trend` and a `season` if set.",
        takes=("y_dim", "order", "trend", "season"), y_dim=None,
    ),
    BuiltIn(
        "multivariate@1", "multivariate", "multivariate:Multivariate",
        "Unknown means and covariance per regime; correlated numeric labels.",
        takes=("y_dim",), y_dim=None, simulated=Options(y_dim=2),
    ),
    BuiltIn(
        "joint@1", "joint", "joint:Joint",
        "Independent outputs or a vector autoregression per regime, averaged by evidence.",
        takes=("y_dim",), y_dim=None, simulated=Options(y_dim=2),
    ),
    BuiltIn(
        "categorical@1", "categorical", "conjugate:CategoricalModel",
        "Class indices with unknown probabilities per regime; requires the setting `classes`.",
        takes=("classes",), needs=("classes",), simulated=Options(classes=4),
    ),
    BuiltIn(
        "exponential@1", "exponential", "conjugate:Exponential",
        "Positive durations with an unknown rate per regime.",
    ),
)  # fmt: skip

BUILTIN = {each.reference: each for each in _TABLE}
# What a name without a version means: the last that is listed.
NEWEST = {full.partition("@")[0]: full for full in BUILTIN}
# Settings that change what a model looks at, beside its dimensions.
SHAPES = tuple(name for name in Options._fields if name not in ("y_dim", "x_dim", "classes"))


def build(reference: str, options: Options) -> UnderlyingModel:
    """Model of NAME or NAME@VERSION; raises KeyError."""
    return BUILTIN[NEWEST.get(reference, reference)].build(options)


@lru_cache(maxsize=1)
def curves() -> dict[str, dict[str, Any]]:
    """What was simulated of false alarms, by reference; see `model_core.sensitivity`."""
    stored = Path(__file__).with_name("sensitivity.json")
    found: dict[str, dict[str, Any]] = json.loads(stored.read_text())
    return found
