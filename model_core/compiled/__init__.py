"""Compiled steps: `filter.step` on rows in place, at the price of its arithmetic.

The eager filter is the specification; a kernel differs from it by rounding alone, and refuses every
row whose numbers are not finite. Models of a class that has a kernel are stepped by it on the CPU;
the eager filter steps all others, and those on other devices.

Kernels are compiled at installation, by `python -m model_core.compiled`, and loaded from its cache.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import Conjugate

if TYPE_CHECKING:
    from model_core.compiled.interface import Functions, Model
    from model_core.compiled.kernel import Kernel

# Columns of the inputs of a row; the label's and the input's numbers follow.
LABELLED, ELAPSED, CHANGEPOINT, OUTLIER_RATE, SETTLED, SINCE, THRESHOLD, LABEL = range(8)
# What a kernel is called with where quantiles, or beliefs after each step, are not wanted.
NO_LEVELS = np.empty((2, 0))
NO_BELIEFS = np.empty((0, 2, 0))

# Module below `models` whose `of` has the sizes and functions of a model, by the model's module;
# of conjugate models of any module of `model_core.upm` it is `CONJUGATE`.
CONJUGATE = "conjugate"
_BUILT_IN = {
    "model_core.upm.averaged": "averaged",
    "model_core.upm.joint": "joint",
    "model_core.upm.linear": "regression",
    "model_core.upm.multivariate": "multivariate",
}
# Of models with an encoder: torch computes the features, which the kernel takes as its inputs.
_LEARNED = {
    "model_core.upm.alpaca": "regression",
    "model_core.upm.pcoc": "pcoc",
    "model_core.upm.fleet": "fleet",
}


def kernel_of(model: UnderlyingModel) -> Kernel | None:
    """Return the kernel of a model, compiled or loaded from the cache; None: it has none.

    Loading the first of a class takes a fraction of a second, compiling it up to a minute, which it
    says. Models of one class share what is compiled, whatever their sizes and weights. Any thread
    may call this.
    """
    # A learned model is not kept here: its weights would never be given back.
    return _kernel_of(model) if _built_in(model) else _made(model)


@lru_cache(maxsize=256)
def _kernel_of(model: UnderlyingModel) -> Kernel | None:
    return _made(model)


def parts_of(model: UnderlyingModel) -> tuple[Model, Functions] | None:
    """Sizes of a model and what it computes in a step; None: it has no kernel."""
    kind = _built_in(model) or _LEARNED.get(_module(model))
    if kind is None:
        return None
    parts: tuple[Model, Functions] | None
    parts = import_module(f"model_core.compiled.models.{kind}").of(model)
    return parts


def _made(model: UnderlyingModel) -> Kernel | None:
    parts = parts_of(model)
    if parts is None:
        return None
    from model_core.compiled.kernel import Kernel

    # Kernels need only the features of the encoder.
    encode = getattr(model, "features", model.encode) if _module(model) in _LEARNED else None
    return Kernel(model, *parts, encode)


def _built_in(model: UnderlyingModel) -> str | None:
    module = _module(model)
    if isinstance(model, Conjugate) and module.startswith("model_core.upm."):
        return CONJUGATE
    return _BUILT_IN.get(module)


def _module(model: UnderlyingModel) -> str:
    """Of the class itself: a subclass elsewhere may compute something else."""
    return type(model).__module__
