"""Build the learner of a run from its configuration."""

from __future__ import annotations

import math

import torch

from training.config import Config, ModelConfig
from training.data.windows import Scaling, Splits
from training.errors import BadConfig
from training.learners.base import Learner
from training.learners.encoders import ConvEncoder, EncoderModule, MlpEncoder
from training.learners.kinds import (
    AlpacaLearner,
    AlpacaMixtureLearner,
    Classifier,
    FleetLearner,
    LstmLearner,
    PcocLearner,
)


def learner(config: Config, splits: Splits) -> Learner:
    """A run's learner with its initial parameters; raises BadConfig."""
    _check_alike(config, splits)
    scaling = splits.scaling or Scaling.none(splits.x_dim, splits.y_dim)
    adapts = config.objective.mode != "toe"
    try:
        built = build(config.model, scaling, splits.classes, config.seed, adapts=adapts)
    except ValueError as error:
        raise BadConfig(f"model: {error}") from error
    if config.objective.mode != "moca":
        built.hazard_logit.requires_grad_(False)  # no other objective depends on it
    return built


def _check_alike(config: Config, splits: Splits) -> None:
    """Raise BadConfig where model and data do not go together."""
    kind = config.model.kind
    image = config.model.image
    if (kind == "pcoc") != (splits.classes > 0):
        labels = "classes" if splits.classes else "numbers"
        raise BadConfig(f"model.kind: {kind} cannot predict labels that are {labels}")
    if image is not None and math.prod(image) != splits.x_dim:
        raise BadConfig(f"model.image: inputs are of {splits.x_dim} numbers, not {image}")
    if config.validation.metric == "accuracy" and not splits.classes:
        raise BadConfig("validation.metric: accuracy needs labels that are classes; use nll")


def build(
    config: ModelConfig, scaling: Scaling, classes: int, seed: int, *, adapts: bool = True
) -> Learner:
    """Learner with initial parameters drawn by the seed.

    adapts: False for the classifier that trains on everything, which has no model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = _encoder(config, scaling)
        if config.kind == "pcoc":
            of_classes = PcocLearner if adapts else Classifier
            return of_classes(encoder, scaling, config, classes)
        kinds: dict[str, type[AlpacaLearner | LstmLearner]]
        kinds = {"alpaca": AlpacaLearner, "fleet": FleetLearner, "lstm": LstmLearner}
        of_numbers = AlpacaMixtureLearner if config.priors > 1 else kinds[config.kind]
        return of_numbers(encoder, scaling, config)


def _encoder(config: ModelConfig, scaling: Scaling) -> EncoderModule:
    if config.image is not None:
        return ConvEncoder(*config.image, list(config.blocks), mixed=config.mixed_precision)
    into = len(scaling.x_offset) + config.lags * len(scaling.y_offset)
    layers = [into, *config.widths, config.features]
    linear = len(scaling.y_offset) if config.kind == "fleet" else 0
    return MlpEncoder(layers, config.activation, config.output_activation, linear)
