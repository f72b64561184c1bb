"""The NAB score: 100 for the perfect detector, 0 for none, and values by hand."""

import math

import numpy as np
import pytest

from model_core.upm.builtin import Options, build
from training.evaluation.online import Settings, follow
from training.evaluation.quality import nab
from training.evaluation.quality.families import FAMILIES


def window(n, *spans):
    inside = np.zeros(n, dtype=bool)
    for start, end in spans:
        inside[start:end] = True
    return inside


def flags(n, *at):
    scores = np.zeros(n)
    scores[list(at)] = 1.0
    return scores


def sigmoid(y):
    return 2 / (1 + math.exp(5 * y)) - 1


TWO = nab.weights(window(1000, (400, 450), (700, 750)))


def test_the_perfect_detector_has_100_and_nothing_has_0():
    perfect = nab.curve([flags(1000, 400, 700)], [TWO])
    assert perfect.at(1.0) == pytest.approx(100.0)
    assert perfect.best() == (pytest.approx(100.0), 1.0)
    assert nab.curve([np.full(1000, np.nan)], [TWO]).best() == (0.0, np.inf)


def test_a_late_detection_counts_less_and_only_the_first_counts():
    late = nab.curve([flags(1000, 449, 700)], [TWO]).at(1.0)
    assert late == pytest.approx(100 * (3 + sigmoid(-1 / 50) / sigmoid(-1)) / 4)
    again = nab.curve([flags(1000, 400, 420, 449, 700)], [TWO]).at(1.0)
    assert again == pytest.approx(100.0)


def test_false_detections_cost_less_just_after_a_window():
    def cost(at):
        return 100.0 - nab.curve([flags(1000, 400, 700, at)], [TWO]).at(1.0)

    assert cost(300) == pytest.approx(100 * 0.11 / 4)
    assert cost(600) == pytest.approx(100 * 0.11 / 4, rel=1e-3)
    assert cost(451) == pytest.approx(100 * -0.11 * sigmoid(2 / 49) / 4)
    assert cost(100) == 0.0  # of the probation: 15 %


def test_the_probation_of_a_long_series_is_750():
    assert nab.weights(window(20_000)).first == 750
    assert nab.weights(window(1000)).first == 150


def test_equal_scores_are_flagged_together():
    found = nab.curve([np.ones(1000)], [TWO])
    assert len(found.threshold) == 2
    assert found.at(1.0) < 0


def test_a_threshold_comes_from_the_other_half():
    n = 1000
    weighted = [nab.weights(window(n, (400, 450))) for _ in range(8)]
    same = nab.score([flags(n, 400)] * 8, weighted, np.random.default_rng(0))
    assert same[:3] == (pytest.approx(100.0), pytest.approx(100.0), pytest.approx(0.0))
    assert math.isnan(same.fixed)
    # Thresholds of one series say nothing of another: in-sample is better.
    rng = np.random.default_rng(1)
    noise = [rng.random(n) for _ in range(8)]
    found = nab.score(noise, weighted, rng)
    assert found.mean < found.in_sample


def test_an_alarm_silences_those_that_follow():
    score = flags(1000, 5, 6, 104, 105, 106, 204, 400)
    assert nab.alarms(score, 1.0) == [5, 105, 400]
    assert nab.alarms(score, 1.1) == []


def test_alarms_are_scored_as_detections_are():
    """With none within the silence of another both scores are the same."""
    score = flags(1000, 200, 430, 600, 700, 850)
    swept, alarmed = nab.curve([score], [TWO]), nab.alarm_curve([score], [TWO])
    assert alarmed.at(nab.ALARM) == pytest.approx(swept.at(1.0))
    # One that is strange all along costs an alarm in 100 observations, and no more.
    long = np.zeros(1000)
    long[480:700] = 1.0
    false = 100 * sum(TWO.weight[at] for at in (480, 580, 680)) / 4
    assert nab.alarm_curve([long], [TWO]).at(nab.ALARM) == pytest.approx(false)


def test_a_threshold_is_fixed_for_alarms():
    n = 1000
    weighted = [nab.weights(window(n, (400, 450))) for _ in range(8)]
    scores = [0.9991 * flags(n, 400) for _ in range(8)]
    found = nab.score_alarms(scores, weighted, np.random.default_rng(0))
    assert (found.in_sample, found.fixed) == (pytest.approx(100.0), pytest.approx(100.0))
    nothing = [0.9989 * each for each in scores]
    assert nab.score_alarms(nothing, weighted, np.random.default_rng(0)).fixed == 0.0


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_quiet_series_raise_few_alarms(family):
    rng = np.random.default_rng(8)
    y = [family.draw(rng, 1500)[:, None].tolist() for _ in range(3)]
    found = [each.answers.anomaly for each in follow(build("gaussian", Options()), y, Settings())]
    raised = sum(len(nab.alarms(np.nan_to_num(each), nab.ALARM)) for each in found)
    assert raised <= 5 * 4.5  # 5 per 1,000 observations
    labels = [np.nanmean(each[100:] > 0.5) for each in found]
    assert 0.3 < np.mean(labels) < 0.9


def test_an_outlier_is_an_anomaly_at_once():
    y = np.random.default_rng(9).normal(size=(10, 600, 1))
    y[:, 500] = 8.0
    followed = follow(build("gaussian", Options()), y.tolist(), Settings())
    assert min(each.answers.anomaly[500] for each in followed) > 0.999


def test_the_windowed_gaussian_by_hand():
    y = np.random.default_rng(0).normal(size=300)
    found = nab.windowed_gaussian(y)
    mean, sd = y[:200].mean(), y[:200].std()
    expected = 1 - 0.5 * math.erfc(abs(y[200] - mean) / sd / math.sqrt(2))
    assert found[200] == pytest.approx(expected)
    assert found[0] == 0.0


def test_the_window_moves_in_steps(monkeypatch):
    monkeypatch.setattr(nab, "WINDOW", 50)
    monkeypatch.setattr(nab, "STEP", 10)
    y = np.random.default_rng(0).normal(size=200)
    found = nab.windowed_gaussian(y)
    recent = y[110:160]  # known when observations 160 to 169 are judged
    expected = 1 - 0.5 * math.erfc(abs(y[165] - recent.mean()) / recent.std() / math.sqrt(2))
    assert found[165] == pytest.approx(expected)
