"""Encoders of images against torch's own modules, encoders of time against their formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from model_core import artifact
from model_core.errors import BadArtifact
from tests.model_core.cases import irregular, run, series, tensor
from tests.model_core.cases import pcoc_case as classifier

RAINBOW, MINI = (3, 28, [64] * 4), (3, 84, [64] * 6)
SMALL = (2, 13, [3, 5, 4])  # 13, 6, 3, 1


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
    found, block = {}, -1
    for layer in stack:
        if isinstance(layer, torch.nn.Conv2d):
            block += 1
        part = {torch.nn.Conv2d: "conv", torch.nn.BatchNorm2d: "norm"}.get(type(layer))
        for name, value in layer.state_dict().items() if part else ():
            if name != "num_batches_tracked":
                found[f"encoder.{block}.{part}.{name}"] = value
    return found


def description(x_dim: int, features: int, encoder: dict) -> dict:
    dims = {"x_dim": x_dim, "y_dim": 2, "feature_dim": features}
    return {"kind": "pcoc", **dims, "encoder": encoder, "hazard": 0.1}


def heads(features: int) -> dict[str, torch.Tensor]:
    """The rest of a classifier of two classes."""
    zeros = torch.zeros(2, features)
    names = ("prior_mean", "log_prior_precision", "log_noise_variance")
    return {**{name: zeros + i for i, name in enumerate(names)}, "log_dirichlet": torch.zeros(2)}


def conv(shape: tuple[int, int, list[int]]) -> dict:
    channels, side, widths = shape
    return {"type": "conv", "channels": channels, "height": side, "width": side, "blocks": widths}


@pytest.mark.parametrize("shape", [RAINBOW, MINI, SMALL], ids=["rainbow", "mini", "small"])
def test_convolutions_are_torchs_own(tmp_path, shape):
    channels, side, widths = shape
    stack = modules(channels, widths)
    x = tensor(irregular(4, channels * side * side, seed=99))
    spec = description(x.shape[-1], widths[-1], conv(shape))
    artifact.save(tmp_path, spec, {**tensors_of(stack), **heads(widths[-1])})
    model = artifact.load(tmp_path)
    expected = stack(x.reshape(4, channels, side, side))
    assert expected.shape == (4, widths[-1])
    together = model.encode(x, tensor([]))
    torch.testing.assert_close(together, expected, atol=1e-11, rtol=1e-11)
    for row in range(4):  # in evaluation mode nothing depends on the rest of the batch
        alone = model.encode(x[row : row + 1], tensor([]))
        torch.testing.assert_close(alone[0], together[row], atol=1e-11, rtol=1e-11)
    blocks = model.encode(x.reshape(2, 2, -1), tensor([]))
    torch.testing.assert_close(blocks.flatten(0, 1), together, atol=1e-11, rtol=1e-11)


def test_four_blocks_leave_1600_features_of_mini_imagenet(tmp_path):
    """What the paper found too large (app. C)."""
    channels, side, widths = 3, 84, [64] * 4
    stack = modules(channels, widths)
    spec = description(channels * side * side, 1600, conv((channels, side, widths)))
    artifact.save(tmp_path, spec, {**tensors_of(stack), **heads(1600)})
    x = tensor(irregular(1, spec["x_dim"], seed=98))
    features = artifact.load(tmp_path).encode(x, tensor([]))
    torch.testing.assert_close(features, stack(x.reshape(1, 3, 84, 84)), atol=1e-11, rtol=1e-11)


def test_images_of_bytes_are_scaled_by_one_number(tmp_path):
    stack = modules(2, SMALL[2])
    spec = description(2 * 13 * 13, 4, conv(SMALL))
    spec["input_scaling"] = {"offset": 10, "scale": 255.0}
    artifact.save(tmp_path, spec, {**tensors_of(stack), **heads(4)})
    x = tensor(np.arange(2 * 13 * 13) % 256)[None]
    features = artifact.load(tmp_path).encode(x, tensor([]))
    expected = stack((x.reshape(1, 2, 13, 13) - 10) / 255)
    torch.testing.assert_close(features, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"channels": 0}, "encoder.channels is 0"),
        ({"height": 13.0}, "encoder.height is 13.0"),
        ({"width": True}, "encoder.width is True"),
        ({"width": 14}, "x_dim 338 is not channels"),
        ({"blocks": 3}, "encoder.blocks is 3, expected the channels of each block"),
        ({"blocks": []}, r"encoder.blocks is \[\]"),
        ({"blocks": [3, 5, "4"]}, "encoder.blocks"),
        ({"blocks": [3, 5, 6]}, r"3 blocks leave 6 \* 1 features of 13 x 13, feature_dim is 4"),
        ({"blocks": [3, 5, 4, 4]}, r"4 blocks leave 4 \* 0 features"),
        ({"blocks": [3, 6, 4]}, r"'encoder.1.conv.weight' has shape \[5, 3, 3, 3\], expected \[6"),
        ({"type": "time"}, "time encoder of 0 periods needs x_dim 1 and feature_dim 1"),
    ],
)
def test_a_bad_spec_of_convolutions_is_named(tmp_path, change, words):
    spec = description(2 * 13 * 13, 4, {**conv(SMALL), **change})
    artifact.save(tmp_path, spec, {**tensors_of(modules(2, SMALL[2])), **heads(4)})
    with pytest.raises(BadArtifact, match=words) as error:
        artifact.load(tmp_path)
    assert "model." in str(error.value)


@pytest.mark.parametrize("name", sorted(tensors_of(modules(2, SMALL[2]))))
def test_every_tensor_of_convolutions_is_needed_and_checked(tmp_path, name):
    good = tensors_of(modules(2, SMALL[2]))
    for words, value in (
        ("is missing", None),
        ("has shape", good[name][:1].unsqueeze(0)),
        ("non-finite", good[name] * math.nan),
    ):
        changed = {k: v for k, v in {**good, name: value}.items() if v is not None}
        artifact.save(tmp_path, description(338, 4, conv(SMALL)), {**changed, **heads(4)})
        with pytest.raises(BadArtifact, match=f"{name}.*{words}"):
            artifact.load(tmp_path)


def test_a_variance_below_nothing_is_refused(tmp_path):
    good = {**tensors_of(modules(2, SMALL[2])), **heads(4)}
    good["encoder.1.norm.running_var"] = -good["encoder.1.norm.running_var"]
    artifact.save(tmp_path, description(338, 4, conv(SMALL)), good)
    with pytest.raises(BadArtifact, match=r"encoder.1.norm.running_var' has a negative number"):
        artifact.load(tmp_path)


def test_features_of_time(tmp_path):
    spec = {"type": "time", "periods": [24, 168.0], "trend": True}
    artifact.save(tmp_path, description(1, 6, spec), heads(6))
    model, t = artifact.load(tmp_path), tensor([[0.0], [5.5], [30.0], [-2.0]])
    expected = [torch.ones(4, 1), t]
    for period in (24, 168):
        expected += [torch.sin(2 * math.pi * t / period), torch.cos(2 * math.pi * t / period)]
    torch.testing.assert_close(model.encode(t, tensor([])), torch.cat(expected, -1).double())
    blocks = model.encode(t.reshape(2, 2, 1), tensor([]))
    torch.testing.assert_close(blocks.flatten(0, 1), torch.cat(expected, -1).double())


def test_time_of_late_observations_keeps_its_phase(tmp_path):
    artifact.save(tmp_path, description(1, 3, {"type": "time", "periods": [86400]}), heads(3))
    model = artifact.load(tmp_path)
    late = tensor([[20_000 * 86400.0 + 3600], [3600.0]])
    features = model.encode(late, tensor([]))
    assert torch.equal(features[0], features[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"periods": 24}, "encoder.periods is 24"),
        ({"periods": [24, 0]}, "encoder.periods"),
        ({"periods": [24, -1]}, "encoder.periods"),
        ({"periods": [24, math.nan]}, "encoder.periods"),
        ({"periods": [24, math.inf]}, "encoder.periods"),
        ({"periods": [24, "168"]}, "encoder.periods"),
        ({"periods": [24]}, "time encoder of 1 periods needs x_dim 1 and feature_dim 3, not 1 and"),
        ({"trend": True}, "needs x_dim 1 and feature_dim 6, not 1 and 5"),
        ({"trend": 1}, "encoder.trend is 1"),
    ],
)
def test_a_bad_spec_of_time_is_named(tmp_path, change, words):
    spec = {"type": "time", "periods": [24, 168], **change}
    artifact.save(tmp_path, description(1, 5, spec), heads(5))
    with pytest.raises(BadArtifact, match=words):
        artifact.load(tmp_path)


def test_the_filter_takes_images(tmp_path):
    """An observation of pixels goes through, and a stream does not see its batch mates."""
    artifact.save(
        tmp_path,
        description(338, 4, conv(SMALL)),
        {**tensors_of(modules(2, SMALL[2])), **heads(4)},
    )
    case = classifier()._replace(model=artifact.load(tmp_path))
    rng = np.random.default_rng(0)
    batch = [
        series(classifier(), seed, 6)._replace(
            x=rng.normal(size=(6, 338)), y=rng.integers(2, size=(6, 1)).astype(float)
        )
        for seed in range(3)
    ]
    together = run(case, batch, 8)
    assert all(step.info.ok.all() for step in together)
    for row, one in enumerate(batch):
        for a, b in zip(together, run(case, [one], 8), strict=True):
            score = a.info.log_score[row].item()
            assert score == pytest.approx(b.info.log_score.item(), rel=1e-9)
