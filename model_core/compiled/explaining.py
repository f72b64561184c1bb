"""Loops of `explanation`: over labels of two regimes, and the grid that they are weighed by."""

from __future__ import annotations

import math

import numpy as np

from model_core.compiled.jit import Floats, allocating, locked

# Robust standard deviations from the median of its neighbours, from which on a label does not weigh
# for a kind of change; and from that of its regime, from which on it is in no mean or spread.
OUTLIER = 6.0
FAR = 20.0
FEW = 0.1  # share of a regime that may be outliers
OUTLIERS_FROM = 10  # labels of a regime; in fewer an outlier looks like a larger spread
# Of a regime, from its median, from which on its labels next to the change are on the way.
ARRIVED = 3.0
MOSTLY = 0.75  # share of them that are
ON_THE_WAY = 5  # one label in so many, at most
LEVEL = 10.0  # prior standard deviation of the level, in those of the innovations
# Of the inverse gamma prior of the variance of innovations, of standardised labels.
SHAPE = 1.0
RATE = 0.5
COLUMNS = 5  # level, step, bend, trend, and labels


@allocating
def spread(labels: Floats) -> tuple[float, float]:
    """Mean of labels, and the sum of their squared distances from it."""
    first = labels[0]
    mean = first + (labels - first).sum() / len(labels)  # exact where all are the same
    return mean, ((labels - mean) ** 2).sum()


@allocating
def median(labels: Floats) -> float:
    """Median of labels, of which there are some."""
    return float(np.median(labels))


@allocating
def within_reach(labels: Floats) -> Floats:
    """Labels of one regime, without what is as far off as an error code."""
    if len(labels) < OUTLIERS_FROM:
        return labels
    off = np.abs(labels - np.median(labels))
    near = off <= FAR * (1.4826 * np.median(off))
    few = len(labels) - near.sum() <= FEW * len(labels)
    return labels[near] if np.median(off) > 0 and few else labels


@allocating
def without_outliers(labels: Floats) -> Floats:
    """Labels of one regime, single outliers replaced by the median of their neighbours."""
    count = len(labels)
    if count < OUTLIERS_FROM:
        return labels
    middle = np.empty(count)
    last = count - 1
    for i in range(count):  # places are reflected at both ends
        a = labels[abs(i - 2)]
        b = labels[abs(i - 1)]
        c = labels[last - abs(last - i - 1)]
        d = labels[last - abs(last - i - 2)]
        # Of five the first and the last of two pairs are not the median.
        low = max(min(a, b), min(c, d))
        high = min(max(a, b), max(c, d))
        middle[i] = max(min(labels[i], low), min(max(labels[i], low), high))
    off = np.abs(labels - middle)
    robust = 1.4826 * np.median(off)
    far = off > OUTLIER * robust
    return np.where(far, middle, labels) if robust > 0 and far.sum() <= FEW * count else labels


@allocating
def settled(old: Floats, new: Floats) -> tuple[int, int]:
    """How many labels next to a change are on the way between regimes: before it, and after it."""
    before = old[::-1].copy()
    late = 0
    early = 0
    for sloped in (False, True):
        first = _course(before, sloped)
        last = _course(new, sloped)
        late = max(late, _on_the_way(before, first, last))
        early = max(early, _on_the_way(new, last, first))
    return late, early


@allocating
def _course(labels: Floats, sloped: bool) -> tuple[float, float, float]:
    """A regime's labels, as a line that outliers do not move: its start, slope, distance to it."""
    half = len(labels) // 2
    slope = 0.0
    if sloped and len(labels) >= OUTLIERS_FROM:
        slope = np.median(labels[half:] - labels[: len(labels) - half]) / half
    ordered = np.sort(labels - slope * np.arange(len(labels)))
    quarter = len(labels) // 4
    return np.median(ordered), slope, (ordered[-1 - quarter] - ordered[quarter]) / 1.349


@allocating
def _on_the_way(
    labels: Floats, own: tuple[float, float, float], other: tuple[float, float, float]
) -> int:
    """How many labels, from the first one on, are between their regime and the other, or there."""
    if len(labels) < OUTLIERS_FROM:
        return 0
    level, slope, off = own
    apart = other[0] - level
    between = 0
    last = 0
    for i in range(len(labels) // ON_THE_WAY):
        away = (labels[i] - slope * i - level) * (1 if apart > 0 else -1)
        if ARRIVED * off < away <= abs(apart) + ARRIVED * other[2]:
            between += 1
            if between >= MOSTLY * (i + 1):
                last = i + 1
    return last


@allocating
def mean_log(logs: Floats) -> float:
    """Log of the mean of what these are logs of."""
    largest: float = logs.max()
    return largest + math.log(np.exp(logs - largest).sum() / len(logs))


@allocating
def evidence(
    labels: Floats,
    first: int,
    sizes: tuple[float, float, float],
    factors: Floats,
    log_scale: Floats,
    ends: tuple[int, int, int],
) -> tuple[Floats, Floats]:
    """Log evidence (G,) at each point of the grid, without a trend and with one.

    labels: standardised, of both regimes; first: of those after the change. sizes: prior sds of
    step, bend and trend. factors, log_scale: as of `explanation._Grid`. ends: of the points with a
    step; first and end of those with a bend.
    """
    count = len(labels)
    step, bend, trend = sizes
    columns = np.empty((count, COLUMNS))  # priors are unit normal that way
    for t in range(count):
        columns[t, 0] = LEVEL
        columns[t, 1] = step if t >= first else 0.0
        columns[t, 2] = bend * max(t - first + 1.0, 0.0) / (count - first)
        columns[t, 3] = trend * (t / count - 0.5)
        columns[t, 4] = labels[t]
    # Sums of products of each pair, before and after the change: of values at the same time, of
    # those one apart, and of the earlier ones. From them follow those of what is left after a
    # share phi of the one before. The first label is stationary: its variance is s^2 / (1 - phi^2).
    products = np.zeros((6, COLUMNS, COLUMNS))
    for t in range(count):
        at = 0 if t < first else 3
        for i in range(COLUMNS):
            for j in range(i + 1):
                products[at, i, j] += columns[t, i] * columns[t, j]
                if t > 0:
                    apart = columns[t, i] * columns[t - 1, j] + columns[t - 1, i] * columns[t, j]
                    products[at + 1, i, j] += apart
                    products[at + 2, i, j] += columns[t - 1, i] * columns[t - 1, j]
                else:
                    products[2, i, j] -= columns[0, i] * columns[0, j]
    shape = SHAPE + count / 2
    level = np.empty(factors.shape[1])
    trending = np.empty(factors.shape[1])
    sums = np.empty((COLUMNS, COLUMNS))
    for point in range(factors.shape[1]):
        for i in range(COLUMNS):
            for j in range(i + 1):
                total = 0.0
                for m in range(6):
                    total += factors[m, point] * products[m, i, j]
                sums[i, j] = total
        scale = log_scale[0, point] + (first - count) * log_scale[1, point]
        determinant = 1.0
        for k in range(COLUMNS - 1):  # integrate out one column after the other
            if (k == 1 and point >= ends[0]) or (k == 2 and not ends[1] <= point < ends[2]):
                continue
            if k == COLUMNS - 2:
                squares = math.log(RATE + sums[4, 4] / 2)
                level[point] = scale - 0.5 * math.log(determinant) - shape * squares
            pivot = sums[k, k] + 1.0
            determinant *= pivot
            for i in range(k + 1, COLUMNS):
                share = sums[i, k] / pivot
                for j in range(k + 1, i + 1):
                    sums[i, j] -= share * sums[j, k]
        squares = math.log(RATE + sums[4, 4] / 2)
        trending[point] = scale - 0.5 * math.log(determinant) - shape * squares
    return level, trending


def _compile() -> None:
    labels = np.arange(12.0)
    spread(labels)
    median(labels)
    within_reach(labels)
    without_outliers(labels)
    settled(labels, labels)
    mean_log(labels)
    factors = np.ones((6, 1))
    evidence(labels, 6, (1.0, 1.0, 1.0), factors, factors[:2], (1, 1, 1))


locked("explanations", _compile)
