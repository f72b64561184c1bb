"""Errors of training that the user can correct.

ValueError
└── TrainingError
    ├── BadConfig   a setting, a preset or a combination of them
    ├── BadData     unusable data
    ├── BadRun      an unreadable or incompatible folder of a run
    └── Behind      a run whose model forecasts worse than one that needs no training
"""

from __future__ import annotations


class TrainingError(ValueError):
    """Base class; the message names the fault and its place."""


class BadConfig(TrainingError):
    """A setting, a preset or a combination of them."""


class BadData(TrainingError):
    """An unusable file, column, row or series; the message names it."""


class BadRun(TrainingError):
    """An unreadable or incompatible folder of a run."""


class Behind(TrainingError):
    """A run whose model forecasts worse than one that needs no training."""
