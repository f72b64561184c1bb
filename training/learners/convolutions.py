"""Convolution, batch norm, ReLU and pooling in training, fused over a few images at a time.

The norm's moments are those of all images of a batch, and only pooled values are normalised: a norm
does not change which of four values is the largest unless its weight is negative, and then the
kernel's sign is flipped. Intermediate results of image size thus stay in the processor's cache.
Moments of parts are combined as by Chan et al. (1979), which is more accurate than one long sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VALUES = 1 << 20  # values of a part after the convolution


def block(image: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """`max_pool(relu(norm(conv(image))))` of images (B, in, H, W), in training.

    conv: 3 x 3 with padding 1. Updates the norm's running moments, as the norm itself does.
    """
    pooled, mean, variance = _Block.apply(  # type: ignore[no-untyped-call]
        image, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps
    )
    moments = (norm.running_mean, mean), (norm.running_var, variance)
    with torch.no_grad():
        for running, moment in moments:
            assert running is not None
            assert norm.momentum is not None
            running.lerp_(moment, norm.momentum)
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
    result: Tensor = pooled
    return result


class _Block(torch.autograd.Function):
    """Block with its own gradient: sums over all values follow from the pooled ones."""

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        kernel: Tensor,
        bias: Tensor,
        weight: Tensor,
        shift: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output of the block; mean and unbiased variance before the norm.

        The bias only shifts the mean, which the norm subtracts.
        """
        sign = torch.where(weight < 0, -1.0, 1.0).to(weight)
        signed = (kernel * sign[:, None, None, None]).contiguous(memory_format=torch.channels_last)
        ctx.part = max(1, VALUES // (len(kernel) * image.shape[2] * image.shape[3]))
        pooled = []
        indices = []
        values = []
        count = 0
        mean = torch.zeros_like(weight)
        squares = torch.zeros_like(weight)
        for part in torch.split(image, ctx.part):
            value = functional.conv2d(part, signed, padding=1)
            largest, index = functional.max_pool2d_with_indices(value, (2, 2))
            count, mean, squares = _joined(count, mean, squares, value)
            pooled.append(largest)
            indices.append(index)
            values.append(value)
        scale = (squares / count + eps).rsqrt()
        normal = torch.cat(pooled).sub_(_across(mean)).mul_(_across(scale))
        output = (normal * _across(weight.abs())).add_(_across(shift)).relu_()
        ctx.count = count
        ctx.parts = len(values)
        ctx.save_for_backward(
            image, signed, sign, weight, mean, scale, normal, output, *indices, *values
        )
        moments = sign * mean + bias, squares / max(count - 1, 1)
        ctx.mark_non_differentiable(*moments)
        return output, *moments

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all but `eps`; that of the bias is 0."""
        image, signed, sign, weight, mean, scale, normal, output, *rest = ctx.saved_tensors
        passed = grad.masked_fill(output == 0, 0.0)
        d_shift = passed.sum((0, 2, 3))
        d_weight = (passed * normal).sum((0, 2, 3))
        # The moments give every value a gradient that is linear in the value.
        factor = weight.abs() * scale
        slope = -factor * scale * d_weight / ctx.count
        level = -factor * d_shift / ctx.count - slope * mean
        pooled = torch.split(passed.mul_(_across(factor)), ctx.part)
        parts = zip(
            torch.split(image, ctx.part), pooled, rest[: ctx.parts], rest[ctx.parts :], strict=True
        )
        d_kernel = torch.zeros_like(signed)
        d_image = []
        wanted = ctx.needs_input_grad[0]
        for part, direct, index, value in parts:
            moved = torch.ops.aten.max_pool2d_with_indices_backward(
                direct, value, [2, 2], [2, 2], [0, 0], [1, 1], False, index
            )
            moved += torch.addcmul(_across(level), value, _across(slope))
            d_part, d_own, _unused = torch.ops.aten.convolution_backward(
                moved, part, signed, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
                [wanted, True, False],
            )  # fmt: skip
            d_kernel += d_own
            d_image.append(d_part)
        whole = torch.cat(d_image) if wanted else None
        d_kernel *= sign[:, None, None, None]
        return whole, d_kernel, torch.zeros_like(weight), sign * d_weight, d_shift, None


def _joined(count: int, mean: Tensor, squares: Tensor, value: Tensor) -> tuple[int, Tensor, Tensor]:
    """Count, mean and summed squared deviations, updated with the values of a part."""
    flat = value.movedim(1, -1).flatten(0, -2)
    own = flat.mean(0)
    more = len(flat)
    moved = own - mean
    total = count + more
    squares = squares + flat.sub(own).square_().sum(0) + moved.square() * (count * more / total)
    return total, mean + moved * (more / total), squares


def _across(channel: Tensor) -> Tensor:
    """Values by channel (C,) as (C, 1, 1)."""
    return channel[:, None, None]
