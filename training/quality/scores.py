"""Scores of changes, anomalies and one-step forecasts: plain functions of arrays.

Changes of TCPD are scored as in its benchmark: van den Burg & Williams, *An Evaluation of Change
Point Detection Algorithms* (arXiv:2003.06222), section 4. A change point is the position of the
first observation of a segment. Several annotators marked each series; 0 counts as a change point of
every annotator.

Anomalies are scored as in the Numenta Anomaly Benchmark, standard profile; written from its
definition: Lavin & Ahmad, *Evaluating Real-Time Anomaly Detection Algorithms* (arXiv:1510.03336),
and the benchmark's own normalisation: 0 is a detector that finds nothing, 100 one that flags the
first observation of every labelled window and no other. Every observation whose anomaly score
reaches the threshold is a detection. The first one in a window counts the more the earlier it is, a
window without any costs 1, and detections outside of windows cost up to 0.11 each, less where they
follow a window closely. One threshold serves all series. Alarms are the detections of a service
that is silent for a while after each, as one is that people listen to: what they cost then does not
depend on how long something stays strange.

VUS-PR is the volume under the surface of precision over recall and the width of a buffer around
labelled windows, as in TSB-AD: Paparrizos et al., *Volume Under the Surface* (PVLDB 15, 2022), and
the benchmark's own thresholds. It needs no threshold, and every series is scored alone.

Forecasts are measured in each series' own scale, that of its warm-up, and every column of a vector
as a series of its own. Observations of the warm-up are not scored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from model_core.stream_settings import ALARM_SILENCE, DEFAULTS
from training.quality.series import spans
from training.results import Estimate, bootstrap, distance

Floats = NDArray[np.float64]
Annotations = Mapping[str, Collection[int]]  # annotator: change points
REPETITIONS = 20  # of choosing on one half of the series and scoring the other

MARGIN = 5  # observations by which a detection of TCPD may be off

# Weights of the standard profile.
HIT = 1.0
FALSE = 0.11
MISS = 1.0
PROBATION = 0.15  # share of a series that is not scored, of at most
PROBATION_LENGTH = 5000  # observations
SILENCE = ALARM_SILENCE  # observations after an alarm in which no other is raised
ALARM = DEFAULTS.anomaly_alarm or 1.0  # a threshold that was not chosen on the benchmark
# Thresholds that alarms with a silence are tried at: those are not nested, so there is no sweep.
THRESHOLDS = 1 - 10.0 ** np.arange(-5.0, -0.99, 0.05)

# Of VUS-PR: widest buffer, both sides of a window together, and number of thresholds.
WIDEST = 200
RANKS = 250

# The CRPS is taken from these quantiles; the outer ones bound the 90 % interval. The median, which
# is the point forecast, is beside them.
LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
MEDIAN = 0.5
RUNAWAY = 3.0  # standard deviations of the labels beyond their range
WITHIN = (0.85, 0.95)  # the share of labels in 90 % intervals, of a series that is calibrated
SHORTEST = 30  # labels after the warm-up, without which a series is not scored


class ChangeScore(NamedTuple):
    """F1 of the change points and covering of the segments, both in [0, 1]."""

    f1: float
    cover: float


def change_score(annotations: Annotations, detections: Iterable[int], length: int) -> ChangeScore:
    """Score detections in a series; those at its first and in its last position do not count."""
    inner = [point for point in detections if 1 <= point < length - 1]
    return ChangeScore(annotated_f1(annotations, inner), covering(annotations, inner, length))


def annotated_f1(annotations: Annotations, detections: Iterable[int]) -> float:
    """Harmonic mean of precision and recall.

    Precision counts the points of any annotator; recall is the average over annotators.
    """
    detected = sorted({0, *detections})
    # The matching is greedy, and its order that of a set: the benchmark's sets are made like this.
    marked: list[set[int]] = []
    union: set[int] = set()
    for points in annotations.values():
        own = {int(point) for point in points}
        own.add(0)
        marked.append(own)
        for point in own:
            union.add(point)
    precision = hits(union, detected) / len(detected)
    recall = sum(hits(own, detected) / len(own) for own in marked) / len(marked)
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def f1(truth: Sequence[int], detected: Sequence[int], margin: int) -> float:
    """F1 of detections; each true change is matched by one detection at most, within the margin."""
    total = len(truth) + len(detected)
    return 2 * hits(truth, detected, margin) / total if total else 1.0


def hits(truth: Iterable[int], detected: Iterable[int], margin: int = MARGIN) -> int:
    """Number of true points with a detection within the margin; each matches one, the nearest."""
    free = list(detected)
    count = 0
    for point in truth:
        nearest = min(free, key=lambda other: abs(other - point), default=None)
        if nearest is not None and abs(nearest - point) <= margin:
            free.remove(nearest)
            count += 1
    return count


def covering(annotations: Annotations, detections: Iterable[int], length: int) -> float:
    """Covering of the annotators' segments by the detected ones, averaged over annotators.

    `1/T sum_A |A| max_A' |A & A'| / |A | A'|` over the segments `A` of an annotator.
    """

    def segments(points: Iterable[int]) -> list[tuple[int, int]]:
        inner = sorted({int(point) for point in points if 0 < point < length})
        return list(pairwise([0, *inner, length]))

    def overlap(first: tuple[int, int], second: tuple[int, int]) -> float:
        shared = max(0, min(first[1], second[1]) - max(first[0], second[0]))
        return shared / (first[1] - first[0] + second[1] - second[0] - shared)

    detected = segments(detections)
    covers = [
        sum((own[1] - own[0]) * max(overlap(own, other) for other in detected) for own in truth)
        / length
        for truth in map(segments, annotations.values())
    ]
    return sum(covers) / len(covers)


class Weights(NamedTuple):
    """Weight (n,) of a detection at each observation and its window (n,), -1 outside of them.

    first: the first observation that counts. windows: number of them.
    """

    weight: Floats
    window: NDArray[np.int64]
    first: int
    windows: int


class ScoreCurve(NamedTuple):
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


class AnomalyScore(NamedTuple):
    """Scores of one detector.

    in_sample: with the best threshold for these very series. mean, sd: over random halves, of the
    score of one half with the threshold that was best on the other. fixed: at the threshold
    `ALARM`, of an anomaly's.
    """

    in_sample: float
    mean: float
    sd: float
    fixed: float = math.nan


# Scores of each series (n,), more is stranger, nan never counts; and their weights.
Sweep = Callable[[Sequence[Floats], Sequence[Weights]], ScoreCurve]


def window_weights(window: NDArray[np.bool_]) -> Weights:
    """Weights of detections; window: (n,) whether an observation is in a labelled window."""
    n = len(window)
    windows = spans(window)
    weight = np.full(n, -FALSE)
    owner = np.full(n, -1)
    for k, (start, end) in enumerate(windows):
        inside = np.arange(start, end)
        length = end - start
        weight[inside] = HIT * _sigmoid(-(end - inside) / length) / _sigmoid(-1.0)
        owner[inside] = k
        after = np.arange(end, windows[k + 1][0] if k + 1 < len(windows) else n)
        weight[after] = FALSE * _sigmoid((after - end + 1) / max(length - 1, 1))
    first = int(PROBATION * min(n, PROBATION_LENGTH))
    return Weights(weight, owner, first, len(windows))


def _sigmoid(distance: float | Floats) -> Floats:
    """The benchmark's: 1 long before the end of a window, 0 at it, -1 long after it."""
    near = np.minimum(distance, 3.0)
    return np.where(np.asarray(distance) > 3.0, -1.0, 2 / (1 + np.exp(5 * near)) - 1)


def detection_curve(scores: Sequence[Floats], weights: Sequence[Weights]) -> ScoreCurve:
    """Score at every threshold where every observation that reaches it is a detection."""
    values = []
    gains = []
    owners = []
    windows = 0
    for score, own in zip(scores, weights, strict=True):
        owner = own.window[own.first :]
        values.append(np.where(np.isnan(score), -np.inf, score)[own.first :])
        gains.append(own.weight[own.first :])
        owners.append(np.where(owner >= 0, owner + windows, -1))
        windows += own.windows
    value = np.concatenate(values)
    order = np.argsort(-value, kind="stable")
    value = value[order]
    weight = np.concatenate(gains)[order]
    owner = np.concatenate(owners)[order]
    gain = weight.copy()
    for window in range(windows):  # the best detection in a window counts
        inside = np.flatnonzero(owner == window)
        gain[inside] = np.diff(np.maximum.accumulate(weight[inside]), prepend=-MISS)
    # A threshold takes in all that are equal; what has no score is never taken in.
    last = np.append(value[1:] < value[:-1], True) & np.isfinite(value)
    return _normalised(value[last], gain.cumsum()[last], windows)


def alarm_curve(scores: Sequence[Floats], weights: Sequence[Weights]) -> ScoreCurve:
    """Score at `THRESHOLDS` and `ALARM` where alarms alone are detections."""
    thresholds = np.sort([*THRESHOLDS, ALARM])[::-1]
    gains = [
        sum(_gain(alarms(score, at), own) for score, own in zip(scores, weights, strict=True))
        for at in thresholds
    ]
    return _normalised(thresholds, np.array(gains), sum(own.windows for own in weights))


def _gain(raised: Sequence[int], weights: Weights) -> float:
    """What alarms on one series gain over none."""
    best: dict[int, float] = {}
    gain = 0.0
    for at in raised:
        window = int(weights.window[at])
        weight = float(weights.weight[at])
        if at >= weights.first and window < 0:
            gain += weight
        elif at >= weights.first:
            best[window] = max(best.get(window, -MISS), weight)
    return gain + sum(best.values()) + MISS * len(best)


def _normalised(threshold: Floats, gain: Floats, windows: int) -> ScoreCurve:
    if not windows:
        raise ValueError("expected at least one labelled window, got none")
    score = 100 * gain / (windows * (HIT + MISS))
    return ScoreCurve(np.append(np.inf, threshold), np.append(0.0, score))


def alarms(score: Floats, threshold: float) -> list[int]:
    """Positions that reach a threshold and do not follow an alarm within `SILENCE`."""
    raised: list[int] = []
    for at in np.flatnonzero(score >= threshold).tolist():
        if not raised or at - raised[-1] >= SILENCE:
            raised.append(at)
    return raised


def anomaly_score(
    scores: Sequence[Floats],
    weights: Sequence[Weights],
    rng: np.random.Generator,
    curve: Sweep = detection_curve,
) -> AnomalyScore:
    """Score with the best threshold, and with that of the other half of the series.

    curve: of detections, or `alarm_curve`, which also scores the threshold `ALARM`.
    """

    def half(part: NDArray[np.int64]) -> ScoreCurve | None:
        """None where the series have no window."""
        if not any(weights[i].windows for i in part):
            return None
        return curve([scores[i] for i in part], [weights[i] for i in part])

    halves = []
    for _ in range(REPETITIONS):
        order = rng.permutation(len(scores))
        middle = len(scores) // 2
        one = half(order[:middle])
        other = half(order[middle:])
        if one is not None and other is not None:
            halves += [one.at(other.best()[1]), other.at(one.best()[1])]
    everything = curve(scores, weights)
    mean = float(np.mean(halves)) if halves else math.nan
    sd = float(np.std(halves)) if halves else math.nan
    fixed = everything.at(ALARM) if curve is alarm_curve else math.nan
    return AnomalyScore(everything.best()[0], mean, sd, fixed)


def vus_pr(score: Floats, window: NDArray[np.bool_]) -> float:
    """VUS-PR of scores (n,), nan counts least, of a series with a labelled window; in [0, 1]."""
    n = len(score)
    value = np.where(np.isnan(score), -np.inf, score)
    order = np.argsort(-value, kind="stable")
    thresholds = value[order[np.linspace(0, n - 1, RANKS).astype(int)]]
    # What reaches a threshold is, in this order, the first so many.
    reached = np.searchsorted(-value[order], -thresholds, side="right")
    windows = spans(window)
    at = np.arange(n)
    gaps = [np.maximum(start - at, at - end + 1) for start, end in windows]
    areas = []
    for width in range(WIDEST + 1):
        beside = width // 2
        label = np.where(window, 1.0, 0.0)
        for gap in gaps:
            fades = (gap > 0) & (gap <= beside)
            label[fades] += np.sqrt(1 - gap[fades] / width)
        label = np.minimum(label, 1.0)
        hits = label[order].cumsum()[reached - 1]
        near = np.where(window, 0.0, label)[order].cumsum()[reached - 1]
        ranges: list[list[int]] = []
        for start, end in windows:
            if ranges and start - beside < ranges[-1][1]:
                ranges[-1][1] = end + beside
            else:
                ranges.append([max(start - beside, 0), end + beside])
        highest = np.array([value[first:last].max() for first, last in ranges])
        met = (highest >= thresholds[:, None]).mean(1)
        # The mean of the windows and of these with what is found of their buffers.
        recall = np.minimum(hits / (window.sum() + 0.5 * near), 1.0) * met
        areas.append(float(np.diff(recall, prepend=0.0) @ (hits / reached)))
    return statistics.fmean(areas)


class Forecast(NamedTuple):
    """Forecasts of one series: (T,) each, nan where none, and quantiles (T, Q) at `LEVELS`.

    All in the series' own units. point: the medians. pit: probability of a label up to the one that
    came; of models that and the log score are of the distribution before it is corrected.
    """

    log_score: Floats
    point: Floats
    pit: Floats
    quantiles: Floats


class SeriesScore(NamedTuple):
    """Means over one series, in its scale; runaway: see `runaway`.

    pit, inside: (n,) of the labels that are scored; inside: whether it lies in the 90 % interval.
    """

    log_score: float
    error: float
    crps: float
    runaway: float
    pit: Floats
    inside: NDArray[np.bool_]


def of_normal(y: Floats, mean: Floats, sd: Floats) -> Forecast:
    """Forecasts of a baseline; y: (T,), nan where missing."""
    predictive = stats.norm(mean, sd)
    quantiles = predictive.ppf(np.array(LEVELS)[:, None]).T
    return Forecast(predictive.logpdf(y), mean, predictive.cdf(y), quantiles)


def forecast_score(y: Floats, forecast: Forecast, scale: float, first: int) -> SeriesScore:
    """Score forecasts of one series from position `first` on; y: (T,), nan where missing."""
    at = np.flatnonzero(np.isfinite(y) & np.isfinite(forecast.log_score))
    at = at[at >= first]
    label = y[at]
    quantiles = forecast.quantiles[at]
    return SeriesScore(
        float(forecast.log_score[at].mean()) + math.log(scale),
        float(np.abs(label - forecast.point[at]).mean()) / scale,
        float(crps(label, quantiles).mean()) / scale,
        runaway(y, forecast.point[first:], float(np.nanstd(y))),
        forecast.pit[at],
        (quantiles[:, 0] <= label) & (label <= quantiles[:, -1]),
    )


def crps(label: Floats, quantiles: Floats) -> Floats:
    """Continuous ranked probability score (n,) of labels (n,) from quantiles (n, Q) at `LEVELS`.

    It is the integral of twice the quantile loss over all levels (Gneiting & Raftery 2007), here
    their mean over ten equally spaced ones.
    """
    error = label[:, None] - quantiles
    levels = np.array(LEVELS)
    mean: Floats = np.maximum(levels * error, (levels - 1) * error).mean(1)
    return 2 * mean


def runaway(y: Floats, point: Floats, spread: float) -> float:
    """Largest distance of a point forecast from the range of all labels, in their deviations."""
    present = point[np.isfinite(point)]
    if not len(present):
        return 0.0
    beyond = max(float(present.max() - np.nanmax(y)), float(np.nanmin(y) - present.min()), 0.0)
    return beyond / spread if beyond else 0.0


def pooled(
    scores: Sequence[SeriesScore], last_value: Sequence[SeriesScore], rng: np.random.Generator
) -> dict[str, Any]:
    """Means over the series of a corpus; last_value: scores of the same series.

    lead: log score less the last value's, median over series. relative_error, relative_crps: as
    shares of the last value's, geometric means over series. coverage: share of labels in 90 %
    intervals, pooled; lowest, highest: of any series; calibrated: share of the series that have it
    `WITHIN`. behind: number of series with a larger error than the last value's; worst: the largest
    share of that. ks: of the pooled PITs from uniform.
    runaway: the largest of any series; runaways: number of series with more than `RUNAWAY`.
    """
    inside = [float(score.inside.mean()) for score in scores]
    far = [score.runaway for score in scores]
    pairs = list(zip(scores, last_value, strict=True))
    errors = [ours.error / theirs.error for ours, theirs in pairs if theirs.error > 0]
    return {
        "log_score": bootstrap([score.log_score for score in scores], rng),
        "lead": statistics.median(ours.log_score - theirs.log_score for ours, theirs in pairs),
        "error": bootstrap([score.error for score in scores], rng),
        "relative_error": _ratio([(ours.error, theirs.error) for ours, theirs in pairs], rng),
        "crps": bootstrap([score.crps for score in scores], rng),
        "relative_crps": _ratio([(ours.crps, theirs.crps) for ours, theirs in pairs], rng),
        "coverage": float(np.concatenate([score.inside for score in scores]).mean()),
        "lowest": min(inside),
        "highest": max(inside),
        "calibrated": statistics.fmean(WITHIN[0] <= share <= WITHIN[1] for share in inside),
        "behind": sum(ratio > 1 for ratio in errors),
        "worst": max(errors, default=math.nan),
        "ks": distance(np.concatenate([score.pit for score in scores])),
        "runaway": max(far),
        "runaways": sum(distance > RUNAWAY for distance in far),
    }


def _ratio(pairs: Sequence[tuple[float, float]], rng: np.random.Generator) -> Estimate:
    """Geometric mean of ratios, without series that either forecasts without any error."""
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
    if not logs:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean, low, high, count = bootstrap(logs, rng)
    return Estimate(math.exp(mean), math.exp(low), math.exp(high), count)
