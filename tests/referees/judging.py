"""Rows of what a referee found beside what was frozen, and the comparison of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of a referee's report. ok: None where nothing is judged, only shown."""

    what: str
    frozen: str
    now: str
    ok: bool | None


def worst(now: Any, frozen: Any) -> float:
    """Largest difference of two values of one form, relative above 1; inf where they differ."""
    if isinstance(now, dict) and isinstance(frozen, dict):
        if now.keys() != frozen.keys():
            return math.inf
        return max((worst(now[key], frozen[key]) for key in frozen), default=0.0)
    if isinstance(now, list) and isinstance(frozen, list):
        if len(now) != len(frozen):
            return math.inf
        return max((worst(*pair) for pair in zip(now, frozen, strict=True)), default=0.0)
    if isinstance(now, float | int) and isinstance(frozen, float | int):
        return abs(now - frozen) / max(1.0, abs(frozen))
    return 0.0 if now == frozen else math.inf


def flat(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers within a JSON value, by their paths."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, f"{name} {key}".strip())
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from flat(part, f"{name} {at}")
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield name, float(value)


def shown(now: dict[str, float], frozen: dict[str, float]) -> list[Row]:
    """A row for each number, none of them judged."""
    names = [*frozen, *(name for name in now if name not in frozen)]
    return [Row(name, _text(frozen.get(name)), _text(now.get(name)), None) for name in names]


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
