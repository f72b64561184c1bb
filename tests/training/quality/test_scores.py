"""Scores of changes, anomalies and forecasts, on series whose scores are known exactly."""

import json
import math

import numpy as np
import pytest
import torch

from training.quality import baselines, measures, scores, series
from training.quality.baselines import windowed_gaussian
from training.quality.scores import (
    SeriesScore,
    alarm_curve,
    annotated_f1,
    anomaly_score,
    change_score,
    covering,
    detection_curve,
    window_weights,
)
from training.quality.series import SeriesFamily


def test_series_are_rows_by_name(tmp_path):
    content = {
        "b": {"values": [[1, None, 3]], "annotations": {"7": [2]}},
        "a": {"values": [[1.5, 2], [3, 4]], "annotations": {"6": [], "8": [1]}},
    }
    (tmp_path / "tcpd.json").write_text(json.dumps(content))
    a, b = series.tcpd(tmp_path / "tcpd.json")
    assert a.name == "a"
    assert a.y.tolist() == [[1.5, 3.0], [2.0, 4.0]]
    assert a.annotations == {"6": [], "8": [1]}
    np.testing.assert_array_equal(b.y, [[1.0], [math.nan], [3.0]])
    assert b.annotations == {"7": [2]}


def test_f1_and_covering_by_hand():
    assert annotated_f1({"a": [10, 20], "b": [11, 20], "c": [10]}, [10, 20]) == pytest.approx(1.0)
    # None, 10 and 50 were marked, 10 is found: precision 1, recall (1 + 1 + 1/2) / 3.
    assert annotated_f1({"a": [], "b": [10], "c": [50]}, [10]) == pytest.approx(10 / 11)
    # Nothing is found: the trivial 0 alone.
    assert annotated_f1({"a": [], "b": [10], "c": [50]}, []) == pytest.approx(0.8)
    # A detection serves one point, and within five.
    assert annotated_f1({"a": [10, 12]}, [11]) == pytest.approx(2 * (2 / 3) / (1 + 2 / 3))
    assert annotated_f1({"a": [10, 12]}, [11, 13]) == pytest.approx(1.0)
    assert annotated_f1({"a": [10]}, [15]) == pytest.approx(1.0)
    assert annotated_f1({"a": [10]}, [16]) == pytest.approx(0.5)
    # And the covering metric.
    assert covering({"a": [3]}, [3, 5], 6) == pytest.approx(5 / 6)
    assert covering({"a": []}, [4], 6) == pytest.approx(4 / 6)
    assert covering({"a": [3], "b": []}, [], 6) == pytest.approx(0.75)
    # Detections at either end do not count.
    assert change_score({"a": [5]}, [0, 5, 9], 10) == change_score({"a": [5]}, [5], 10)
    assert change_score({"a": [5]}, [5], 10) == (1.0, 1.0)


def test_f1_of_changes_with_a_margin_by_hand():
    assert scores.f1([10, 50], [12, 80], 5) == pytest.approx(0.5)
    assert scores.f1([10, 50], [], 5) == 0.0
    assert scores.f1([10, 50], [9, 11, 49], 5) == pytest.approx(4 / 5)
    assert scores.f1([], [], 5) == 1.0
    assert (scores.f1([10], [15], 5), scores.f1([10], [16], 5)) == (1.0, 0.0)


def test_alarms_are_false_on_quiet_series_and_delays_count_the_first(monkeypatch):
    sizes = series.Sizes(4, 500, 3, 30, 20, (0.1, 50.0))
    family = SeriesFamily("alternating", lambda rng, n: np.where(np.arange(n) % 2, 1.0, -1.0))
    monkeypatch.setattr(measures, "FAMILIES", (family,))

    def watch(y):
        # Beside the warm-up's, which do not count, one alarm in each quiet series; of shifts only
        # the large one is found, at once.
        return [7, 25] if len(y) == sizes.quiet_length else [10, *np.flatnonzero(y > 9)[:1]]

    study = measures.QualityStudy({}, {"tests": watch}, None, sizes, 0, None)
    (row,) = measures.families(study)["families"]
    assert (row["family"], row["method"]) == ("alternating", "tests")
    assert row["false"].mean == pytest.approx(2.0)
    assert row["found"] == [0.0, 1.0]
    assert row["delay"] == [math.inf, 1.0]


def test_a_model_alarms_where_it_comes_to_exceed_the_threshold():
    changed = np.array([math.nan, 0.95, 0.9, 0.91, 0.95, 0.2, 0.9, 0.5])
    assert measures.crossings(changed) == [1, 3]
    assert measures.crossings(np.array([0.95, 0.99])) == []


def window(n, *spans):
    inside = np.zeros(n, dtype=bool)
    for start, end in spans:
        inside[start:end] = True
    return inside


def flags(n, *at):
    values = np.zeros(n)
    values[list(at)] = 1.0
    return values


def sigmoid(y):
    return 2 / (1 + math.exp(5 * y)) - 1


TWO = window_weights(window(1000, (400, 450), (700, 750)))


def test_detections_by_hand():
    perfect = detection_curve([flags(1000, 400, 700)], [TWO])
    assert perfect.at(1.0) == pytest.approx(100.0)
    assert perfect.best() == (pytest.approx(100.0), 1.0)
    assert detection_curve([np.full(1000, np.nan)], [TWO]).best() == (0.0, np.inf)
    # A late detection counts less, and only the first counts.
    late = detection_curve([flags(1000, 449, 700)], [TWO]).at(1.0)
    assert late == pytest.approx(100 * (3 + sigmoid(-1 / 50) / sigmoid(-1)) / 4)
    again = detection_curve([flags(1000, 400, 420, 449, 700)], [TWO]).at(1.0)
    assert again == pytest.approx(100.0)

    # False detections cost less just after a window.
    def cost(at):
        return 100.0 - detection_curve([flags(1000, 400, 700, at)], [TWO]).at(1.0)

    assert cost(300) == pytest.approx(100 * 0.11 / 4)
    assert cost(600) == pytest.approx(100 * 0.11 / 4, rel=1e-3)
    assert cost(451) == pytest.approx(100 * -0.11 * sigmoid(2 / 49) / 4)
    assert cost(100) == 0.0  # of the probation: 15 %
    assert window_weights(window(20_000)).first == 750
    assert window_weights(window(1000)).first == 150
    curve = detection_curve([np.ones(1000)], [TWO])  # equal scores are flagged together
    assert len(curve.threshold) == 2
    assert curve.at(1.0) < 0


def test_a_threshold_comes_from_the_other_half():
    n = 1000
    weighted = [window_weights(window(n, (400, 450))) for _ in range(8)]
    same = anomaly_score([flags(n, 400)] * 8, weighted, np.random.default_rng(0))
    assert same[:3] == (pytest.approx(100.0), pytest.approx(100.0), pytest.approx(0.0))
    assert math.isnan(same.fixed)
    # Thresholds of one series say nothing of another: in-sample is better.
    rng = np.random.default_rng(1)
    noise = [rng.random(n) for _ in range(8)]
    score = anomaly_score(noise, weighted, rng)
    assert score.mean < score.in_sample


def test_an_alarm_silences_those_that_follow():
    score = flags(1000, 5, 6, 104, 105, 106, 204, 400)
    assert scores.alarms(score, 1.0) == [5, 105, 400]
    assert scores.alarms(score, 1.1) == []
    # With none within the silence of another both scores are the same.
    score = flags(1000, 200, 430, 600, 700, 850)
    swept, alarmed = detection_curve([score], [TWO]), alarm_curve([score], [TWO])
    assert alarmed.at(scores.ALARM) == pytest.approx(swept.at(1.0))
    # One that is strange all along costs an alarm in 100 observations, and no more.
    long = np.zeros(1000)
    long[480:700] = 1.0
    false = 100 * sum(TWO.weight[at] for at in (480, 580, 680)) / 4
    assert alarm_curve([long], [TWO]).at(scores.ALARM) == pytest.approx(false)
    for at, cost in ((150, 11 / 4), (149, 0.0)):  # from the end of the probation
        score = alarm_curve([flags(1000, 400, 700, at)], [TWO]).at(scores.ALARM)
        assert score == pytest.approx(100 - cost)
    # A threshold is fixed for alarms.
    values, weighted = [0.9991 * flags(1000, 400, 700)] * 8, [TWO] * 8
    score = anomaly_score(values, weighted, np.random.default_rng(0), alarm_curve)
    assert (score.in_sample, score.fixed) == (pytest.approx(100.0), pytest.approx(100.0))
    nothing = [0.9989 * value for value in values]
    assert anomaly_score(nothing, weighted, np.random.default_rng(0), alarm_curve).fixed == 0.0


def test_the_windowed_gaussian_by_hand():
    y = np.random.default_rng(0).normal(size=300)
    strange = windowed_gaussian(y)
    mean, sd = y[:200].mean(), y[:200].std()
    expected = 1 - 0.5 * math.erfc(abs(y[200] - mean) / sd / math.sqrt(2))
    assert strange[200] == pytest.approx(expected)
    assert strange[0] == 0.0


def standard(n):
    y = np.random.default_rng(0).normal(size=n)
    return y, scores.of_normal(y, np.zeros(n), np.ones(n))


def test_crps_of_a_normal_and_of_a_point():
    """`z (2 F(z) - 1) + 2 f(z) - 1 / sqrt(pi)` (Gneiting & Raftery 2007)."""
    z = np.array([0.0, 0.5, -1.3, 2.0])
    levels = torch.tensor(scores.LEVELS, dtype=torch.float64)
    quantiles = np.tile(torch.special.ndtri(levels).numpy(), (4, 1))
    cdf = torch.special.ndtr(torch.from_numpy(z)).numpy()
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    exact = z * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi)
    assert scores.crps(z, quantiles) == pytest.approx(exact, rel=0.05)
    point = np.full((2, len(scores.LEVELS)), 3.0)  # the absolute error
    assert scores.crps(np.array([1.0, 4.5]), point) == pytest.approx([2.0, 1.5])
    # Twice the mean of the pinball losses, at each level.
    spread = np.linspace(-1.0, 1.0, len(scores.LEVELS))
    losses = [2 * max(p * (0.3 - q), (p - 1) * (0.3 - q))
              for p, q in zip(scores.LEVELS, spread, strict=True)]  # fmt: skip
    assert scores.crps(np.array([0.3]), spread[None]) == pytest.approx([np.mean(losses)])


def test_scores_of_the_true_normal():
    y, forecast = standard(20_000)
    scored = scores.forecast_score(y, forecast, 1.0, 0)
    assert scored.log_score == pytest.approx(-0.5 - 0.5 * math.log(2 * math.pi), abs=0.02)
    assert scored.error == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)
    assert scored.crps == pytest.approx(1 / math.sqrt(math.pi), abs=0.02)
    assert scored.inside.mean() == pytest.approx(0.9, abs=0.01)
    assert scored.runaway == 0.0


def test_labels_are_inside_of_the_intervals_that_are_answered_whatever_the_pit_is():
    # The PIT is of the model, before its forecast is corrected.
    quantiles = np.tile(np.linspace(-1.0, 1.0, len(scores.LEVELS)), (6, 1))
    y = np.array([-1.1, -1.0, 0.0, np.nan, 1.0, 1.1])
    pit = np.array([0.5, 0.5, 0.01, np.nan, 0.99, 0.5])
    log_score = np.where(np.isnan(y), np.nan, 0.0)
    point = np.full(6, 2.0)
    forecast = scores.Forecast(log_score, point, pit, quantiles)
    scored = scores.forecast_score(y, forecast, 1.0, 0)
    assert scored.inside.tolist() == [False, True, True, True, False]
    assert scored.pit.tolist() == [0.5, 0.5, 0.01, 0.99, 0.5]
    assert scored.error == pytest.approx(2.0)  # of the point forecast
    assert scores.forecast_score(y, forecast, 1.0, 2).inside.tolist() == [True, True, False]


def test_a_forecast_beyond_the_data_is_a_runaway():
    y = np.array([-1.0, 1.0, np.nan, -1.0, 1.0])
    assert scores.runaway(y, np.array([np.nan, 0.5, -1.0, 1.0]), 1.0) == 0.0
    assert scores.runaway(y, np.array([0.0, 5.0]), 2.0) == 2.0
    assert scores.runaway(y, np.array([0.0, -9.0]), 2.0) == 4.0


def test_corpora_are_pooled():
    def of_series(log_score, error, pits, inside, far=0.0):
        return SeriesScore(log_score, error, error, far, np.array(pits), np.array(inside))

    ours = [
        of_series(1.0, 1.0, [0.5, 0.01], [True, True], 5.0),
        of_series(2.0, 4.0, [0.3, 0.7, 0.5], [False, True, False]),
    ]
    last = [of_series(log_score, 2.0, [0.5], [True]) for log_score in (0.0, 4.0)]
    corpus = scores.pooled(ours, last, np.random.default_rng(0))
    assert corpus["log_score"].mean == 1.5
    assert corpus["lead"] == pytest.approx(-0.5)
    assert corpus["relative_error"].mean == pytest.approx(1.0)  # half and twice
    assert corpus["relative_error"][1:3] == pytest.approx((0.5, 2.0))
    assert (corpus["coverage"], corpus["lowest"], corpus["highest"]) == (3 / 5, 1 / 3, 1.0)
    assert corpus["ks"] == pytest.approx(0.3)  # of all PITs together
    assert corpus["calibrated"] == 0.0
    assert (corpus["behind"], corpus["worst"]) == (1, 2.0)
    assert (corpus["runaway"], corpus["runaways"]) == (5.0, 1)


def test_series_are_calibrated_whose_intervals_hold_about_as_much_as_they_say():
    def of_series(outside):
        return SeriesScore(0.0, 1.0, 1.0, 0.0, np.full(100, 0.5), np.arange(100) >= outside)

    ours = [of_series(outside) for outside in (4, 5, 10, 15, 16)]
    corpus = scores.pooled(ours, ours, np.random.default_rng(0))
    assert corpus["calibrated"] == pytest.approx(3 / 5)
    assert (corpus["behind"], corpus["worst"]) == (0, 1.0)


def volume(score, window):
    """VUS-PR one observation, threshold and buffer at a time."""
    n = len(score)
    inside = [t for t in range(n) if window[t]]
    starts = [t for t in inside if t == 0 or not window[t - 1]]
    ends = [t for t in inside if t == n - 1 or not window[t + 1]]
    ranked = sorted(score, reverse=True)
    areas = []
    for width in range(201):
        beside = width // 2
        label = []
        for t in range(n):
            fades = [
                math.sqrt(1 - gap / width)
                for start, end in zip(starts, ends, strict=True)
                for gap in (start - t, t - end)
                if 0 < gap <= beside
            ]
            label.append(min(1.0, window[t] + sum(fades)))
        ranges = []
        for start, end in zip(starts, ends, strict=True):
            if ranges and ranges[-1][-1] >= start - beside:
                ranges[-1] = range(ranges[-1][0], end + beside + 1)
            else:
                ranges.append(range(start - beside, end + beside + 1))
        area, last = 0.0, 0.0
        for rank in np.unique(np.linspace(0, n - 1, 250).astype(int)):  # again it adds nothing
            flagged = [t for t in range(n) if score[t] >= ranked[rank]]
            hits = sum(label[t] for t in flagged)
            near = sum(label[t] for t in flagged if not window[t])
            met = sum(any(t in own for t in flagged) for own in ranges) / len(ranges)
            recall = min(hits / (len(inside) + near / 2), 1.0) * met
            area += (recall - last) * hits / len(flagged)
            last = recall
        areas.append(area)
    return sum(areas) / len(areas)


@pytest.mark.parametrize("spans", [[(20, 28)], [(0, 4), (12, 13), (30, 36)], [(40, 50)]])
def test_vus_pr_by_its_definition(spans):
    rng = np.random.default_rng(1)
    window = np.zeros(50, bool)
    for start, end in spans:
        window[start:end] = True
    for score in (rng.normal(size=50) + window, (rng.normal(size=50) + 2 * window).round()):
        assert scores.vus_pr(score, window) == pytest.approx(volume(score, window), abs=1e-12)
    assert scores.vus_pr(window * 1.0, window) == pytest.approx(1.0)
    missing = np.where(window, rng.random(50), math.nan)
    assert scores.vus_pr(missing, window) == scores.vus_pr(np.nan_to_num(missing, nan=-9), window)


def likelihood_ratio(y):
    """Of the best change of the mean, by all of them."""
    ratios = [0.0]
    for at in range(1, len(y)):
        before, after = y[:at], y[at:]
        within = ((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()
        ratios.append(0.5 * (((y - y.mean()) ** 2).sum() - within))
    return max(ratios)


def test_focus_alarms_where_the_best_of_all_changes_is_likely_enough():
    rng = np.random.default_rng(2)
    for threshold in (2.0, 4.0, 9.0):
        y = rng.normal(size=150) + np.repeat([0.0, 1.5, -1.0], 50)
        expected, first = [], 0
        for t in range(1, len(y) + 1):
            if likelihood_ratio(y[first:t]) >= threshold:
                expected.append(t - 1)
                first = t
        assert baselines.focus(y, threshold) == expected
    assert expected


def test_the_threshold_of_focus_allows_so_many_alarms_and_hardly_a_lower_one_does():
    quiet = np.random.default_rng(3).normal(size=(4, 300))
    for alarms in (0, 3, 20):
        threshold = baselines.focus_threshold(quiet, alarms)

        def raised(at):
            return sum(t >= 20 for y in quiet for t in baselines.focus(y, at))

        assert raised(threshold) <= alarms < raised(0.99 * threshold)
