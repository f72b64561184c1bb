"""Labels, inputs and levels as users give them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from model_core import labels
from model_core.errors import BadInput
from model_core.upm.base import UnderlyingModel

Label = Any  # a number, a sequence of numbers, a mapping of them, or None or nan: missing


def levels(quantiles: Sequence[float]) -> list[float]:
    """Levels of quantiles in rising order; raises BadInput."""
    found = sorted(map(float, quantiles))
    if not found or not all(0 < each < 1 for each in found) or len(set(found)) < len(found):
        raise BadInput(f"quantiles: expected distinct levels between 0 and 1, got {quantiles!r}")
    return found


def elements(values: Any) -> list[Any]:
    """Elements of a list, an array, or a column or frame of pandas or polars."""
    if isinstance(values, str | bytes | Mapping):
        raise BadInput(f"expected a list or an array of observations, got {type(values).__name__}")
    if isinstance(values, list):
        return values
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    found: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return found


def numbers(name: str, value: Any) -> tuple[float, ...]:
    """Numbers of a label or an input, nan where missing; raises BadInput."""
    if value is None:
        return (math.nan,)
    if isinstance(value, float | int):
        return (float(value),)
    if isinstance(value, str | bytes):
        raise BadInput(f"{name}: expected a number or a list of numbers, got {value!r}")
    try:
        if isinstance(value, Mapping):
            value = value.values()
        if isinstance(value, Iterable) and not (isinstance(value, np.ndarray) and not value.ndim):
            return tuple(math.nan if each is None else float(each) for each in value)
        return (float(value),)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: expected a number or a list of numbers, got {value!r}") from error


def input_(x: Any) -> tuple[float, ...]:
    """Numbers of an input, none where there is none."""
    return () if x is None else numbers("x", x)


def check_label(found: tuple[float, ...], model: UnderlyingModel) -> None:
    """Raise BadInput for a label that the model cannot produce, or learn from."""
    if len(found) != model.y_dim:
        raise BadInput(f"y: expected {model.y_dim} numbers, got {len(found)}")
    given = [each for each in found if not math.isnan(each)]
    if len(given) < len(found) and not model.partial:
        raise BadInput(
            f"y: expected {model.y_dim} numbers, got {len(given)}: the model {model.kind} takes no "
            "labels with missing outputs; give None for the whole label, or use `joint`"
        )
    for each in given:
        if not abs(each) <= labels.LARGEST:
            raise BadInput(f"y: expected numbers up to {labels.LARGEST:g}, got {each:g}")
        expected = labels.mistake(each, model)
        if expected:
            raise BadInput(f"y: expected {expected}, got {each:g}")
