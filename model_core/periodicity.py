"""Periods and profiles of seasons in a series of labels.

A period is believed where its harmonics recur with the same phase in all periods that are kept.
The evidence is exact under any stationary noise: with n periods, the coefficients of a harmonic are
n draws of one complex normal distribution, so (n - 1) log(total / within) of their squares is
exponential, whatever the noise's spectrum. Steps and drifts do not recur.

Loops over labels and periods are in `compiled.periods`, which is imported where it is used: numba
takes half a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PERIODS = 3  # that a season has to be seen for
SHORTEST = 4  # observations
RECENT_PERIODS = 12  # that a profile and its evidence are taken from
EVIDENCE = 12.0  # nats: one period in 160,000 by chance
EXPLAINED = 0.3  # share of a period's variation that the others have to forecast
GAINED = 0.1  # share of what is left of it by an autoregression
AT_ONCE = 16  # outputs whose autocorrelations are taken together: their memory is fixed
CANDIDATES = 4  # of each autocorrelation
AS_GOOD = 0.9  # of what a period explains, for a part of it to be taken instead
CORRELATED = 0.15  # at the lag of a candidate, and so many standard errors
ERRORS = 3.0
PLAUSIBLE = 0.1  # share of the variation that it explains
FITTED = 8  # harmonics that a period is refined by, at most
FORGETTING = 0.8  # of a period in the profile
AMPLITUDE_FORGETTING = 0.6
AMPLITUDES = (0.5, 1.5)  # of the last periods, in units of the profile
SHRINKAGE = 2.0  # squared standard errors by which a harmonic is taken to be smaller


def found(series: Sequence[Floats], shortest: int = SHORTEST) -> list[tuple[int, int]]:
    """Period of the season of each of several series, and the output that shows it best.

    series: labels (d, T) without trend. The period is 0 where there is no evidence of one. It has
    to be seen in one output alone: what several say together is no more than what one of them says
    where they correlate.
    """
    rows = [row for y in series for row in y]
    parts = [_best(rows[at : at + AT_ONCE], shortest) for at in range(0, len(rows), AT_ONCE)]
    scored = chain.from_iterable(parts)
    return [_shown(y, [next(scored) for _ in y]) for y in series]


def _shown(y: Floats, scored: list[tuple[float, int]]) -> tuple[int, int]:
    """The best of periods that are scored by evidence, of each output one: as of `found`."""
    least = EVIDENCE + math.log(len(y))  # the best of so many
    for output, (most, period) in sorted(enumerate(scored), key=lambda each: -each[1][0]):
        if most >= least and _forecasts(y[output] / np.abs(y[output]).max(), period):
            return period, output
    return 0, 0


def _best(rows: Sequence[Floats], shortest: int) -> list[tuple[float, int]]:
    """Evidence of the period that has most of it in labels (T,), and that; 0, 0 where none has."""
    from model_core.compiled import periods

    best = [(0.0, 0)] * len(rows)
    labels = {}
    for i, row in enumerate(rows):
        size = float(np.abs(row).max(initial=0.0))
        if len(row) // PERIODS >= shortest and size > 0:
            labels[i] = row / size
    lagged = iter(_autocorrelations([*labels.values()]))
    for i, y in labels.items():
        plausible = periods.plausible(y, next(lagged), next(lagged), shortest, len(y) // PERIODS)
        scored = [(evidence(y, period), period) for period in plausible.tolist()]
        best[i] = max(scored, default=(0.0, 0))
    return best


def _autocorrelations(series: Sequence[Floats]) -> list[Floats]:
    """Sums of products so far apart: of labels (T,) about their mean, and of their differences."""
    every = [own - own.mean() for y in series for own in (y, np.diff(y))]
    alike: dict[int, list[int]] = {}
    for i, own in enumerate(every):
        # Lags that are looked at wrap around on none of each other. Other sizes may take longer.
        least = len(own) + len(series[i // 2]) // PERIODS
        size = 1 << (least + 1).bit_length()
        alike.setdefault(3 * size // 4 if 3 * size // 4 > least else size, []).append(i)
    products = [*every]
    for size, places in alike.items():
        table = np.zeros((len(places), size))
        for row, i in zip(table, places, strict=True):
            row[: len(every[i])] = every[i]
        table = np.fft.irfft(np.abs(np.fft.rfft(table)) ** 2)
        for row, i in zip(table, places, strict=True):
            products[i] = row[: len(every[i])]
    return products


def fundamental(y: Floats, period: int) -> int:
    """Shortest whole part of a period of labels (T,) without trend that explains as much.

    A multiple has more evidence where there are many labels: its last periods are longer. Both are
    to explain those, of which a gap is a small share.
    """
    y = y[len(y) - min(len(y) // period, RECENT_PERIODS) * period :]
    most = AS_GOOD * _explained(y, period)
    for part in range(SHORTEST, period // 2 + 1):
        whole = period % part == 0
        if whole and _explained(y, part, len(y)) >= most and evidence(y, part) >= EVIDENCE:
            return part
    return period


def evidence(y: Floats, period: int) -> float:
    """Evidence of a period in labels (T,) without trend, in nats: -log of its chance in noise.

    The most that any first 1, 2, 4 ... harmonics give, less what the choice costs.
    """
    return _evidence(y, period)[0]


def _evidence(y: Floats, period: int) -> tuple[float, int]:
    """Evidence, and the number of harmonics that give it; 0 and 1 where there is none."""
    from model_core.compiled import periods

    rows = _whitened(y, period)
    if len(rows) < PERIODS or np.vdot(rows, rows) <= periods.FLOOR * (y @ y):  # rounding alone
        return 0.0, 1
    return periods.evidence(_harmonics(rows))


def _forecasts(y: Floats, period: int) -> bool:
    """Whether periods forecast each other, better than an autoregression does alone."""
    kept, _ = _held_out(_folded(y, period))
    _, gained = _held_out(_whitened(y, period))
    return bool(np.median(kept) >= EXPLAINED) and gained >= GAINED


def _held_out(rows: Floats) -> tuple[Floats, float]:
    """Share of each row's squares that the mean of the others explains, and of all of them."""
    errors = (rows - rows.mean(0)) * (len(rows) / (len(rows) - 1))
    missed = (errors**2).sum(1)
    squares = (rows**2).sum(1) + 1e-300
    return 1 - missed / squares, float(1 - missed.sum() / squares.sum())


def learned(y: Floats, period: int, scaled: bool = False) -> Floats:
    """Profile (P,) of the last periods of labels (T,): the season from the first of them on.

    Periods that differ from the others weigh less, as do old ones. Harmonics are shrunk by
    their standard errors. scaled: to the amplitude of the last periods.
    """
    from model_core.compiled import periods

    size = float(np.abs(y).max(initial=0.0)) or 1.0  # squares are numbers, whatever the unit
    rows = _folded(y / size, period, robust=True)
    weights = periods.weights(rows) if len(rows) > PERIODS else np.ones(len(rows))
    ages = np.arange(len(rows))[::-1]
    harmonics = _harmonics(rows)
    mean, within, between, total = periods.variation(harmonics, weights * FORGETTING**ages)
    freedom = max(total - 1, 1e-6)
    spectrum = np.zeros(period // 2 + 1, dtype=np.complex128)
    shrunk = np.maximum(0, 1 - SHRINKAGE * within / (freedom * between + 1e-300))
    spectrum[1 : (period + 1) // 2] = mean * shrunk
    profile: Floats = np.fft.irfft(spectrum, period)
    power = float(profile @ profile)
    if not scaled or power == 0:
        return profile * size
    late = weights * AMPLITUDE_FORGETTING**ages
    amplitude = float(late @ (rows @ profile)) / (float(late.sum()) * power)
    return profile * (size * min(max(amplitude, AMPLITUDES[0]), AMPLITUDES[1]))


def _folded(y: Floats, period: int, robust: bool = False) -> Floats:
    """The last periods as rows (n, P) about their means and the slope through those.

    The slope is that of the neighbours' means; robust: the median of all, not moved by one step.
    """
    from model_core.compiled import periods

    return periods.folded(y, period, robust, RECENT_PERIODS)


def _whitened(y: Floats, period: int) -> Floats:
    """Periods as rows, without the first-order autoregression of what is no season.

    Else level shifts and slow noise enter many harmonics at once, each of which would count.
    """
    from model_core.compiled import periods

    return periods.whitened(y, period, RECENT_PERIODS)


def _harmonics(rows: Floats) -> NDArray[np.complex128]:
    """Harmonics (n, H) of rows."""
    return np.fft.rfft(rows)[:, 1 : (rows.shape[1] + 1) // 2].copy()


def detrended(y: Floats) -> Floats:
    """Labels about the least-squares line through them; 0 where only rounding is left."""
    from model_core.compiled import periods

    return periods.detrended(y)


def spread(y: Floats) -> float:
    """Mean square about the median, which a few outliers do not move."""
    from model_core.compiled import periods

    return periods.spread(y)


def without(y: Floats, period: int) -> Floats:
    """Labels about their mean of each phase."""
    phase = np.arange(len(y)) % period
    means: Floats = np.bincount(phase, y) / np.bincount(phase)
    return y - means[phase]


def refined(y: Floats, period: int, apart: int) -> int:
    """Period at most so far from another one whose harmonics fit labels (d, T) without trend best.

    By least squares, of as many of the first ones as give most evidence: about as exact as can be
    (Cramer and Rao). The mean of each phase, which a candidate is found by, fits the noise as well.
    """
    from model_core.compiled import periods

    outputs: list[tuple[Floats, int]] = []
    for row in y:
        own = row / (float(np.abs(row).max(initial=0.0)) or 1.0)
        outputs.append((_folded(own, period).ravel(), min(_evidence(own, period)[1], FITTED)))
    shortest = max(SHORTEST, period - apart)
    longest = min(period + apart, y.shape[1] // PERIODS)

    def fit(candidate: int) -> tuple[float, int]:
        most = (candidate - 1) // 2  # harmonics
        squares = [periods.fitted(own, candidate, min(count, most)) for own, count in outputs]
        return sum(squares), -abs(candidate - period)

    best: int = max(sorted({period, *range(shortest, longest + 1)}), key=fit)
    return best


def _explained(y: Floats, period: int, most: int = RECENT_PERIODS) -> float:
    from model_core.compiled import periods

    return periods.explained(y, period, most)
