"""Types of a stream's settings, made from `model_core/stream_settings.py`: `make client`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypedDict

from msgspec import Meta

# Default that pictures draw, and observations between the marks of anomalies.
ANOMALY_ALARM = 0.999
ALARM_SILENCE = 100
DRAWN = 6  # outputs in a picture, at most

Hazard = Annotated[
    float | list[float] | dict[str, float] | None,
    Meta(description="a number, a table by run length, or mean and shape of regime durations"),
]


class StreamSettings(TypedDict, total=False):
    """Settings of a stream; null: the model's, or none. Changes have the changed ones alone."""

    model: str
    tags: dict[str, str]
    hazard: Hazard
    max_hypotheses: int
    regimes: int
    outlier_rate: float | None
    false_alarm_every: float | None
    confirm_after: int | None
    min_size: float
    min_shift: float
    min_duration: int
    anomaly_alarm: float | None
    warmup: int
    location: list[float] | None
    scale: list[float] | None
    history: int
    classes: int | None
    order: int
    trend: bool
    season: int | None
    seasonal: bool | None
    interval: float | None
    ttl: float | None
    label_window: int


def drawn_outputs(outputs: int, changed: Iterable[int | None]) -> list[int]:
    """Outputs that a picture shows: all, or of many those that changed last, then the first.

    changed: of each confirmed change, the last one first; None: no output did by itself.
    """
    if outputs <= DRAWN:
        return list(range(outputs))
    by_rank = dict.fromkeys([i for i in changed if i is not None] + list(range(outputs)))
    return list(by_rank)[:DRAWN]
