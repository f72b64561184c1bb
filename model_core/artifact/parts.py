"""What a builder reads a model from: fields and tensors, with errors that name what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from model_core import hazard as hazards
from model_core.artifact_digest import DESCRIPTION, TENSORS
from model_core.encoder import Encoder
from model_core.errors import BadArtifact

LARGEST = 1e50  # of an offset or a scale, so that what is scaled can be squared


class Parts:
    """The fields of a `model.json` and the tensors beside it, checked as they are asked for.

    Every method raises BadArtifact, naming the file and the part, for what is missing, of a wrong
    type or shape, or not finite. Tensors come in float64 on `device`. encoder: the one to use in
    place of that of the field `encoder`, as in training.
    """

    encoder: Encoder | None = None

    def __init__(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        device: str | torch.device = "cpu",
        folder: Path | None = None,
    ) -> None:
        self.description = description
        self.tensors = tensors
        self.device = torch.device(device)
        self.folder = folder

    def field(self, name: str, kind: type) -> Any:
        """Value of a field, which must be a `kind`; a bool is not an int here."""
        value = self.description.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise BadArtifact(f"{DESCRIPTION}: {name} is {value!r}, expected {kind.__name__}")
        return value

    def size(self, name: str, least: int = 1) -> int:
        """Whole number of at least `least`."""
        value: int = self.field(name, int)
        if value < least:
            raise BadArtifact(f"{DESCRIPTION}: {name} is {value}, expected at least {least}")
        return value

    def number(
        self, name: str, above: float, below: float = float("inf"), default: float | None = None
    ) -> float:
        """Number strictly between two; `default` where it is left out, an error if that is None."""
        value = self.description.get(name)
        if value is None and default is not None:
            return default
        if not is_number(value) or not above < value < below:
            raise BadArtifact(
                f"{DESCRIPTION}: {name} is {value!r}, expected a number between {above} and {below}"
            )
        return float(value)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Tensor of exactly this shape, float32 or float64 in the file, all finite."""
        value = self._stored(name)
        if value.dtype not in (torch.float32, torch.float64):
            raise BadArtifact(f"{TENSORS}: {name!r} is {value.dtype}, expected float32 or float64")
        if tuple(value.shape) != shape:
            raise BadArtifact(
                f"{TENSORS}: {name!r} has shape {list(value.shape)}, expected {list(shape)}"
            )
        if not torch.isfinite(value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} has a non-finite number")
        return value.double()

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Shape of a tensor that decides sizes itself."""
        shape = tuple(self._stored(name).shape)
        if len(shape) != dimensions or 0 in shape:
            raise BadArtifact(
                f"{TENSORS}: {name!r} has shape {list(shape)}, expected {dimensions} dimensions"
            )
        return shape

    def exponential(self, name: str, *shape: int, above: float = 0.0) -> Tensor:
        """`exp` of a tensor of logarithms, finite and above a number."""
        value = self.derived(name, self.tensor(name, *shape).exp())
        # Its inverse must be finite too: a variance is as good as a precision.
        if not torch.isfinite(1 / value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} is too small")
        if not (value > above).all():
            raise BadArtifact(f"{TENSORS}: {name!r} has an exponential not above {above:g}")
        return value

    def derived(self, name: str, value: Tensor) -> Tensor:
        """What was computed from a tensor, if it stayed finite."""
        if not torch.isfinite(value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} is too large")
        return value

    def hazard(self) -> float | tuple[float, ...]:
        """`hazard`: a number, a table by run length, or `{"mean": m, "shape": k}` of durations.

        Left out, or null: each stream learns its own.
        """
        value = self.description.get("hazard")
        if value is None:
            return hazards.BY_STREAM
        if isinstance(value, list | dict):
            try:
                return _table(value)
            except ValueError as error:
                raise BadArtifact(f"{DESCRIPTION}: hazard: {error}") from error
        if not is_number(value) or not 0 < value < 1:
            raise BadArtifact(f"{DESCRIPTION}: hazard is {value!r}, expected one between 0 and 1")
        return float(value)

    def defaults(self) -> dict[str, Any]:
        """Hazard and outlier rate (0 where it is left out), as a model's keyword arguments."""
        rate = self.description.get("outlier_rate")
        if rate is not None and (not is_number(rate) or not 0 <= rate < 1):
            raise BadArtifact(
                f"{DESCRIPTION}: outlier_rate is {rate!r}, expected at least 0 and below 1"
            )
        return {"hazard": self.hazard(), "outlier_rate": float(rate or 0.0)}

    def scaling(self, name: str, size: int) -> tuple[Tensor, Tensor]:
        """Offset and scale, each (size,), of `{"offset": [...], "scale": [...]}`.

        A number instead of a list is the same for all; where the field is left out nothing is
        scaled.
        """
        value = self.description.get(name)
        if value is None:
            value = {"offset": 0.0, "scale": 1.0}
        try:
            offset, scale = (self._vector(value[part], size) for part in ("offset", "scale"))
        except (TypeError, KeyError, ValueError, RuntimeError, OverflowError) as error:
            raise BadArtifact(f"{DESCRIPTION}: {name} needs offset and scale: {error}") from error
        fits = offset.shape == scale.shape == (size,)
        inside = (offset.abs() <= LARGEST).all() and (scale <= LARGEST).all()
        if not fits or not inside or not (scale >= 1 / LARGEST).all():
            raise BadArtifact(
                f"{DESCRIPTION}: {name} needs {size} finite offsets, scales above 0 "
                f"(nothing beyond {LARGEST:g}, no scale below {1 / LARGEST:g})"
            )
        return offset, scale

    def _stored(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise BadArtifact(f"{TENSORS}: tensor {name!r} is missing")
        return self.tensors[name]

    def _vector(self, value: Any, size: int) -> Tensor:
        vector = torch.tensor(value, dtype=torch.float64, device=self.device)
        return vector.repeat(size) if vector.dim() == 0 else vector


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from JSON is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _table(spec: list[Any] | dict[str, Any]) -> tuple[float, ...]:
    """Hazards by run length; raises ValueError."""
    if isinstance(spec, list):
        if not all(map(is_number, spec)):
            raise ValueError("expected a table of numbers")
        return hazards.checked(spec)
    mean = spec.get("mean")
    shape = spec.get("shape")
    if spec.keys() != {"mean", "shape"} or not is_number(mean) or not is_number(shape):
        raise ValueError(f"got {spec!r}, expected mean and shape of durations, both numbers")
    return hazards.negative_binomial(mean, shape)
