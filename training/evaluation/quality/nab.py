"""The score of the Numenta Anomaly Benchmark, standard profile.

Written from its definition: Lavin & Ahmad, *Evaluating Real-Time Anomaly Detection Algorithms*
(arXiv:1510.03336), and the benchmark's own normalisation: 0 is a detector that finds nothing, 100
one that flags the first observation of every labelled window and no other. Every observation whose
anomaly score reaches the threshold is a detection. The first one in a window counts the more the
earlier it is, a window without any costs 1, and detections outside of windows cost up to 0.11
each, less where they follow a window closely. One threshold serves all series.

Alarms are the detections of a service that is silent for a while after each, as one is that people
listen to: what they cost then does not depend on how long something stays strange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.stream_settings import ALARM_SILENCE, DEFAULTS

Floats = NDArray[np.float64]
HIT, FALSE, MISS = 1.0, 0.11, 1.0  # weights of the standard profile
PROBATION = 0.15  # share of a series that is not scored, of at most
PROBATION_LENGTH = 5000  # observations
SILENCE = ALARM_SILENCE  # observations after an alarm in which no other is raised
ALARM = DEFAULTS.anomaly_alarm or 1.0  # a threshold that was not chosen on the benchmark
# Thresholds that alarms with a silence are tried at: those are not nested, so there is no sweep.
THRESHOLDS = 1 - 10.0 ** np.arange(-5.0, -0.99, 0.05)
REPETITIONS = 20  # of choosing a threshold on one half of the series and scoring the other

# The benchmark's windowed Gaussian: its window, how far it moves, and its least deviation.
WINDOW, STEP, LEAST_SD = 6400, 100, 1e-6


class Weights(NamedTuple):
    """Weight (n,) of a detection at each observation and its window (n,), -1 outside of them.

    first: the first observation that counts. windows: number of them.
    """

    weight: Floats
    window: NDArray[np.int64]
    first: int
    windows: int


class Curve(NamedTuple):
    """Score (k,) at thresholds (k,), descending from one that nothing reaches."""

    threshold: Floats
    score: Floats

    def best(self) -> tuple[float, float]:
        """The best score and its threshold."""
        at = int(self.score.argmax())
        return float(self.score[at]), float(self.threshold[at])

    def at(self, threshold: float) -> float:
        """Score at a threshold."""
        return float(self.score[np.flatnonzero(self.threshold >= threshold)[-1]])


class Score(NamedTuple):
    """Scores of one detector.

    in_sample: with the best threshold for these very series. mean, sd: over random halves, of the
    score of one half with the threshold that was best on the other. fixed: at the threshold
    `ALARM`, of an anomaly's.
    """

    in_sample: float
    mean: float
    sd: float
    fixed: float = math.nan


def weights(window: NDArray[np.bool_]) -> Weights:
    """Weights of detections; window: (n,) whether an observation is in a labelled window."""
    n = len(window)
    borders = np.flatnonzero(np.diff(np.concatenate(([0], window.astype(np.int64), [0]))))
    starts, ends = borders[::2], borders[1::2]  # an end is the first observation after
    weight = np.full(n, -FALSE)
    owner = np.full(n, -1)
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        inside = np.arange(start, end)
        length = end - start
        weight[inside] = HIT * _scaled(-(end - inside) / length) / _scaled(-1.0)
        owner[inside] = k
        after = np.arange(end, starts[k + 1] if k + 1 < len(starts) else n)
        weight[after] = FALSE * _scaled((after - end + 1) / max(length - 1, 1))
    first = int(PROBATION * min(n, PROBATION_LENGTH))
    return Weights(weight, owner, first, len(starts))


def _scaled(distance: float | Floats) -> Floats:
    """The benchmark's sigmoid: 1 long before the end of a window, 0 at it, -1 long after it."""
    near = np.minimum(distance, 3.0)
    return np.where(np.asarray(distance) > 3.0, -1.0, 2 / (1 + np.exp(5 * near)) - 1)


def curve(scores: Sequence[Floats], weighted: Sequence[Weights]) -> Curve:
    """Score at every threshold; scores: (n,) of each series, more is stranger, nan never counts."""
    values, gains, owners = [], [], []
    windows = 0
    for score, each in zip(scores, weighted, strict=True):
        owner = each.window[each.first :]
        values.append(np.where(np.isnan(score), -np.inf, score)[each.first :])
        gains.append(each.weight[each.first :])
        owners.append(np.where(owner >= 0, owner + windows, -1))
        windows += each.windows
    if not windows:
        raise ValueError("expected at least one labelled window, got none")
    value, weight, owner = (np.concatenate(part) for part in (values, gains, owners))
    order = np.argsort(-value, kind="stable")
    value, weight, owner = value[order], weight[order], owner[order]
    gain = np.where(owner < 0, weight, 0.0)
    best = np.full(windows, -MISS)
    for i in np.flatnonzero(owner >= 0):
        window = owner[i]
        if weight[i] > best[window]:
            gain[i] = weight[i] - best[window]
            best[window] = weight[i]
    # A threshold takes in all that are equal; what has no score is never taken in.
    last = np.append(value[1:] < value[:-1], True) & np.isfinite(value)
    normalised = 100 * gain.cumsum()[last] / (windows * (HIT + MISS))
    return Curve(np.append(np.inf, value[last]), np.append(0.0, normalised))


def alarms(score: Floats, threshold: float) -> list[int]:
    """Positions that reach a threshold and do not follow an alarm within `SILENCE`."""
    raised: list[int] = []
    for at in np.flatnonzero(score >= threshold).tolist():
        if not raised or at - raised[-1] >= SILENCE:
            raised.append(at)
    return raised


def alarm_curve(scores: Sequence[Floats], weighted: Sequence[Weights]) -> Curve:
    """Score at `THRESHOLDS` and `ALARM` where alarms alone are detections; as `curve`."""
    windows = sum(each.windows for each in weighted)
    if not windows:
        raise ValueError("expected at least one labelled window, got none")
    thresholds = np.sort([*THRESHOLDS, ALARM])[::-1]
    gains = [
        sum(_gain(alarms(s, threshold), w) for s, w in zip(scores, weighted, strict=True))
        for threshold in thresholds
    ]
    normalised = 100 * np.array(gains) / (windows * (HIT + MISS))
    return Curve(np.append(np.inf, thresholds), np.append(0.0, normalised))


def _gain(raised: Sequence[int], weights: Weights) -> float:
    """What alarms on one series gain over none."""
    scored = [at for at in raised if at >= weights.first]
    hits: dict[int, float] = {}
    gain = 0.0
    for at in scored:
        window, weight = int(weights.window[at]), float(weights.weight[at])
        if window < 0:
            gain += weight
        else:
            hits[window] = max(hits.get(window, -MISS), weight)
    return gain + sum(hits.values()) + MISS * len(hits)


def score_alarms(
    scores: Sequence[Floats], weighted: Sequence[Weights], rng: np.random.Generator
) -> Score:
    """As `score`, with alarms alone as detections, and at the threshold `ALARM` as well."""
    found = score(scores, weighted, rng, alarm_curve)
    return found._replace(fixed=alarm_curve(scores, weighted).at(ALARM))


def score(
    scores: Sequence[Floats],
    weighted: Sequence[Weights],
    rng: np.random.Generator,
    curve: Callable[[Sequence[Floats], Sequence[Weights]], Curve] = curve,
) -> Score:
    """Score with the best threshold, and with that of the other half of the series."""
    halves = []
    for _ in range(REPETITIONS):
        order = rng.permutation(len(scores))
        middle = len(scores) // 2
        one, other = (
            _part(scores, weighted, part, curve) for part in (order[:middle], order[middle:])
        )
        if one is not None and other is not None:
            halves += [one.at(other.best()[1]), other.at(one.best()[1])]
    in_sample, _ = curve(scores, weighted).best()
    if not halves:
        return Score(in_sample, math.nan, math.nan)
    return Score(in_sample, float(np.mean(halves)), float(np.std(halves)))


def _part(
    scores: Sequence[Floats],
    weighted: Sequence[Weights],
    part: NDArray[np.int64],
    curve: Callable[[Sequence[Floats], Sequence[Weights]], Curve],
) -> Curve | None:
    """Curve of some of the series, None where they have no window."""
    if not any(weighted[i].windows for i in part):
        return None
    return curve([scores[i] for i in part], [weighted[i] for i in part])


def windowed_gaussian(y: Floats) -> Floats:
    """The benchmark's baseline: `1 - Q` of the distance from the mean of a window, in deviations.

    The window grows to `WINDOW` observations, then moves by `STEP` at a time.
    """
    strange = np.zeros(len(y))
    total = square = 0.0
    mean, sd, window_end = 0.0, 1.0, min(WINDOW, len(y))
    for t in range(window_end):
        if t:
            strange[t] = _tail(y[t], mean, sd)
        total += y[t]
        square += y[t] ** 2
        mean = total / (t + 1)
        sd = math.sqrt(max(square / (t + 1) - mean**2, 0.0)) or LEAST_SD
    for first in range(window_end, len(y), STEP):
        end = min(first + STEP, len(y))
        strange[first:end] = [_tail(value, mean, sd) for value in y[first:end]]
        recent = y[end - WINDOW : end]
        mean, sd = float(recent.mean()), float(recent.std()) or LEAST_SD
    return strange


def _tail(value: float, mean: float, sd: float) -> float:
    return 1.0 - 0.5 * math.erfc(abs(value - mean) / max(sd, 1e-12) / math.sqrt(2))
