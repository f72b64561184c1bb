"""Whether observations and settings fit a model: what a detector and a stream refuse alike."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from model_core.errors import OutOfRange, UnfitSetting, WrongLength
from model_core.labels import LARGEST, mistake
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options

# Settings that shape some built-in models, and mean nothing to the others and to artifacts.
SHAPING = tuple(name for name in Options._fields if name in StreamSettings._fields)


class Dimensions(NamedTuple):
    """Numbers in a series' inputs and labels; None where its first observation decides."""

    x_dim: int | None
    y_dim: int | None

    def after(self, x: Sequence[float] | None, y: Sequence[float | None]) -> Dimensions:
        """What is known after an observation; x, y: none, or empty, where it has none."""
        x_dim, y_dim = self
        if x_dim is None and x:
            x_dim = len(x)
        if y_dim is None and y:
            y_dim = len(y)
        return Dimensions(x_dim, y_dim)


def check_observation(
    x: Sequence[float] | None,
    y: Sequence[float | None],
    model: UnderlyingModel,
    dimensions: Dimensions,
    where: str = "",
) -> None:
    """Raise WrongLength or OutOfRange, naming the field after `where`.

    y: label, None where an output is missing; empty: it is missing as a whole. dimensions: as known
    before it.
    """
    if y:
        check_label(y, model, dimensions.after(x, y).y_dim, where)
    check_input(x, dimensions.x_dim, f"{where}x")


def check_label(
    y: Sequence[float | None], model: UnderlyingModel, y_dim: int | None, where: str = ""
) -> None:
    """Raise for a label that the model cannot produce, or cannot learn from without all outputs.

    y_dim: numbers in a label of the series. Raises as `check_observation`.
    """
    given = [value for value in y if value is not None]
    if len(y) != y_dim:
        raise WrongLength(f"{where}y: expected {_count(y_dim)}, got {len(y)}", "y")
    if not given:
        raise WrongLength(
            f"{where}y: expected at least one number, got none; a missing label is null", "y"
        )
    if len(given) < len(y) and not model.partial:
        raise WrongLength(
            f"{where}y: expected {_count(y_dim)}, got {len(given)}: the model {model.kind} takes "
            "no labels with missing outputs; leave out the whole label, or use a trained fleet or "
            f"one of the built-in models that do: {_partial_models()}",
            "y",
        )
    for value in given:
        if not abs(value) <= LARGEST:
            raise OutOfRange(f"{where}y: expected numbers up to {LARGEST:g}, got {value:g}", "y")
        expected = mistake(value, model)
        if expected:
            raise OutOfRange(f"{where}y: expected {expected}, got {value:g}", "y")


def check_input(x: Sequence[float] | None, x_dim: int | None, where: str = "x") -> None:
    """Raise for an input that does not fit; x_dim None: any but none at all does.

    Raises as `check_observation`.
    """
    got = len(x or ())
    if x_dim == 0 and got:
        raise WrongLength(
            f"{where}: the model takes no input, got {_count(got)}; use a model with inputs such "
            "as `linear`",
            "x",
        )
    if got != x_dim and (x_dim is not None or not got):
        expected = "at least one number" if x_dim is None else _count(x_dim)
        raise WrongLength(f"{where}: expected an input of {expected}, got {got or 'none'}", "x")
    for value in x or ():
        if not abs(value) <= LARGEST:
            raise OutOfRange(f"{where}: expected numbers up to {LARGEST:g}, got {value:g}", "x")


def check_options(
    model: str, settings: StreamSettings, stated: Collection[str] | None = None
) -> None:
    """Raise UnfitSetting where a model of this name needs another one, or cannot use one.

    stated: names of those that are asked for; None: all. What a stream brings along to another
    model stays without effect, so that it is there when the stream is moved back.
    """
    entry = BUILTIN.get(model)
    for name in entry.needs if entry else ():
        if getattr(settings, name) is None:
            raise UnfitSetting(f"{name}: model {model} needs this setting", name)
    for name in SHAPING:
        value = getattr(settings, name)
        default = getattr(DEFAULTS, name)
        asked = value != default and (stated is None or name in stated)
        if asked and not (entry and name in entry.takes):
            others = " or ".join(each for each in BUILTIN if name in BUILTIN[each].takes)
            raise UnfitSetting(
                f"{name}: expected {'none' if default is None else json.dumps(default)} for model "
                f"{model}, which cannot use it, got {json.dumps(value)}; leave it out, or choose "
                f"the model {others}",
                name,
            )
    if isinstance(settings.hazard, tuple) and not any(settings.hazard):
        raise UnfitSetting("hazard: expected a table with an entry above 0", "hazard")


def check_settings(
    settings: StreamSettings, model: UnderlyingModel, dimensions: Dimensions
) -> Dimensions:
    """Raise where settings do not fit a model; returns what they decide about its dimensions.

    Raises UnfitSetting, WrongLength and OutOfRange.
    """
    if settings.regimes and not model.recalls:
        raise UnfitSetting(
            f"regimes: expected 0 for a model of kind {model.kind!r}, which remembers none, got "
            f"{settings.regimes}",
            "regimes",
        )
    if settings.seasonal and model.label != "real":
        raise UnfitSetting(
            f"seasonal: expected a model of real labels, got one of {model.label} labels; leave "
            "the setting out",
            "seasonal",
        )
    return _check_moments(settings, model, dimensions)


def _check_moments(
    settings: StreamSettings, model: UnderlyingModel, dimensions: Dimensions
) -> Dimensions:
    """Location and scale, as `check_settings`."""
    for field in ("location", "scale"):
        values = getattr(settings, field)
        if values is None:
            continue
        if model.scales_inputs:
            raise UnfitSetting(
                f"{field}: a {model.kind} model takes it from the warm-up, for its inputs as well",
                field,
            )
        if dimensions.y_dim not in (None, len(values)):
            expected = _count(dimensions.y_dim)
            raise WrongLength(f"{field}: expected {expected}, got {len(values)}", field)
        dimensions = dimensions._replace(y_dim=len(values))
        if model.label in ("count", "positive") and min(values) < 1 / LARGEST:
            raise OutOfRange(
                f"{field}: expected numbers of at least {1 / LARGEST:g} for {model.label} labels, "
                f"got {min(values):g}",
                field,
            )
    return dimensions


def _count(count: int | None) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


@lru_cache(maxsize=1)
def _partial_models() -> str:
    """Built-in models that take labels with missing outputs."""
    shape = Options(y_dim=2, x_dim=1, classes=2)
    return ", ".join(name for name, built_in in BUILTIN.items() if built_in.build(shape).partial)
