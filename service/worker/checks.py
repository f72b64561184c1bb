"""What is checked against a stream as it is at a command's position in the log."""

from __future__ import annotations

from typing import Any

from service.errors import DimensionMismatch, LabelOutOfRange, SettingsConflict
from service.wire import Head, Observation, StreamSettings, numbers

# Squares and sums of squares of anything smaller stay finite, whatever the model does with them.
LARGEST = 1e100
LARGEST_COUNT = 1e12  # exact in a float, with room for sums of them
FIXED = ("model", "warmup", "location", "scale")


def check_observation(seen: Observation, where: str, x_dim: int, y_dim: int | None) -> None:
    """Raise DimensionMismatch or LabelOutOfRange, naming the field after `where`."""
    y = numbers(seen.y)
    if seen.y is not None and len(y) != y_dim:
        raise DimensionMismatch(f"{where}y: expected {y_dim} numbers, got {len(y)}", field="y")
    got = len(seen.x) if seen.x is not None else 0
    if got != x_dim:
        raise DimensionMismatch(f"{where}x: expected {x_dim} numbers, got {got}", field="x")
    for field, values in (("y", y), ("x", seen.x or [])):
        if any(not abs(value) <= LARGEST for value in values):
            raise LabelOutOfRange(
                f"{where}{field}: expected numbers up to {LARGEST:g}", field=field
            )


def check_label(seen: Observation, where: str, label: str) -> None:
    """Raise LabelOutOfRange for a label that the model cannot produce."""
    for value in numbers(seen.y):
        whole = value == int(value)
        if label == "count" and not (whole and 0 <= value <= LARGEST_COUNT):
            raise LabelOutOfRange(
                f"{where}y: expected a count of at most {LARGEST_COUNT:g}, got {value:g}", field="y"
            )
        if label == "binary" and value not in (0.0, 1.0):
            raise LabelOutOfRange(f"{where}y: expected 0 or 1, got {value:g}", field="y")


def check_prior(settings: StreamSettings, y_dim: int | None, label: str) -> int | None:
    """Raise where location and scale do not fit the model; returns the number of outputs."""
    given = {"location": settings.location, "scale": settings.scale}
    for field, values in given.items():
        if values is None:
            continue
        if y_dim is not None and len(values) != y_dim:
            raise DimensionMismatch(f"{field}: expected {y_dim} numbers", field=field)
        y_dim = len(values)
        least = 1 / LARGEST if field == "scale" or label == "count" else -LARGEST
        if any(not least <= value <= LARGEST for value in values):
            raise LabelOutOfRange(
                f"{field}: expected numbers between {least:g} and {LARGEST:g}", field=field
            )
    return y_dim


def same_model(name: str, current: str) -> bool:
    """Whether a model's name means the one a stream has; without a version it always does."""
    return name in (current, current.partition("@")[0])


def check_settings(head: Head, given: dict[str, Any]) -> None:
    """Raise SettingsConflict where a setting that shaped the prior would change."""
    for name in FIXED:
        if name in given and given[name] != getattr(head.settings, name):
            raise SettingsConflict(
                f"{name} cannot change on a stream with observations; delete the stream first",
                field=name,
            )
