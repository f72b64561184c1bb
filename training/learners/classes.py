"""Learners of classes: PCOC, and the baseline that never adapts (paper, app. B.3 and C)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from model_core.upm.base import UnderlyingModel
from model_core.upm.pcoc import Pcoc
from training.config import ModelConfig
from training.learners.base import Learner, Scaling
from training.learners.encoders import EncoderModule


class PcocLearner(Learner):
    """Parameters of `model_core.upm.pcoc.Pcoc`.

    The concentration of each class is fixed; a large one means balanced classes (paper, app. C).
    """

    kind = "pcoc"

    def __init__(
        self,
        encoder: EncoderModule,
        scaling: Scaling,
        config: ModelConfig,
        classes: int,
    ) -> None:
        super().__init__(encoder, scaling, config)
        n = encoder.features
        self.classes = classes
        self.prior_mean = nn.Parameter(config.prior_scale * torch.randn(classes, n))
        self.log_prior_precision = nn.Parameter(torch.zeros(classes, n))
        level = torch.full((classes, n), math.log(config.noise_variance))
        self.log_noise_variance = nn.Parameter(level)
        concentration = torch.full((classes,), math.log(config.dirichlet))
        self.log_dirichlet = nn.Parameter(concentration, requires_grad=False)

    def model(self) -> Pcoc:
        """Model of the current parameters."""
        return Pcoc(
            encoder=self.encoder,
            prior_mean=self.prior_mean,
            prior_precision=self.log_prior_precision.exp(),
            noise_variance=self.log_noise_variance.exp(),
            dirichlet=self.log_dirichlet.exp(),
            x_offset=self.x_offset,
            x_scale=self.x_scale,
            hazard=self._hazard_number(),
        )

    def description(self) -> dict[str, Any]:
        """With the classes as outputs."""
        return {**super().description(), "y_dim": self.classes}

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors; labels are class indices, hence not scaled."""
        description, tensors = super().artifact()
        del description["output_scaling"]
        return description, tensors


class Classifier(Learner):
    """The encoder, a linear layer and softmax; not servable."""

    kind = "classifier"

    def __init__(
        self,
        encoder: EncoderModule,
        scaling: Scaling,
        config: ModelConfig,
        classes: int,
    ) -> None:
        super().__init__(encoder, scaling, config)
        self.last = nn.Linear(encoder.features, classes)

    def log_probabilities(self, x: Tensor) -> Tensor:
        """Log probabilities (..., J) of inputs (..., x_dim)."""
        features = self.encoder((x - self.x_offset) / self.x_scale)
        log_probability: Tensor = self.last(features).log_softmax(-1)
        return log_probability

    def model(self) -> UnderlyingModel:
        """Not available; raises TypeError."""
        raise TypeError("a classifier has no model that adapts: use log_probabilities")

    def description(self) -> dict[str, Any]:
        """Not available; raises TypeError."""
        raise TypeError("a classifier cannot be published: it never adapts")
