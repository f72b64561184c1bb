"""Convolution stacks for images (paper, app. C; Snell et al. 2017).

Four blocks take 3 x 28 x 28 (Rainbow MNIST), six take 3 x 84 x 84 (miniImageNet), both to 64
features. Every block halves height and width, rounding down: 28, 14, 7, 3, 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model_core.lazy import Tensor, torch

EPSILON = 1e-5  # added to running variances, as torch.nn.BatchNorm2d does


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
