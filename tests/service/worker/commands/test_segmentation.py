"""The segmentation read off the records' pointers is the best of all segmentations."""

import itertools
import math
import random

import numpy as np
import pytest
from scipy.stats import t as student

from service.schema import rendering
from service.schema.responses import Segment
from service.wire import Configure, Observation

HAZARD = 0.1


def segmentation(bench, stream):
    return rendering.segmentation(bench.head(stream), bench.records(stream))


def starts(found):
    return [segment.start for segment in found]


def columns(y, outlier_rate=0.0):
    """`log p(y_t | y_s..y_{t-1})` for all s <= t under the Gaussian with location 0, scale 1.

    Murphy's updates, written out once more; with outliers each is weighted as DESIGN says.
    """
    count = len(y)
    table = np.full((count, count), -np.inf)
    mean, kappa, alpha, beta = (np.zeros(0) for _ in range(4))
    for t, value in enumerate(y):
        mean, kappa = np.append(mean, 0.0), np.append(kappa, 0.3)
        alpha, beta = np.append(alpha, 2.0), np.append(beta, 1.0)
        scale = np.sqrt(beta * (kappa + 1) / (alpha * kappa))
        inside = student.logpdf(value, 2 * alpha, mean, scale)
        weight = np.ones(t + 1)
        if outlier_rate:
            wide = student.logpdf(value, 4.0, 0.0, math.sqrt(10 * 1.3 / 0.6))
            log_in = math.log1p(-outlier_rate) + inside
            inside = np.logaddexp(log_in, math.log(outlier_rate) + wide)
            weight = np.exp(log_in - inside)
        table[: t + 1, t] = inside
        error, gain = value - mean, weight / (kappa + weight)
        beta = beta + 0.5 * kappa * gain * error**2
        mean, kappa, alpha = mean + gain * error, kappa + weight, alpha + 0.5 * weight
    return table


def log_joint(table, cuts, hazards):
    """Log probability of the labels and of regimes that start where `cuts` says."""
    total, start = 0.0, 0
    for t in range(len(cuts) + 1):
        if t:
            cut = cuts[t - 1]
            total += math.log(hazards[t]) if cut else math.log1p(-hazards[t])
            start = t if cut else start
        total += table[start, t]
    return total


@pytest.mark.parametrize("seed", range(6))
def test_seven_observations_against_all_segmentations(bench, seed):
    rng = random.Random(seed)
    bench.ask(
        Configure("a", {"location": [0.0], "scale": [1.0], "hazard": HAZARD, "outlier_rate": 0.0}),
        status=201,
    )
    cut = rng.randint(2, 5)
    y = [rng.gauss(0 if t < cut else 6, 0.7) for t in range(7)]
    elapsed = [rng.choice([1.0, 2.0, 0.5]) for _ in y]
    told = [rng.choice([None, None, 0.4]) for _ in y]
    seen = [
        Observation(y=v, elapsed=e, changepoint=p) for v, e, p in zip(y, elapsed, told, strict=True)
    ]
    bench.observe("a", seen)
    hazards = [
        1 - (1 - HAZARD) ** e if p is None else p for e, p in zip(elapsed, told, strict=True)
    ]
    table = columns(y)
    every = {c: log_joint(table, c, hazards) for c in itertools.product([0, 1], repeat=6)}
    best = max(every, key=every.get)
    assert starts(segmentation(bench, "a")) == [0, *(t + 1 for t, cut in enumerate(best) if cut)]
    # And the evidence is the sum over all of them.
    evidence = np.logaddexp.reduce(list(every.values()))
    scores = [record.log_score for record in bench.records("a")]
    assert math.fsum(scores) == pytest.approx(evidence, abs=1e-10)


def viterbi(table, hazard):
    """Best segmentation by dynamic programming over the last start; all O(T^2) of it."""
    count = table.shape[0]
    score = np.full(count, -np.inf)
    score[0] = table[0, 0]
    came = np.zeros(count, dtype=int)
    for t in range(1, count):
        came[t] = np.argmax(score[:t])
        new = score[came[t]] + math.log(hazard)
        score[:t] += math.log1p(-hazard) + table[:t, t]
        score[t] = new + table[t, t]
    path = [int(np.argmax(score))]
    while path[-1]:
        path.append(int(came[path[-1]]))
    return path[::-1]


@pytest.mark.parametrize("outlier_rate", [0.0, 0.01])
def test_300_observations_against_dynamic_programming(make_bench, outlier_rate):
    bench = make_bench()
    rng = random.Random(11)
    levels = [0.0, 2.5, -1.0, 1.5, -2.0, 0.0]
    y = [rng.gauss(levels[t // 50], 1.0) for t in range(300)]
    y[120] += 9.0
    settings = {"location": [0.0], "scale": [1.0], "hazard": 0.02, "max_hypotheses": 300}
    bench.ask(Configure("a", {**settings, "outlier_rate": outlier_rate}), status=201)
    for at in range(0, 300, 32):
        bench.observe("a", y[at : at + 32])
        if at == 96:
            bench.crash()
    expected = viterbi(columns(y, outlier_rate), 0.02)
    assert len(expected) >= 5
    found = segmentation(bench, "a")
    assert starts(found) == expected
    assert [s.end for s in found] == [*expected[1:], 300]


def test_every_confirmed_event_is_a_regime_of_a_clear_series(bench):
    rng = random.Random(3)
    levels = [0.0, 8.0, -4.0, 3.0]
    bench.ask(Configure("a", {"location": [0.0], "scale": [3.0]}), status=201)
    bench.observe("a", [rng.gauss(levels[t // 60], 1.0) for t in range(240)])
    assert starts(segmentation(bench, "a")) == [0, 60, 120, 180]
    events = bench.events("a")
    assert [(e.id, e.state, e.start) for e in events if e.state == "confirmed"] == [
        (1, "confirmed", 60), (2, "confirmed", 120), (3, "confirmed", 180)
    ]  # fmt: skip
    assert [e.direction for e in events if e.state == "confirmed"] == ["up", "down", "up"]


def test_only_the_retained_history_is_segmented(bench):
    rng = random.Random(3)
    levels = [0.0, 8.0, -4.0]
    settings = {"location": [0.0], "scale": [3.0], "history": 100}
    bench.ask(Configure("a", settings), status=201)
    bench.observe("a", [rng.gauss(levels[t // 80], 1.0) for t in range(240)])
    assert segmentation(bench, "a") == [Segment(140, 160), Segment(160, 240)]
    bench.ask(Configure("a", {"history": 0}))
    assert segmentation(bench, "a") == []
