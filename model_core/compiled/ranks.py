"""The anomaly of an observation, for compiled callers."""

from __future__ import annotations

from collections.abc import Callable

from model_core import anomaly
from model_core.compiled.jit import LINEWISE, either

_ALONG_LINES = anomaly.lower, anomaly.weigh, anomaly.least
LINEWISE.update(_ALONG_LINES)
for _function in (
    *_ALONG_LINES, anomaly.insert, anomaly.rank, anomaly.missing, anomaly.distance, anomaly.observe,
):  # fmt: skip
    either(_function)
observe: Callable[..., float] = anomaly.observe
