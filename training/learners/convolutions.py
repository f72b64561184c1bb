"""A block of convolution, norm, ReLU and pooling in training, a few images at a time.

The norm's moments are those of all images of a batch, and only pooled values are normalised: a norm
does not change which of four values is the largest unless its weight is negative, and then the
kernel's sign is turned. So what has the size of the images stays in the processor's cache. Moments
of parts are put together as by Chan et al. (1979), which loses fewer digits than one long sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VALUES = 1 << 20  # in a part, behind the convolution


def block(image: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """`max_pool(relu(norm(conv(image))))` of images (B, in, H, W), in training.

    conv: 3 x 3 with padding 1. Moves the norm's running moments, as the norm itself would.
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
    found: Tensor = pooled
    return found


class _Block(torch.autograd.Function):
    """With its own gradient: sums over all values are known from the pooled ones."""

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
        """The block's outcome, mean and unbiased variance before the norm.

        The bias moves the mean alone: the norm takes it away again.
        """
        sign = torch.where(weight < 0, -1.0, 1.0).to(weight)
        signed = (kernel * sign[:, None, None, None]).contiguous(memory_format=torch.channels_last)
        ctx.part = max(1, VALUES // (len(kernel) * image.shape[2] * image.shape[3]))
        pooled, which, values = [], [], []
        count, mean, squares = 0, torch.zeros_like(weight), torch.zeros_like(weight)
        for part in torch.split(image, ctx.part):
            value = functional.conv2d(part, signed, padding=1)
            most, index = functional.max_pool2d_with_indices(value, (2, 2))
            count, mean, squares = _joined(count, mean, squares, value)
            pooled.append(most)
            which.append(index)
            values.append(value)
        scale = (squares / count + eps).rsqrt()
        normal = torch.cat(pooled).sub_(_across(mean)).mul_(_across(scale))
        found = (normal * _across(weight.abs())).add_(_across(shift)).relu_()
        ctx.count, ctx.parts = count, len(values)
        ctx.save_for_backward(
            image, signed, sign, weight, mean, scale, normal, found, *which, *values
        )
        moments = sign * mean + bias, squares / max(count - 1, 1)
        ctx.mark_non_differentiable(*moments)
        return found, *moments

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all but `eps`; that of the bias is 0."""
        image, signed, sign, weight, mean, scale, normal, found, *rest = ctx.saved_tensors
        passed = grad.masked_fill(found == 0, 0.0)
        d_shift, d_weight = passed.sum((0, 2, 3)), (passed * normal).sum((0, 2, 3))
        # Through the moments every value has a share, linear in the value.
        factor = weight.abs() * scale
        slope = -factor * scale * d_weight / ctx.count
        level = -factor * d_shift / ctx.count - slope * mean
        pooled = torch.split(passed.mul_(_across(factor)), ctx.part)
        parts = zip(
            torch.split(image, ctx.part), pooled, rest[: ctx.parts], rest[ctx.parts :], strict=True
        )
        d_kernel, d_image, wanted = torch.zeros_like(signed), [], ctx.needs_input_grad[0]
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
    """Number, mean and summed squared deviations, with the values of one more part."""
    flat = value.movedim(1, -1).flatten(0, -2)
    own = flat.mean(0)
    more, moved = len(flat), own - mean
    total = count + more
    squares = squares + flat.sub(own).square_().sum(0) + moved.square() * (count * more / total)
    return total, mean + moved * (more / total), squares


def _across(channel: Tensor) -> Tensor:
    """Numbers of channels (C,) as (C, 1, 1)."""
    return channel[:, None, None]
