"""Intervals, as scipy has them and as repeated draws do."""

import math

import numpy as np
import pytest
from scipy import stats

from training.statistics.intervals import (
    Estimate,
    bootstrap,
    estimate,
    formatted,
    paired,
    student_t_quantile,
)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(3, 2, 40)


@pytest.mark.parametrize("df", [1, 2, 7, 199])
def test_the_quantile_is_scipys(df):
    assert student_t_quantile(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-7)


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_is_scipys(values, level):
    found = estimate(values, level)
    expected = stats.t.interval(level, 39, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.mean == pytest.approx(values.mean())
    assert found.count == 40


def test_the_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(0, 1, (500, 6))
    inside = [each.low <= 0 <= each.high for each in map(estimate, draws)]
    assert 0.92 < np.mean(inside) < 0.98


def test_the_bootstrap_is_repeatable_and_near_the_students(values):
    first, again = (bootstrap(values, np.random.default_rng(5)) for _ in range(2))
    assert first == again
    student = estimate(values)
    assert first.low == pytest.approx(student.low, abs=0.15)
    assert first.high == pytest.approx(student.high, abs=0.15)


def test_a_paired_difference_is_that_of_the_differences(values):
    ours = values - 0.5
    found = paired(ours, values)
    assert found == pytest.approx((-0.5, -0.5, -0.5, 40))
    noisy = values + np.random.default_rng(2).normal(0, 0.1, 40)
    test = stats.ttest_rel(noisy, values)
    low, high = test.confidence_interval(0.95)
    assert paired(noisy, values) == pytest.approx((float(np.mean(noisy - values)), low, high, 40))
    assert paired(noisy, values, generator=np.random.default_rng(3)).high == pytest.approx(
        high, abs=0.01
    )


def test_one_sequence_has_no_interval():
    for found in (estimate([2.0]), bootstrap([2.0], np.random.default_rng(0))):
        assert found.mean == 2.0
        assert math.isnan(found.low)
        assert formatted(found) == "2.000"


def test_it_is_written_as_in_the_paper():
    assert str(Estimate(-3.291, -3.365, -3.217, 200)) == "-3.291 ± 0.074"
    assert formatted(Estimate(1.0, 0.5, 1.25, 9), 1) == "1.0 ± 0.5"


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], [1.0, math.nan]])
def test_what_is_not_a_value_per_sequence_is_refused(values):
    with pytest.raises(ValueError, match="expected"):
        estimate(values)


def test_pairs_are_of_the_same_sequences():
    with pytest.raises(ValueError, match="got 2 and 3"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])
