"""Hazards as tables: those of negative-binomial regimes, what is refused, and elapsed time."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from model_core import hazard as hazards
from tests.model_core.registry import tensor

MEANS, SHAPES = (1.5, 3, 20, 100, 1000, 10_000), (0.01, 0.5, 0.999, 1.001, 2, 5.5, 50, 1e3, 1e12)


@pytest.mark.parametrize("mean", MEANS)
def test_negative_binomial_hazard_is_mass_over_survival(mean):
    """To its last entry, which stands for all that are longer."""
    for shape in SHAPES:
        found = np.array(hazards.negative_binomial(mean, shape))
        run_length, limit = np.arange(len(found)), shape / (mean - 1 + shape)
        after = stats.nbinom(shape, limit)  # observations after a regime's first
        mass, survival = after.pmf(run_length), after.sf(run_length - 1)
        if shape < 1e6:  # scipy's own tails end somewhere
            exact = (survival > 1e-10) & (mass > 1e-200)
            assert exact.any()
            np.testing.assert_allclose(found[exact], (mass / survival)[exact], rtol=1e-9)
        last = len(found) - 1
        with mpmath.workdps(40):
            k, m = mpmath.mpf(shape), mpmath.mpf(mean)
            exact = 1 / mpmath.hyp2f1(1, last + k, last + 1, 1 - k / (m - 1 + k))
        assert found[-1] == pytest.approx(float(exact), rel=1e-9)
        converged = abs(found[-1] / limit - 1) <= hazards.NEGLIGIBLE
        left = np.prod(1 - found)
        assert left <= hazards.NEGLIGIBLE or converged or len(found) == hazards.LONGEST
        assert hazards.checked(tuple(found)) == tuple(found)


def test_shape_one_is_constant():
    for mean in (1, 1.25, 7, 100, 10_000):
        assert hazards.negative_binomial(mean, 1) == (1 / mean,)
    assert hazards.negative_binomial(1, 5) == (1.0,)
    near = hazards.negative_binomial(50, 1 + 1e-9)
    assert near == pytest.approx([1 / 50] * len(near), rel=1e-8)


def test_what_is_refused():
    for mean in (0.5, 0, -3, math.nan, math.inf, hazards.LONGEST + 1):
        with pytest.raises(ValueError, match="mean regime duration"):
            hazards.negative_binomial(mean, 2)
    for shape in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="shape"):
            hazards.negative_binomial(10, shape)
    assert hazards.checked(0.25) == (0.25,)
    assert hazards.checked([0, 1, 0.5]) == (0.0, 1.0, 0.5)
    assert len(hazards.checked([0.1] * hazards.LONGEST)) == hazards.LONGEST
    for wrong, what in (
        ([], "entries"),
        ([0.1] * (hazards.LONGEST + 1), "entries"),
        ([0.1, 1.5], "run length 1"),
        (-0.1, "run length 0"),
        ([math.nan], "run length 0"),
        ([0.0, 0.0], "never"),
    ):
        with pytest.raises(ValueError, match=what):
            hazards.checked(wrong)


def test_hazards_of_zero_and_one_and_no_time():
    hazard, nothing = tensor([[0.0, 1.0, 0.3]]), tensor([[math.nan]])
    for elapsed, change in ((0.0, [0, 0, 0]), (1.0, [0, 1, 0.3]), (2.0, [0, 1, 0.51])):
        found, survival = hazards.log_change(hazard, tensor([[elapsed]]), nothing)
        assert found.exp()[0].tolist() == pytest.approx(change, abs=1e-15)
        assert survival.exp()[0].tolist() == pytest.approx([1 - p for p in change], abs=1e-15)
