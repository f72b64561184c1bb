"""The threshold of one stream, from quiet continuations of its own.

The stream's own filter goes on from where it is through series in which nothing changes. How often
events are confirmed there, by threshold, gives the one with as many as are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from model_core.sensitivity import curve as curves
from model_core.sensitivity import quiet
from model_core.sensitivity.alarms import follow
from model_core.sensitivity.curve import probability_of
from model_core.stream.filters import Filters
from model_core.stream.slab import StreamRow
from model_core.upm.base import UnderlyingModel

MOST = 2000  # last observations that are learned from
# Continuations, and observations of each.
SERIES = 16
STEPS = 1000
# Log odds of thresholds. The highest is a probability of 1 - 2e-9.
LOG_ODDS = tuple(float(odds) for odds in range(-2, 21))
QUIET = 1.1  # rates up to this multiple of the lowest one count as equal to it
EVERY = 4  # observations of each series between signs of life


class Calibrated(NamedTuple):
    """A threshold of `changed_probability`, and false alarms per 1,000 expected at it.

    These are more than were asked for where no threshold is as quiet, and fewer where none is as
    loud.
    """

    threshold: float
    false_alarms_per_1000: float


def fits(model: UnderlyingModel) -> bool:
    """Whether what streams of a model do while nothing changes can be simulated from their labels.

    So it can of one output that is a number, without inputs.
    """
    return model.label == "real" and model.y_dim == 1 and not model.x_dim


def learned(
    y: NDArray[np.float64], seqs: Sequence[int] | NDArray[np.int64], starts: Sequence[int]
) -> quiet.Quiet:
    """What the last labels (T,) of a stream do within a regime; raises ValueError, as `learn`.

    seqs: positions of the labels. starts: of the regimes in hindsight, the first included.
    """
    return quiet.learn(y, np.searchsorted(seqs, starts[1:]).tolist())


def continuations(regime: quiet.Quiet, name: str, generation: int, seq: int) -> NDArray[np.float64]:
    """Quiet continuations (SERIES, STEPS) of a stream, the same at every call."""
    rng = np.random.default_rng([crc32(name.encode()), generation, seq])
    return regime.draw(rng, SERIES, STEPS)


def calibrated(counts: Sequence[int], observations: int, rate: float) -> Calibrated:
    """Threshold with `rate` false alarms per 1,000; counts: by threshold of LOG_ODDS."""
    thresholds = [probability_of(odds) for odds in LOG_ODDS]
    rates = [mean for mean, *_ in curves.rates(thresholds, counts, observations)]
    if rate >= rates[0]:
        return Calibrated(thresholds[0], rates[0])
    quiet = next((i for i, expected in enumerate(rates) if expected <= rate), None)
    if quiet is None:
        floor = next(i for i, expected in enumerate(rates) if expected <= QUIET * rates[-1])
        return Calibrated(thresholds[floor], rates[floor])
    loud = quiet - 1
    if not rates[quiet] > 0:  # none were counted there
        return Calibrated(thresholds[quiet], rate)
    share = math.log(rates[loud] / rate) / math.log(rates[loud] / rates[quiet])
    between = LOG_ODDS[loud] + (LOG_ODDS[quiet] - LOG_ODDS[loud]) * share
    return Calibrated(probability_of(between), rate)


def confirmations(
    model: UnderlyingModel,
    own: StreamRow,
    max_hypotheses: int,
    y: NDArray[np.float64],
    hazard: NDArray[np.float64],
    outlier_rate: float,
) -> Iterator[list[int]]:
    """Numbers of events confirmed in continuations y (B, T), at each threshold of LOG_ODDS.

    own: a stream with one output and no inputs, of so many hypotheses. hazard: (H,) by run length.
    The present regime counts as known. Yields those so far every EVERY observations of each series,
    and those of all last.
    """
    series, steps = y.shape
    filters = Filters(model, series, max_hypotheses)
    filters.copy(own)
    alarms = follow(
        filters,
        y[:, :, None],
        [probability_of(odds) for odds in LOG_ODDS],
        filters.starts,
        hazard=hazard,
        outlier_rate=outlier_rate,
    )
    for t, confirmed in enumerate(alarms):
        if t % EVERY == 0 or t == steps - 1:
            yield [sum(map(len, by_series)) for by_series in confirmed]
