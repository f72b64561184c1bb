"""Curves of false alarms by threshold: of built-in models in the package, of others with them.

No torch here: the API shows them, the worker reads thresholds off them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from model_core.upm.builtin import BUILTIN, curves
from service.models.catalogue import place


class _Part(Struct):
    sensitivity: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Part).decode


def of(models_dir: Path, reference: str) -> dict[str, Any] | None:
    """What was simulated for a model; None where nothing was, or nothing can be read."""
    if reference in BUILTIN:
        return curves().get(reference)
    name, _, version = reference.partition("@")
    try:
        return _decode((place(models_dir, name) / version / "model.json").read_bytes()).sensitivity
    except (OSError, RecursionError, msgspec.MsgspecError):
        return None
