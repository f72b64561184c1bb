"""What can be wrong with what a job was given."""

from __future__ import annotations


class TrainingError(ValueError):
    """Something that whoever asked can mend; the message says what and where.

    TrainingError
      BadConfig   a setting, a preset or a combination of them
      BadRun      a folder of a run that cannot be read or does not fit
    """


class BadConfig(TrainingError):
    """A setting, a preset or a combination of them."""


class BadRun(TrainingError):
    """A folder of a run that cannot be read or does not fit."""
