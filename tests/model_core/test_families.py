"""Densities, masses and distribution functions of the components, against scipy and mpmath."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

from model_core.components import (
    Bernoulli,
    Blend,
    Categorical,
    Lomax,
    MultivariateStudentT,
    NegativeBinomial,
    Normal,
    StudentT,
)
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


SHAPE, RATE, SHARE = np.array([0.5, 3.0, 40.0]), np.array([4.0, 30.0, 900.0]), [0.7, 0.2, 0.1]


def blend_of_counts(streams: int = 1) -> Blend:
    """Three negative binomials as one component."""
    parts = [tensor([[[each]]]).expand(streams, 1, 1, 3) for each in (SHAPE, RATE, np.log(SHARE))]
    return Blend(NegativeBinomial(*parts[:2]), parts[2])


def test_a_blend_of_counts():
    counts = np.arange(2500.0)
    each = stats.nbinom(SHAPE, SHAPE / (SHAPE + RATE))
    found, value = blend_of_counts(), tensor(counts[:, None, None])
    mass = found.log_density(value)[:, 0, 0]
    close(mass.exp().sum(), 1.0, atol=1e-10)
    close(mass, np.log(each.pmf(counts[:, None]) @ SHARE), atol=1e-9)
    assert torch.equal(found.joint_log_density(value)[:, 0], mass)
    close(found.cdf(value)[:64, 0, 0], each.cdf(counts[:64, None]) @ SHARE, atol=1e-12)
    close(found.cdf(value)[:, 0, 0], each.cdf(counts[:, None]) @ SHARE, atol=6e-6)
    mean = float(RATE @ SHARE)
    assert found.mean().item() == pytest.approx(mean)
    within = RATE + RATE**2 / SHAPE + (RATE - mean) ** 2
    assert found.variance().item() == pytest.approx(within @ SHARE)
    assert found.log_density(tensor([[[-1.0]]])).item() == -math.inf
    assert (found.support, found.family) == ("count", "Blend of NegativeBinomial")


def test_marginals_of_a_blend_are_its_parts():
    found = blend_of_counts(2)
    weight, alone = found.marginals(tensor([[1.0], [0.5]]))
    close(weight[:, 0, 0], np.outer([1, 0.5], SHARE), atol=1e-15)
    assert isinstance(alone, NegativeBinomial)
    close(alone.rate.expand_as(weight)[:, 0, 0], [RATE, RATE], atol=0)
    again = found.rebuilt(*found.parameters())
    pairs = zip(again.parameters(), found.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_draws_of_a_blend():
    drawn = blend_of_counts(50_000).sample(torch.Generator().manual_seed(0))
    assert drawn.shape == (50_000, 1, 1)
    counts = np.sort(drawn.flatten().numpy())
    exact = stats.nbinom(SHAPE, SHAPE / (SHAPE + RATE)).cdf(np.unique(counts)[:, None]) @ SHARE
    seen = np.searchsorted(counts, np.unique(counts), side="right") / len(counts)
    assert np.abs(seen - exact).max() < 1.95 / math.sqrt(len(counts))  # Kolmogorov, p = 0.001


def test_a_part_of_no_weight_may_have_no_moments():
    each = student([[[[1.5, 5.0]]]])
    found = Blend(each, tensor([[[[0.0, 1.0]]]]).log())
    assert found.variance().item() == pytest.approx(5 / 3)
    found = Blend(each, tensor([[[[0.5, 0.5]]]]).log())
    assert found.variance().item() == math.inf


def test_bernoulli():
    found = Bernoulli(tensor([0.3]))
    close(found.log_density(tensor([0.0, 1.0])), np.log([0.7, 0.3]), atol=1e-15)
    close(found.cdf(tensor([-0.1, 0.0, 0.9, 1.0, 5.0])), [0, 0.7, 0.7, 1, 1], atol=1e-15)
    assert (found.mean().item(), found.variance().item()) == pytest.approx((0.3, 0.21))


def multivariate(df: float = 5.0) -> tuple[MultivariateStudentT, np.ndarray, np.ndarray]:
    """One of three correlated outputs, its location and its scale matrix."""
    loc = np.array([1.0, -20.0, 0.5])
    factor = np.array([[2.0, 0, 0], [30.0, 10.0, 0], [-0.02, 0.01, 0.04]])
    found = MultivariateStudentT(tensor([[[df]]]), tensor([[loc]]), tensor([[factor]]))
    return found, loc, factor @ factor.T


@pytest.mark.parametrize("df", [1.2, 5.0, 2e4])
def test_multivariate_student_t(df):
    found, loc, shape = multivariate(df)
    y = stats.multivariate_t.rvs(loc, shape, df, size=50, random_state=0)
    y = np.concatenate((y, [loc, loc + 1e9, loc - 1e-9]))
    joint = found.joint_log_density(tensor(y[:, None]))
    assert joint.shape == (53, 1)
    expected = stats.multivariate_t.logpdf(y, loc, shape, df)
    close(joint[:, 0], expected, atol=1e-8, rtol=1e-10)
    scale = np.sqrt(np.diag(shape))
    close(found.log_density(tensor(y[:, None]))[:, 0], stats.t.logpdf(y, df, loc, scale), 1e-8)
    close(found.cdf(tensor(y[:, None]))[:, 0], stats.t.cdf(y, df, loc, scale), 1e-9)
    both = found.evaluate(tensor(y[:, None]), found.table())
    close(both[0][:, 0], stats.t.cdf(y, df, loc, scale), 1e-9)
    close(both[1][:, 0], stats.t.pdf(y, df, loc, scale), 1e-9)


def test_moments_of_a_multivariate_student_t():
    found, loc, shape = multivariate(5.0)
    close(found.mean()[0, 0], loc, 0)
    close(found.covariance()[0, 0], shape * 5 / 3, atol=0, rtol=1e-13)
    close(found.variance()[0, 0], np.diag(shape) * 5 / 3, atol=0, rtol=1e-13)
    nowhere = multivariate(2.0)[0]
    close(nowhere.covariance()[0, 0], np.diag([math.inf] * 3), 0)


def test_draws_of_a_multivariate_student_t():
    """Correlated, and far out all together."""
    found, loc, shape = multivariate(5.0)
    many = found.rebuilt(*(each.expand(200_000, *each.shape[1:]) for each in found))
    drawn = many.sample(torch.Generator().manual_seed(0))[:, 0].numpy() - loc
    covariance = np.cov(drawn.T)
    np.testing.assert_allclose(covariance / (shape * 5 / 3), np.ones((3, 3)), atol=0.05)
    whitened = np.linalg.solve(np.linalg.cholesky(shape), drawn.T)
    distance = (whitened**2).sum(0) / 3  # F(3, df)
    assert stats.kstest(distance, stats.f(3, 5).cdf).pvalue > 0.001


@pytest.mark.parametrize(("shape", "scale"), [(0.5, 1), (2.5, 3), (40, 1e-9), (2e4, 1e12)])
def test_lomax(shape, scale):
    y = scale / shape * np.concatenate(([0], 10.0 ** np.arange(-14, 12)))
    found, exact = Lomax(tensor([shape]), tensor([scale])), stats.lomax(shape, scale=scale)
    close(found.log_density(tensor(y)), exact.logpdf(y), atol=1e-9, rtol=1e-12)
    close(found.cdf(tensor(y)), -np.expm1(exact.logsf(y)), atol=0, rtol=1e-13)
    assert found.log_density(tensor([-1e-9, -math.inf])).tolist() == [-math.inf] * 2
    assert found.cdf(tensor([-1.0, -math.inf, math.inf])).tolist() == [0, 0, 1]


def test_moments_of_lomax():
    found = Lomax(tensor([0.5, 1.0, 1.5, 2.0, 2.5, 4.0]), tensor([3.0] * 6))
    assert found.mean().tolist() == pytest.approx([math.inf, math.inf, 6, 3, 2, 1])
    assert found.variance().tolist() == pytest.approx([math.inf] * 4 + [20, 2])


def test_draws_of_lomax():
    found = Lomax(torch.full((50_000, 1, 1), 2.5).double(), tensor([[[3.0]]]).expand(50_000, 1, 1))
    drawn = found.sample(torch.Generator().manual_seed(0)).flatten().numpy()
    assert stats.kstest(drawn, stats.lomax(2.5, scale=3).cdf).pvalue > 0.001


def test_categorical():
    p = np.array([0.2, 0.5, 0.3])
    found = Categorical(tensor([[p]]).log())
    close(found.log_density(tensor([[[0.0]], [[2.0]]])).flatten(), np.log([0.2, 0.3]), 1e-15)
    for none in (-1.0, 3.0, 0.5, math.nan, math.inf):
        assert found.log_density(tensor([[[none]]])).item() == -math.inf
    close(
        found.cdf(tensor([[[-1.0]], [[0.0]], [[1.0]], [[9.0]]])).flatten(), [0, 0.2, 0.7, 1], 1e-15
    )
    close(found.mean()[0, 0], p, 1e-15)
    close(found.covariance()[0, 0], np.diag(p) - np.outer(p, p), 1e-15)
    many = Categorical(found.log_probability.expand(20_000, 1, 3))
    counts = np.bincount(
        many.sample(torch.Generator().manual_seed(0)).flatten().long(), minlength=3
    )
    assert stats.chisquare(counts, 20_000 * p).pvalue > 0.001
