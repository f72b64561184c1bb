"""Base class of learners: modules that build a model of their current parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model_core import transfer
from model_core.upm.base import UnderlyingModel
from training.config import ModelConfig
from training.learners.encoders import EncoderModule, tensors


class Scaling(NamedTuple):
    """`(value - offset) / scale` of inputs (x_dim,) and labels (y_dim,), learned from the data."""

    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor

    @classmethod
    def none(cls, x_dim: int, y_dim: int) -> Scaling:
        """Identity scaling."""
        return cls(torch.zeros(x_dim), torch.ones(x_dim), torch.zeros(y_dim), torch.ones(y_dim))


class Learner(nn.Module):
    """Parameters of a model and of its hazard.

    Parameters are named as the tensors of an artifact, but for `hazard_logit`; buffers that hold
    the scaling are kept out of it.
    """

    kind: str
    partial = False  # whether it learns from labels of which some outputs are missing
    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor
    scaled = ("x_offset", "x_scale", "y_offset", "y_scale")

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__()
        for name in self.scaled:
            self.register_buffer(name, getattr(scaling, name).clone())
        logit = torch.tensor(math.log(config.hazard) - math.log1p(-config.hazard))
        self.hazard_logit = nn.Parameter(logit, requires_grad=config.learn_hazard)
        self.encoder = encoder

    @property
    def hazard(self) -> Tensor:
        """Hazard (1, 1), the same for all run lengths."""
        return torch.sigmoid(self.hazard_logit).reshape(1, 1)

    @abstractmethod
    def model(self) -> UnderlyingModel:
        """Model of the current parameters; gradients flow through it."""

    def served(self) -> UnderlyingModel:
        """Model that streams are served by; that of training, unless it is a part of another."""
        return self.model()

    def description(self) -> dict[str, Any]:
        """Fields of a `model.json` that are specific to this kind: dimensions and encoder."""
        return {
            "x_dim": len(self.x_offset),
            "y_dim": len(self.y_offset),
            "feature_dim": self.encoder.features,
            "encoder": self.encoder.spec(),
        }

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors, for `model_core.artifact.save`."""
        parameters = tensors(self)
        scale = {name: parameters.pop(name).tolist() for name in self.scaled}
        parameters.pop("hazard_logit")
        description = {
            "kind": self.kind,
            **self.description(),
            "hazard": self.hazard.item(),
            "input_scaling": {"offset": scale["x_offset"], "scale": scale["x_scale"]},
            "output_scaling": {"offset": scale["y_offset"], "scale": scale["y_scale"]},
        }
        return description, parameters

    def _hazard_number(self) -> float:
        """Of the model; nan in training on a device, where to read it would have the host wait.

        Training reads `hazard`, which has a gradient.
        """
        read = transfer.on_host(self.hazard_logit) or not self.training
        return self.hazard.item() if read else math.nan

    def _scalings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.scaled}
