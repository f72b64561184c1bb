"""Encoders from an artifact. The field `encoder` is one of

`{"type": "identity"}`: features are the (scaled) inputs;

`{"type": "mlp", "layers": [x_dim, ..., feature_dim], "activation": "relu",
"output_activation": "identity", "linear": 0}`: tensors `encoder.{i}.weight` (out, in),
`encoder.{i}.bias`; and of features that are linear in the inputs, after those of the last layer
and as many as `linear` says, `encoder.linear.weight`, `encoder.linear.bias`;

`{"type": "conv", "channels": 3, "height": 28, "width": 28, "blocks": [64, 64, 64, 64]}`: the
channels of the input and of each block, x_dim = channels * height * width numbers in row-major
order. Tensors `encoder.{i}.conv.weight` (out, in, 3, 3), `encoder.{i}.conv.bias`, and but for the
last block `encoder.{i}.norm.{weight,bias,running_mean,running_var}`. Every block halves height and
width, rounding down; feature_dim is what is left, times the last block's channels;

`{"type": "time", "periods": [24, 168], "trend": false}`: x is one number, a time; a constant, the
time itself with `trend`, and a sine and a cosine of each period, in the unit of the time after
`input_scaling`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from model_core.artifact.parts import Parts
from model_core.encoder import ACTIVATIONS, Conv, ConvBlock, Encoder, Identity, Mlp, Time
from model_core.errors import BadArtifact

Spec = dict[str, Any]
WHERE = "model.json: encoder"


def encoder(parts: Parts, x_dim: int, feature_dim: int) -> Encoder:
    """The field `encoder`: from inputs (B, x_dim) to features (B, feature_dim).

    Raises BadArtifact.
    """
    if parts.encoder is not None:
        return parts.encoder
    spec: Spec = parts.field("encoder", dict)
    kind = spec.get("type")
    if not isinstance(kind, str) or kind not in _BUILDERS:
        raise BadArtifact(f"{WHERE}: unknown encoder type {kind!r}, expected {sorted(_BUILDERS)}")
    return _BUILDERS[kind](parts, spec, x_dim, feature_dim)


def activation(spec: Spec, name: str, default: str) -> str:
    """Name of an activation in a spec; raises BadArtifact."""
    value = spec.get(name, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise BadArtifact(
            f"model.json: {name}: unknown activation {value!r}, expected {sorted(ACTIVATIONS)}"
        )
    return value


def mlp(parts: Parts, prefix: str, layers: list[int], activations: tuple[str, str]) -> Mlp:
    """Layers of the given widths from tensors `PREFIX.{i}.weight` and `PREFIX.{i}.bias`."""
    sizes = list(zip(layers[:-1], layers[1:], strict=True))
    weights = tuple(parts.tensor(f"{prefix}.{i}.weight", b, a) for i, (a, b) in enumerate(sizes))
    biases = tuple(parts.tensor(f"{prefix}.{i}.bias", b) for i, (_, b) in enumerate(sizes))
    return Mlp(weights, biases, *activations)


def _identity(parts: Parts, spec: Spec, x_dim: int, feature_dim: int) -> Identity:
    if x_dim != feature_dim:
        raise BadArtifact(
            f"{WHERE}: identity encoder, but x_dim {x_dim} is not feature_dim {feature_dim}"
        )
    return Identity()


def _mlp(parts: Parts, spec: Spec, x_dim: int, feature_dim: int) -> Mlp:
    layers = spec.get("layers")
    linear = spec.get("linear", 0)
    if linear != 0 and not (_is_size(linear) and linear < feature_dim):
        raise BadArtifact(
            f"{WHERE}.linear is {linear!r}, expected a whole number below {feature_dim}"
        )
    if (
        not isinstance(layers, list)
        or len(layers) < 2
        or (layers[0], layers[-1]) != (x_dim, feature_dim - linear)
    ):
        raise BadArtifact(
            f"model.json: encoder.layers is {layers!r}, expected "
            f"[{x_dim}, ..., {feature_dim - linear}]"
        )
    names = (
        activation(spec, "activation", "relu"),
        activation(spec, "output_activation", "identity"),
    )
    network = mlp(parts, "encoder", layers, names)
    if linear == 0:
        return network
    weight = parts.tensor("encoder.linear.weight", linear, x_dim)
    return replace(network, linear=(weight, parts.tensor("encoder.linear.bias", linear)))


def _conv(parts: Parts, spec: Spec, x_dim: int, feature_dim: int) -> Conv:
    channels, height, width = (_whole(spec, name) for name in ("channels", "height", "width"))
    widths = spec.get("blocks")
    if not isinstance(widths, list) or not widths or not all(map(_is_size, widths)):
        raise BadArtifact(f"{WHERE}.blocks is {widths!r}, expected the channels of each block")
    if x_dim != channels * height * width:
        raise BadArtifact(
            f"{WHERE}: x_dim {x_dim} is not channels * height * width, "
            f"{channels} * {height} * {width}"
        )
    left = (height >> len(widths)) * (width >> len(widths))
    if left == 0 or feature_dim != widths[-1] * left:
        raise BadArtifact(
            f"{WHERE}: {len(widths)} blocks leave {widths[-1]} * {left} features of "
            f"{height} x {width}, feature_dim is {feature_dim}"
        )
    blocks = [
        _block(parts, f"encoder.{i}", b, a, last=i == len(widths) - 1)
        for i, (a, b) in enumerate(zip([channels, *widths[:-1]], widths, strict=True))
    ]
    return Conv(channels, height, width, tuple(blocks))


def _block(parts: Parts, name: str, out: int, into: int, *, last: bool) -> ConvBlock:
    weight = parts.tensor(f"{name}.conv.weight", out, into, 3, 3)
    bias = parts.tensor(f"{name}.conv.bias", out)
    if last:
        return ConvBlock(weight, bias, None)
    scale, shift, mean, variance = (
        parts.tensor(f"{name}.norm.{tensor}", out)
        for tensor in ("weight", "bias", "running_mean", "running_var")
    )
    if (variance < 0).any():
        raise BadArtifact(f"model.safetensors: '{name}.norm.running_var' has a negative number")
    return ConvBlock(weight, bias, (scale, shift, mean, variance))


def _time(parts: Parts, spec: Spec, x_dim: int, feature_dim: int) -> Time:
    periods = spec.get("periods", [])
    trend = spec.get("trend", False)
    if not isinstance(periods, list) or not all(map(_is_period, periods)):
        raise BadArtifact(f"{WHERE}.periods is {periods!r}, expected a list of numbers above 0")
    if not isinstance(trend, bool):
        raise BadArtifact(f"{WHERE}.trend is {trend!r}, expected true or false")
    time = Time(tuple(map(float, periods)), trend)
    if x_dim != 1 or feature_dim != time.features:
        raise BadArtifact(
            f"{WHERE}: time encoder of {len(periods)} periods needs x_dim 1 and feature_dim "
            f"{time.features}, not {x_dim} and {feature_dim}"
        )
    return time


def _whole(spec: Spec, name: str) -> int:
    value = spec.get(name)
    if not _is_size(value):
        raise BadArtifact(f"{WHERE}.{name} is {value!r}, expected an integer of at least 1")
    return value


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_period(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 1e-50 <= value <= 1e50


_BUILDERS: dict[str, Callable[[Parts, Spec, int, int], Encoder]] = {
    "identity": _identity,
    "mlp": _mlp,
    "conv": _conv,
    "time": _time,
}
