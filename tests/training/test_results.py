"""Intervals and calibration measures, as scipy's tests have them and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from training.results import (
    bootstrap,
    calibration_error,
    compared,
    coverage,
    distance,
    estimate,
    number,
    paired,
    plain,
    reliability,
    rounded,
    uniform_band,
)


def test_intervals_of_a_mean_and_of_a_paired_difference():
    theirs = np.random.default_rng(0).normal(3, 2, 40)
    ours = theirs + np.random.default_rng(2).normal(0, 0.1, 40)
    low, high = stats.ttest_1samp(theirs, 0).confidence_interval(0.95)
    assert estimate(theirs) == pytest.approx((theirs.mean(), low, high, 40))
    low, high = stats.ttest_rel(ours, theirs).confidence_interval()
    assert paired(ours, theirs) == pytest.approx((np.mean(ours - theirs), low, high, 40))
    drawn = bootstrap(ours - theirs, np.random.default_rng(3))
    assert drawn == pytest.approx((np.mean(ours - theirs), low, high, 40), abs=0.01)
    again = bootstrap(ours - theirs, np.random.default_rng(3))
    assert drawn == again
    for one in (estimate([2.0]), bootstrap([2.0], np.random.default_rng(0))):
        assert f"{one} {one:.1f}" == "2.000 2.0"
    for wrong in ([], [[1.0, 2.0]], [1.0, math.nan]):
        with pytest.raises(ValueError, match="expected"):
            estimate(wrong)
    with pytest.raises(ValueError, match="same sequences, got 40 and 39"):
        paired(ours, theirs[1:])


def test_a_method_is_compared_where_both_have_a_value():
    ours, theirs = [1.0, math.nan, 3.0, 5.0], [2.0, 2.0, math.nan, 3.0]
    other = compared("SW5", "NLL", ours, theirs)
    assert other.estimate == estimate([2.0, 2.0, 3.0])
    assert other.difference == estimate([-1.0, 2.0])


def test_distance_coverage_and_band_of_pits():
    pits = np.array([0.5, 0.2, 0.95, math.nan])
    # The empirical CDF leaps from 1/3 to 2/3 at .5, and is 2/3 just below .95.
    assert distance(pits) == pytest.approx(0.95 - 2 / 3)
    assert coverage(pits, [0.2, 0.6, 0.9]) == pytest.approx([1 / 3, 2 / 3, 1.0])
    for count, bins in ((20, 4), (1000, 15)):
        low, high = uniform_band(count, bins)
        inside = stats.binom.cdf(high, count, 1 / bins) - stats.binom.cdf(low - 1, count, 1 / bins)
        assert 0.95 <= inside < 0.99
    with pytest.raises(ValueError, match="expected PITs"):
        distance(pits[3:])


def test_reliability_by_hand():
    probability = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]])
    bins = reliability(probability, np.array([0.0, 0.0, 1.0, math.nan]), bins=4)
    assert bins.count.tolist() == [0, 0, 1, 2]
    assert bins.confidence[2:] == pytest.approx([0.6, 0.85])
    assert bins.accuracy[2:].tolist() == [1.0, 0.5]
    assert np.isnan(bins.accuracy[:2]).all()
    assert calibration_error(bins) == pytest.approx((0.4 + 2 * 0.35) / 3)


def test_results_as_json_have_no_number_that_is_not_finite():
    content = plain({"a": (estimate([2.0]), [math.inf]), 1: None})
    one = {"mean": 2.0, "low": None, "high": None, "count": 1}
    assert content == {"a": [one, [None]], "1": None}


def test_a_number_that_is_not_finite_is_a_dash_on_a_page():
    one = estimate([2.0])
    shown = (number(one, ".1f"), rounded(one), number(math.inf, "g"), number(math.nan, ".0%"))
    assert shown == ("2.0", "2", "-", "-%")
    assert number(math.nan, ".1f", math.nan) == "-"
    assert number(2.0, ".1f", 0.25) == "2.0 ± 0.2"
    assert rounded(estimate([0.01234, 0.0124])) == "0.0124 ± 0.00038"
