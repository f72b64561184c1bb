"""Errors of training that the user can correct."""

from __future__ import annotations


class TrainingError(ValueError):
    """Base class; the message names the fault and its place."""


class BadConfig(TrainingError):
    """A setting, a preset or a combination of them."""


class BadData(TrainingError):
    """An unusable file, column, row or series; the message names it."""


class BadRun(TrainingError):
    """A run that cannot be read or used as it is, or is behind a model without training."""
