"""Loops of `periodicity` and `season`: over labels, periods as rows, harmonics and waves."""

from __future__ import annotations

import cmath
import math

import numpy as np
from numpy.typing import NDArray

from model_core.compiled.jit import Floats, Ints, allocating, compiled, locked
from model_core.periodicity import CANDIDATES, CORRELATED, ERRORS, PLAUSIBLE, RECENT_PERIODS

HARMONICS = 32  # that evidence is taken from
WEIGHINGS = 3  # of periods, each by the mean of the one before
FLOOR = 1e-12  # of sums of squares
ROUNDING = 1e-12  # of labels
OUTLYING = 4.0  # standard deviations beyond which a label says no more of what a season is worth
MAD_SD = 1.4826  # standard deviations of normal noise in a median absolute deviation

Complexes = NDArray[np.complex128]


@allocating
def detrended(y: Floats) -> Floats:
    """Labels about the least-squares line through them; 0 where only rounding is left."""
    count = len(y)
    center = (count - 1) / 2
    largest = 0.0
    products = 0.0
    for i in range(count):
        largest = max(largest, abs(y[i]))
        products += (i - center) * y[i]
    slope = 12 * products / (count * (count**2 - 1.0))
    mean = y.sum() / count
    deviations = np.empty(count)
    for i in range(count):
        own = y[i] - mean - slope * (i - center)
        deviations[i] = own if abs(own) > ROUNDING * largest else 0.0
    return deviations


@allocating
def spread(y: Floats) -> float:
    """Mean square about the median, which a few outliers do not move."""
    squares = (y - np.median(y)) ** 2
    most = (OUTLYING * MAD_SD) ** 2 * np.median(squares)
    return np.minimum(squares, most).sum() / len(y) + 1e-300  # type: ignore[no-any-return]


@allocating
def folded(y: Floats, period: int, robust: bool, most: int) -> Floats:
    """See `periodicity._folded`."""
    count = min(len(y) // period, most)
    start = len(y) - count * period
    rows = np.empty((count, period))
    means = np.empty(count)
    for i in range(count):
        rows[i] = y[start + i * period : start + (i + 1) * period]
        means[i] = rows[i].sum() / period
    slope = np.median(means[1:] - means[:-1]) if robust and count > 1 else 0.0
    for i in range(count):
        if not robust and count > 1:
            before = max(i - 1, 0)
            after = min(i + 1, count - 1)
            slope = (means[after] - means[before]) / (after - before)
        for k in range(period):
            rows[i, k] -= means[i] + slope * (k - (period - 1) / 2) / period
    return rows


@allocating
def explained(y: Floats, period: int, most: int) -> float:
    """Share of the variation within periods that their mean explains, less that by chance.

    Periods are as of `folded`, which would write each label twice.
    """
    count = min(len(y) // period, most)
    if count < 2:
        return 0.0
    own = y[len(y) - count * period :]
    means = np.empty(count)
    for i in range(count):
        means[i] = own[i * period : (i + 1) * period].sum() / period
    row = np.empty(period)
    sums = np.zeros(period)
    squares = 0.0
    for i in range(count):
        before = max(i - 1, 0)
        after = min(i + 1, count - 1)
        slope = (means[after] - means[before]) / (after - before)
        for k in range(period):
            line = means[i] + slope * (k - (period - 1) / 2) / period
            row[k] = own[i * period + k] - line
            sums[k] += row[k]
        for k in range(period):
            squares += row[k] * row[k]
    squares /= count * period
    if squares <= 0:
        return 0.0
    between = 0.0
    for k in range(period):
        between += (sums[k] / count) ** 2
    between /= period
    return (between - (squares - between) / (count - 1)) / squares


@allocating
def plausible(
    y: Floats, of_labels: Floats, of_differences: Floats, shortest: int, longest: int
) -> Ints:
    """Periods of labels that explain enough of them, near peaks of their autocorrelation.

    of_labels, of_differences: sums of products of labels so far apart, and of their differences.
    """
    shares = np.full(longest + 1, math.nan)
    found = np.zeros(longest + 1, np.bool_)
    for products in (of_labels, of_differences):
        if products[0] <= 0:
            continue
        least = max(CORRELATED, ERRORS / math.sqrt(len(products)))
        for peak in highest(products, shortest, longest, least):
            period = climbed(y, peak, shortest, longest, shares)
            found[period] = shares[period] >= PLAUSIBLE
    return found.nonzero()[0]


@allocating
def highest(products: Floats, shortest: int, longest: int, least: float) -> Ints:
    """Lags of the highest local maxima of an autocorrelation of at least so much."""
    count = len(products)
    lags = np.empty(CANDIDATES, np.int64)
    heights = np.empty(CANDIDATES)
    size = 0
    last = 0.0
    own = 0.0
    for lag in range(shortest - 1, min(longest, count - 2) + 2):
        coming = products[lag] / products[0] * (count / (count - lag))
        if lag > shortest and own >= last and own >= coming and own > least:
            at = size
            while at > 0 and heights[at - 1] < own:
                at -= 1
            for k in range(min(size, CANDIDATES - 1), at, -1):
                lags[k] = lags[k - 1]
                heights[k] = heights[k - 1]
            if at < CANDIDATES:
                lags[at] = lag - 1
                heights[at] = own
                size = min(size + 1, CANDIDATES)
        last = own
        own = coming
    return lags[:size]


@allocating
def climbed(y: Floats, period: int, shortest: int, longest: int, shares: Floats) -> int:
    """Period near another one that explains most, by steps that are halved.

    shares: what each period explains; nan: not known yet, and to be filled in.
    """
    step = max(1, period // 16)
    share = _share(y, period, shares)
    while step:
        best = period
        for candidate in (period - step, period + step):
            if shortest <= candidate <= longest:
                own = _share(y, candidate, shares)
                if own > share:
                    share = own
                    best = candidate
        if best == period:
            step //= 2
        period = best
    return period


@allocating
def _share(y: Floats, period: int, shares: Floats) -> float:
    if math.isnan(shares[period]):
        shares[period] = explained(y, period, RECENT_PERIODS)
    return shares[period]  # type: ignore[no-any-return]


@allocating
def correlation(rows: Floats) -> float:
    """Autocorrelation at lag one of rows (n, P) about their mean, within rows."""
    off = rows - rows.sum(0) / len(rows)
    squares = (off**2).sum()
    return (off[:, 1:] * off[:, :-1]).sum() / squares if squares > 0 else 0.0


@allocating
def whitened(y: Floats, period: int, most: int) -> Floats:
    """See `periodicity._whitened`."""
    rows = folded(y, period, False, most)
    if len(rows) < 2:
        return rows[:0]
    lag = correlation(rows)
    lag += (1 + 3 * lag) / period  # bias of short rows about their mean
    lag = min(max(lag, 0.0), 1.0)
    return folded(y[1:] - lag * y[:-1], period, False, most)


@allocating
def weights(rows: Floats) -> Floats:
    """Weights (n,) of periods, less for those far from the others."""
    own = np.ones(len(rows))
    for _ in range(WEIGHINGS):
        mean = np.zeros(rows.shape[1])
        for i in range(len(rows)):
            mean += own[i] / own.sum() * rows[i]
        distances = np.empty(len(rows))
        for i in range(len(rows)):
            distances[i] = ((rows[i] - mean) ** 2).sum()
        middle = np.median(distances)
        if middle <= 0:
            break
        own = 1 / np.maximum(distances / middle, 1)
    return own


@allocating
def variation(harmonics: Complexes, weights: Floats) -> tuple[Complexes, Floats, Floats, float]:
    """Mean of the harmonics (H,) of rows, and their variation within (never 0) and between phases.

    harmonics: (n, H). weights: (n,). Last is the number of rows that count.
    """
    share = weights / weights.sum()
    total = 1 / (share**2).sum()
    count = harmonics.shape[1]
    mean = np.zeros(count, dtype=np.complex128)
    within = np.zeros(count)
    for i in range(len(share)):
        mean += share[i] * harmonics[i]
    for i in range(len(share)):
        off = harmonics[i] - mean
        within += share[i] * total * (off.real**2 + off.imag**2)
    between = total * (mean.real**2 + mean.imag**2)
    within += FLOOR * (within.sum() + between.sum()) + 1e-300
    return mean, within, between, total


@compiled
def _log_tail(x: float, shape: int) -> float:
    """-log P(X > x) of a gamma variate of this shape: that of fewer Poisson events than it."""
    if x <= shape:
        return 0.0
    most = (shape - 1) * math.log(x) - math.lgamma(shape)  # terms grow up to it
    total = 0.0
    for k in range(shape):
        total += math.exp(k * math.log(x) - math.lgamma(k + 1) - most)
    return x - most - math.log(total)


@allocating
def evidence(harmonics: Complexes) -> tuple[float, int]:
    """Evidence of a period by the harmonics (n, H) of its rows, and the number that give it.

    The most that any first 1, 2, 4 ... give, less what the choice costs; 0 and 1 where there is
    none.
    """
    count = len(harmonics)
    _, within, between, _ = variation(harmonics, np.ones(count))
    most = min(len(within), HARMONICS)
    best = 0.0
    chosen = 1
    choices = 0
    total = 0.0
    for k in range(1, most + 1):
        total += (count - 1) * math.log1p(between[k - 1] / within[k - 1])
        if k & (k - 1) and k < most:
            continue
        choices += 1
        # 1/2, 1/6, 1/12 ...: shares of the first, second, third choice; together less than 1.
        own = _log_tail(total, k) - math.log(choices * (choices + 1))
        if own >= best:
            best = own
            chosen = k
    return best, chosen


@allocating
def fitted(labels: Floats, period: int, harmonics: int) -> float:
    """Sum of squares that the first harmonics of a period, and a mean, explain.

    By least squares. Products of complex waves from -H to H are sums of geometric series, which
    depend on the distance of two waves alone: the recursion of Durbin and Levinson takes of each
    wave what is none of those before.
    """
    sums = np.zeros(period)
    for start in range(0, len(labels), period):
        for i in range(min(period, len(labels) - start)):
            sums[i] += labels[start + i]
    turn = 2j * math.pi / period
    count = 2 * harmonics + 1
    products = np.zeros(count, dtype=np.complex128)  # of labels and waves
    waves = np.ones(harmonics + 1, dtype=np.complex128)
    steps = np.array([cmath.exp(k * turn) for k in range(harmonics + 1)])
    for i in range(period):  # side by side: each wave waits for its own last value alone
        for k in range(harmonics + 1):
            products[harmonics + k] += sums[i] * waves[k]
            waves[k] *= steps[k]
    for k in range(harmonics + 1):
        products[harmonics - k] = products[harmonics + k].conjugate()
    crossed = np.empty(count, dtype=np.complex128)  # of waves so far apart
    crossed[0] = len(labels)
    for k in range(1, count):
        crossed[k] = (1 - cmath.exp(k * len(labels) * turn)) / (1 - cmath.exp(k * turn))
    left = float(len(labels))  # of the squares of a wave
    explained: float = abs(products[0]) ** 2 / left
    shares = np.zeros(0, dtype=np.complex128)  # of the waves before in the next, the last one first
    for k in range(1, count):
        last = (crossed[k] - (shares * crossed[k - 1 : 0 : -1]).sum()) / left
        before = shares
        shares = np.empty(k, dtype=np.complex128)
        shares[: k - 1] = before - last * np.conj(before[::-1])
        shares[k - 1] = last
        left *= 1 - abs(last) ** 2
        explained += abs(products[k] - (shares * products[k - 1 :: -1]).sum()) ** 2 / left
    return explained


def _compile() -> None:
    y = detrended(np.zeros(4))
    rows = folded(y, 2, False, 2)
    spread(y)
    explained(y, 2, 2)
    plausible(y, y, y, 1, 2)
    whitened(y, 2, 2)
    weights(rows)
    harmonics = np.zeros((2, 1), np.complex128)
    variation(harmonics, y[:2])
    evidence(harmonics)
    fitted(y, 2, 1)


locked("seasons", _compile)
