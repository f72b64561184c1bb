"""Model artifacts: a folder `NAME/VERSION/` with `model.json` and `model.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_core.encoder import ACTIVATIONS, Encoder, Identity, Mlp
from model_core.errors import BadArtifact
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.base import UnderlyingModel

FORMAT = 1
DESCRIPTION, TENSORS = "model.json", "model.safetensors"


def save(folder: Path, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an artifact folder; `description` without `format`, which is this version's."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / TENSORS)
    text = json.dumps({"format": FORMAT, **description}, indent=2)
    (folder / DESCRIPTION).write_text(text + "\n")


def load(folder: Path, device: str | torch.device = "cpu") -> UnderlyingModel:
    """Model from an artifact folder, in float64.

    Raises BadArtifact, naming the file and the part, for an unknown format or kind, a missing
    tensor, a wrong shape or a number that is not finite.
    """
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadArtifact(f"{DESCRIPTION}: {error}") from error
    try:
        tensors = load_file(folder / TENSORS, device=str(device))
    except (OSError, ValueError, SafetensorError) as error:
        raise BadArtifact(f"{TENSORS}: {error}") from error
    if not isinstance(description, dict):
        raise BadArtifact(f"{DESCRIPTION}: expected an object")
    parts = _Parts(description, tensors, torch.device(device))
    if parts.field("format", int) != FORMAT:
        raise BadArtifact(f"{DESCRIPTION}: format {description['format']}, this reads {FORMAT}")
    kind = parts.field("kind", str)
    if kind not in _BUILDERS:
        raise BadArtifact(f"{DESCRIPTION}: unknown kind {kind!r}, expected {sorted(_BUILDERS)}")
    return _BUILDERS[kind](parts)


class _Parts:
    """A description and its tensors, with errors that name what is missing."""

    def __init__(
        self, description: dict[str, Any], tensors: dict[str, Tensor], device: torch.device
    ) -> None:
        self.description, self.tensors, self.device = description, tensors, device

    def field(self, name: str, kind: type) -> Any:
        value = self.description.get(name)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise BadArtifact(f"{DESCRIPTION}: {name} is {value!r}, expected {kind.__name__}")
        return value

    def size(self, name: str, least: int = 1) -> int:
        value: int = self.field(name, int)
        if value < least:
            raise BadArtifact(f"{DESCRIPTION}: {name} is {value}, expected at least {least}")
        return value

    def tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self.tensors:
            raise BadArtifact(f"{TENSORS}: tensor {name!r} is missing")
        value = self.tensors[name]
        if value.dtype not in (torch.float32, torch.float64):
            raise BadArtifact(f"{TENSORS}: {name!r} is {value.dtype}, expected float32 or float64")
        if tuple(value.shape) != shape:
            raise BadArtifact(
                f"{TENSORS}: {name!r} has shape {list(value.shape)}, expected {list(shape)}"
            )
        if not torch.isfinite(value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} has a number that is not finite")
        return value.double()

    def derived(self, name: str, value: Tensor) -> Tensor:
        """What was computed from a tensor, if it stayed finite."""
        if not torch.isfinite(value).all():
            raise BadArtifact(f"{TENSORS}: {name!r} is too large")
        return value

    def positive(self, name: str, *shape: int) -> Tensor:
        """What a tensor is the logarithm of."""
        value = self.derived(name, self.tensor(name, *shape).exp())
        if not (value > 0).all():
            raise BadArtifact(f"{TENSORS}: {name!r} is too small")
        return value

    def hazard(self) -> float:
        value = self.description.get("hazard")
        if not isinstance(value, int | float) or not 0 < value < 1:
            raise BadArtifact(f"{DESCRIPTION}: hazard is {value!r}, expected one between 0 and 1")
        return float(value)

    def scaling(self, name: str, size: int) -> tuple[Tensor, Tensor]:
        """`{"offset": [...], "scale": [...]}`, or absent: nothing is scaled."""
        value = self.description.get(name)
        if value is None:
            value = {"offset": [0.0] * size, "scale": [1.0] * size}
        try:
            offset = torch.tensor(value["offset"], dtype=torch.float64, device=self.device)
            scale = torch.tensor(value["scale"], dtype=torch.float64, device=self.device)
        except (TypeError, KeyError, ValueError, RuntimeError, OverflowError) as error:
            raise BadArtifact(f"{DESCRIPTION}: {name} needs offset and scale: {error}") from error
        fits = offset.shape == scale.shape == (size,)
        finite = torch.isfinite(offset).all() and torch.isfinite(scale).all()
        if not fits or not finite or not (scale > 0).all():
            raise BadArtifact(f"{DESCRIPTION}: {name} needs {size} finite offsets, scales above 0")
        return offset, scale


def _encoder(parts: _Parts, x_dim: int, feature_dim: int) -> Encoder:
    spec = parts.field("encoder", dict)
    if spec.get("type") == "identity":
        if x_dim != feature_dim:
            raise BadArtifact(
                f"{DESCRIPTION}: identity encoder, but x_dim {x_dim} is not "
                f"feature_dim {feature_dim}"
            )
        return Identity()
    if spec.get("type") != "mlp":
        raise BadArtifact(f"{DESCRIPTION}: unknown encoder type {spec.get('type')!r}")
    layers = spec.get("layers")
    if (
        not isinstance(layers, list)
        or len(layers) < 2
        or layers[0] != x_dim
        or layers[-1] != feature_dim
    ):
        raise BadArtifact(
            f"{DESCRIPTION}: encoder.layers is {layers!r}, expected [{x_dim}, ..., {feature_dim}]"
        )
    names = (spec.get("activation", "relu"), spec.get("output_activation", "identity"))
    for name in names:
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise BadArtifact(f"{DESCRIPTION}: unknown activation {name!r}")
    sizes = list(zip(layers[:-1], layers[1:], strict=True))
    weights = tuple(parts.tensor(f"encoder.{i}.weight", b, a) for i, (a, b) in enumerate(sizes))
    biases = tuple(parts.tensor(f"encoder.{i}.bias", b) for i, (_, b) in enumerate(sizes))
    return Mlp(weights, biases, *names)


def _noise(parts: _Parts, y_dim: int) -> tuple[Tensor | None, NoisePrior | None]:
    """Known variances, or, where `noise` says so, the inverse gamma they come from."""
    noise = parts.description.get("noise", "known")
    if noise == "known":
        return parts.positive("log_noise_variance", y_dim), None
    if noise != "unknown":
        raise BadArtifact(f"{DESCRIPTION}: noise is {noise!r}, expected 'known' or 'unknown'")
    alpha = parts.positive("log_noise_alpha", y_dim)
    if not (alpha > 1).all():
        raise BadArtifact(f"{TENSORS}: 'log_noise_alpha' has one not above 0: no variance exists")
    return None, NoisePrior(alpha, parts.positive("log_noise_beta", y_dim))


def _alpaca(parts: _Parts) -> Alpaca:
    x_dim, y_dim, n = (parts.size(name) for name in ("x_dim", "y_dim", "feature_dim"))
    factor = parts.tensor("prior_covariance_factor", n, n)
    cov = parts.derived("prior_covariance_factor", factor @ factor.T)
    variance, noise_prior = _noise(parts, y_dim)
    x_offset, x_scale = parts.scaling("input_scaling", x_dim)
    y_offset, y_scale = parts.scaling("output_scaling", y_dim)
    return Alpaca(
        encoder=_encoder(parts, x_dim, n),
        prior_mean=parts.tensor("prior_mean", n, y_dim),
        prior_cov=0.5 * (cov + cov.T),
        noise_variance=variance,
        noise_prior=noise_prior,
        hazard=parts.hazard(),
        x_offset=x_offset,
        x_scale=x_scale,
        y_offset=y_offset,
        y_scale=y_scale,
    )


_BUILDERS = {"alpaca": _alpaca}
