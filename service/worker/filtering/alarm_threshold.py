"""The threshold at which changes are confirmed: as set, or as calibrated for a sensitivity.

A sensitivity is first that of the model's curves, then calibrated on the stream's own labels, and
again whenever these have doubled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_core.errors import CannotSimulate, OutOfRange
from model_core.sensitivity import ChosenThreshold, choose, own, read
from model_core.sensitivity.quiet import FEWEST
from model_core.sensitivity.regimes import check
from model_core.stream.slab import Slab
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import SHAPES
from service.models import sensitivity_curves
from service.problems import UnfitSettings
from service.wire import Alarm, Head

BEARING = (
    "sensitivity",
    "confirm_probability",
    "hazard",
    "outlier_rate",
    "max_hypotheses",
    "warmup",
    "location",
    "scale",
)


def of(models_dir: Path, model: UnderlyingModel, settings: StreamSettings) -> Alarm | None:
    """The threshold of these settings with their model, None for none; raises UnfitSettings."""
    if settings.sensitivity is None:
        stated = settings.confirm_probability
        return None if stated is None else Alarm(stated)
    stored = sensitivity_curves.of(models_dir, settings.model)
    if stored is None:
        raise _refusal(_missing(settings.model, model))
    try:
        simulated = stored["simulated"]
        curves = [read(curve) for curve in stored["curves"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(f"cannot read the calibration of {settings.model}: {error!r}") from error
    choice = _chosen(curves, settings)
    delays: list[dict[str, float | None]] = [delay._asdict() for delay in choice.delays]
    return Alarm(choice.threshold, delays, _differs(settings, simulated, choice))


def after(
    models_dir: Path, model: UnderlyingModel, head: Head, new: StreamSettings
) -> Alarm | None:
    """The same for a stream whose settings change; what is not concerned stays as it is."""
    if all(getattr(new, name) == getattr(head.settings, name) for name in BEARING):
        return head.alarm
    return of(models_dir, model, new)


def uncalibrated(head: Head, slab: Slab) -> bool:
    """Whether a stream's sensitivity is to be calibrated on its own labels, now.

    Only of a model with a kernel: without one it takes ten seconds, for which all commands of the
    partition wait.
    """
    settings = head.settings
    alarm = head.alarm
    if settings.sensitivity is None or alarm is None:
        return False
    if not slab.in_series or not own.fits(slab.model):
        return False
    calibrated = 0 if alarm.calibration is None else alarm.calibration.labels
    return min(head.scored, settings.history) >= FEWEST and head.scored >= 2 * calibrated


def _chosen(curves: list[Any], settings: StreamSettings) -> ChosenThreshold:
    assert settings.sensitivity is not None
    try:
        return choose(curves, settings.sensitivity["false_alarms_per_1000"], settings.hazard)
    except OutOfRange as error:
        raise _refusal(str(error)) from error


def _differs(
    settings: StreamSettings, simulated: dict[str, Any], choice: ChosenThreshold
) -> list[str]:
    """Settings other than those that the curves are of."""
    differing = [] if choice.exact else ["hazard"]
    given = settings.outlier_rate
    if given is not None and given != simulated.get("outlier_rate"):
        differing.append("outlier_rate")
    if settings.max_hypotheses != simulated.get("max_hypotheses"):
        differing.append("max_hypotheses")
    labels = simulated.get("warmup")
    if labels is not None and settings.warmup != labels:
        differing.append("warmup")
    if labels is not None and (settings.location or settings.scale):
        differing.append("location")
    # Curves are those of the defaults.
    shaped = [name for name in SHAPES if getattr(settings, name) != getattr(DEFAULTS, name)]
    if settings.classes is not None and settings.classes != simulated.get("classes"):
        shaped.append("classes")
    return differing + shaped


def _missing(name: str, model: UnderlyingModel) -> str:
    try:
        check(model)
    except CannotSimulate as error:
        return str(error)
    return (
        f"{name} is not calibrated: run `moca calibrate {name}`; `moca publish` does it for "
        "a new version"
    )


def _refusal(detail: str) -> UnfitSettings:
    return UnfitSettings(f"sensitivity: {detail}", field="sensitivity")
