"""Model artifacts: a folder `NAME/VERSION/` with `model.json` and `model.safetensors`.

`model.json` has `format` (1), `kind`, `x_dim`, `y_dim`, `hazard` and what the kind needs besides,
which the builder of each kind says; `register` adds a kind (docs/own-model.md). The field `encoder`
is one of

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

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_core import hazard as hazards
from model_core.artifact_digest import DESCRIPTION, TENSORS
from model_core.encoder import ACTIVATIONS, Conv, ConvBlock, Encoder, Identity, Mlp, Time
from model_core.errors import BadArtifact
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.base import UnderlyingModel
from model_core.upm.fleet import Fleet
from model_core.upm.lstm import Lstm
from model_core.upm.pcoc import Pcoc

KINDS = {
    bool: "true or false",
    dict: "an object",
    int: "a whole number",
    list: "a list",
    str: "a string",
}  # of fields, in words
LARGEST = 1e50  # of an offset or a scale, so that what is scaled can be squared


class Parts:
    """The fields of a `model.json` and the tensors beside it, checked as they are asked for.

    Every method raises BadArtifact, naming the file and the part, for what is missing, of a wrong
    type or shape, or not finite. Tensors come in float64 on `device`. encoder: the one to use in
    place of that of the field `encoder`, as in training.
    """

    encoder: Encoder | None = None

    def __init__(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        device: str | torch.device = "cpu",
        folder: Path | None = None,
        path: str = "",
    ) -> None:
        """path: of the object in `model.json` whose fields these are, with a dot at its end."""
        self.description = description
        self.tensors = tensors
        self.device = torch.device(device)
        self.folder = folder
        self._path = path

    def within(self, name: str, default: Mapping[str, Any] | None = None) -> Parts:
        """The fields of an object that is a field itself."""
        fields = self.field(name, dict, default)
        return Parts(fields, self.tensors, self.device, self.folder, f"{self._path}{name}.")

    def wrong(self, name: str, expected: str) -> BadArtifact:
        """The error of a field that is not what it should be."""
        value = self.description.get(name)
        return BadArtifact(f"{DESCRIPTION}: {self._path}{name} is {value!r}, expected {expected}")

    def field(self, name: str, kind: type, default: Any = None) -> Any:
        """Value of a field, which must be a `kind`; a bool is not an int here."""
        value = self.description.get(name, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, KINDS[kind])
        return value

    def choice(self, name: str, options: Collection[str], default: str | None = None) -> str:
        """One of several words."""
        value = self.description.get(name, default)
        if not isinstance(value, str) or value not in options:
            raise self.wrong(name, f"one of {', '.join(map(repr, sorted(options)))}")
        return value

    def size(self, name: str, least: int = 1, default: int | None = None) -> int:
        """Whole number of at least `least`."""
        value: int = self.field(name, int, default)
        if value < least:
            raise self.wrong(name, f"at least {least}")
        return value

    def number(
        self, name: str, above: float, below: float = float("inf"), default: float | None = None
    ) -> float:
        """Number strictly between two; `default` where it is left out, an error if that is None."""
        value = self.description.get(name)
        if value is None and default is not None:
            return default
        if not is_number(value) or not above < value < below:
            raise self.wrong(name, f"a number between {above} and {below}")
        return float(value)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Tensor of exactly this shape, float32 or float64 in the file, all finite."""
        value = self._stored(name)
        if value.dtype not in (torch.float32, torch.float64):
            raise BadArtifact(f"{TENSORS}: {name!r} is {value.dtype}, expected float32 or float64")
        if tuple(value.shape) != shape:
            raise BadArtifact(
                f"{TENSORS}: {name!r} has shape {list(value.shape)}, expected {list(shape)}"
            )
        if not torch.isfinite(value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} has a non-finite number")
        return value.double()

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Shape of a tensor that decides sizes itself."""
        shape = tuple(self._stored(name).shape)
        if len(shape) != dimensions or 0 in shape:
            raise BadArtifact(
                f"{TENSORS}: {name!r} has shape {list(shape)}, expected {dimensions} dimensions"
            )
        return shape

    def exponential(self, name: str, *shape: int, above: float = 0.0) -> Tensor:
        """`exp` of a tensor of logarithms, finite and above a number."""
        value = self.derived(name, self.tensor(name, *shape).exp())
        # Its inverse must be finite too: a variance is as good as a precision.
        if not torch.isfinite(1 / value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} is too small")
        if not (value > above).all():
            raise BadArtifact(f"{TENSORS}: {name!r} has an exponential not above {above:g}")
        return value

    def derived(self, name: str, value: Tensor) -> Tensor:
        """What was computed from a tensor, if it stayed finite."""
        if not torch.isfinite(value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} is too large")
        return value

    def hazard(self) -> float | tuple[float, ...]:
        """`hazard`: a number, a table by run length, or `{"mean": m, "shape": k}` of durations.

        Left out, or null: each stream learns its own.
        """
        value = self.description.get("hazard")
        if value is None:
            return hazards.BY_STREAM
        try:
            hazard = hazards.stated(value)
        except ValueError as error:
            raise BadArtifact(f"{DESCRIPTION}: hazard: {error}") from error
        if isinstance(hazard, dict):
            return tuple(hazards.table_of(hazard).tolist())
        return hazard

    def defaults(self) -> dict[str, Any]:
        """Hazard and outlier rate (0 where it is left out), as a model's keyword arguments."""
        rate = self.description.get("outlier_rate")
        if rate is not None and (not is_number(rate) or not 0 <= rate < 1):
            raise self.wrong("outlier_rate", "at least 0 and below 1")
        return {"hazard": self.hazard(), "outlier_rate": float(rate or 0.0)}

    def scaling(self, name: str, size: int) -> tuple[Tensor, Tensor]:
        """Offset and scale, each (size,), of `{"offset": [...], "scale": [...]}`.

        A number instead of a list is the same for all; where the field is left out nothing is
        scaled.
        """
        value = self.description.get(name)
        if value is None:
            value = {"offset": 0.0, "scale": 1.0}
        try:
            stated = [
                torch.tensor(value[part], dtype=torch.float64, device=self.device)
                for part in ("offset", "scale")
            ]
            offset, scale = (own if own.dim() else own.repeat(size) for own in stated)
        except (TypeError, KeyError, ValueError, RuntimeError, OverflowError) as error:
            raise BadArtifact(f"{DESCRIPTION}: {name} needs offset and scale: {error}") from error
        fits = offset.shape == scale.shape == (size,)
        inside = (offset.abs() <= LARGEST).all() and (scale <= LARGEST).all()
        if not fits or not inside or not (scale >= 1 / LARGEST).all():
            raise BadArtifact(
                f"{DESCRIPTION}: {name} needs {size} finite offsets, scales above 0 "
                f"(nothing beyond {LARGEST:g}, no scale below {1 / LARGEST:g})"
            )
        return offset, scale

    def _stored(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise BadArtifact(f"{TENSORS}: tensor {name!r} is missing")
        return self.tensors[name]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from JSON is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def encoder(parts: Parts, x_dim: int, feature_dim: int) -> Encoder:
    """The field `encoder`: from inputs (B, x_dim) to features (B, feature_dim).

    Raises BadArtifact.
    """
    if parts.encoder is not None:
        return parts.encoder
    spec = parts.within("encoder")
    return _ENCODERS[spec.choice("type", _ENCODERS)](spec, x_dim, feature_dim)


def mlp(parts: Parts, prefix: str, layers: list[int], activations: tuple[str, str]) -> Mlp:
    """Layers of the given widths from tensors `PREFIX.{i}.weight` and `PREFIX.{i}.bias`."""
    sizes = list(zip(layers[:-1], layers[1:], strict=True))
    weights = tuple(parts.tensor(f"{prefix}.{i}.weight", b, a) for i, (a, b) in enumerate(sizes))
    biases = tuple(parts.tensor(f"{prefix}.{i}.bias", b) for i, (_, b) in enumerate(sizes))
    return Mlp(weights, biases, *activations)


def _identity(spec: Parts, x_dim: int, feature_dim: int) -> Identity:
    if x_dim != feature_dim:
        raise BadArtifact(
            f"{DESCRIPTION}: identity encoder, but x_dim {x_dim} is not feature_dim {feature_dim}"
        )
    return Identity()


def _mlp(spec: Parts, x_dim: int, feature_dim: int) -> Mlp:
    layers: list[int] = spec.field("layers", list)
    linear = spec.size("linear", 0, 0)
    if linear >= feature_dim:
        raise spec.wrong("linear", f"a whole number below {feature_dim}")
    if len(layers) < 2 or (layers[0], layers[-1]) != (x_dim, feature_dim - linear):
        raise spec.wrong("layers", f"[{x_dim}, ..., {feature_dim - linear}]")
    inner = spec.choice("activation", ACTIVATIONS, "relu")
    last = spec.choice("output_activation", ACTIVATIONS, "identity")
    network = mlp(spec, "encoder", layers, (inner, last))
    if linear == 0:
        return network
    weight = spec.tensor("encoder.linear.weight", linear, x_dim)
    return replace(network, linear=(weight, spec.tensor("encoder.linear.bias", linear)))


def _conv(spec: Parts, x_dim: int, feature_dim: int) -> Conv:
    channels, height, width = (spec.size(name) for name in ("channels", "height", "width"))
    widths: list[int] = spec.field("blocks", list)
    if not widths or not all(type(size) is int and size >= 1 for size in widths):
        raise spec.wrong("blocks", "the channels of each block")
    if x_dim != channels * height * width:
        raise BadArtifact(
            f"{DESCRIPTION}: encoder: x_dim {x_dim} is not channels * height * width, "
            f"{channels} * {height} * {width}"
        )
    left = (height >> len(widths)) * (width >> len(widths))
    if left == 0 or feature_dim != widths[-1] * left:
        raise BadArtifact(
            f"{DESCRIPTION}: encoder: {len(widths)} blocks leave {widths[-1]} * {left} features of "
            f"{height} x {width}, feature_dim is {feature_dim}"
        )
    blocks = []
    for i, (into, out) in enumerate(zip([channels, *widths], widths, strict=False)):
        name = f"encoder.{i}"
        weight = spec.tensor(f"{name}.conv.weight", out, into, 3, 3)
        bias = spec.tensor(f"{name}.conv.bias", out)
        norm = None if i == len(widths) - 1 else _norm(spec, f"{name}.norm", out)
        blocks.append(ConvBlock(weight, bias, norm))
    return Conv(channels, height, width, tuple(blocks))


def _norm(spec: Parts, name: str, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight = spec.tensor(f"{name}.weight", size)
    bias = spec.tensor(f"{name}.bias", size)
    mean = spec.tensor(f"{name}.running_mean", size)
    variance = spec.tensor(f"{name}.running_var", size)
    if (variance < 0).any():
        raise BadArtifact(f"{TENSORS}: '{name}.running_var' has a negative number")
    return weight, bias, mean, variance


def _time(spec: Parts, x_dim: int, feature_dim: int) -> Time:
    periods: list[float] = spec.field("periods", list, [])
    trend: bool = spec.field("trend", bool, False)
    if not all(is_number(period) and 1e-50 <= period <= 1e50 for period in periods):
        raise spec.wrong("periods", "a list of numbers above 0")
    time = Time(tuple(map(float, periods)), trend)
    if x_dim != 1 or feature_dim != time.features:
        raise BadArtifact(
            f"{DESCRIPTION}: time encoder of {len(periods)} periods needs x_dim 1 and feature_dim "
            f"{time.features}, not {x_dim} and {feature_dim}"
        )
    return time


_ENCODERS: dict[str, Callable[[Parts, int, int], Encoder]] = {
    "identity": _identity,
    "mlp": _mlp,
    "conv": _conv,
    "time": _time,
}


def alpaca(parts: Parts) -> Alpaca:
    """`prior_mean` (n, y), `prior_covariance_factor` (n, n), `log_noise_variance` (y,).

    With `"noise": "unknown"` there are `log_noise_alpha` and `log_noise_beta` (y,) instead of the
    last: shape and scale of the inverse gamma that the variances come from.
    """
    return Alpaca(**_regression(parts))


def alpaca_mixture(parts: Parts) -> AlpacaMixture:
    """As `alpaca`, each tensor with one more axis in front, of M typical regimes.

    Besides, `prior_logits` (M,), whose softmax are their probabilities. `regimes` is a list of
    `{"name": "1", "probability": 0.4}`, whose names differ; where it is left out names are numbers
    from 1. Its probabilities are for readers: the tensor decides.
    """
    (size,) = parts.shape("prior_logits", 1)
    return AlpacaMixture(
        **_regression(parts, size),
        log_weight=parts.tensor("prior_logits", size).log_softmax(-1),
        names=_names(parts, size),
    )


def _regression(parts: Parts, *priors: int) -> dict[str, Any]:
    """Arguments of a regression on features; priors: how many it has, if its tensors say it."""
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    return {
        "prior_cov": _prior_cov(parts, *priors, n),
        **_noise(parts, *priors, y_dim),
        "prior_mean": parts.tensor("prior_mean", *priors, n, y_dim),
        **_learned(parts, n, y_dim),
        **_scaled("y", parts.scaling("output_scaling", y_dim)),
    }


def _names(parts: Parts, size: int) -> tuple[str, ...]:
    """Of typical regimes; none where the field is left out."""
    if parts.description.get("regimes") is None:
        return ()
    given: list[Any] = parts.field("regimes", list)
    names = [regime.get("name") if isinstance(regime, dict) else None for regime in given]
    texts = all(isinstance(name, str) and name.strip() for name in names)
    if not texts or not len(set(names)) == len(names) == size:
        raise parts.wrong("regimes", f"{size} objects with different names")
    return tuple(map(str, names))


def fleet(parts: Parts) -> Fleet:
    """`prior_mean` (n, y), `prior_covariance_factor` (n, n), `log_noise_alpha`, `log_noise_beta`.

    Those of the noise (y,): shape and scale of the inverse gamma that the variances come from, in
    the stream's own units. `chance` is the prior probability of the learned part in a regime, 0.5
    by default. There is no output scaling: every stream has its own.
    """
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    if parts.description.get("output_scaling") is not None:
        raise BadArtifact(f"{DESCRIPTION}: output_scaling: remove it, every stream has its own")
    return Fleet(
        y_dim=y_dim,
        prior_cov=_prior_cov(parts, n),
        prior_mean=parts.tensor("prior_mean", n, y_dim),
        noise_alpha=parts.exponential("log_noise_alpha", y_dim),
        noise_beta=parts.exponential("log_noise_beta", y_dim),
        chance=parts.number("chance", 0.0, 1.0, default=0.5),
        **_learned(parts, n, y_dim),
    )


def _prior_cov(parts: Parts, *shape: int) -> Tensor:
    """`S S'` (..., n, n), symmetric to the bit; shape: (..., n)."""
    factor = parts.tensor("prior_covariance_factor", *shape, shape[-1])
    cov = parts.derived("prior_covariance_factor", factor @ factor.mT)
    return 0.5 * (cov + cov.mT)


def _noise(parts: Parts, *shape: int) -> dict[str, Any]:
    if parts.choice("noise", ("known", "unknown"), "known") == "known":
        return {"noise_variance": parts.exponential("log_noise_variance", *shape)}
    alpha = parts.exponential("log_noise_alpha", *shape, above=1.0)  # or no variance exists
    return {"noise_prior": NoisePrior(alpha, parts.exponential("log_noise_beta", *shape))}


def pcoc(parts: Parts) -> Pcoc:
    """`prior_mean`, `log_prior_precision`, `log_noise_variance` (J, n), `log_dirichlet` (J,).

    `y_dim` is J, the number of classes; there is no output scaling.
    """
    n = parts.size("feature_dim")
    classes = parts.size("y_dim", least=2)
    if parts.description.get("output_scaling") is not None:
        raise BadArtifact(f"{DESCRIPTION}: output_scaling is given, but labels are class indices")
    mean = parts.tensor("prior_mean", classes, n)
    precision = parts.exponential("log_prior_precision", classes, n)
    dirichlet = parts.exponential("log_dirichlet", classes)
    parts.derived("prior_mean", precision * mean)
    parts.derived("log_dirichlet", dirichlet.sum())
    return Pcoc(
        prior_mean=mean,
        prior_precision=precision,
        noise_variance=parts.exponential("log_noise_variance", classes, n),
        dirichlet=dirichlet,
        **_inputs(parts, n),
    )


def lstm(parts: Parts) -> Lstm:
    """`lstm.weight_ih` (4h, n + y), `lstm.weight_hh` (4h, h), `lstm.bias_{ih,hh}` (4h,), decoder.

    Layout and order of torch.nn.LSTMCell. `decoder.{i}.weight` (out, in), `decoder.{i}.bias`: from
    h + n numbers, hidden state first, to 2 y, means and then log variances. Sizes are those of the
    tensors; `"decoder": {"activation": "relu"}` in the description may name another activation.
    """
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    learned = _learned(parts, n, y_dim)
    hidden = parts.shape("lstm.weight_hh", 2)[1]
    return Lstm(
        **learned,
        **_scaled("y", parts.scaling("output_scaling", y_dim)),
        weight_ih=parts.tensor("lstm.weight_ih", 4 * hidden, n + y_dim),
        weight_hh=parts.tensor("lstm.weight_hh", 4 * hidden, hidden),
        bias_ih=parts.tensor("lstm.bias_ih", 4 * hidden),
        bias_hh=parts.tensor("lstm.bias_hh", 4 * hidden),
        decoder=_decoder(parts, hidden + n, 2 * y_dim),
    )


def _decoder(parts: Parts, into: int, out: int) -> Mlp:
    layers = [re.fullmatch(r"decoder\.(\d{1,3})\.(weight|bias)", name) for name in parts.tensors]
    last = max((int(layer[1]) for layer in layers if layer), default=-1)
    if last < 0:
        raise BadArtifact(f"{TENSORS}: tensor 'decoder.0.weight' is missing")
    inner = [parts.shape(f"decoder.{i}.weight", 2)[0] for i in range(last)]
    given = parts.description.get("decoder") is not None
    inside = parts.within("decoder") if given else Parts({}, {})
    names = inside.choice("activation", ACTIVATIONS, "relu"), "identity"
    return mlp(parts, "decoder", [into, *inner, out], names)


def _learned(parts: Parts, n: int, y_dim: int) -> dict[str, Any]:
    """Arguments of a model whose encoder takes inputs, or labels before (`lags`), or both."""
    lags = parts.size("lags", 0, 0)
    return {**_inputs(parts, n, lags * y_dim), "lags": lags}


def _inputs(parts: Parts, n: int, before: int = 0) -> dict[str, Any]:
    """Encoder and scaling of inputs, hazard and outlier rate; before: numbers of labels before."""
    x_dim = parts.size("x_dim", 0 if before else 1)
    return {
        "encoder": encoder(parts, x_dim + before, n),
        **_scaled("x", parts.scaling("input_scaling", x_dim)),
        **parts.defaults(),
    }


def _scaled(of: str, scaling: tuple[Tensor, Tensor]) -> dict[str, Any]:
    return {f"{of}_offset": scaling[0], f"{of}_scale": scaling[1]}


FORMAT = 1
Builder = Callable[[Parts], UnderlyingModel]
_BUILDERS: dict[str, Builder] = {
    "alpaca": alpaca,
    "alpaca-mixture": alpaca_mixture,
    "fleet": fleet,
    "lstm": lstm,
    "pcoc": pcoc,
}
# What a builder may raise for a field or tensor that it took without checking.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def register(kind: str, builder: Builder) -> None:
    """Make artifacts of a kind of one's own loadable; `builder` makes the model of their parts.

    Raises ValueError for a kind that has another builder.
    """
    if _BUILDERS.setdefault(kind, builder) is not builder:
        raise ValueError(f"kind {kind!r} is already registered: {kinds()}")


def kinds() -> list[str]:
    """Kinds that can be loaded."""
    return sorted(_BUILDERS)


def save(folder: Path, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an artifact folder; `description` without `format`, which is this version's.

    There is no file of tensors where there are none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if tensors:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
    else:
        (folder / TENSORS).unlink(missing_ok=True)
    text = json.dumps({"format": FORMAT, **description}, indent=2)
    (folder / DESCRIPTION).write_text(text + "\n")


def load(folder: Path, device: str | torch.device = "cpu") -> UnderlyingModel:
    """Model from an artifact folder, in float64.

    Raises BadArtifact, naming the file and the part, for an unknown format or kind, a missing
    tensor, a wrong shape or a number that is not finite.
    """
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
    except FileNotFoundError as error:
        versions = sorted(path.parent.name for path in folder.glob(f"*/{DESCRIPTION}"))
        meant = f"; name one of its versions, {', '.join(versions)}" if versions else ""
        raise BadArtifact(f"expected {DESCRIPTION} in the folder {folder}{meant}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadArtifact(f"{DESCRIPTION}: {error}") from error
    if not isinstance(description, dict):
        raise BadArtifact(f"{DESCRIPTION}: expected an object")
    path = folder / TENSORS
    try:
        tensors = load_file(path) if path.exists() else {}  # some kinds need none
    except (OSError, ValueError, SafetensorError) as error:
        raise BadArtifact(f"{TENSORS}: {error}") from error
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    parts = Parts(description, on_device, device, folder)
    if parts.field("format", int) != FORMAT:
        raise parts.wrong("format", str(FORMAT))
    kind = parts.choice("kind", _BUILDERS)
    try:
        model = _BUILDERS[kind](parts)
    except _MISTAKES as error:
        raise BadArtifact(
            f"{DESCRIPTION}: cannot create a model of kind {kind!r}: {error!r}"
        ) from error
    if not isinstance(model, UnderlyingModel):
        raise BadArtifact(
            f"{DESCRIPTION}: kind {kind!r} creates a {type(model).__name__}, expected a model"
        )
    return model
