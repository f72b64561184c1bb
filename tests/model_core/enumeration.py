"""The filter by enumeration: a belief is a sum over every segmentation, nothing is recursive."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from torch import Tensor

from tests.model_core.cases import series
from tests.model_core.references import Reference, Series, Window
from tests.model_core.registry import case

STEPS, NAN = 7, np.nan
# Streams that differ in all options at once; together every option at its bounds and between them.
OPTIONS = (
    {"hazard": 0.2},
    {
        "hazard": 0.03,
        "elapsed": [1, 0.25, 3, 0, 1, 12.5, 0.01],
        "outlier_rate": [0.05, 0.05, 0, 0.3, 0.05, 0.01, 0.05],
    },
    {
        "hazard": (0.11, 0.2, 0.27, 0.32),
        "changepoint": [1, NAN, 0, 1, NAN, 0, 0],
        "labelled": [False, True, True, False, False, True, False],
    },
    # Regimes of exactly one or four observations, supervision that is not certain.
    {"hazard": (0.3, 0.0, 0.0, 1.0), "changepoint": [0.5, NAN, 0.7, 0.02, NAN, 1 - 1e-9, NAN]},
    {
        "hazard": (0.9, 0.5, 0.2, 1e-6),
        "elapsed": [1, 2, 0.5, 1, 4, 1, 1],
        "changepoint": [NAN, NAN, 0.4, NAN, 0, NAN, 0.9],
        "labelled": [True, True, False, True, True, True, True],
        "outlier_rate": 0.1,
    },
)


class Truth(NamedTuple):
    """What holds after a step, by start: belief, best log joint, starts before it that reach it.

    log_score: log probability of the label given its input and all before; 0 where it is missing.
    """

    log_score: float
    belief: dict[int, float]
    score: dict[int, float]
    previous: dict[int, set[int]]


class Segment(NamedTuple):
    """Log likelihood of each observation, were all from a start on one segment."""

    inputs: np.ndarray
    whole: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Of the labels given their inputs."""
        return self.whole - self.inputs


@cache
def streams(name: str) -> list[Series]:
    """A stream of each of the OPTIONS."""
    return [series(case(name), i, STEPS, **told) for i, told in enumerate(OPTIONS)]


@cache
def segments(name: str) -> list[list[Segment]]:
    """What each of `streams` says from each start on."""
    reference = case(name).reference
    return [[segment(reference, one, s) for s in range(STEPS)] for one in streams(name)]


@cache
def truths(name: str) -> list[list[Truth]]:
    """What holds of each of `streams`."""
    pairs = zip(streams(name), segments(name), strict=True)
    return [enumerate_segmentations(stream, parts) for stream, parts in pairs]


def segment(reference: Reference, series: Series, start: int) -> Segment:
    """What the observations from `start` on say: their inputs alone, and with their labels."""
    weight, inputs, whole = [], [], []
    if hasattr(reference, "described"):
        series = reference.described(series)
    for t in range(start, len(series.y)):
        past = Window(series.x[start:t], series.y[start:t], np.array(weight))
        x, y, rate = series.x[t], series.y[t], series.outlier_rate[t] * reference.outliers
        generative = hasattr(reference, "log_input")
        inside = reference.log_input(x, past) if generative else 0.0
        outside = reference.log_outlier_input(x, past) if generative else 0.0
        inputs.append(mixed(inside, outside, rate))
        if not series.labelled[t]:
            weight.append(0.0)
            whole.append(inputs[-1])
            continue
        label = reference.log_density(x, y, past)
        strange = reference.log_outlier(x, y, past) if rate else 0.0
        whole.append(mixed(inside + label, outside + strange, rate))
        weight.append(np.exp(np.log(1 - rate) + inside + label - whole[-1]) if rate else 1.0)
    return Segment(np.array(inputs), np.array(whole))


def mixed(inside: float, outside: float, rate: float) -> float:
    """Log density of an observation that is an outlier with this probability."""
    if rate == 0:
        return inside
    return float(np.logaddexp(np.log(1 - rate) + inside, np.log(rate) + outside))


def change_probability(series: Series) -> np.ndarray:
    """Probability [t, r] that the regime changed just before t, had it reached run length r."""
    table = series.hazard.reshape(len(series.y), -1)
    reached = np.minimum(np.arange(len(series.y)), table.shape[1] - 1)
    elapsed = 1 - (1 - table[:, reached]) ** series.elapsed[:, None]
    told = series.changepoint[:, None]
    return np.where(np.isnan(told), elapsed, told)


def enumerate_segmentations(series: Series, parts: list[Segment]) -> list[Truth]:
    """The truth after every step, as sums and maxima over all segmentations up to it."""
    after = [np.cumsum(part.whole) for part in parts]
    before = [total - part.labels for total, part in zip(after, parts, strict=True)]
    answer = []
    for t in range(len(series.y)):
        paths = _paths(series, t, after, after)
        evidence = logsumexp([joint for _, joint in paths])
        unlabelled = logsumexp([joint for _, joint in _paths(series, t, after, before)])
        belief, score, previous = {}, {}, {}
        for start in range(t + 1):
            here = [(starts, joint) for starts, joint in paths if starts[-1] == start]
            belief[start] = float(np.exp(logsumexp([joint for _, joint in here]) - evidence))
            score[start] = max(joint for _, joint in here)
            best = [starts for starts, joint in here if joint >= score[start] - 1e-9]
            previous[start] = {starts[-2] if len(starts) > 1 else -1 for starts in best}
        answer.append(Truth(float(evidence - unlabelled), belief, score, previous))
    return answer


def segmentations(name: str, row: int, t: int = STEPS - 1) -> list[tuple[list[int], float]]:
    """Starts and log joint probability of every segmentation of a stream up to `t`."""
    after = [np.cumsum(part.whole) for part in segments(name)[row]]
    return _paths(streams(name)[row], t, after, after)


def _paths(series: Series, t: int, inner, last) -> list[tuple[list[int], float]]:
    change = change_probability(series)
    return [_path(cuts, change, inner, last) for cuts in product((False, True), repeat=t)]


def _path(cuts, change, inner, last) -> tuple[list[int], float]:
    """Starts of a segmentation and its log joint probability with the data.

    inner, last: log likelihoods of segments, by start and end, before the last and of the last.
    """
    starts, prior = [0], 0.0
    for t, cut in enumerate(cuts):
        probability = change[t + 1, t - starts[-1]]
        with np.errstate(divide="ignore"):
            prior += np.log(probability if cut else 1 - probability)
        if cut:
            starts.append(t + 1)
    ends = [*starts[1:], len(cuts) + 1]
    spans = [(start, end - start - 1) for start, end in zip(starts, ends, strict=True)]
    data = sum(inner[start][length] for start, length in spans[:-1])
    return starts, float(prior + data + last[starts[-1]][spans[-1][1]])


def evidence_bound(log_score: Tensor, pruned_mass: Tensor) -> np.ndarray:
    """Lower bounds of `log p(y_1..t | x_1..t)` by a pruned filter, see docs/mathematics.md."""
    kept = np.log1p(-pruned_mass.numpy()).cumsum()
    return log_score.nan_to_num(0.0).numpy().cumsum() + np.append(0.0, kept[:-1])
