"""Thresholds of panels: from which value on a number is worth a look, or bad."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsMode

GOOD, LOOK, BAD, PLAIN = "green", "yellow", "red", "blue"


def above(look: float, bad: float) -> ThresholdsConfig:
    """Larger is worse."""
    return _steps((None, GOOD), (look, LOOK), (bad, BAD))


def below(look: float, bad: float) -> ThresholdsConfig:
    """Smaller is worse: good from `look` on, bad under `bad`."""
    between = [(bad, LOOK)] if bad < look else []
    return _steps((None, BAD), *between, (look, GOOD))


def none() -> ThresholdsConfig:
    """No value is better than another."""
    return _steps((None, PLAIN))


def within(low: float, high: float, margin: float) -> ThresholdsConfig:
    """Good between two values, bad further outside than `margin`."""
    inner = (low - margin, LOOK), (low, GOOD), (high, LOOK)
    return _steps((None, BAD), *inner, (high + margin, BAD))


def _steps(*steps: tuple[float | None, str]) -> ThresholdsConfig:
    found = [Threshold(value, color) for value, color in steps]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)
