"""Figures of the experiment `miniimagenet`."""

from training.evaluation.drawing.images import draw

__all__ = ["draw"]
