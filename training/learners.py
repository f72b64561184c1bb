"""Trainable models; their parameters are named as the tensors of an artifact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_core import artifact, transfer
from model_core.artifact import Parts
from model_core.encoder import Mlp
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import UnderlyingModel
from model_core.upm.fleet import Fleet
from training.config import Config, ModelConfig
from training.data.windows import Scaling, Splits
from training.errors import BadConfig

IMAGES = 32  # evaluated together: intermediate results stay in the processor's cache


class MlpEncoder(nn.ModuleList):
    """Layers `activation(W x + b)`, the last one with `output_activation`.

    spec: the field `encoder` of a `model.json`, but for its type. linear: number of features after
    the others that are linear in the inputs.
    """

    def __init__(self, **spec: Any) -> None:
        self.spec = {"type": "mlp", **spec}
        layers: list[int] = spec["layers"]
        super().__init__(nn.Linear(into, out) for into, out in pairwise(layers))
        linear = spec.get("linear", 0)
        self.linear = nn.Linear(layers[0], linear) if linear else None
        self.features = layers[-1] + linear

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., n) of inputs (..., x_dim)."""
        layers = [cast(nn.Linear, self[i]) for i in range(len(self.spec["layers"]) - 1)]
        network = Mlp(
            weights=tuple(layer.weight for layer in layers),
            biases=tuple(layer.bias for layer in layers),
            activation=self.spec["activation"],
            output_activation=self.spec["output_activation"],
            linear=None if self.linear is None else (self.linear.weight, self.linear.bias),
        )
        return network(x)


class ConvEncoder(nn.ModuleList):
    """Blocks on images given as channels * height * width numbers (paper, app. C).

    A block is convolution, norm, ReLU and pooling; the last one has neither norm nor ReLU.

    In training the norms use the moments of all images of a batch; in evaluation, running ones.
    spec: the field `encoder` of a `model.json`, but for its type. mixed: in training, images and
    kernels are rounded to bfloat16, which takes half the time where the processor has such products
    (AMX, tensor cores).
    """

    def __init__(self, *, mixed: bool = False, **spec: Any) -> None:
        self.spec = {"type": "conv", **spec}
        self.shape = (spec["channels"], spec["height"], spec["width"])
        blocks: list[int] = spec["blocks"]
        last = len(blocks) - 1
        super().__init__()
        for i, (into, out) in enumerate(pairwise((spec["channels"], *blocks))):
            block: dict[str, nn.Module] = {"conv": nn.Conv2d(into, out, 3, padding=1)}
            if i < last:
                block["norm"] = nn.BatchNorm2d(out)
            self.append(nn.ModuleDict(block))
        # With channels last, convolutions, norms and pooling take half the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.mixed = mixed
        height, width = (size >> len(blocks) for size in self.shape[1:])
        self.features = blocks[-1] * height * width
        if self.features == 0:
            raise ValueError(
                f"{len(blocks)} blocks leave nothing of {spec['height']} x {spec['width']} images"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., n) of images (..., channels * height * width)."""
        image = x.reshape(-1, *self.shape).contiguous(memory_format=torch.channels_last)
        # In training, the images of a batch share moments.
        parts = [image] if self.training else torch.split(image, IMAGES)
        rounded = self.mixed and self.training
        features = []
        with torch.autocast(image.device.type, torch.bfloat16, enabled=rounded):
            for part in parts:
                for block in self:
                    assert isinstance(block, nn.ModuleDict)
                    part = block["conv"](part)
                    if "norm" in block:
                        part = block["norm"](part)
                    part = functional.max_pool2d(part, 2)
                    if "norm" in block:
                        # After pooling: ReLU is monotone, and has a quarter of the work there.
                        part = torch.relu(part)
                features.append(part)
        return torch.cat(features).to(x.dtype).reshape(*x.shape[:-1], -1)


EncoderModule = MlpEncoder | ConvEncoder


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
            "encoder": self.encoder.spec,
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


class AlpacaLearner(Learner):
    """Parameters of `Alpaca`, or of `AlpacaMixture` if each regime draws one of several priors.

    With a first prior of unit scale, tanh features saturate and training stalls (DESIGN, sec. 2).
    Parameters of a mixture have one more axis in front, `priors` long, and `prior_logits`
    (priors,), whose softmax are the probabilities of the types: equal at first. Their first
    covariance is one for all, and their first means are draws from ALPaCA's first prior: means that
    are close beside that covariance stay alike for long.
    """

    kind = "alpaca"
    builder: Callable[[Parts], UnderlyingModel] = staticmethod(artifact.alpaca)

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        n = encoder.features
        outputs = len(scaling.y_offset)
        self.fields = {"lags": config.lags, "noise": config.noise}
        scale = config.prior_scale
        mean = scale * torch.randn(n, outputs)
        factor = scale * torch.randn(n, n)
        priors = (config.priors,) if config.priors > 1 else ()
        if priors:
            self.kind = "alpaca-mixture"
            self.builder = artifact.alpaca_mixture
            mean = mean + factor @ torch.randn(*priors, n, outputs)
        self.prior_mean = nn.Parameter(mean)
        self.prior_covariance_factor = nn.Parameter(factor.repeat(*priors, 1, 1))
        level = torch.full((*priors, outputs), math.log(config.noise_variance))
        if config.noise == "unknown":
            self.log_noise_alpha = nn.Parameter(torch.full((*priors, outputs), math.log(2.0)))
            self.log_noise_beta = nn.Parameter(level, requires_grad=config.learn_noise)
        else:
            self.log_noise_variance = nn.Parameter(level, requires_grad=config.learn_noise)
        if priors:
            self.prior_logits = nn.Parameter(torch.zeros(priors))

    def artifact(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Of a mixture with what readers see of the typical regimes."""
        description, tensors = super().artifact()
        if "prior_logits" in tensors:
            chance = self.prior_logits.detach().double().softmax(-1).tolist()
            description["regimes"] = [
                {"name": str(m), "probability": p} for m, p in enumerate(chance, 1)
            ]
        return description, tensors


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
        return artifact.fleet(LearnedParts(self, {}))

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
    builder = staticmethod(artifact.pcoc)
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


class LstmLearner(Learner):
    """Parameters of `Lstm`."""

    kind = "lstm"
    builder = staticmethod(artifact.lstm)

    def __init__(self, encoder: EncoderModule, scaling: Scaling, config: ModelConfig) -> None:
        super().__init__(encoder, scaling, config)
        outputs = len(scaling.y_offset)
        self.fields = {"lags": config.lags, "decoder": {"activation": "relu"}}
        self.lstm = nn.LSTMCell(encoder.features + outputs, config.hidden)
        widths = [config.hidden + encoder.features, *config.decoder, 2 * outputs]
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.decoder = nn.ModuleList(nn.Linear(into, out) for into, out in pairs)


def learner(config: Config, splits: Splits) -> Learner:
    """A run's learner with its initial parameters; raises BadConfig."""
    kind = config.model.kind
    image = config.model.image
    if (kind == "pcoc") != (splits.classes > 0):
        labels = "classes" if splits.classes else "numbers"
        raise BadConfig(f"model.kind: {kind} cannot predict labels that are {labels}")
    if image is not None and math.prod(image) != splits.x_dim:
        raise BadConfig(f"model.image: inputs are of {splits.x_dim} numbers, not {image}")
    if config.validation.metric == "accuracy" and not splits.classes:
        raise BadConfig("validation.metric: accuracy needs labels that are classes; use nll")
    scaling = splits.scaling or Scaling.none(splits.x_dim, splits.y_dim)
    adapts = config.objective.mode != "toe"
    try:
        built = build(config.model, scaling, splits.classes, config.seed, adapts=adapts)
    except ValueError as error:
        raise BadConfig(f"model: {error}") from error
    if config.objective.mode != "moca":
        built.hazard_logit.requires_grad_(False)  # no other objective depends on it
    return built


def build(
    config: ModelConfig, scaling: Scaling, classes: int, seed: int, *, adapts: bool = True
) -> Learner:
    """Learner with initial parameters drawn by the seed.

    adapts: False for the classifier that trains on everything, which has no model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        outputs = len(scaling.y_offset)
        encoder: EncoderModule
        if config.image is not None:
            channels, height, width = config.image
            encoder = ConvEncoder(
                channels=channels,
                height=height,
                width=width,
                blocks=list(config.blocks),
                mixed=config.mixed_precision,
            )
        else:
            into = len(scaling.x_offset) + config.lags * outputs
            encoder = MlpEncoder(
                layers=[into, *config.widths, config.features],
                activation=config.activation,
                output_activation=config.output_activation,
                **({"linear": outputs} if config.kind == "fleet" else {}),
            )
        if config.kind == "pcoc":
            of_classes = PcocLearner if adapts else Classifier
            return of_classes(encoder, scaling, config, classes)
        kinds: dict[str, type[AlpacaLearner | LstmLearner]]
        kinds = {"alpaca": AlpacaLearner, "fleet": FleetLearner, "lstm": LstmLearner}
        return kinds[config.kind](encoder, scaling, config)
