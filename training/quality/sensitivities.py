"""False alarms that a `sensitivity` asks for, and those that come, in simulated families.

The threshold that is calibrated on draws from the model's prior, as the curves are that every
stream begins with, beside the one that is calibrated on the first labels of each stream.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model_core.sensitivity import own, quiet
from model_core.sensitivity.alarms import Alarms, begun, follow, wait, watch
from model_core.sensitivity.curve import probability_of
from model_core.sensitivity.regimes import draw
from model_core.stream.filters import Filters
from model_core.upm.base import UnderlyingModel
from training.online import segmentation
from training.quality.series import FAMILIES, SeriesFamily, Sizes

Floats = NDArray[np.float64]


class SensitivityRow(NamedTuple):
    """One model on one family, at one requested rate; each by the prior, then by own labels.

    false: alarms per 1,000 quiet observations. expected: as the calibration says, mean over
    streams. delay: median by size of shift, inf where fewer than half are found.
    """

    family: str
    method: str
    requested: float
    false: tuple[float, float]
    expected: float
    delay: tuple[tuple[float, ...], tuple[float, ...]]


def simulate(
    name: str,
    model: UnderlyingModel,
    seed: int,
    sizes: Sizes,
    advance: Callable[[], None],
) -> Iterator[SensitivityRow]:
    """A model with one output and no inputs on every family; `advance` is called after each."""
    by_prior = _by_prior(model, seed, sizes)
    for index, family in enumerate(FAMILIES):
        rng = np.random.default_rng([seed, index, 17])
        yield from _family(name, model, by_prior, family, rng, sizes)
        advance()


def _by_prior(model: UnderlyingModel, seed: int, sizes: Sizes) -> list[float]:
    """Thresholds of the requested rates, as on series from the prior."""
    generator = torch.Generator().manual_seed(seed)
    drawn = draw(model, sizes.drawn, sizes.length, generator)
    thresholds = [probability_of(odds) for odds in own.LOG_ODDS]
    counts = [sum(map(len, alarms)) for alarms in watch(model, drawn, thresholds)]
    observations = sizes.drawn * sizes.length
    return [own.calibrated(counts, observations, rate).threshold for rate in sizes.requested]


def _family(
    name: str,
    model: UnderlyingModel,
    by_prior: Sequence[float],
    family: SeriesFamily,
    rng: np.random.Generator,
    sizes: Sizes,
) -> Iterator[SensitivityRow]:
    y = np.stack([family.draw(rng, sizes.learned + sizes.scored) for _ in range(sizes.streams)])
    learned = y[:, : sizes.learned]
    scored = y[:, sizes.learned :]
    filters = begun(model, learned[:, :, None])
    for _ in filters.together(learned[:, :, None]):
        pass
    own_counts = [_counts(filters, b, labels, rng, sizes) for b, labels in enumerate(learned)]
    observations = sizes.continuations * sizes.steps
    calibrated = [
        [own.calibrated(counts, observations, rate) for counts in own_counts]
        for rate in sizes.requested
    ]
    every = [[threshold] * sizes.streams for threshold in by_prior]
    every += [[stream.threshold for stream in rate] for rate in calibrated]
    quiet_alarms = _alarms(filters, scored, every)
    shifted = [
        _alarms(filters, scored[:, : sizes.within] + by * family.sd, every) for by in sizes.shifts
    ]
    rates = len(sizes.requested)
    for i, rate in enumerate(sizes.requested):
        ways = i, rates + i
        false = [sum(map(len, quiet_alarms[way])) * 1000 / scored.size for way in ways]
        delays = [
            tuple(
                statistics.median(wait(times, sizes.learned) for times in alarms[way])
                for alarms in shifted
            )
            for way in ways
        ]
        expected = statistics.mean(stream.false_alarms_per_1000 for stream in calibrated[i])
        yield SensitivityRow(
            family.name, name, rate, (false[0], false[1]), expected, (delays[0], delays[1])
        )


def _counts(
    filters: Filters, row: int, y: Floats, rng: np.random.Generator, sizes: Sizes
) -> list[int]:
    model = filters.model
    regime = quiet.learn(y, segmentation(model, y[:, None].tolist()))
    drawn = regime.draw(rng, sizes.continuations, sizes.steps)
    *_, counts = own.confirmations(
        model,
        filters.row(row),
        filters.max_hypotheses,
        drawn,
        np.atleast_1d(model.hazard),
        model.outlier_rate,
    )
    return counts


def _alarms(
    filters: Filters, y: Floats, thresholds: Sequence[float] | Sequence[Sequence[float]]
) -> Alarms:
    """Alarms of streams that go on through y (B, T); filters: of the streams, which stay."""
    copies = Filters(filters.model, filters.rows, filters.max_hypotheses)
    copies.fill(filters.states, filters.priors)
    *_, confirmed = follow(copies, y[:, :, None], thresholds, filters.starts)
    return confirmed
