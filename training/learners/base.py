"""Base class of learners: named parameters, from which a model is built as from an artifact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from model_core import transfer
from model_core.artifact import Parts
from model_core.upm.base import UnderlyingModel
from training.config import ModelConfig
from training.data.windows import Scaling
from training.learners.encoders import EncoderModule

LEAST_ALPHA = 1.001  # above 1, so that the variance exists


class Learner(nn.Module):
    """Parameters of a model and of its hazard.

    Parameters are named as the tensors of an artifact, but for `hazard_logit`; buffers that hold
    the scaling are kept out of it. The builder of the kind makes the model of them, as of the
    artifact they become.
    """

    kind: str
    builder: Callable[[Parts], UnderlyingModel]
    partial = False  # whether it learns from labels of which some outputs are missing
    scales_labels = True
    fields: Mapping[str, Any]  # of a `model.json`, specific to the kind
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

    def model(self) -> UnderlyingModel:
        """Model of the current parameters; gradients flow through it.

        Its hazard is nan in training on a device, where to read it would have the host wait:
        training reads `hazard`, which has a gradient.
        """
        read = transfer.on_host(self.hazard_logit) or not self.training
        hazard = self.hazard.item() if read else math.nan
        return self.builder(LearnedParts(self, {"hazard": hazard}))

    def served(self) -> UnderlyingModel:
        """Model that streams are served by; that of training, unless it is a part of another."""
        return self.model()

    def description(self) -> dict[str, Any]:
        """Kind, dimensions and encoder, as in a `model.json`."""
        return {
            "kind": self.kind,
            "x_dim": len(self.x_offset),
            "y_dim": len(self.y_offset),
            "feature_dim": self.encoder.features,
            "encoder": self.encoder.spec(),
            **self.fields,
        }

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors, for `model_core.artifact.save`."""
        state = cast(dict[str, Tensor], self.state_dict())
        tensors = {
            name: value.detach().cpu().contiguous()
            for name, value in state.items()
            if not name.endswith("num_batches_tracked")
        }
        scale = {name: tensors.pop(name).tolist() for name in self.scaled}
        del tensors["hazard_logit"]
        if "log_noise_alpha" in tensors:
            tensors["log_noise_alpha"] = tensors["log_noise_alpha"].exp().clamp(LEAST_ALPHA).log()
        description = {
            **self.description(),
            "hazard": self.hazard.item(),
            "input_scaling": {"offset": scale["x_offset"], "scale": scale["x_scale"]},
        }
        if self.scales_labels:
            output = {"offset": scale["y_offset"], "scale": scale["y_scale"]}
            description["output_scaling"] = output
        return description, tensors


class LearnedParts(Parts):
    """Parameters as parts of a model: with their gradients, in their precision, and unchecked.

    A check would have the host wait for a device.
    """

    def __init__(self, learner: Learner, defaults: Mapping[str, Any]) -> None:
        """defaults: keyword arguments of the model."""
        super().__init__(learner.description(), dict(learner.named_parameters()))
        self.encoder = learner.encoder
        self._learner = learner
        self._defaults = defaults

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The parameter."""
        return self.tensors[name]

    def exponential(self, name: str, *shape: int, above: float = 0.0) -> Tensor:
        """`exp` of the parameter, held above 1 where it has to be."""
        value = self.tensors[name].exp()
        return value.clamp(min=LEAST_ALPHA) if above else value

    def derived(self, name: str, value: Tensor) -> Tensor:
        """The value."""
        return value

    def defaults(self) -> dict[str, Any]:
        """Keyword arguments of the model."""
        return {**self._defaults}

    def scaling(self, name: str, size: int) -> tuple[Tensor, Tensor]:
        """Offset and scale of inputs or labels."""
        learner = self._learner
        if name == "input_scaling":
            return learner.x_offset, learner.x_scale
        return learner.y_offset, learner.y_scale
