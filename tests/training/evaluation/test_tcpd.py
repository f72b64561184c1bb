"""Turing Change Point Dataset: reading, scores by hand and as the benchmark's script has them."""

import json
import math
import random
from io import StringIO

import pytest
from rich.console import Console

from model_core.upm.conjugate import Gaussian
from training.evaluation import tcpd
from training.evaluation.online import Settings, follow, segmentation
from training.evaluation.tcpd import Series, covering, f1, score


def test_series_are_rows_by_name(tmp_path):
    found = {
        "b": {"values": [[1, None, 3]], "annotations": {"7": [2]}},
        "a": {"values": [[1.5, 2], [3, 4]], "annotations": {"6": [], "8": [1]}},
    }
    (tmp_path / "tcpd.json").write_text(json.dumps(found))
    a, b = tcpd.load(tmp_path)
    assert a == ("a", [[1.5, 3.0], [2.0, 4.0]], {"6": [], "8": [1]})
    assert b.values[0] == [1.0]
    assert math.isnan(b.values[1][0])
    assert b.annotations == {"7": [2]}


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


def test_report_of_a_plain_change():
    rng = random.Random(1)
    values = [[rng.gauss(3.0 * (t >= 60), 1.0)] for t in range(120)]
    text = StringIO()
    series = [Series("quality_control_1", values, {"a": [60], "b": [61]})]
    scores = tcpd.report(series, "averaged", Console(file=text, width=80))
    assert scores.online.f1 == scores.served.f1 == scores.hindsight.f1 == 1.0
    assert scores.online.cover > 0.95
    assert scores.zero.cover == pytest.approx(0.5, abs=0.02)
    assert "univariate (1)" in text.getvalue()
    assert "served" in text.getvalue()
    assert "…" not in text.getvalue()


def test_the_two_kinds_of_hindsight_differ_in_their_scale():
    """A large change after the warm-up: all labels have ten times its scale."""
    rng = random.Random(4)
    values = [[rng.gauss(4.0 * (20 <= t < 40) + 90.0 * (t >= 80), 1.0)] for t in range(120)]
    (series,) = [Series("quality_control_1", values, {"a": [20, 40, 80]})]
    scores = tcpd.evaluate(series, "gaussian", Settings())
    (followed,) = follow(Gaussian(), [values], Settings())
    assert followed.served == [20, 40, 80]
    assert segmentation(Gaussian(), values, Settings()) == [80]
    assert scores.served.f1 == 1.0
    assert scores.hindsight.f1 < 1.0


@pytest.mark.slow
def test_default_settings_on_the_benchmark(data):
    univariate = [each for each in tcpd.load(data) if len(each.values[0]) == 1]
    scores = tcpd.report(univariate, "averaged", Console(file=StringIO()))
    assert scores.online.f1 >= 0.68
    assert scores.online.cover >= 0.65
    assert scores.served.f1 >= 0.75
    assert scores.served.cover >= 0.71
    assert scores.hindsight.f1 >= 0.73
    assert scores.hindsight.cover >= 0.70
