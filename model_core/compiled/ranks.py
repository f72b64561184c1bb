"""The anomaly of an observation, for compiled callers."""

from __future__ import annotations

from collections.abc import Callable

from model_core import anomaly
from model_core.compiled.jit import either

for _function in (
    anomaly.merge, anomaly.rank, anomaly.missing, anomaly.distance, anomaly.observe,
):  # fmt: skip
    either(_function)
observe: Callable[..., float] = anomaly.observe
