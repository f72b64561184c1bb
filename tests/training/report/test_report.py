"""The report of a training run: a page by itself, and the same as JSON."""

import json
import math
import re

import numpy as np
import pytest

from training.figures.performance import Losses, losses
from training.report import contents as report
from training.report import page as report_files
from training.statistics.intervals import Estimate

EVIL = '<script>alert("x")</script>'


@pytest.fixture
def given():
    step = np.arange(4.0)
    figure = losses({"train": Losses(step, step, -step)}, title=EVIL)
    return report.Report(
        name=f"sinusoid {EVIL}",
        kind="alpaca",
        data_digest="sha256:12",
        configuration={"hazard": 0.05, "encoder": {"layers": [128, 128], EVIL: EVIL}},
        environment=report.Environment("2.13.0", "cpu", 7, 12.34),
        metrics=(report.Metric("NLL", Estimate(-3.291, -3.365, -3.217, 200), "nats"),),
        comparisons=(
            report.Comparison("SW5", "NLL", Estimate(-3.0, -3.1, -2.9, 200)),
            report.Comparison(EVIL, "NLL", Estimate(1.0, math.nan, math.nan, 1)),
        ),
        calibration=report.Calibration(0.021, ((0.5, 0.493), (0.9, 0.907))),
        figures=(figure, figure),
    )


def test_numbers_are_the_same_in_json(given, tmp_path):
    _, numbers = report_files.write(tmp_path / "new", given)
    said = json.loads(numbers.read_text("utf-8"), parse_constant=pytest.fail)
    assert said["version"] == report.VERSION
    assert said["metrics"][0]["estimate"] == {
        "mean": -3.291,
        "low": -3.365,
        "high": -3.217,
        "count": 200,
    }
    assert said["comparisons"][1]["estimate"]["low"] is None
    assert said["configuration"]["encoder"]["layers"] == [128, 128]
    assert said["environment"]["seed"] == 7
    assert said["calibration"]["coverage"] == [[0.5, 0.493], [0.9, 0.907]]
    assert [set(each) for each in said["figures"]] == [{"title", "description"}] * 2


def test_the_page_is_by_itself_escaped_and_can_be_read_by_all(given, tmp_path):
    page, _ = report_files.write(tmp_path, given)
    text = page.read_text("utf-8")
    assert EVIL not in text
    assert text.count("plotly.js v") == 1
    own = re.sub(r"<script\b[^>]*>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"\bsrc=|\bhref=|@import|url\(", own)
    assert "http" not in own.replace("http-equiv", "")
    for shown in ("-3.291 ± 0.074", "encoder.layers", "90.7%", '<html lang="en">'):
        assert shown in own
    assert text.count("<table>") == text.count("<caption>") >= 5
    assert text.count('<div class="chart" role="figure" aria-label=') == 2
    identities = re.findall(r'\bid="([^"]+)"', text)
    assert len(identities) == len(set(identities))
    plain = report_files.write(tmp_path, given._replace(figures=(), calibration=None))[0]
    assert len(plain.read_text()) < 20_000  # no library without figures
    assert "Calibration" not in plain.read_text()
