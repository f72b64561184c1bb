"""Figures of the experiment `players`."""

from __future__ import annotations

from training.evaluation.experiments import Evaluated
from training.figures.chart import Chart


def draw(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Each figure under the name of its files."""
    return []
