"""The baseline that trains on everything: a classifier that never adapts (paper, app. C)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from model_core.upm.base import UnderlyingModel
from training.learners.base import Learner, Scaling
from training.learners.encoders import Encoder


class Classifier(Learner):
    """The same encoder, then a linear layer and softmax; not a model that the service can serve."""

    kind = "classifier"

    def __init__(self, encoder: Encoder, scaling: Scaling, classes: int) -> None:
        super().__init__(scaling, 0.5, learn_hazard=False)
        self.encoder = encoder
        self.last = nn.Linear(encoder.features, classes)

    def log_probabilities(self, x: Tensor) -> Tensor:
        """(..., J) of inputs (..., x_dim)."""
        features = self.encoder((x - self.x_offset) / self.x_scale)
        found: Tensor = self.last(features).log_softmax(-1)
        return found

    def model(self) -> UnderlyingModel:
        """There is none."""
        raise TypeError("a classifier has no model of what changes")

    def description(self) -> dict[str, Any]:
        """There is none."""
        raise TypeError("a classifier cannot be served")
