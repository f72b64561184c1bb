"""MOCA: run-length filtering over Bayesian models that adapt. No clock, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_core.stream.detector import Detector
    from model_core.stream.detectors import Detectors

__all__ = ["Detector", "Detectors"]


def __getattr__(name: str) -> Any:
    """Import detectors at their first use alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from model_core.stream import detector

    return getattr(detector, name)
