"""Scores of the default settings on the Turing Change Point Dataset."""

import random
from io import StringIO

import pytest
from rich.console import Console

from model_core.upm.conjugate import Gaussian
from training.data import tcpd as source
from training.data.tcpd import Series
from training.evaluation import tcpd
from training.online import Settings, follow, segmentation


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
    univariate = [each for each in source.load(data) if len(each.values[0]) == 1]
    scores = tcpd.report(univariate, "averaged", Console(file=StringIO()))
    assert scores.online.f1 >= 0.68
    assert scores.online.cover >= 0.65
    assert scores.served.f1 >= 0.75
    assert scores.served.cover >= 0.71
    assert scores.hindsight.f1 >= 0.73
    assert scores.hindsight.cover >= 0.70
