"""Trainable ALPaCA: encoder, prior of the last layer, noise (paper, app. B.2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from model_core.upm.alpaca import Alpaca, NoisePrior
from training.learners.base import Learner, Scaling
from training.learners.encoders import Encoder


class AlpacaLearner(Learner):
    """Parameters of `model_core.upm.alpaca.Alpaca`.

    prior_scale: standard deviation of the initial prior factor and mean. With unit normal ones,
    tanh features saturate and training stalls (DESIGN, sec. 2). noise_variance: initial value, of
    scaled labels; constant without `learn_noise`. student: unknown noise.
    """

    kind = "alpaca"

    def __init__(
        self,
        encoder: Encoder,
        scaling: Scaling,
        *,
        hazard: float,
        learn_hazard: bool = False,
        prior_scale: float = 0.18,
        noise_variance: float = 1.0,
        learn_noise: bool = True,
        student: bool = False,
        lags: int = 0,
    ) -> None:
        super().__init__(scaling, hazard, learn_hazard=learn_hazard)
        n = encoder.features
        outputs = len(scaling.y_offset)
        self.encoder = encoder
        self.lags = lags
        self.student = student
        self.prior_mean = nn.Parameter(prior_scale * torch.randn(n, outputs))
        self.prior_covariance_factor = nn.Parameter(prior_scale * torch.randn(n, n))
        level = torch.full((outputs,), math.log(noise_variance))
        if student:
            self.log_noise_alpha = nn.Parameter(torch.full((outputs,), math.log(2.0)))
            self.log_noise_beta = nn.Parameter(level, requires_grad=learn_noise)
        else:
            self.log_noise_variance = nn.Parameter(level, requires_grad=learn_noise)

    def model(self) -> Alpaca:
        """Model of the current parameters."""
        factor = self.prior_covariance_factor
        cov = factor @ factor.T
        known = None
        noise = None
        if self.student:
            noise = NoisePrior(self._alpha(), self.log_noise_beta.exp())
        else:
            known = self.log_noise_variance.exp()
        return Alpaca(
            encoder=self.encoder,
            prior_mean=self.prior_mean,
            prior_cov=0.5 * (cov + cov.T),
            noise_variance=known,
            noise_prior=noise,
            lags=self.lags,
            partial=self.partial,
            hazard=self._hazard_number(),
            **self._scalings(),
        )

    def _alpha(self) -> Tensor:
        # Above 1, so that the variance exists.
        return self.log_noise_alpha.exp().clamp(min=1.001)

    def description(self) -> dict[str, Any]:
        """Dimensions, encoder and kind of noise."""
        return {
            "x_dim": len(self.x_offset),
            "y_dim": len(self.y_offset),
            "feature_dim": self.encoder.features,
            "lags": self.lags,
            "noise": "unknown" if self.student else "known",
            "encoder": self.encoder.spec(),
        }

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors."""
        description, tensors = super().artifact()
        if self.student:
            tensors["log_noise_alpha"] = self._alpha().detach().cpu().log()
        return description, tensors
