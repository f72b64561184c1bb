"""What model_core raises.

ModelCoreError
├── BadState     bytes that are not a state of this model
├── BadArtifact      a model folder that cannot be loaded
├── BadInput         a setting or an observation that a detector cannot take (also a ValueError)
│   └── Unfit        ... because of its model
│       ├── WrongLength    a label, an input or a setting of another length
│       ├── OutOfRange     a number in one of them
│       └── UnfitSetting   a setting that is missing, or of no use there
├── MissingTorch     what torch computes, where it is not installed
├── NotCompiled      a step that torch's compiler cannot make, or not on this machine
└── WarmingUp        what a detector cannot answer before its warm-up is over
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ModelCoreError(Exception):
    """Base of everything this package raises on purpose."""


class BadState(ModelCoreError):
    """Stored bytes are damaged, of an unknown version, or of another model."""


class BadArtifact(ModelCoreError):
    """A model artifact is missing a part, has a wrong shape or a number that is not finite."""


class MissingTorch(ModelCoreError):
    """A call needs torch, which is not installed."""


class NotCompiled(ModelCoreError):
    """torch's compiler, or one that it needs, is missing or has failed; the message says why."""


class BadInput(ModelCoreError, ValueError):
    """A setting or an observation that a detector cannot take; it is as it was.

    answers: of many observations to those before the one that was refused, which were taken.
    """

    def __init__(self, message: str, answers: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.answers = list(answers)


class Unfit(BadInput):
    """A setting or an observation does not fit the model; field: y, x or a setting's name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class WrongLength(Unfit):
    """A label, an input or a setting has more or fewer numbers than the model."""


class OutOfRange(Unfit):
    """A number is none that the model can produce, or too large."""


class UnfitSetting(Unfit):
    """A setting is missing that the model needs, or stated though the model cannot use it."""


class WarmingUp(ModelCoreError):
    """A detector has too few labels yet for the call."""
