"""Convolutions in training and in evaluation, against torch's own layers one after another."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from training.learners import convolutions, encoders
from training.learners.encoders import ConvEncoder


def encoder(size: int = 12, seed: int = 0) -> ConvEncoder:
    """Three blocks, norms of both signs."""
    torch.manual_seed(seed)
    found = ConvEncoder(3, size, size, [5, 4, 6]).double()
    for block in found:
        if block.norm is not None:
            nn.init.normal_(block.norm.weight)
            nn.init.normal_(block.norm.bias)
    return found


def layers(blocks: ConvEncoder, x: torch.Tensor) -> torch.Tensor:
    """What the paper says, in its order."""
    image = x.reshape(-1, *blocks.shape)
    for block in blocks:
        image = block.conv(image)
        image = image if block.norm is None else torch.relu(block.norm(image))
        image = functional.max_pool2d(image, 2)
    return image.flatten(1)


def images(count: int, size: int = 12, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3 * size * size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("values", [1, 5 * 12 * 12 * 3, 1 << 20])
@pytest.mark.parametrize("size", [12, 13])
def test_training_is_that_of_layers(monkeypatch, values, size):
    monkeypatch.setattr(convolutions, "VALUES", values)
    found, plain, x = encoder(size), encoder(size), images(7, size)
    share = torch.randn(7, found.features, dtype=torch.float64)
    ours, theirs = found(x), layers(plain, x)
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)
    (ours * share).sum().backward()
    (theirs * share).sum().backward()
    for (name, one), other in zip(found.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-11, rtol=1e-9, msg=name)
    for (name, one), other in zip(found.named_buffers(), plain.named_buffers(), strict=True):
        torch.testing.assert_close(one, other[1], atol=1e-12, rtol=0, msg=name)


def test_mixed_precision_is_near_in_training_and_absent_in_evaluation():
    plain, x = encoder().float(), images(200).float()
    mixed = ConvEncoder(3, 12, 12, [5, 4, 6], mixed=True)
    mixed.load_state_dict(plain.state_dict())
    ours, theirs = mixed(x), plain(x)
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, theirs)
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    one, other = (
        torch.cat([each.grad.flatten() for each in net.parameters()]) for net in (mixed, plain)
    )
    assert one.dtype == torch.float32
    assert (one - other).norm() < 0.1 * other.norm()
    mixed.load_state_dict(plain.state_dict())
    assert torch.equal(mixed.eval()(x), plain.eval()(x))


def test_gradients_of_a_block(monkeypatch):
    monkeypatch.setattr(convolutions, "VALUES", 40)
    generator = torch.Generator().manual_seed(2)
    shapes = (3, 2, 4, 4), (3, 2, 3, 3), (3,), (3,), (3,)
    given = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    assert (given[3] < 0).any()
    assert (given[3] > 0).any()

    def outcome(*values):
        return convolutions._Block.apply(*values, 1e-5)[0]

    assert torch.autograd.gradcheck(outcome, given)


@pytest.mark.parametrize("parted", [2, 32])
def test_evaluation_is_that_of_layers(monkeypatch, parted):
    monkeypatch.setattr(encoders, "IMAGES", parted)
    found, x = encoder(), images(5)
    found(3 * images(9, seed=3))  # moves the running moments
    found.eval()
    torch.testing.assert_close(found(x), layers(found, x), atol=1e-11, rtol=0)
    assert torch.equal(found(x)[3:4], found(x[3:4]))
    assert found(x.reshape(5, 1, -1)).shape == (5, 1, found.features)


def test_moments_keep_their_digits_in_single_precision():
    """A mean that is large beside the deviation, of a hundred thousand values."""
    conv, norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
    nn.init.zeros_(conv.weight)
    conv.weight.data[:, 0, 1, 1] = torch.tensor([1.0, -1.0])
    image = 30 + torch.rand(130, 1, 28, 28, generator=torch.Generator().manual_seed(4))
    exact = copy.deepcopy(norm).double()
    wanted = torch.relu(
        functional.max_pool2d(exact(copy.deepcopy(conv).double()(image.double())), 2)
    )
    found = convolutions.block(image.contiguous(memory_format=torch.channels_last), conv, norm)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(norm.running_var.double(), exact.running_var, atol=1e-6, rtol=0)
