"""Densities, masses and distribution functions of the components, against scipy and mpmath."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

from model_core.components import Bernoulli, NegativeBinomial, Normal, StudentT
from tests.model_core.cases import tensor


def close(got: torch.Tensor, expected, atol: float, rtol: float = 0.0) -> None:
    np.testing.assert_allclose(got.numpy(), expected, atol=atol, rtol=rtol)


def student(df, loc=0.0, scale=1.0) -> StudentT:
    df = tensor(df)
    return StudentT(df, torch.full_like(df, loc), torch.full_like(df, scale))


def values_and_df(lowest: float, highest: float) -> tuple[np.ndarray, np.ndarray]:
    """Values from 1e-12 to 1e8 of either sign, and degrees of freedom, both log-uniform."""
    rng = np.random.default_rng(0)
    df = np.exp(rng.uniform(math.log(lowest), math.log(highest), 4000))
    far = rng.choice([-1, 1], 2000) * 10 ** rng.uniform(-12, 8, 2000)
    return np.concatenate((rng.standard_t(3, 2000) * 3, far)), df


@pytest.mark.parametrize(("lowest", "highest"), [(1, 2), (2, 10), (10, 1e3), (1e3, 1e6)])
def test_student_t(lowest, highest):
    t, df = values_and_df(lowest, highest)
    close(student(df).cdf(tensor(t)), stats.t.cdf(t, df), atol=1e-9)
    close(student(df).log_density(tensor(t)), stats.t.logpdf(t, df), atol=1e-8)
    density = student(df, 1.5, 0.25).log_density(tensor(t))
    close(density, stats.t.logpdf(t, df, 1.5, 0.25), atol=1e-8)


def test_student_t_cdf_keeps_small_tails():
    t = -(10.0 ** np.arange(1, 8))
    close(student(np.full(7, 5.0)).cdf(tensor(t)), stats.t.cdf(t, 5), atol=0, rtol=1e-6)


def test_student_t_near_the_centre_is_smooth():
    t = np.linspace(-1e-8, 1e-8, 41)
    rise = student(np.full(41, 4.0)).cdf(tensor(t)).diff().numpy()
    np.testing.assert_allclose(rise, stats.t.pdf(0, 4) * 5e-10, rtol=1e-5)


def test_moments_of_student_t():
    found = student([0.5, 1.0, 2.0, 2.5, 7.0], 3.0, 2.0)
    assert found.variance().tolist() == pytest.approx([math.inf] * 3 + [20.0, 5.6])
    assert found.mean().tolist() == [3.0] * 5


def test_normal():
    value = np.linspace(-30, 40, 201)
    normal = Normal(tensor([2.0]), tensor([3.0]))
    close(normal.cdf(tensor(value)), stats.norm.cdf(value, 2, 3), atol=1e-15, rtol=1e-11)
    close(normal.log_density(tensor(value)), stats.norm.logpdf(value, 2, 3), atol=1e-12)
    assert (normal.mean().item(), normal.variance().item()) == (2.0, 9.0)


@pytest.mark.parametrize("family", [student([4.0]), Normal(tensor([1.0]), tensor([1e-200]))])
def test_real_cdf_far_out(family):
    far = tensor([-math.inf, -1e300, -1e160, 1e160, 1e300, math.inf])
    assert family.cdf(far).tolist() == pytest.approx([0, 0, 0, 1, 1, 1], abs=1e-300)


def exact_log_mass(count: float, shape: float, rate: float) -> float:
    """Fifty digits."""
    with mpmath.workdps(50):
        k, a, m = (mpmath.mpf(float(each)) for each in (count, shape, rate))
        ways = mpmath.loggamma(k + a) - mpmath.loggamma(a) - mpmath.loggamma(k + 1)
        return float(ways - a * mpmath.log1p(m / a) - k * mpmath.log1p(a / m))


@pytest.mark.parametrize(("shape", "rate"), [(0.05, 3), (1, 0.01), (7, 1e3), (1e3, 30), (1e6, 1)])
def test_negative_binomial_log_mass(shape, rate):
    rng = np.random.default_rng(1)
    counts = np.unique(np.concatenate((np.arange(40), rng.poisson(rate, 40), [1e3, 1e6])))
    found = NegativeBinomial(tensor([shape]), tensor([rate])).log_density(tensor(counts))
    expected = [exact_log_mass(k, shape, rate) for k in counts]
    close(found, expected, atol=1e-11, rtol=1e-12)


@pytest.mark.parametrize(("shape", "rate"), [(1e8, 1e4), (1e10, 1e5), (1e13, 1e9), (0.1, 1e9)])
def test_negative_binomial_log_mass_of_large_counts(shape, rate):
    """Differences of lgamma are off by 0.03 at a shape of 1e13."""
    spread = math.sqrt(rate + rate**2 / shape)
    counts = np.round(np.clip(rate + spread * np.linspace(-5, 5, 21), 0, None))
    found = NegativeBinomial(tensor([shape]), tensor([rate])).log_density(tensor(counts))
    close(found, [exact_log_mass(k, shape, rate) for k in counts], atol=1e-9)


def test_counts_below_zero_have_no_mass():
    found = NegativeBinomial(tensor([2.0]), tensor([3.0]))
    assert found.log_density(tensor([-1.0])).tolist() == [-math.inf]
    assert found.cdf(tensor([-math.inf, -3.0, -1e-9])).tolist() == [0, 0, 0]
    assert found.cdf(tensor([math.inf, 1e300])).tolist() == [1, 1]


MEANS, SHAPES = (0.01, 1.0, 30.0, 900.0, 1500.0, 1e6, 1e9), (0.05, 0.1, 1.0, 10.0, 1e3, 1e9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", MEANS)
def test_negative_binomial_cdf(mean, shape):
    """Exact to rounding below 64, and a good normal beyond."""
    levels = np.random.default_rng(0).uniform(size=100)
    p, q = mean / (mean + shape), shape / (mean + shape)
    around = stats.nbinom.ppf(levels, shape, q)
    counts = np.unique(np.concatenate((around, [0, 1, 62, 63, 64, 65, 1e3])))
    found = NegativeBinomial(tensor([shape]), tensor([mean])).cdf(tensor(counts)).numpy()
    few = counts < 64
    expected = special.betaincc(counts + 1, shape, p)
    np.testing.assert_allclose(found[few], expected[few], atol=1e-8)
    np.testing.assert_allclose(found[~few], expected[~few], atol=6e-6)
    assert (np.diff(found) >= -1e-12).all()


def test_negative_binomial_cdf_between_counts():
    found = NegativeBinomial(tensor([2.0]), tensor([3.0]))
    assert torch.equal(found.cdf(tensor([4.0])), found.cdf(tensor([4.999])))


def test_moments_of_counts():
    found = NegativeBinomial(tensor([4.0]), tensor([6.0]))
    frozen = stats.nbinom(4, 0.4)
    assert (found.mean().item(), found.variance().item()) == pytest.approx(frozen.stats("mv"))


def test_bernoulli():
    found = Bernoulli(tensor([0.3]))
    close(found.log_density(tensor([0.0, 1.0])), np.log([0.7, 0.3]), atol=1e-15)
    close(found.cdf(tensor([-0.1, 0.0, 0.9, 1.0, 5.0])), [0, 0.7, 0.7, 1, 1], atol=1e-15)
    assert (found.mean().item(), found.variance().item()) == pytest.approx((0.3, 0.21))
