"""Artifact folders on disk, and the kinds of model that can be loaded from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_core.artifact import builders
from model_core.artifact.parts import Parts
from model_core.artifact_digest import DESCRIPTION, TENSORS
from model_core.errors import BadArtifact
from model_core.upm.base import UnderlyingModel

FORMAT = 1
Builder = Callable[[Parts], UnderlyingModel]
_BUILDERS: dict[str, Builder] = {
    "alpaca": builders.alpaca,
    "alpaca-mixture": builders.alpaca_mixture,
    "fleet": builders.fleet,
    "lstm": builders.lstm,
    "pcoc": builders.pcoc,
}
# What a builder may raise for a field or tensor that it took without checking.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def register(kind: str, builder: Builder) -> None:
    """Make artifacts of a kind of one's own loadable; `builder` makes the model of their parts.

    Raises ValueError for a kind that there is already (the same builder again is no error).
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
    except (OSError, ValueError, RecursionError) as error:
        raise BadArtifact(f"{DESCRIPTION}: {error}") from error
    if not isinstance(description, dict):
        raise BadArtifact(f"{DESCRIPTION}: expected an object")
    parts = Parts(description, _tensors(folder / TENSORS, device), device, folder)
    if parts.field("format", int) != FORMAT:
        raise BadArtifact(f"{DESCRIPTION}: format is {description['format']}, expected {FORMAT}")
    kind = parts.field("kind", str)
    if kind not in _BUILDERS:
        raise BadArtifact(f"{DESCRIPTION}: unknown kind {kind!r}, expected one of {kinds()}")
    return _built(kind, parts)


def _tensors(path: Path, device: str | torch.device) -> dict[str, Tensor]:
    """Tensors of a file; empty without a file, for a kind that needs no tensors."""
    try:
        tensors = load_file(path) if path.exists() else {}
    except (OSError, ValueError, SafetensorError) as error:
        raise BadArtifact(f"{TENSORS}: {error}") from error
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _built(kind: str, parts: Parts) -> UnderlyingModel:
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
