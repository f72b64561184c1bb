"""Scores of the default settings on the Turing Change Point Dataset."""

import random
from io import StringIO

import pytest
from rich.console import Console

from training.data import tcpd as source
from training.data.tcpd import Series
from training.evaluation import tcpd


def test_report_of_a_plain_change():
    rng = random.Random(1)
    values = [[rng.gauss(3.0 * (t >= 60), 1.0)] for t in range(120)]
    text = StringIO()
    series = [Series("plain", values, {"a": [60], "b": [61]})]
    scores = tcpd.report(series, "averaged", Console(file=text, width=100))
    assert scores.online.f1 == scores.hindsight.f1 == 1.0
    assert scores.online.cover > 0.95
    assert scores.zero.cover == pytest.approx(0.5, abs=0.02)
    assert "mean of 1 univariate" in text.getvalue()


@pytest.mark.slow
def test_default_settings_on_the_benchmark(data):
    univariate = [each for each in source.load(data) if len(each.values[0]) == 1]
    scores = tcpd.report(univariate, "averaged", Console(file=StringIO()))
    assert scores.online.f1 >= 0.68
    assert scores.online.cover >= 0.65
    assert scores.hindsight.f1 >= 0.73
    assert scores.hindsight.cover >= 0.70
