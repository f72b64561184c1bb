"""Series that filters see less their seasons: events, forecasts."""

import numpy as np
import pytest

from model_core.defaults import Defaults
from model_core.upm.averaged import Averaged
from model_core.upm.conjugate import Gaussian, Poisson
from training.evaluation.online import Settings, follow

LEVELS = (0.05, 0.5, 0.95)
SEASONAL = Settings(Defaults(seasonal=True))


def day(rng, n):
    return 1.2 * np.sin(2 * np.pi * np.arange(n) / 24) + 0.5 * rng.normal(size=n)


def rows(y):
    return y[:, None].tolist()


def test_a_season_is_found_and_given_up():
    rng = np.random.default_rng(0)
    y = np.concatenate([day(rng, 400), 0.5 * rng.normal(size=200)])
    (followed,) = follow(Gaussian(), [rows(y)], SEASONAL)
    (found, first), *_, (gone, last) = followed.seasons
    assert found < 200 < 400 < gone
    assert (first, last) == ((24,), ())


def test_nothing_changes_without_a_season():
    model = Gaussian()
    y = rows(np.random.default_rng(1).normal(size=100))
    (plain,) = follow(model, [y], Settings(), LEVELS)
    (less,) = follow(model, [y], SEASONAL, LEVELS)
    assert less.events == plain.events
    assert less.served == plain.served
    np.testing.assert_array_equal(less.answers.log_score, plain.answers.log_score)
    np.testing.assert_array_equal(less.answers.summary.numbers, plain.answers.summary.numbers)


def test_steps_on_a_season_are_found():
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(10):
        y = day(rng, 330)
        y[300:] += 2.0
        (followed,) = follow(Gaussian(), [rows(y)], SEASONAL)
        times = [t for t, event in followed.events if event.state == "confirmed"]
        found += any(300 <= t < 324 for t in times)
        assert followed.served[-1] == pytest.approx(300, abs=3)
    assert found >= 9


def test_the_size_of_a_step_is_in_noise_less_the_season():
    y = day(np.random.default_rng(3), 340)
    y[300:] += 2.0
    (followed,) = follow(Averaged(), [rows(y)], SEASONAL)
    last = [event for _, event in followed.events if event.state == "confirmed"][-1]
    assert last.direction == "up"
    assert last.size == pytest.approx(4.0, rel=0.35)
    assert abs(last.start - 300) <= 2


def test_forecasts_are_those_of_the_labels():
    y = day(np.random.default_rng(4), 450)
    (plain,) = follow(Averaged(), [rows(y)], Settings(), LEVELS)
    (less,) = follow(Averaged(), [rows(y)], SEASONAL, LEVELS)
    late = slice(200, None)
    assert np.abs(less.answers.summary.mean[late, 0] - y[late]).mean() < 0.5
    assert less.answers.log_score[late].mean() > plain.answers.log_score[late].mean() + 0.1
    low, _, high = less.answers.summary.quantiles[late, :, 0].T
    assert 0.85 < ((low < y[late]) & (y[late] < high)).mean() < 0.95


def test_a_change_before_the_season_is_found_stays():
    rng = np.random.default_rng(5)
    y = day(rng, 300)
    y[:70] -= 6.0
    (followed,) = follow(Averaged(), [rows(y)], SEASONAL)
    assert [periods for _, periods in followed.seasons] == [(24,)]
    assert any(abs(start - 70) <= 2 for start in followed.confirmed())
    assert any(abs(start - 70) <= 2 for start in followed.served)


def test_other_labels_have_no_seasons():
    counts = np.random.default_rng(6).poisson(3 + 3 * (np.arange(150) % 12 < 6)).astype(float)
    (plain,) = follow(Poisson(), [rows(counts)], Settings())
    (less,) = follow(Poisson(), [rows(counts)], SEASONAL)
    assert less.events == plain.events


def test_missing_labels_stay_missing():
    y = day(np.random.default_rng(7), 400)
    y[::7] = np.nan
    (less,) = follow(Gaussian(), [rows(y)], SEASONAL, LEVELS)
    assert [periods for _, periods in less.seasons] == [(24,)]
    np.testing.assert_array_equal(np.isnan(less.answers.log_score[50:]), np.isnan(y[50:]))


def test_by_default_a_season_is_found_once_there_are_many_labels():
    rng = np.random.default_rng(8)
    y = day(rng, 1100)
    (found,) = follow(Gaussian(), [rows(y)], Settings(), LEVELS)
    (never,) = follow(Gaussian(), [rows(y)], Settings(Defaults(seasonal=False)), LEVELS)
    before, after = slice(20, 1000), slice(1000, None)
    ours, theirs = (each.answers.log_score for each in (found, never))
    np.testing.assert_array_equal(ours[before], theirs[before])
    assert ours[after].mean() > theirs[after].mean() + 0.3
    assert found.seasons == [(1000, (24,))]
    (later,) = follow(Gaussian(), [rows(y)], Settings(search_phase=0.25))
    assert later.seasons == [(1046, (24,))]


def test_by_default_short_series_and_those_without_a_season_stay_as_they_are():
    rng = np.random.default_rng(9)
    series = [rows(day(rng, 999)), rows(rng.normal(size=999))]
    series += [rows(rng.normal(size=999).cumsum())]
    never = Settings(Defaults(seasonal=False))
    for ours, theirs in zip(
        follow(Gaussian(), series, Settings()), follow(Gaussian(), series, never), strict=True
    ):
        assert ours.events == theirs.events
        np.testing.assert_array_equal(ours.answers.log_score, theirs.answers.log_score)


def test_series_with_and_without_a_season_come_in_their_order():
    rng = np.random.default_rng(10)
    series = [rows(rng.normal(size=1050)), rows(day(rng, 1050)), rows(rng.normal(size=1050))]
    together = follow(Gaussian(), series, Settings())
    for one, found in zip(series, together, strict=True):
        (alone,) = follow(Gaussian(), [one], Settings())
        np.testing.assert_allclose(alone.answers.log_score, found.answers.log_score, rtol=1e-9)


def test_no_search_looks_back_further_than_the_history():
    y = np.concatenate(
        [day(np.random.default_rng(11), 900), np.random.default_rng(12).normal(size=200)]
    )
    (found,) = follow(Gaussian(), [rows(y)], Settings())
    assert [t for t, _ in found.seasons][:1] == [1000]
    (short,) = follow(Gaussian(), [rows(y)], Settings(Defaults(history=60)))
    assert short.seasons == []
