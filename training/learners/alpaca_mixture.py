"""Trainable ALPaCA with a mixture prior: encoder, and prior and noise of each typical regime."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from model_core.upm.alpaca import NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from training.learners.alpaca import AlpacaLearner
from training.learners.base import Scaling
from training.learners.encoders import Encoder


class AlpacaMixtureLearner(AlpacaLearner):
    """Parameters of `model_core.upm.alpaca_mixture.AlpacaMixture`.

    Those of `AlpacaLearner` with one more axis in front, `priors` long, and `prior_logits`
    (priors,), whose softmax are the probabilities of the types: equal at first. Their first
    covariance is one for all, and their first means are draws from ALPaCA's first prior: means that
    are close beside that covariance stay alike for long.
    """

    kind = "alpaca-mixture"

    def __init__(self, encoder: Encoder, scaling: Scaling, *, priors: int, **options: Any) -> None:
        """options: as of `AlpacaLearner`."""
        super().__init__(encoder, scaling, **options)
        mean, factor = self.prior_mean.detach(), self.prior_covariance_factor.detach()
        drawn = mean + factor @ torch.randn(priors, *mean.shape)
        self.prior_mean = nn.Parameter(drawn)
        self.prior_covariance_factor = nn.Parameter(factor.repeat(priors, 1, 1))
        self.prior_logits = nn.Parameter(torch.zeros(priors))
        for name, value in list(self.named_parameters(recurse=False)):
            if name.startswith("log_noise"):
                repeated = value.detach().repeat(priors, 1)
                self.register_parameter(name, nn.Parameter(repeated, value.requires_grad))

    def model(self) -> AlpacaMixture:  # type: ignore[override]
        """Model of the current parameters."""
        factor = self.prior_covariance_factor
        cov = factor @ factor.mT
        return AlpacaMixture(
            encoder=self.encoder,
            log_weight=self.prior_logits.log_softmax(-1),
            prior_mean=self.prior_mean,
            prior_cov=0.5 * (cov + cov.mT),
            noise_variance=None if self.student else self.log_noise_variance.exp(),
            noise_prior=NoisePrior(self._alpha(), self.log_noise_beta.exp())
            if self.student
            else None,
            lags=self.lags,
            hazard=self._hazard_number(),
            **self._scalings(),
        )

    def description(self) -> dict[str, Any]:
        """Those of `AlpacaLearner`, and what readers see of the typical regimes."""
        chance = self.prior_logits.detach().double().softmax(-1).tolist()
        regimes = [{"name": str(m), "probability": p} for m, p in enumerate(chance, 1)]
        return {**super().description(), "regimes": regimes}
