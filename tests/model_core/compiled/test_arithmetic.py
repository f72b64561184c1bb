"""Elementary functions against scipy's, and what becomes of what is not finite."""

import numpy as np
import pytest
from scipy import special

numba = pytest.importorskip("numba")

from model_core.compiled import arithmetic  # noqa: E402

EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan]


def over(function):
    @numba.njit(error_model="numpy")
    def loop(values, out):
        for i in range(len(values)):
            out[i] = function(values[i])

    def applied(values):
        values = np.asarray(values, dtype=float)
        out = np.empty_like(values)
        loop(values, out)
        return out

    return applied


WIDE = np.geomspace(1e-300, 1e300, 999)
NEAR = np.geomspace(1e-17, 100, 999)
CASES = {
    "exp": (arithmetic.exp, np.exp, np.r_[-WIDE[WIDE < 700], np.linspace(0, 709, 99)]),
    "log": (arithmetic.log, np.log, np.r_[WIDE, 5e-324, 1e-310, np.linspace(0.5, 2, 99)]),
    "log1p": (arithmetic.log1p, np.log1p, np.r_[WIDE, NEAR, -NEAR[NEAR < 1]]),
    "half_erfc": (arithmetic.half_erfc, lambda z: special.erfc(z) / 2, np.linspace(0, 26, 999)),
    "ndtri": (arithmetic.ndtri, special.ndtri, np.geomspace(1e-300, 0.9999, 999)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_within_rounding(name):
    function, reference, values = CASES[name]
    own, expected = over(function)(values), reference(values)
    rounding = 2e-13 if name == "half_erfc" else 1e-15  # scipy's own error in the far tail
    np.testing.assert_allclose(own, expected, rtol=rounding, atol=5e-16 if name == "ndtri" else 0)


@pytest.mark.parametrize(("name", "reference"), [("exp", np.exp), ("log", np.log)])
def test_what_is_not_finite_is_as_usual(name, reference):
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(over(CASES[name][0])(EDGES), reference(EDGES))


@pytest.mark.parametrize("a", [0.3, 0.5, 1.0, 2.0, 17.3, 1e3, 1e6])
def test_the_norm_of_student_t(a):
    expected = -special.betaln(a, 0.5) - 0.5 * np.log(2 * a)
    if a >= 1000:  # scipy's has lost digits; the rest of the series is below 1e-18
        expected = -0.5 * np.log(2 * np.pi) - 1 / (8 * a) + 1 / (192 * a**3)
    norm, factor, inverse = arithmetic.student_t_norm(a)
    assert norm + 0.5 * np.log(factor) == pytest.approx(expected, abs=1e-13, rel=1e-13)
    assert inverse == pytest.approx(0.5 / a, rel=1e-15)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 51])
def test_sums_and_extremes(n):
    values = np.random.default_rng(n).normal(size=n)
    assert arithmetic.total(values, n) == pytest.approx(values.sum(), abs=1e-13)
    assert arithmetic.dot(values, values, n) == pytest.approx(values @ values, abs=1e-12)
    assert arithmetic.largest(values, n) == values.max()
    assert arithmetic.smallest(values, n) == values.min()
    assert np.isnan(arithmetic.total(np.r_[values, np.nan], n + 1))
