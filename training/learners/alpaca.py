"""Trainable ALPaCA (paper, app. B.2): alone, with a mixture prior, and as part of a fleet."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.fleet import Fleet
from training.config import ModelConfig
from training.learners.base import Learner, Scaling
from training.learners.encoders import EncoderModule, MlpEncoder


class AlpacaLearner(Learner):
    """Parameters of `model_core.upm.alpaca.Alpaca`.

    With a first prior of unit scale, tanh features saturate and training stalls (DESIGN, sec. 2).
    """

    kind = "alpaca"

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        n = encoder.features
        outputs = len(scaling.y_offset)
        self.lags = config.lags
        self.student = config.noise == "unknown"
        scale = config.prior_scale
        self.prior_mean = nn.Parameter(scale * torch.randn(n, outputs))
        self.prior_covariance_factor = nn.Parameter(scale * torch.randn(n, n))
        level = torch.full((outputs,), math.log(config.noise_variance))
        if self.student:
            self.log_noise_alpha = nn.Parameter(torch.full((outputs,), math.log(2.0)))
            self.log_noise_beta = nn.Parameter(level, requires_grad=config.learn_noise)
        else:
            self.log_noise_variance = nn.Parameter(level, requires_grad=config.learn_noise)

    def model(self) -> Alpaca:
        """Model of the current parameters."""
        return Alpaca(partial=self.partial, **self._parts())

    def _parts(self) -> dict[str, Any]:
        factor = self.prior_covariance_factor
        cov = factor @ factor.mT
        noise = NoisePrior(self._alpha(), self.log_noise_beta.exp()) if self.student else None
        return {
            "encoder": self.encoder,
            "prior_mean": self.prior_mean,
            "prior_cov": 0.5 * (cov + cov.mT),
            "noise_variance": None if self.student else self.log_noise_variance.exp(),
            "noise_prior": noise,
            "lags": self.lags,
            "hazard": self._hazard_number(),
            **self._scalings(),
        }

    def _alpha(self) -> Tensor:
        # Above 1, so that the variance exists.
        return self.log_noise_alpha.exp().clamp(min=1.001)

    def description(self) -> dict[str, Any]:
        """With lags and kind of noise."""
        noise = "unknown" if self.student else "known"
        return {**super().description(), "lags": self.lags, "noise": noise}

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors."""
        description, tensors = super().artifact()
        if self.student:
            tensors["log_noise_alpha"] = self._alpha().detach().cpu().log()
        return description, tensors


class AlpacaMixtureLearner(AlpacaLearner):
    """Parameters of `model_core.upm.alpaca_mixture.AlpacaMixture`.

    Those of `AlpacaLearner` with one more axis in front, `priors` long, and `prior_logits`
    (priors,), whose softmax are the probabilities of the types: equal at first. Their first
    covariance is one for all, and their first means are draws from ALPaCA's first prior: means that
    are close beside that covariance stay alike for long.
    """

    kind = "alpaca-mixture"

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        priors = config.priors
        mean = self.prior_mean.detach()
        factor = self.prior_covariance_factor.detach()
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
        return AlpacaMixture(log_weight=self.prior_logits.log_softmax(-1), **self._parts())

    def description(self) -> dict[str, Any]:
        """Those of `AlpacaLearner`, and what readers see of the typical regimes."""
        chance = self.prior_logits.detach().double().softmax(-1).tolist()
        regimes = [{"name": str(m), "probability": p} for m, p in enumerate(chance, 1)]
        return {**super().description(), "regimes": regimes}


class FleetLearner(AlpacaLearner):
    """Parameters of `model_core.upm.fleet.Fleet`.

    It is trained alone, on windows in units of their own: the other parts of the model have nothing
    to learn. The last features are linear, one for each output: at first its label before, which is
    what the prior forecasts. The hazard is for training: streams have that of the built-in models.
    """

    kind = "fleet"
    partial = True

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        """encoder: with as many linear features as outputs."""
        super().__init__(encoder, scaling, config)
        assert isinstance(encoder, MlpEncoder)
        outputs = len(scaling.y_offset)
        linear = encoder.linear
        first = len(scaling.x_offset)
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
        model = self.model()
        assert model.noise_prior is not None
        return Fleet(
            y_dim=len(self.y_offset),
            encoder=self.encoder,
            x_offset=self.x_offset,
            x_scale=self.x_scale,
            prior_mean=model.prior_mean,
            prior_cov=model.prior_cov,
            noise_alpha=model.noise_prior.alpha,
            noise_beta=model.noise_prior.beta,
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
