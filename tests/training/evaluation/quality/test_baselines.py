"""Baselines on series whose answers are known."""

import sys

import numpy as np
import pytest

from training.evaluation.quality import baselines


def test_the_last_value_and_its_differences():
    y = np.array([1.0, 2.0, np.nan, 4.0, 3.0])
    found = baselines.last_value(y)
    assert found.mean == pytest.approx([np.nan, 1.0, 2.0, 2.0, 4.0], nan_ok=True)
    # Differences known before the last: 1 and 2.
    assert found.sd[4] == pytest.approx(np.sqrt((1 + 4) / 2))


def test_the_rolling_mean_is_of_what_came_before():
    y = np.arange(200.0)
    found = baselines.rolling(y)
    assert np.isnan(found.mean[:2]).all()
    assert found.mean[2] == pytest.approx(0.5)
    assert found.mean[120] == pytest.approx(y[70:120].mean())
    assert found.sd[120] == pytest.approx(y[70:120].std(ddof=1))


def test_a_constant_series_is_not_forecast_without_doubt():
    for forecaster in baselines.FORECASTERS.values():
        assert forecaster(np.ones(30))[1][5:] == pytest.approx(baselines.LEAST_SD)


def shifted(by):
    y = np.random.default_rng(0).normal(size=400)
    y[200:] += by
    return y


@pytest.mark.parametrize("by", [4.0, -4.0])
def test_page_hinkley_finds_a_shift_either_way(by):
    (alarm,) = baselines.page_hinkley(shifted(by))
    assert 205 <= alarm <= 225
    assert baselines.page_hinkley(shifted(0.0)) == []


def test_the_rolling_z_score_finds_an_outlier_once():
    y = np.random.default_rng(0).normal(size=300)
    y[150:153] = 40.0
    assert baselines.rolling_z(y) == [150]


def test_marks_are_evenly_spaced():
    assert baselines.evenly_spaced(100, 3) == [25, 50, 75]
    assert baselines.evenly_spaced(100, 0) == []


def test_outputs_are_watched_alone_and_close_alarms_count_once():
    y = np.zeros((200, 2))
    y[:, 0] = 5.0 + np.random.default_rng(1).normal(size=200)
    y[:, 1] = np.random.default_rng(2).normal(size=200)
    y[150, 0] += 50
    y[155, 1] += 50
    y[100] = np.nan
    alarms = baselines.alarms_of(baselines.rolling_z, y, [5.0, 0.0], [1.0, 1.0])
    assert alarms == [150, 155]
    assert baselines.alarms_of(baselines.rolling_z, y, [5.0, 0.0], [1.0, 1.0], apart=10) == [150]


def test_packages_that_are_absent_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "river.drift", None)
    monkeypatch.setitem(sys.modules, "fast_bocpd", None)
    present, missing = baselines.detectors()
    assert missing == ["river", "fast-bocpd"]
    assert list(present) == [baselines.NOTHING, "rolling z-score", "Page-Hinkley"]


@pytest.mark.parametrize(
    ("package", "name"), [("river.drift", "ADWIN"), ("fast_bocpd", "fast-bocpd")]
)
def test_packages_find_a_shift_where_they_are_installed(package, name):
    pytest.importorskip(package)
    present, _ = baselines.detectors()
    assert any(200 <= t <= 240 for t in present[name](shifted(4.0)))
