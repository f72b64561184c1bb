"""Explanations of changes against simulated changes."""

import math

import numpy as np
import pytest

from model_core.explanation import AFTER, BEFORE, explain, moments

KINDS = ("mean", "spread", "slope", "autocorrelation")
EACH = 100


def autoregressive(rng, count, phi, start):
    values = []
    for _ in range(count):
        start = phi * start + rng.normal()
        values.append(start)
    return np.array(values)


def simulated(kind, rng, before, after, outliers=0):
    """Labels of both regimes: 2 sd, spread x2, a tenth of an sd per step, phi .2 -> .8."""
    y = rng.normal(size=before + after)
    sign = rng.choice([-1.0, 1.0])
    if kind == "mean":
        y[before:] += 2 * sign
    elif kind == "spread":
        y[before:] *= 2
    elif kind == "slope":
        y[before:] += 0.1 * sign * np.arange(1, after + 1)
    elif kind == "autocorrelation":
        y[:before] = autoregressive(rng, before, 0.2, rng.normal())
        y[before:] = autoregressive(rng, after, 0.8, y[before - 1])
    y[rng.integers(before + after, size=outliers)] += 8 * sign
    y = 100 + 0.5 * y
    return y[:before, None], y[before:, None]


def matrix(before, after, outliers=0):
    """Share of explanations of each kind, by the kind that was simulated."""
    rng = np.random.default_rng(0)
    found = {}
    for kind in (*KINDS, None):
        said = [explain(*simulated(kind, rng, before, after, outliers)).kind for _ in range(EACH)]
        found[kind] = {other: said.count(other) / EACH for other in (*KINDS, None)}
    return found


@pytest.mark.parametrize(("before", "outliers"), [(200, 0), (200, 2), (60, 0)])
def test_four_of_five_changes_are_explained_as_they_were_made(before, outliers):
    found = matrix(before, 50, outliers)
    print(f"\n{before} labels before, 50 after, {outliers} outliers; rows: simulated")
    for kind, row in found.items():
        print(f"{kind!s:>16}", "  ".join(f"{name} {share:.2f}" for name, share in row.items()))
    assert all(found[kind][kind] >= 0.8 for kind in KINDS), found
    assert found[None][None] >= 0.7


@pytest.mark.parametrize("step", [30, 100, 1000])
def test_a_large_step_is_one_of_the_mean_alone(step):
    rng = np.random.default_rng(7)
    found = [explain(rng.normal(size=(200, 1)), step + rng.normal(size=(60, 1))) for _ in range(50)]
    assert all(each.kind in ("mean", "slope") for each in found)
    assert sum(each.text.endswith("spread unchanged") for each in found) >= 45


@pytest.mark.parametrize("ratio", [30, 100, 0.01])
def test_a_large_change_of_spread_is_none_of_the_mean(ratio):
    rng = np.random.default_rng(8)
    found = [
        explain(rng.normal(size=(200, 1)), ratio * rng.normal(size=(60, 1))) for _ in range(50)
    ]
    assert sum(each.text.endswith("mean unchanged") for each in found) >= 45


def test_a_small_spread_of_large_labels_is_one():
    rng = np.random.default_rng(9)
    before, after = 1.7e9 + rng.normal(size=(100, 1)), 1.7e9 + 3 + rng.normal(size=(50, 1))
    found = explain(before, after)
    assert found.kind == "mean"
    assert found.text.startswith("mean rose by ")
    assert found.text.endswith("; spread unchanged")
    old, new = found.text.partition(" from ")[2].partition(";")[0].split(" to ")
    assert float(new) - float(old) == pytest.approx(3, abs=0.6)


def test_constants_that_differ_by_rounding_hide_no_change():
    rng = np.random.default_rng(10)
    before, after = rng.normal(size=(100, 2)), 4 + rng.normal(size=(50, 2))
    before[:, 0], after[:, 0] = 0.3, 0.1 + 0.2
    found = explain(before, after)
    assert (found.kind, found.place) == ("mean", 1)
    assert explain(before[:, :1], after[:, :1]).text == "no change: constant"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (1.00001, 1.00003, "from 1.00001 to 1.00003"),
        (1e-9, 3e-9, "from 1e-09 to 3e-09"),
        (1.7e9, 1.7e9 + 2, "from 1700000000.0 to 1700000002.0"),
        (-0.001, 9.0, "from 0.0 to 9.0"),
        (2e18, 9e18, "from 2e+18 to 9e+18"),
    ],
)
def test_numbers_have_the_digits_of_their_difference(old, new, text):
    found = explain(np.full((20, 1), old), np.full((20, 1), new))
    assert found.text == f"mean rose {text}; constant within"


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_units_change_nothing(factor):
    rng = np.random.default_rng(1)
    before, after = simulated("mean", rng, 100, 50)
    plain, other = explain(before, after), explain(factor * before, factor * after)
    assert other.kind == plain.kind == "mean"
    assert other.probability == pytest.approx(plain.probability)
    assert other.after == pytest.approx(factor * plain.after)


def test_the_line_says_what_the_numbers_are():
    before = np.array([9.0, 11.0, 11.0, 9.0] * 10)[:, None]
    after = before + 5
    found = explain(before, after)
    assert found.text == "mean rose by 4.9 sd from 10.0 to 15.0; spread unchanged"
    assert (found.kind, found.before, found.after) == ("mean", 10.0, 15.0)
    wider = explain(before, 4 * (before - 10) + 10)
    assert wider.text == "spread rose from 1.0 to 4.1; mean unchanged"
    both = explain(before, 4 * (before - 10) + 30)
    assert both.text.startswith("mean rose by")
    assert both.text.endswith("from 10 to 30; spread rose from 1.0 to 4.1")


def test_of_several_outputs_the_clearest_is_named():
    rng = np.random.default_rng(2)
    before, after = rng.normal(size=(100, 3)), rng.normal(size=(40, 3))
    after[:, 2] += 5
    after[3, 2] = before[7, 0] = math.nan
    found = explain(before, after)
    assert (found.kind, found.place) == ("mean", 2)
    assert found.text.startswith("output 3: mean rose by ")


def test_of_many_outputs_those_that_moved_most_are_looked_at():
    rng = np.random.default_rng(6)
    before, after = rng.normal(size=(100, 60)), rng.normal(size=(40, 60))
    after[:, 41] *= 3
    before[:, 7] = after[:, 7] = 1.0
    before[:, 8] = math.nan
    found = explain(before, after)
    assert (found.kind, found.place) == ("spread", 41)


def test_counts_durations_and_classes():
    rng = np.random.default_rng(3)
    counts = explain(rng.poisson(2, (90, 1)) * 1.0, rng.poisson(8, (40, 1)) * 1.0, "counts")
    assert counts.kind == "rate"
    assert counts.text.startswith("rate rose ")
    assert (counts.before, counts.after) == pytest.approx((2, 8), rel=0.2)
    waits = explain(rng.exponential(5, (90, 1)), rng.exponential(1, (40, 1)), "durations")
    assert waits.kind == "mean"
    assert "-fold from " in waits.text
    classes = explain(
        rng.choice(3, (90, 1), p=[0.6, 0.3, 0.1]) * 1.0,
        rng.choice(3, (40, 1), p=[0.1, 0.3, 0.6]) * 1.0,
        "classes",
    )
    assert classes.kind == "share"
    assert classes.place in (0, 2)
    assert classes.text.startswith(f"share of class {classes.place} ")
    coin = explain(np.repeat([[0.0], [1.0]], [90, 10], 0), np.ones((20, 1)), "classes")
    assert coin.text == "share of class 1 rose from 10 % to 100 %"


@pytest.mark.parametrize("labels", ["numbers", "counts", "durations", "classes"])
def test_without_a_change_none_is_said(labels):
    same = np.array([0.0, 1.0, 2.0, 1.0] * 20)[:, None]
    found = explain(same, same, labels)
    assert found.kind is None
    assert found.text.startswith("no clear change")
    zero = np.zeros((20, 1))
    assert explain(zero, zero, labels).kind is None


def test_what_is_constant_is_no_trouble():
    found = explain(np.full((30, 1), 2.0), np.full((30, 1), 3.0))
    assert (found.kind, found.before, found.after) == ("mean", 2.0, 3.0)
    noisy = explain(np.full((30, 1), 2.0), np.random.default_rng(4).normal(2, 1, (30, 1)))
    assert noisy.kind == "spread"
    huge = explain(np.full((30, 1), 1e300), -1e300 * np.arange(30.0)[:, None])
    assert huge.kind is None


def test_few_labels_and_long_regimes():
    three = np.arange(3.0)[:, None]
    assert explain(three, np.arange(50.0)[:, None]) is None
    assert explain(np.empty((0, 1)), three) is None
    long = np.random.default_rng(5).normal(size=(1000, 1))
    assert explain(long, long + 3) == explain(long[-BEFORE:], (long + 3)[:AFTER])
    with pytest.raises(ValueError, match="as many outputs, got 1 and 2"):
        explain(three, np.ones((3, 2)))


def test_moments_are_those_of_the_labels_that_are_there():
    found = moments(np.array([[1.0, math.nan], [3.0, 2.0]]))
    assert found == (2, [2.0, 2.0], [pytest.approx(math.sqrt(2)), None])
