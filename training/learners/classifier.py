"""Baseline that trains on everything (TOE): a classifier that never adapts (paper, app. C)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from model_core.upm.base import UnderlyingModel
from training.learners.base import Learner, Scaling
from training.learners.encoders import Encoder


class Classifier(Learner):
    """The encoder, a linear layer and softmax; not servable."""

    kind = "classifier"

    def __init__(self, encoder: Encoder, scaling: Scaling, classes: int) -> None:
        super().__init__(scaling, 0.5, learn_hazard=False)
        self.encoder = encoder
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
