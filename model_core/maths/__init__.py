"""The mathematics of the models, written once: functions of numbers, slot by slot.

Each module here is ordinary Python that takes its elementary functions from `maths.ops`, as do the
equations of a model that stand beside its class. `bound` gives the same module with those of a
backend in their place: numba compiles its functions into loops over slots (`arithmetic.maths` in
`compiled`), torch computes them on whole tensors (`tensor_ops.maths`), and Python itself is the
slow third, for one number at a time. None of them may branch on a value: `where` chooses.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_PACKAGE = __name__


def bound(
    name: str, ops: ModuleType, function: Callable[[Any], Any] = lambda own: own
) -> ModuleType:
    """Instantiate a module of mathematics with the elementary functions of a backend.

    name: of the module, below this package or in full. ops: has what `maths.ops` has. function:
    what each of its functions becomes; they call one another as that. Modules, not rebound
    functions, so that compilers which look names up in a function's module find the backend's.
    """
    name = name.removeprefix(f"{_PACKAGE}.")
    own_name = f"{ops.__name__}.{name}"
    if own_name in sys.modules:
        return sys.modules[own_name]
    # Classes of a module are made anew in its instance, as their decorators find them by name.
    spec = importlib.import_module(name if "." in name else f"{_PACKAGE}.{name}").__spec__
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__name__ = own_name
    for key, value in vars(module).copy().items():
        home = getattr(value, "__module__", None)
        if not isinstance(value, FunctionType):
            continue
        if home == f"{_PACKAGE}.ops":
            setattr(module, key, getattr(ops, key))
        elif home == spec.name:
            setattr(module, key, function(value))
        elif home is not None and home.startswith(f"{_PACKAGE}."):
            other = bound(home, ops, function)
            setattr(module, key, getattr(other, key))
    sys.modules[own_name] = module
    return module


def counterpart(
    function: Callable[..., Any], maths: Callable[[str], ModuleType]
) -> Callable[..., Any]:
    """A function of mathematics as a backend has it, by that backend's `maths`."""
    bound_function: Callable[..., Any] = getattr(maths(function.__module__), function.__name__)
    return bound_function
