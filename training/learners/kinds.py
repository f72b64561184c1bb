"""The kinds of learner: their first parameters, and what is their own (paper, app. B and C)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from model_core.artifact import builders
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import UnderlyingModel
from model_core.upm.fleet import Fleet
from training.config import ModelConfig
from training.data.windows import Scaling
from training.learners.base import LearnedParts, Learner
from training.learners.encoders import EncoderModule, MlpEncoder


class AlpacaLearner(Learner):
    """Parameters of `Alpaca`.

    With a first prior of unit scale, tanh features saturate and training stalls (DESIGN, sec. 2).
    """

    kind = "alpaca"
    builder = staticmethod(builders.alpaca)

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        n = encoder.features
        outputs = len(scaling.y_offset)
        self.fields = {"lags": config.lags, "noise": config.noise}
        scale = config.prior_scale
        self.prior_mean = nn.Parameter(scale * torch.randn(n, outputs))
        self.prior_covariance_factor = nn.Parameter(scale * torch.randn(n, n))
        level = torch.full((outputs,), math.log(config.noise_variance))
        if config.noise == "unknown":
            self.log_noise_alpha = nn.Parameter(torch.full((outputs,), math.log(2.0)))
            self.log_noise_beta = nn.Parameter(level, requires_grad=config.learn_noise)
        else:
            self.log_noise_variance = nn.Parameter(level, requires_grad=config.learn_noise)


class AlpacaMixtureLearner(AlpacaLearner):
    """Parameters of `AlpacaMixture`.

    Those of `AlpacaLearner` with one more axis in front, `priors` long, and `prior_logits`
    (priors,), whose softmax are the probabilities of the types: equal at first. Their first
    covariance is one for all, and their first means are draws from ALPaCA's first prior: means that
    are close beside that covariance stay alike for long.
    """

    kind = "alpaca-mixture"
    builder = staticmethod(builders.alpaca_mixture)  # type: ignore[assignment]

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

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """With what readers see of the typical regimes."""
        description, tensors = super().artifact()
        chance = self.prior_logits.detach().double().softmax(-1).tolist()
        regimes = [{"name": str(m), "probability": p} for m, p in enumerate(chance, 1)]
        return {**description, "regimes": regimes}, tensors


class FleetLearner(AlpacaLearner):
    """Parameters of `Fleet`.

    It is trained alone, on windows in units of their own: the other parts of the model have nothing
    to learn. The last features are linear, one for each output: at first its label before, which is
    what the prior forecasts. The hazard is for training: each stream learns its own.
    """

    kind = "fleet"
    partial = True
    scales_labels = False

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
            if config.lags:
                linear.weight[:, first : first + outputs] = torch.eye(outputs)
                self.prior_mean[-outputs:] = torch.eye(outputs)

    def model(self) -> Alpaca:
        """The learned part, of labels of which some outputs may be missing."""
        model = super().model()
        assert isinstance(model, Alpaca)
        return replace(model, partial=True)

    def served(self) -> Fleet:
        """The whole model."""
        return builders.fleet(LearnedParts(self, {}))

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Description and tensors."""
        description, tensors = super().artifact()
        del description["noise"]
        own = {"hazard": None, "outlier_rate": self.served().outlier_rate}
        return {**description, **own}, tensors


class PcocLearner(Learner):
    """Parameters of `Pcoc`.

    The concentration of each class is fixed; a large one means balanced classes (paper, app. C).
    """

    kind = "pcoc"
    builder = staticmethod(builders.pcoc)
    scales_labels = False  # they are class indices

    def __init__(
        self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig, classes: int
    ) -> None:
        super().__init__(encoder, scaling, config)
        n = encoder.features
        self.fields = {"y_dim": classes}
        self.prior_mean = nn.Parameter(config.prior_scale * torch.randn(classes, n))
        self.log_prior_precision = nn.Parameter(torch.zeros(classes, n))
        level = torch.full((classes, n), math.log(config.noise_variance))
        self.log_noise_variance = nn.Parameter(level)
        concentration = torch.full((classes,), math.log(config.dirichlet))
        self.log_dirichlet = nn.Parameter(concentration, requires_grad=False)


class Classifier(Learner):
    """The encoder, a linear layer and softmax: a baseline that never adapts, and is not served."""

    kind = "classifier"

    def __init__(
        self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig, classes: int
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


class LstmLearner(Learner):
    """Parameters of `Lstm`."""

    kind = "lstm"
    builder = staticmethod(builders.lstm)

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        outputs = len(scaling.y_offset)
        self.fields = {"lags": config.lags, "decoder": {"activation": "relu"}}
        self.lstm = nn.LSTMCell(encoder.features + outputs, config.hidden)
        widths = [config.hidden + encoder.features, *config.decoder, 2 * outputs]
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.decoder = nn.ModuleList(nn.Linear(into, out) for into, out in pairs)
