"""Encoders from inputs to features. Weights come from an artifact; evaluation only needs them.

Convolution stacks are for images (paper, app. C; Snell et al. 2017): four blocks take 3 x 28 x 28
(Rainbow MNIST), six take 3 x 84 x 84 (miniImageNet), both to 64 features. Every block halves height
and width, rounding down: 28, 14, 7, 3, 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from model_core.lazy import Tensor, torch

EPSILON = 1e-5  # added to running variances, as torch.nn.BatchNorm2d does
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda value: torch.relu(value),
    "tanh": lambda value: torch.tanh(value),
    "identity": lambda value: value,
}


class Encoder(Protocol):
    """Anything that maps inputs (B, x_dim) to features (B, n)."""

    def __call__(self, x: Tensor) -> Tensor:
        """Features of a batch of inputs."""
        ...


@dataclass(frozen=True)
class Identity:
    """Features are the inputs."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the inputs."""
        return x


@dataclass(frozen=True)
class Mlp:
    """Layers `activation(W x + b)`, the last one with `output_activation`; W is (out, in).

    linear: `W` and `b` of features that are linear in the inputs, after the others.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str = "relu"
    output_activation: str = "identity"
    linear: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Features of a batch of inputs."""
        last = len(self.weights) - 1
        inputs = x
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            name = self.output_activation if i == last else self.activation
            x = ACTIVATIONS[name](torch.nn.functional.linear(x, weight, bias))
        if self.linear is None:
            return x
        return torch.cat((x, torch.nn.functional.linear(inputs, *self.linear)), -1)


class ConvBlock(NamedTuple):
    """One block: 3 x 3 convolution with padding 1, norm, ReLU, 2 x 2 max pooling.

    weight: (out, in, 3, 3). bias: (out,). norm: weight, bias, running mean and running variance of
    a batch normalisation in evaluation mode, each (out,); None: neither norm nor ReLU.
    """

    weight: Tensor
    bias: Tensor
    norm: tuple[Tensor, Tensor, Tensor, Tensor] | None


@dataclass(frozen=True)
class Conv:
    """Blocks one after another on images given as channels * height * width numbers, row-major.

    The features are the last block's channels, heights and widths, row-major too.
    """

    channels: int
    height: int
    width: int
    blocks: tuple[ConvBlock, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Features (..., n) of images (..., channels * height * width)."""
        image = x.reshape(-1, self.channels, self.height, self.width)
        for block in self.blocks:
            image = torch.nn.functional.conv2d(image, block.weight, block.bias, padding=1)
            if block.norm is not None:
                weight, bias, mean, variance = block.norm
                # Never of the batch's own moments: no observation depends on its batch mates.
                normed = torch.nn.functional.batch_norm(
                    image, mean, variance, weight, bias, False, eps=EPSILON
                )
                image = torch.relu(normed)
            image = torch.nn.functional.max_pool2d(image, 2)
        return image.reshape(*x.shape[:-1], -1)


@dataclass(frozen=True)
class Time:
    """`[1, t if trend, sin(2 pi t / p_1), cos(2 pi t / p_1), ...]` of an input that is a time `t`.

    The constant is always there: a season has a level. Periods are in the unit of the time, after
    the model's input scaling.
    """

    periods: tuple[float, ...]
    trend: bool = False

    @property
    def features(self) -> int:
        """How many there are."""
        return 1 + self.trend + 2 * len(self.periods)

    def __call__(self, x: Tensor) -> Tensor:
        """Features (..., n) of times (..., 1)."""
        features = [torch.ones_like(x), x] if self.trend else [torch.ones_like(x)]
        for period in self.periods:
            # The remainder is exact where the angle of a late time would not be.
            angle = 2 * math.pi * torch.remainder(x, period) / period
            features += [torch.sin(angle), torch.cos(angle)]
        return torch.cat(features, -1)
