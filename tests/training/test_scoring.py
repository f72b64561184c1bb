"""Scores of change points: by hand, and as the benchmark's script has them."""

import random

import pytest

from training.data import tcpd
from training.scoring import covering, f1, score


def test_f1_by_hand():
    assert f1({"a": [10, 20], "b": [11, 20], "c": [10]}, [10, 20]) == pytest.approx(1.0)
    # None, 10 and 50 were marked, 10 is found: precision 1, recall (1 + 1 + 1/2) / 3.
    assert f1({"a": [], "b": [10], "c": [50]}, [10]) == pytest.approx(10 / 11)
    # Nothing is found: the trivial 0 alone.
    assert f1({"a": [], "b": [10], "c": [50]}, []) == pytest.approx(0.8)


def test_a_detection_serves_one_point_and_within_five():
    assert f1({"a": [10, 12]}, [11]) == pytest.approx(2 * (2 / 3) / (1 + 2 / 3))
    assert f1({"a": [10, 12]}, [11, 13]) == pytest.approx(1.0)
    assert f1({"a": [10]}, [15]) == pytest.approx(1.0)
    assert f1({"a": [10]}, [16]) == pytest.approx(0.5)


def test_covering_by_hand():
    assert covering({"a": [3]}, [3, 5], 6) == pytest.approx(5 / 6)
    assert covering({"a": []}, [4], 6) == pytest.approx(4 / 6)
    assert covering({"a": [3], "b": []}, [], 6) == pytest.approx(0.75)


def test_detections_at_either_end_do_not_count():
    assert score({"a": [5]}, [0, 5, 9], 10) == score({"a": [5]}, [5], 10)
    assert score({"a": [5]}, [5], 10) == (1.0, 1.0)


def test_scores_are_the_benchmarks(benchmark_score):
    rng = random.Random(1)
    for _ in range(2000):
        length = rng.randint(8, 300)
        dense = rng.choice([2, 5, 30])
        marked = {
            str(k): sorted(rng.sample(range(length), rng.randint(0, min(dense, length))))
            for k in range(rng.randint(1, 5))
        }
        found = [rng.randint(0, length) for _ in range(rng.randint(0, dense))]
        theirs = benchmark_score(marked, found, length)
        ours = score(marked, found, length)
        assert ours == pytest.approx((theirs["f1"], theirs["cover"]), abs=1e-12)


def test_no_change_at_all_scores_as_published(data):
    univariate = [each for each in tcpd.load(data) if len(each.values[0]) == 1]
    scores = [score(each.annotations, [], len(each.values)) for each in univariate]
    means = [sum(each) / len(scores) for each in zip(*scores, strict=True)]
    assert len(scores) == 16
    assert means == [pytest.approx(0.659, abs=5e-4), pytest.approx(0.568, abs=5e-4)]
