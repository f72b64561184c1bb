"""Answers to observations, as workers store them: numbers. The API makes JSON of them.

What the API has by the command that it waits for is not in them: the stream, and the time of a
quiet observation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from moca_client.responses import Component
from model_core.stream.events import Event
from model_core.stream.state import KnownRegime, SeasonPeriods

LEVELS = (0.05, 0.5, 0.95)  # of the usual quantiles
LOWER, MEDIAN, UPPER = map(str, LEVELS)


class QuietNumbers(NamedTuple):
    """Numbers of a quiet observation, in the order in which they are stored; nan: has none.

    Of a label that is one number. Those from `variance` on are details.
    """

    mean: float
    lower: float  # quantiles at LEVELS
    median: float
    upper: float
    changed_probability: float
    evidence: float
    anomaly: float
    variance: float = nan  # inf where it does not exist
    log_score: float = nan
    changepoint_probability: float = nan
    recent_change_probability: float = nan
    map_run_length: float = nan
    mean_run_length: float = nan
    hypotheses: float = nan
    pruned_mass: float = nan


SUMMARY_NUMBERS = QuietNumbers._fields.index("variance")
_summary = struct.Struct(f"<{SUMMARY_NUMBERS}d")
_full = struct.Struct(f"<{len(QuietNumbers._fields)}d")


def quiet_row(full: bool) -> struct.Struct:
    """Return the form of a row; full: with details."""
    return _full if full else _summary


def quiet_bytes(numbers: NDArray[np.float64], full: bool) -> bytes:
    """Encode rows (n, 15) of `QuietNumbers`; full: with details."""
    return numbers[:, : None if full else SUMMARY_NUMBERS].astype("<f8").tobytes()


class QuietAnswers(Struct, array_like=True, tag=0, gc=False):
    """Answers to observations, one after the other, that did no more than move the belief.

    beliefs: of each, run lengths and their probabilities, where they were asked for: with details.
    """

    first: int  # seq
    rows: bytes  # `QuietNumbers` of each
    season: SeasonPeriods | None = None  # of all of them
    beliefs: Sequence[tuple[list[int], list[float]]] | None = None

    def numbers(self, full: bool) -> Iterator[tuple[Any, ...]]:
        """Return the `QuietNumbers` of each observation, as plain tuples; full: with details."""
        return quiet_row(full).iter_unpack(self.rows)


class QuietRows(Struct, array_like=True, gc=False):
    """Answers to one such observation of each of several streams, of one model.

    full: as of `Answers`.
    """

    model: str
    full: bool
    firsts: list[int]  # seq of each
    rows: bytes  # `QuietNumbers` of each
    seasons: list[SeasonPeriods | None] | None = None  # of each, if any has one


class BeliefSummary(NamedTuple):
    """Summary of the run-length belief."""

    map: int
    mean: float
    hypotheses: int
    pruned_mass: float


class StoredAnswer(Struct, array_like=True, tag=1, gc=False):
    """Answer to any other observation.

    belief: run lengths and their probabilities, where they were asked for. provisional: computed
    before earlier pending labels arrived.
    """

    seq: int
    time: str | None = None
    warming_up: bool = False
    mean: list[float] | None = None
    variance: list[list[float]] | None = None
    quantiles: dict[str, list[float]] | None = None
    probabilities: list[float] | None = None  # of classes, in place of the three before
    log_score: float | None = None
    changed_probability: float | None = None
    evidence: float | None = None
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    anomaly: float | None = None
    run_length: BeliefSummary | None = None
    belief: tuple[list[int], list[float]] | None = None
    event: Event | None = None
    components: list[Component] | None = None
    provisional: bool = False
    season: SeasonPeriods | None = None
    regime: KnownRegime | None = None
    new_probability: float | None = None
    return_evidence: float | None = None


class Answers(Struct, array_like=True, gc=False):
    """Answers to the observations of one command that were applied, in order.

    full: with the details that were asked for when they were made.
    """

    model: str
    full: bool
    parts: list[QuietAnswers | StoredAnswer]
