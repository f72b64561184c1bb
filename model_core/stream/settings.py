"""Settings of a detector as it is given them, and its model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_core.artifact_digest import digest
from model_core.errors import BadInput
from model_core.hazard import stated
from model_core.stream import checks, columns
from model_core.stream.local import Rules
from model_core.stream_settings import TABLE, Setting, StreamSettings
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options
from model_core.wording import did_you_mean


def checked(settings: Mapping[str, Any]) -> StreamSettings:
    """Settings of these names and values, None for the default; raises BadInput.

    Those that only the service has stay at their defaults.
    """
    known = [setting.name for setting in TABLE.values() if setting.meaning.detector]
    for name in settings:
        if name in known:
            continue
        if name in TABLE:
            raise BadInput(
                f"{name}: a setting of streams of the service alone; a detector has no use for it"
            )
        meant = did_you_mean(name, known) or f"; it has {', '.join(known)}"
        raise BadInput(f"{name}: a detector has no such setting{meant}")
    values = {name: _value(TABLE[name], value) for name, value in settings.items()}
    if values.get("false_alarm_every") is None:
        values.pop("false_alarm_every", None)
    if values.get("confirm_after") is not None:
        if "false_alarm_every" in values:
            raise BadInput(
                "confirm_after: not allowed together with false_alarm_every; leave one of them out"
            )
        values["false_alarm_every"] = None
    return StreamSettings(**values)


def _value(setting: Setting, value: Any) -> Any:
    """A setting's value in its type; raises BadInput."""
    if value is None:
        return None if setting.optional else setting.default
    if setting.name == "hazard":
        try:
            return stated(value)
        except ValueError as error:
            raise BadInput(
                f"hazard: {error}; it is the probability that a regime ends at a step"
            ) from error
    if setting.type is bool:
        if not isinstance(value, bool):
            raise BadInput(f"{setting.name}: expected True or False, got {value!r}")
        return value
    if setting.type == list[float]:
        several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        numbers = [_number(setting, number) for number in (value if several else [value])]
        if not numbers:
            raise BadInput(f"{setting.name}: expected at least one number, got none")
        return numbers
    number = _number(setting, value)
    return int(number) if setting.type is int else number


def _number(setting: Setting, value: Any) -> float:
    """A number within a setting's bounds; text and truth values are none."""
    number = math.nan
    if not isinstance(value, str | bytes | bool | np.bool_):
        with suppress(OverflowError, TypeError, ValueError):
            number = float(value)
    whole = setting.type is int
    allowed = math.isfinite(number) and setting.meaning.allows(number)
    if not allowed or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        limits = setting.meaning.words()
        kind = f"{kind} {limits}" if limits else kind
        raise BadInput(f"{setting.name}: expected {kind}, got {value!r}")
    return number


class Chosen(NamedTuple):
    """A model by what it is known as: a reference of a built-in one, the folder of an artifact."""

    reference: str | None
    folder: str | None
    model: UnderlyingModel | None  # None: built once labels have shown their dimensions
    digest: str | None = None  # what tells an artifact from another in its folder

    @property
    def name(self) -> str:
        """What answers call it."""
        if self.reference is not None:
            return self.reference
        if self.folder is not None:
            return "@".join(Path(self.folder).parts[-2:])
        assert self.model is not None
        return self.model.kind


def chosen(model: str | os.PathLike[str] | UnderlyingModel | None) -> Chosen | None:
    """A model by name, folder or itself; None: labels decide. Raises BadInput or BadArtifact."""
    if model is None:
        return None
    if isinstance(model, UnderlyingModel):
        return Chosen(None, None, model)
    if not isinstance(model, str | os.PathLike):
        raise BadInput(f"model: expected a name, a folder or a model of one's own, got {model!r}")
    name = os.fspath(model)
    if name in BUILTIN:
        return Chosen(name, None, None)
    folder = Path(name)
    if folder.is_dir():
        from model_core import artifact  # built-in models need none of its packages

        return Chosen(None, str(folder), artifact.load(folder, "cpu"), digest(folder))
    meant = did_you_mean(name, BUILTIN) or f"; built in are {', '.join(BUILTIN)}"
    raise BadInput(
        f"model: there is no built-in model and no folder of an artifact {name!r}{meant}"
    )


def described(choice: Chosen | None, named: bool) -> dict[str, Any]:
    """Which model a file of a detector is of. named: whether it was, or chosen by a label."""
    choice = choice or Chosen(None, None, None)
    own = choice.model if choice.folder is None else None
    return {
        "named": named,
        "reference": choice.reference,
        "folder": choice.folder,
        "own": None if own is None else own.kind,
        "digest": choice.digest,
    }


def dimensions(choice: Chosen) -> tuple[int | None, int | None]:
    """Numbers in an input and in a label; None where the first one decides."""
    if choice.model is not None:
        return choice.model.x_dim, choice.model.y_dim
    assert choice.reference is not None
    return BUILTIN[choice.reference].x_dim, BUILTIN[choice.reference].y_dim


def build(choice: Chosen, settings: StreamSettings, y_dim: int, x_dim: int) -> UnderlyingModel:
    """The model for labels and inputs of these dimensions; raises BadInput."""
    checks.check_options(choice.name, settings)
    if choice.model is not None:
        return choice.model
    assert choice.reference is not None
    return BUILTIN[choice.reference].build(options(settings, y_dim, x_dim))


def options(settings: StreamSettings, y_dim: int | None, x_dim: int | None) -> Options:
    """What shapes a built-in model; None of a dimension: not known yet."""
    return Options(
        y_dim or 1,
        x_dim or 0,
        settings.classes or 0,
        settings.order,
        settings.trend,
        settings.season or 0,
    )


def rules(model: UnderlyingModel, settings: StreamSettings) -> Rules:
    """Settings of the pipeline; raises Unfit where they do not fit the model."""
    checks.check_settings(settings, model, checks.Dimensions(model.x_dim, model.y_dim))
    hazard, outlier_rate = columns.effective_rates(model, settings)
    (table,) = columns.hazard_table(model, [hazard])
    return Rules(settings, table, outlier_rate)
