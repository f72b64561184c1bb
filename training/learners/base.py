"""What every learner is: a module that makes a model of its present parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model_core.upm.base import UnderlyingModel
from training.learners.encoders import tensors


class Scaling(NamedTuple):
    """`(value - offset) / scale` of inputs (x_dim,) and labels (y_dim,), learned from the data."""

    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor

    @classmethod
    def none(cls, x_dim: int, y_dim: int) -> Scaling:
        """Leave everything as it is."""
        return cls(torch.zeros(x_dim), torch.ones(x_dim), torch.zeros(y_dim), torch.ones(y_dim))


class Learner(nn.Module):
    """Parameters of a model and of its hazard.

    Parameters are named as the tensors of an artifact, but for `hazard_logit`; buffers that hold
    the scaling are kept out of it.
    """

    kind: str
    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor
    scaled = ("x_offset", "x_scale", "y_offset", "y_scale")

    def __init__(self, scaling: Scaling, hazard: float, *, learn_hazard: bool) -> None:
        super().__init__()
        for name in self.scaled:
            self.register_buffer(name, getattr(scaling, name).clone())
        logit = torch.tensor(math.log(hazard) - math.log1p(-hazard))
        self.hazard_logit = nn.Parameter(logit, requires_grad=learn_hazard)

    @property
    def hazard(self) -> Tensor:
        """Hazard (1, 1), the same for all run lengths."""
        return torch.sigmoid(self.hazard_logit).reshape(1, 1)

    @abstractmethod
    def model(self) -> UnderlyingModel:
        """The model of the present parameters, through which gradients flow."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """The fields of a `model.json` that only this kind has."""

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors, for `model_core.artifact.save`."""
        found = tensors(self)
        scale = {name: found.pop(name).tolist() for name in self.scaled}
        found.pop("hazard_logit")
        description = {
            "kind": self.kind,
            **self.description(),
            "hazard": self.hazard.item(),
            "input_scaling": {"offset": scale["x_offset"], "scale": scale["x_scale"]},
            "output_scaling": {"offset": scale["y_offset"], "scale": scale["y_scale"]},
        }
        return description, found

    def _scalings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.scaled}
