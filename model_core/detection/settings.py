"""Settings of a detector: the names and defaults of a stream's."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_core import hazard as hazards
from model_core.artifact_digest import DESCRIPTION, digest
from model_core.defaults import VECTOR_OUTPUTS, Defaults
from model_core.detection.series import Rules
from model_core.errors import BadArtifact, BadInput, OutOfRange
from model_core.labels import LARGEST
from model_core.sensitivity import choose, read
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN, Options, curves

SERVER = ("interval", "ttl", "label_window")  # settings that only a service has
MOST_HYPOTHESES, LONGEST_WARMUP = 10_000, 200
# Whole numbers: the least and the most.
WHOLE = {
    "max_hypotheses": (2, MOST_HYPOTHESES),
    "confirm_after": (1, 100_000),
    "warmup": (0, LONGEST_WARMUP),
    "history": (0, 10_000_000),
    "classes": (2, 1000),
    "order": (0, 32),
    "season": (2, 10_000),
}
# Numbers above the first and below the second; those of CLOSED may be the first.
OPEN = {
    "outlier_rate": (0.0, 1.0),
    "confirm_probability": (0.5, 1.0),
    "anomaly_alarm": (0.5, 1.0),
}
CLOSED = ("outlier_rate", "confirm_probability")
ALWAYS = ("max_hypotheses", "warmup", "history", "order", "trend")  # None is their default


class Settings(NamedTuple):
    """Settings of a stream, as docs/streams.md has them; None: the default.

    Of the rules of confirmation one counts: `confirm_after`, where it is given, `sensitivity`
    (false alarms per 1,000 observations), or `confirm_probability`.
    """

    hazard: Any = None
    max_hypotheses: int = Defaults().max_hypotheses
    outlier_rate: float | None = None
    confirm_probability: float | None = Defaults().confirm_probability
    confirm_after: int | None = None
    warmup: int = Defaults().warmup
    location: list[float] | None = None
    scale: list[float] | None = None
    history: int = Defaults().history
    classes: int | None = None
    order: int = 1
    trend: bool = False
    season: int | None = None
    seasonal: bool | None = Defaults().seasonal
    sensitivity: float | None = None
    anomaly_alarm: float | None = Defaults().anomaly_alarm


def checked(given: Mapping[str, Any]) -> Settings:
    """Settings of these names and values; raises BadInput."""
    for name in given:
        if name not in Settings._fields:
            raise BadInput(_unknown(name))
    values = {name: _value(name, each) for name, each in given.items()}
    if values.get("confirm_after") is not None:
        rule = next((r for r in ("confirm_probability", "sensitivity") if values.get(r)), None)
        if rule is not None:
            raise BadInput(
                f"confirm_after: not allowed together with {rule}; leave one of them out"
            )
        values["confirm_probability"] = None
    elif "confirm_probability" in given and values["confirm_probability"] is None:
        values["confirm_after"] = Defaults().confirm_after
    return Settings(**values)


def _unknown(name: str) -> str:
    if name in SERVER:
        return f"{name}: a setting of streams of the service alone; a detector has no use for it"
    close = difflib.get_close_matches(name, Settings._fields, 1)
    meant = f"did you mean {close[0]!r}?" if close else "it has " + ", ".join(Settings._fields)
    return f"{name}: a detector has no such setting; {meant}"


def _value(name: str, value: Any) -> Any:
    """A setting's value in its type; raises BadInput."""
    if value is None:
        return Settings._field_defaults[name] if name in ALWAYS else None
    if name in WHOLE:
        return _whole(name, value)
    if name in OPEN:
        return _within(name, value)
    return _OTHERS[name](name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name}: expected True or False, got {value!r}")
    return value


def _whole(name: str, value: Any) -> int:
    least, most = WHOLE[name]
    number = _number(name, value)
    if number != int(number) or not least <= number <= most:
        raise BadInput(f"{name}: expected a whole number from {least} to {most}, got {value!r}")
    return int(number)


def _within(name: str, value: Any) -> float:
    low, high = OPEN[name]
    number = _number(name, value)
    if not (low < number < high or (name in CLOSED and number == low)):
        bound = "from" if name in CLOSED else "above"
        raise BadInput(
            f"{name}: expected a number {bound} {low:g} and below {high:g}, got {value!r}"
        )
    return number


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{name}: expected a number, got {value!r}")
    return number


def _moments(name: str, value: Any) -> list[float]:
    """Location or scale, a number for each output."""
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    found = [_number(name, each) for each in (value if several else [value])]
    least = 1 / LARGEST if name == "scale" else -LARGEST
    if not found or any(not least <= each <= LARGEST for each in found):
        raise BadInput(f"{name}: expected numbers between {least:g} and {LARGEST:g}, got {value!r}")
    return found


def _sensitivity(name: str, value: Any) -> float:
    rate = value.get("false_alarms_per_1000") if isinstance(value, Mapping) else value
    rate = _number(name, rate)
    if not 0 < rate <= 1000:
        raise BadInput(
            "sensitivity: expected false alarms per 1,000 observations, above 0 and up to 1,000, "
            f"got {value!r}"
        )
    return rate


def _hazard(name: str, value: Any) -> Any:
    """A number, a table by run length (list), or mean and shape of durations (dict)."""
    try:
        if isinstance(value, Mapping):
            if set(value) != {"mean", "shape"}:
                raise ValueError(f"expected `mean` and `shape` of regime durations, got {value!r}")
            found: dict[str, float] = {name: float(each) for name, each in value.items()}
            hazards.negative_binomial(**found)
            return found
        if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
            return list(hazards.checked([float(each) for each in value]))
        (number,) = hazards.checked(float(value))
        if number >= 1:
            raise ValueError(f"expected a hazard below 1, got {value!r}")
        return number
    except (OverflowError, TypeError, ValueError) as error:
        raise BadInput(
            f"hazard: {error}; it is the probability that a regime ends at a step"
        ) from error


_OTHERS = {
    "hazard": _hazard,
    "location": _moments,
    "scale": _moments,
    "sensitivity": _sensitivity,
    "trend": _flag,
    "seasonal": _flag,
}


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
    name = os.fspath(model)
    if name in BUILTIN:
        return Chosen(name, None, None)
    folder = Path(name)
    if folder.is_dir():
        from model_core import artifact  # built-in models need none of its packages

        return Chosen(None, str(folder), artifact.load(folder, "cpu"), digest(folder))
    close = difflib.get_close_matches(name, BUILTIN, 1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise BadInput(
        f"model: there is no built-in model and no folder of an artifact {name!r}; {meant}"
        f"Built in are {', '.join(BUILTIN)}"
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


def default(settings: Settings, outputs: int | None) -> str:
    """Name of the model of who names none, as the service chooses it."""
    outputs = len(settings.location) if settings.location else outputs
    vector = outputs is not None and 1 < outputs <= VECTOR_OUTPUTS
    usual = Defaults()
    return usual.vector_model if vector and settings.sensitivity is None else usual.model


def dimensions(choice: Chosen) -> tuple[int | None, int | None]:
    """Numbers in an input and in a label; None where the first one decides."""
    if choice.model is not None:
        return choice.model.x_dim, choice.model.y_dim
    assert choice.reference is not None
    return BUILTIN[choice.reference].x_dim, BUILTIN[choice.reference].y_dim


def build(choice: Chosen, settings: Settings, y_dim: int, x_dim: int) -> UnderlyingModel:
    """The model for labels and inputs of these dimensions; raises BadInput."""
    if choice.model is not None:
        return choice.model
    assert choice.reference is not None
    entry = BUILTIN[choice.reference]
    for name in entry.needs:
        if getattr(settings, name) is None:
            raise BadInput(f"{name}: model {choice.reference} needs this setting")
    options = Options(
        y_dim, x_dim, settings.classes or 0, settings.order, settings.trend, settings.season or 0
    )
    return entry.build(options)


def rules(choice: Chosen, model: UnderlyingModel, settings: Settings) -> Rules:
    """Settings of the pipeline; raises BadInput where they do not fit the model."""
    if settings.seasonal and (model.label != "real" or model.y_dim != 1):
        raise BadInput(
            "seasonal: expected a model of one real label, got one of "
            f"{model.y_dim} {model.label} labels; leave the setting out"
        )
    for name in ("location", "scale"):
        value = getattr(settings, name)
        if value is None:
            continue
        if model.scales_inputs:
            raise BadInput(
                f"{name}: a {model.kind} model takes it from the warm-up, with its inputs"
            )
        if len(value) != model.y_dim:
            raise BadInput(f"{name}: expected {model.y_dim} numbers, got {len(value)}")
    rate = settings.outlier_rate
    threshold = settings.confirm_probability or 0.0
    if settings.sensitivity is not None:
        threshold = _calibrated(choice, settings)
    return Rules(
        hazard=_table(model, settings.hazard),
        outlier_rate=model.outlier_rate if rate is None else rate,
        max_hypotheses=settings.max_hypotheses,
        threshold=threshold,
        confirm_after=settings.confirm_after or Defaults().confirm_after,
        warmup=settings.warmup,
        history=settings.history,
        anomaly_alarm=settings.anomaly_alarm,
        seasonal=settings.seasonal,
        location=settings.location,
        scale=settings.scale,
    )


def _table(model: UnderlyingModel, hazard: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    stated = model.hazard if hazard is None else hazard
    if isinstance(stated, Mapping):
        stated = hazards.negative_binomial(**stated)
    return np.atleast_1d(np.array(stated, dtype=np.float64))


def _calibrated(choice: Chosen, settings: Settings) -> float:
    """Threshold of a sensitivity, from the curves of the model."""
    stored = curves().get(choice.reference or "") if choice.folder is None else _described(choice)
    if stored is None:
        raise BadInput(
            f"sensitivity: {choice.name} is not calibrated; give `confirm_probability` instead"
        )
    hazard = settings.hazard
    if not (hazard is None or isinstance(hazard, float)):
        raise BadInput(
            "sensitivity: the hazard must be a number, or the model's own: others are not "
            "calibrated"
        )
    try:
        found = [read(each) for each in stored["curves"]]
        return choose(found, settings.sensitivity or 0.0, hazard).threshold
    except OutOfRange as error:
        raise BadInput(f"sensitivity: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BadArtifact(f"cannot read the calibration of {choice.name}: {error!r}") from error


def _described(choice: Chosen) -> dict[str, Any] | None:
    text = (Path(choice.folder or "") / DESCRIPTION).read_text()
    found: dict[str, Any] | None = json.loads(text).get("sensitivity")
    return found
