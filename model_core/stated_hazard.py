"""Hazards as settings, artifacts and snapshots state them, and the table that each stands for.

Stated is a number, a table by run length, or `{"mean": m, "shape": k}` of regime durations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core import hazard as hazards
from model_core.stream_settings import DURATIONS, Durations, Hazard


def stated(value: Any) -> Hazard:
    """Return a hazard as it was stated; raises ValueError for what is none."""
    try:
        if isinstance(value, Mapping):
            return _durations(value)
        if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes):
            return hazards.checked(list(map(_number, value)))
        (number,) = hazards.checked(_number(value))
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error
    if number == 1:
        raise ValueError(f"expected a hazard below 1, got {value!r}")
    return number


def _durations(value: Mapping[str, Any]) -> Durations:
    if set(value) != set(DURATIONS):
        raise ValueError(f"expected `mean` and `shape` of regime durations, got {value!r}")
    for name, meaning in DURATIONS.items():
        if not meaning.allows(_number(value[name])):
            raise ValueError(f"{name}: expected a number {meaning.words()}, got {value[name]!r}")
    return Durations(mean=float(value["mean"]), shape=float(value["shape"]))


def _number(value: Any) -> float:
    """A number; text and truth values are none."""
    if isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError(f"expected a number, a table or durations, got {value!r}")
    return float(value)


def table(hazard: Hazard) -> NDArray[np.float64]:
    """Hazards (H,) by run length, of which the last entry holds on; not to be changed.

    Tables may have thousands of entries: they are made once.
    """
    if isinstance(hazard, dict):
        return _table((hazard["mean"], hazard["shape"]), True)
    return _table(hazard if isinstance(hazard, tuple) else (hazard,), False)


@lru_cache(maxsize=256)
def _table(numbers: tuple[float, ...], durations: bool) -> NDArray[np.float64]:
    entries = hazards.negative_binomial(*numbers) if durations else numbers
    return np.asarray(entries, dtype=np.float64)
