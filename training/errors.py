"""What training raises on purpose: something that whoever asked can mend.

ValueError
└── TrainingError
    ├── BadConfig   a setting, a preset or a combination of them
    ├── BadData     data that cannot be used as it is
    └── BadRun      a folder of a run that cannot be read or does not fit
"""

from __future__ import annotations


class TrainingError(ValueError):
    """The message says what was wrong and where."""


class BadConfig(TrainingError):
    """A setting, a preset or a combination of them."""


class BadData(TrainingError):
    """A file, a column, a row or a series that cannot be used; the message names it."""


class BadRun(TrainingError):
    """A folder of a run that cannot be read or does not fit."""
