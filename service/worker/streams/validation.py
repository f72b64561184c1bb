"""What only a stream of the service is checked by: see `model_core.stream.checks` for all else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_core.labels import LARGEST
from model_core.stream.checks import Dimensions
from model_core.upm.base import UnderlyingModel
from service.problems import SeqConflict, SettingsConflict
from service.wire import Head, Observation

REMEDY = {"model": "move it to another model by POST /v1/streams/{id}/model"}
DELETE = "delete the stream first"
FIXED = (
    "model", "warmup", "location", "scale", "classes", "order", "trend", "season", "seasonal",
    "regimes",
)  # fmt: skip


def check_position(expected: int | None, current: int) -> None:
    """Raise SeqConflict where a command expects its stream at another position."""
    if expected is not None and expected != current:
        detail = f"seq is {expected}, but the next observation is {current}"
        if expected < current:
            detail += f", and no pending label at seq {expected}"
        raise SeqConflict(detail, seq=current)


def plain(
    observations: Sequence[Observation], dimensions: Dimensions, model: UnderlyingModel
) -> bool:
    """Whether all are single numbers that any stream of the model takes; otherwise check each."""
    if model.label != "real" or dimensions != (0, 1):
        return False
    return all(map(plain_number, observations))


def plain_number(seen: Observation) -> bool:
    """Whether a label is a number that any stream of one takes, and there is no input."""
    y = seen.y
    return type(y) is float and -LARGEST <= y <= LARGEST and not seen.x


def same_model(name: str, current: str) -> bool:
    """Whether a model's name means the one a stream has; without a version it always does."""
    return name in (current, current.partition("@")[0])


def check_fixed(head: Head, given: dict[str, Any]) -> None:
    """Raise SettingsConflict where a setting that shaped the prior would change."""
    for name in FIXED:
        if name in given and given[name] != getattr(head.settings, name):
            raise SettingsConflict(
                f"{name} cannot change on a stream with observations; {REMEDY.get(name, DELETE)}",
                field=name,
            )
