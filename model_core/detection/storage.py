"""Detectors on disk: one file, versioned and checksummed; see `codec.pack`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from model_core import codec
from model_core.errors import CorruptState, ModelCoreError

MAGIC, VERSION = b"MOCD", 1
T = TypeVar("T")
# What a header that says something else than it should may raise.
_MISTAKES = (AttributeError, LookupError, TypeError, ValueError)


def write(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file, whole or not at all."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    blob = codec.pack(MAGIC, VERSION, header, arrays)
    try:
        draft.write_bytes(blob)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and arrays of a file; raises CorruptState."""
    return codec.unpack(MAGIC, VERSION, Path(path).read_bytes())


def restored(path: str | os.PathLike[str], make: Callable[[], T]) -> T:
    """What `make` makes of a file; raises CorruptState where that says something impossible."""
    try:
        return make()
    except ModelCoreError:
        raise
    except _MISTAKES as error:
        raise CorruptState(f"{os.fspath(path)}: cannot be restored: {error!r}") from error


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {name: _plain(each) for name, each in settings.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
