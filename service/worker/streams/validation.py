"""What is checked against a stream as it is at a command's position in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from model_core import labels
from model_core.labels import LARGEST
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options
from service.problems import (
    DimensionMismatch,
    LabelOutOfRange,
    SeqConflict,
    SettingsConflict,
    UnfitSettings,
)
from service.wire import Head, Observation, Record, StreamSettings, numbers, partial

REMEDY = {"model": "move it to another model by POST /v1/streams/{id}/model"}
DELETE = "delete the stream first"
FIXED = (
    "model", "warmup", "location", "scale", "classes", "order", "trend", "season", "seasonal",
    "regimes",
)  # fmt: skip


class Dimensions(NamedTuple):
    """Numbers in a stream's inputs and labels; None where its first observation decides."""

    x_dim: int | None
    y_dim: int | None

    def after(self, seen: Observation | Record) -> Dimensions:
        """What is known after an observation: the first input and label decide."""
        x_dim, y_dim = self
        if x_dim is None and seen.x:
            x_dim = len(seen.x)
        if y_dim is None and seen.y is not None:
            y_dim = len(numbers(seen.y))
        return Dimensions(x_dim, y_dim)

    def after_all(self, observations: Iterable[Observation]) -> Dimensions:
        """What is known after several."""
        dimensions = self
        for seen in observations:
            if None not in dimensions:
                break
            dimensions = dimensions.after(seen)
        return dimensions


def check_position(expected: int | None, current: int) -> None:
    """Raise SeqConflict where a command expects its stream at another position."""
    if expected is not None and expected != current:
        detail = f"seq is {expected}, but the next observation is {current}"
        if expected < current:
            detail += f", and no pending label at seq {expected}"
        raise SeqConflict(detail, seq=current)


def check_observation(
    seen: Observation | Record, where: str, x_dim: int | None, y_dim: int | None
) -> None:
    """Raise DimensionMismatch or LabelOutOfRange, naming the field after `where`."""
    y = numbers(seen.y)
    given = _given(seen)
    if seen.y is not None and len(y) != y_dim:
        raise DimensionMismatch(f"{where}y: expected {_count(y_dim)}, got {len(y)}", field="y")
    if y and not given:
        raise DimensionMismatch(
            f"{where}y: expected at least one number, got none; a missing label is null", field="y"
        )
    check_input(seen.x, f"{where}x", x_dim)
    for field, values in (("y", given), ("x", seen.x or [])):
        if any(not abs(value) <= LARGEST for value in values):
            raise LabelOutOfRange(
                f"{where}{field}: expected numbers up to {LARGEST:g}", field=field
            )


def _given(seen: Observation | Record) -> list[float]:
    """Numbers of a label, without its missing outputs."""
    y = seen.y if isinstance(seen.y, list) else [seen.y]
    return [value for value in y if value is not None]


def plain(
    observations: Sequence[Observation], dimensions: Dimensions, model: UnderlyingModel
) -> bool:
    """Whether all are single numbers that any stream of the model takes; otherwise check each."""
    if model.label != "real" or dimensions.x_dim != 0 or dimensions.y_dim != 1:
        return False
    return all(map(plain_number, observations))


def plain_number(seen: Observation) -> bool:
    """Whether a label is a number that any stream of one takes, and there is no input."""
    y = seen.y
    return type(y) is float and -LARGEST <= y <= LARGEST and not seen.x


def check_inputs(inputs: list[list[float]], field: str, x_dim: int | None) -> None:
    """Raise DimensionMismatch for a list of inputs one of which does not fit."""
    for i, x in enumerate(inputs):
        check_input(x, f"{field}[{i}]", x_dim)
        if any(abs(value) > LARGEST for value in x):
            raise DimensionMismatch(
                f"{field}[{i}]: expected numbers up to {LARGEST:g}", field=field
            )


def check_input(x: list[float] | None, where: str, x_dim: int | None) -> None:
    """Raise DimensionMismatch for an input of the wrong length; None: any but none at all."""
    got = len(x) if x is not None else 0
    if got == x_dim or (x_dim is None and got):
        return
    if x_dim == 0:
        detail = (
            f"{where}: the stream's model takes no input, got {_count(got)}; use a model with "
            "inputs such as `linear`"
        )
    else:
        expected = "at least one number" if x_dim is None else _count(x_dim)
        detail = f"{where}: expected {expected}, got {got or 'none'}"
    raise DimensionMismatch(detail, field="x")


def _count(count: int | None) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def check_label(seen: Observation | Record, where: str, model: UnderlyingModel) -> None:
    """Raise for a label that the model cannot produce, or cannot learn from without all outputs.

    Raises LabelOutOfRange and DimensionMismatch.
    """
    given = _given(seen)
    if partial(seen.y) and not model.partial:
        raise DimensionMismatch(
            f"{where}y: expected {_count(model.y_dim)}, got {len(given)}: the model {model.kind} "
            "takes no labels with missing outputs; post null for the whole label, or use a trained "
            f"fleet or one of the built-in models that do: {_partial_models()}",
            field="y",
        )
    for value in given:
        expected = labels.mistake(value, model)
        if expected:
            raise LabelOutOfRange(f"{where}y: expected {expected}, got {value:g}", field="y")


@lru_cache(maxsize=1)
def _partial_models() -> str:
    """Built-in models that take labels with missing outputs."""
    shape = Options(y_dim=2, x_dim=1, classes=2)
    return ", ".join(name for name, built_in in BUILTIN.items() if built_in.build(shape).partial)


def check_prior(
    settings: StreamSettings, model: UnderlyingModel, dimensions: Dimensions
) -> Dimensions:
    """Raise where location and scale do not fit the model; returns what they tell of its shape."""
    _check_regimes(settings, model)
    if settings.seasonal:
        if model.label != "real" or dimensions.y_dim not in (None, 1):
            outputs = "any number of" if dimensions.y_dim is None else dimensions.y_dim
            raise UnfitSettings(
                "seasonal: expected a model of one real label, got one of "
                f"{outputs} {model.label} labels; leave the setting out",
                field="seasonal",
            )
        dimensions = dimensions._replace(y_dim=1)
    given = {"location": settings.location, "scale": settings.scale}
    for field, values in given.items():
        if values is None:
            continue
        if model.scales_inputs:
            detail = (
                f"{field}: a {model.kind} stream takes it from its warm-up, for its inputs as well"
            )
            raise UnfitSettings(detail, field=field)
        if dimensions.y_dim not in (None, len(values)):
            raise DimensionMismatch(f"{field}: expected {_count(dimensions.y_dim)}", field=field)
        dimensions = dimensions._replace(y_dim=len(values))
        positive = field == "scale" or model.label in ("count", "positive")
        least = 1 / LARGEST if positive else -LARGEST
        if any(not least <= value <= LARGEST for value in values):
            raise LabelOutOfRange(
                f"{field}: expected numbers between {least:g} and {LARGEST:g}", field=field
            )
    return dimensions


def _check_regimes(settings: StreamSettings, model: UnderlyingModel) -> None:
    if settings.regimes and not model.recalls:
        raise UnfitSettings(
            f"regimes: expected 0 for a model of kind {model.kind!r}, which remembers none, got "
            f"{settings.regimes}",
            field="regimes",
        )


def check_options(settings: StreamSettings) -> None:
    """Raise UnfitSettings for a setting that is missing, or that nothing can be done with."""
    model = BUILTIN.get(settings.model)
    for name in model.needs if model is not None else ():
        if getattr(settings, name) is None:
            raise UnfitSettings(f"{name}: model {settings.model} needs this setting", field=name)
    if isinstance(settings.hazard, tuple) and not any(settings.hazard):
        raise UnfitSettings("hazard: expected a table with an entry above 0", field="hazard")


def same_model(name: str, current: str) -> bool:
    """Whether a model's name means the one a stream has; without a version it always does."""
    return name in (current, current.partition("@")[0])


def check_settings(head: Head, given: dict[str, Any]) -> None:
    """Raise SettingsConflict where a setting that shaped the prior would change."""
    for name in FIXED:
        if name in given and given[name] != getattr(head.settings, name):
            raise SettingsConflict(
                f"{name} cannot change on a stream with observations; {REMEDY.get(name, DELETE)}",
                field=name,
            )
