"""Trainable part of the model of a fleet: ALPaCA in the units of each stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model_core.upm.fleet import Fleet
from training.learners.alpaca import AlpacaLearner
from training.learners.base import Scaling
from training.learners.encoders import Encoder, MlpEncoder


class FleetLearner(AlpacaLearner):
    """Parameters of `model_core.upm.fleet.Fleet`.

    It is trained alone, on windows in units of their own: the other parts of the model have nothing
    to learn. The last features are linear, one for each output: at first its label before, which is
    what the prior forecasts. The hazard is for training: streams have that of the built-in models.
    """

    kind = "fleet"
    partial = True

    def __init__(self, encoder: Encoder, scaling: Scaling, **options: Any) -> None:
        """encoder: with as many linear features as outputs. options: as of `AlpacaLearner`."""
        super().__init__(encoder, scaling, **{**options, "student": True})
        assert isinstance(encoder, MlpEncoder)
        outputs, linear, first = len(scaling.y_offset), encoder.linear, len(scaling.x_offset)
        assert linear is not None
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.zero_()
            self.prior_mean.zero_()
            if self.lags:
                linear.weight[:, first : first + outputs] = torch.eye(outputs)
                self.prior_mean[-outputs:] = torch.eye(outputs)

    def served(self) -> Fleet:
        """The whole model."""
        found = self.model()
        assert found.noise_prior is not None
        return Fleet(
            y_dim=len(self.y_offset),
            encoder=self.encoder,
            x_offset=self.x_offset,
            x_scale=self.x_scale,
            prior_mean=found.prior_mean,
            prior_cov=found.prior_cov,
            noise_alpha=found.noise_prior.alpha,
            noise_beta=found.noise_prior.beta,
            lags=self.lags,
        )

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors."""
        description, tensors = super().artifact()
        del description["output_scaling"], description["noise"]
        served = self.served()
        return {
            **description,
            "hazard": served.hazard,
            "outlier_rate": served.outlier_rate,
        }, tensors
