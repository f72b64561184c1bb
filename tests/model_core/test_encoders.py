"""Encoders of images against torch's own modules, encoders of time against their formula."""

from __future__ import annotations

import math

import pytest
import torch

from model_core import artifact
from model_core.errors import BadArtifact
from tests.model_core.registry import irregular, tensor

SMALL = (2, 13, [3, 5, 4])  # channels, side, blocks: sides of 13, 6, 3, 1
IMAGE = 2 * 13 * 13


def modules(channels: int, widths: list[int]) -> torch.nn.Sequential:
    """The paper's stack: the last block has neither norm nor ReLU."""
    layers = []
    for i, (a, b) in enumerate(zip([channels, *widths[:-1]], widths, strict=True)):
        layers.append(torch.nn.Conv2d(a, b, 3, padding=1))
        if i < len(widths) - 1:
            layers += [torch.nn.BatchNorm2d(b), torch.nn.ReLU()]
        layers.append(torch.nn.MaxPool2d(2))
    stack = torch.nn.Sequential(*layers, torch.nn.Flatten()).double()
    with torch.no_grad():
        for i, each in enumerate([*stack.parameters(), *stack.buffers()]):
            if each.dtype == torch.float64:
                values = tensor(irregular(*each.shape, seed=i))
                each.copy_(values / each[0].numel() ** 0.5 if each.dim() == 4 else values)
        for layer in stack:
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.running_var.square_().add_(0.1)
    return stack.eval()


def tensors_of(stack: torch.nn.Sequential) -> dict[str, torch.Tensor]:
    """Weights under their names in an artifact."""
    found = {}
    block = -1
    for layer in stack:
        if isinstance(layer, torch.nn.Conv2d):
            block += 1
        part = {torch.nn.Conv2d: "conv", torch.nn.BatchNorm2d: "norm"}.get(type(layer))
        for name, value in layer.state_dict().items() if part else ():
            if name != "num_batches_tracked":
                found[f"encoder.{block}.{part}.{name}"] = value
    return found


def conv(shape: tuple[int, int, list[int]]) -> dict:
    channels, side, widths = shape
    return {"type": "conv", "channels": channels, "height": side, "width": side, "blocks": widths}


@pytest.fixture
def load(tmp_path):
    """Write a classifier of two classes with an encoder, and load it."""

    def loaded(x_dim: int, features: int, encoder: dict, tensors: dict | None = None, **more):
        description = {"kind": "pcoc", "x_dim": x_dim, "y_dim": 2, "feature_dim": features}
        description |= {"encoder": encoder, "hazard": 0.1, **more}
        zeros = torch.zeros(2, features)
        names = ("prior_mean", "log_prior_precision", "log_noise_variance")
        heads = {name: zeros + i for i, name in enumerate(names)}
        heads |= {"log_dirichlet": torch.zeros(2), **(tensors or {})}
        artifact.save(tmp_path, description, {k: v for k, v in heads.items() if v is not None})
        return artifact.load(tmp_path)

    return loaded


@pytest.mark.parametrize(
    "shape",
    [SMALL, (3, 28, [64] * 4), pytest.param((3, 84, [64] * 6), marks=pytest.mark.slow)],
    ids=["small", "rainbow", "mini"],
)
def test_convolutions_are_torchs_own(load, shape):
    channels, side, widths = shape
    stack = modules(channels, widths)
    x = tensor(irregular(4, channels * side * side, seed=99))
    model = load(x.shape[-1], widths[-1], conv(shape), tensors_of(stack))
    expected = stack(x.reshape(4, channels, side, side))
    assert expected.shape == (4, widths[-1])
    together = model.encode(x, tensor([]))
    torch.testing.assert_close(together, expected, atol=1e-11, rtol=1e-11)
    for row in range(4):  # in evaluation mode nothing depends on the rest of the batch
        alone = model.encode(x[row : row + 1], tensor([]))
        torch.testing.assert_close(alone[0], together[row], atol=1e-11, rtol=1e-11)
    blocks = model.encode(x.reshape(2, 2, -1), tensor([]))
    torch.testing.assert_close(blocks.flatten(0, 1), together, atol=1e-11, rtol=1e-11)


def test_a_bad_spec_of_convolutions_is_refused_by_its_field(load):
    good = tensors_of(modules(2, SMALL[2]))
    for change, words in (
        ({"channels": 0}, "channels"),
        ({"height": 13.0}, "height"),
        ({"width": True}, "width"),
        ({"width": 14}, "x_dim"),
        ({"blocks": 3}, "blocks"),
        ({"blocks": []}, "blocks"),
        ({"blocks": [3, 5, "4"]}, "blocks"),
        ({"blocks": [3, 5, 6]}, "feature_dim"),
        ({"blocks": [3, 5, 4, 4]}, "feature_dim"),
        ({"blocks": [3, 6, 4]}, r"encoder.1.conv.weight"),
    ):
        with pytest.raises(BadArtifact, match=words):
            load(IMAGE, 4, {**conv(SMALL), **change}, good)
    for name, value in good.items():
        for bad in (None, value[:1].unsqueeze(0), value * math.nan):
            with pytest.raises(BadArtifact, match=name):
                load(IMAGE, 4, conv(SMALL), {**good, name: bad})
    name = "encoder.1.norm.running_var"
    with pytest.raises(BadArtifact, match=name):
        load(IMAGE, 4, conv(SMALL), {**good, name: -good[name]})


def test_features_of_time(load):
    model = load(1, 6, {"type": "time", "periods": [24, 168.0], "trend": True})
    t = tensor([[0.0], [5.5], [30.0], [-2.0]])
    expected = [torch.ones(4, 1), t]
    for period in (24, 168):
        expected += [torch.sin(2 * math.pi * t / period), torch.cos(2 * math.pi * t / period)]
    features = torch.cat(expected, -1).double()
    torch.testing.assert_close(model.encode(t, tensor([])), features)
    blocks = model.encode(t.reshape(2, 2, 1), tensor([]))
    torch.testing.assert_close(blocks.flatten(0, 1), features)


def test_a_bad_spec_of_time_is_refused_by_its_field(load):
    for change, words in (
        *(({"periods": [24, each]}, "periods") for each in (0, -1, math.nan, math.inf, "168")),
        ({"periods": 24}, "periods"),
        ({"periods": [24]}, "feature_dim"),
        ({"trend": True}, "feature_dim"),
        ({"trend": 1}, "trend"),
    ):
        with pytest.raises(BadArtifact, match=words):
            load(1, 5, {"type": "time", "periods": [24, 168], **change})
    with pytest.raises(BadArtifact, match="x_dim"):
        load(2, 5, {"type": "time", "periods": [24, 168]})
