"""Figures of the experiment `rainbow`."""

from training.evaluation.drawing.images import draw

__all__ = ["draw"]
