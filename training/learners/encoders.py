"""Trainable encoders; parameters are named as in an artifact."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_core.encoder import Mlp

IMAGES = 32  # evaluated together: intermediate results stay in the processor's cache


class MlpEncoder(nn.ModuleList):
    """Layers `activation(W x + b)`, the last one with `output_activation`.

    linear: number of features after them that are linear in the inputs.
    """

    def __init__(
        self, layers: list[int], activation: str, output_activation: str, linear: int = 0
    ) -> None:
        pairs = zip(layers[:-1], layers[1:], strict=True)
        super().__init__(nn.Linear(into, out) for into, out in pairs)
        self.linear = nn.Linear(layers[0], linear) if linear else None
        self.layers = layers
        self.features = layers[-1] + linear
        self.activation = activation
        self.output_activation = output_activation

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., n) of inputs (..., x_dim)."""
        layers = [cast(nn.Linear, self[i]) for i in range(len(self.layers) - 1)]
        linear = None if self.linear is None else (self.linear.weight, self.linear.bias)
        network = Mlp(
            weights=tuple(layer.weight for layer in layers),
            biases=tuple(layer.bias for layer in layers),
            activation=self.activation,
            output_activation=self.output_activation,
            linear=linear,
        )
        return network(x)

    def spec(self) -> dict[str, Any]:
        """The field `encoder` of a `model.json`."""
        linear = {} if self.linear is None else {"linear": self.linear.out_features}
        return {
            "type": "mlp",
            "layers": self.layers,
            "activation": self.activation,
            "output_activation": self.output_activation,
            **linear,
        }


class _ConvBlock(nn.Module):
    """Convolution, norm, ReLU, pooling; the last block has neither norm nor ReLU."""

    def __init__(self, into: int, out: int, *, last: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, padding=1)
        self.norm = None if last else nn.BatchNorm2d(out)

    def forward(self, image: Tensor) -> Tensor:
        """Features of half the height and width."""
        value = self.conv(image)
        if self.norm is None:
            return functional.max_pool2d(value, 2)
        # Pooling first gives the same result, as ReLU is monotone, for a quarter of the work.
        return torch.relu(functional.max_pool2d(self.norm(value), 2))


class ConvEncoder(nn.ModuleList):
    """Blocks on images given as channels * height * width numbers (paper, app. C).

    In training the norms use the moments of all images of a batch; in evaluation, running ones.
    mixed: in training, images and kernels are rounded to bfloat16, which takes half the time where
    the processor has such products (AMX, tensor cores).
    """

    def __init__(
        self, channels: int, height: int, width: int, blocks: list[int], *, mixed: bool = False
    ) -> None:
        into = [channels, *blocks[:-1]]
        last = len(blocks) - 1
        super().__init__(
            _ConvBlock(a, b, last=i == last)
            for i, (a, b) in enumerate(zip(into, blocks, strict=True))
        )
        # With channels last, convolutions, norms and pooling take half the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.shape = (channels, height, width)
        self.blocks = blocks
        self.mixed = mixed
        self.features = blocks[-1] * (height >> len(blocks)) * (width >> len(blocks))
        if self.features == 0:
            raise ValueError(f"{len(blocks)} blocks leave nothing of {height} x {width} images")

    def forward(self, x: Tensor) -> Tensor:
        """Features (..., n) of images (..., channels * height * width)."""
        image = x.reshape(-1, *self.shape).contiguous(memory_format=torch.channels_last)
        # In training, the images of a batch share moments.
        parts = [image] if self.training else torch.split(image, IMAGES)
        rounded = self.mixed and self.training
        with torch.autocast(image.device.type, torch.bfloat16, enabled=rounded):
            features = torch.cat([self._blocks(part) for part in parts])
        return features.to(x.dtype).reshape(*x.shape[:-1], -1)

    def _blocks(self, image: Tensor) -> Tensor:
        for block in self:
            image = block(image)
        return image

    def spec(self) -> dict[str, Any]:
        """The field `encoder` of a `model.json`."""
        channels, height, width = self.shape
        return {
            "type": "conv",
            "channels": channels,
            "height": height,
            "width": width,
            "blocks": self.blocks,
        }


EncoderModule = MlpEncoder | ConvEncoder
