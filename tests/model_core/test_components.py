"""Components and mixtures: densities, distribution functions, moments, quantiles and draws."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

from model_core import predictive
from model_core.components import (
    Bernoulli,
    Blend,
    Categorical,
    Choice,
    Lomax,
    MultivariateStudentT,
    NegativeBinomial,
    Normal,
    StudentT,
    join,
)
from model_core.components.averages import Either
from model_core.components.base import average
from model_core.predictive import Mixture
from model_core.upm.gamma import BetaPrime
from tests.model_core.cases import run, series
from tests.model_core.registry import case, tensor

LEVELS = tensor([1e-6, 0.001, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999, 1 - 1e-6])


def close(got: torch.Tensor, expected, atol: float, rtol: float = 0.0) -> None:
    np.testing.assert_allclose(got.numpy(), expected, atol=atol, rtol=rtol)


def student(df, loc=0.0, scale=1.0) -> StudentT:
    df = tensor(df)
    return StudentT(df, torch.full_like(df, loc), torch.full_like(df, scale))


CERTAIN = tensor([[0.0]])  # log weight of one component


# --- densities and distribution functions ---------------------------------------------------------


def test_student_t():
    rng = np.random.default_rng(0)
    for lowest, highest in ((1, 2), (2, 10), (10, 1e3), (1e3, 1e6)):
        df = np.exp(rng.uniform(math.log(lowest), math.log(highest), 4000))
        far = rng.choice([-1, 1], 2000) * 10 ** rng.uniform(-12, 8, 2000)
        t = np.concatenate((rng.standard_t(3, 2000) * 3, far))
        close(student(df).cdf(tensor(t)), stats.t.cdf(t, df), atol=1e-9)
        density = student(df, 1.5, 0.25).log_density(tensor(t))
        close(density, stats.t.logpdf(t, df, 1.5, 0.25), atol=1e-8)
    t = -(10.0 ** np.arange(1, 8))  # small tails
    close(student(np.full(7, 5.0)).cdf(tensor(t)), stats.t.cdf(t, 5), atol=0, rtol=1e-6)
    t = np.linspace(-1e-8, 1e-8, 41)  # smooth near the centre
    rise = student(np.full(41, 4.0)).cdf(tensor(t)).diff().numpy()
    np.testing.assert_allclose(rise, stats.t.pdf(0, 4) * 5e-10, rtol=1e-5)
    found = student([0.5, 1.0, 2.0, 2.5, 7.0], 3.0, 2.0)
    assert found.variance().tolist() == pytest.approx([math.inf] * 3 + [20.0, 5.6])
    assert found.mean().tolist() == [3.0] * 5


def test_normal():
    value, normal = np.linspace(-30, 40, 201), Normal(tensor([2.0]), tensor([3.0]))
    close(normal.cdf(tensor(value)), stats.norm.cdf(value, 2, 3), atol=1e-15, rtol=1e-11)
    close(normal.log_density(tensor(value)), stats.norm.logpdf(value, 2, 3), atol=1e-12)
    far = tensor([-math.inf, -1e300, -1e160, 1e160, 1e300, math.inf])
    for family in (student([4.0]), Normal(tensor([1.0]), tensor([1e-200]))):
        assert family.cdf(far).tolist() == pytest.approx([0, 0, 0, 1, 1, 1], abs=1e-300)


def exact_log_mass(count: float, shape: float, rate: float) -> float:
    """Fifty digits."""
    with mpmath.workdps(50):
        k, a, m = (mpmath.mpf(float(each)) for each in (count, shape, rate))
        ways = mpmath.loggamma(k + a) - mpmath.loggamma(a) - mpmath.loggamma(k + 1)
        return float(ways - a * mpmath.log1p(m / a) - k * mpmath.log1p(a / m))


@pytest.mark.parametrize("rate", [0.01, 3, 1e3, 1e5, 1e9])
def test_negative_binomial(rate):
    """Masses to 1e-9 of any size; distribution exact below 64, and a good normal beyond."""
    for shape in (0.05, 1, 7, 1e3, 1e10, 1e13):
        spread = math.sqrt(rate + rate**2 / shape)
        around = np.round(np.clip(rate + spread * np.linspace(-5, 5, 21), 0, None))
        counts = np.unique(np.concatenate((around, [0, 1, 2, 62, 63, 64, 65, 1e3])))
        found = NegativeBinomial(tensor([shape]), tensor([rate]))
        expected = [exact_log_mass(k, shape, rate) for k in counts]
        close(found.log_density(tensor(counts)), expected, atol=1e-9, rtol=2e-9)
        reached, few = found.cdf(tensor(counts)).numpy(), counts < 64
        if shape <= 1e10:
            expected = special.betaincc(counts + 1, shape, rate / (rate + shape))
            np.testing.assert_allclose(reached[few], expected[few], atol=1e-8)
            np.testing.assert_allclose(reached[~few], expected[~few], atol=6e-6)
        assert (np.diff(reached) >= -1e-12).all()


def test_counts_below_zero_have_no_mass():
    found = NegativeBinomial(tensor([2.0]), tensor([3.0]))
    assert found.log_density(tensor([-1.0])).tolist() == [-math.inf]
    assert found.cdf(tensor([-math.inf, -3.0, -1e-9])).tolist() == [0, 0, 0]
    assert found.cdf(tensor([math.inf, 1e300])).tolist() == [1, 1]
    assert torch.equal(found.cdf(tensor([4.0])), found.cdf(tensor([4.999])))


def test_a_blend_of_counts():
    shape, rate = np.array([0.5, 3.0, 40.0]), np.array([4.0, 30.0, 900.0])
    share, counts = [0.7, 0.2, 0.1], np.arange(2500.0)
    parts = [tensor([[[each]]]) for each in (shape, rate, np.log(share))]
    found, value = Blend(NegativeBinomial(*parts[:2]), parts[2]), tensor(counts[:, None, None])
    each, mass = stats.nbinom(shape, shape / (shape + rate)), found.log_density(value)[:, 0, 0]
    close(mass, np.log(each.pmf(counts[:, None]) @ share), atol=1e-9)
    assert torch.equal(found.joint_log_density(value)[:, 0], mass)
    close(found.cdf(value)[:64, 0, 0], each.cdf(counts[:64, None]) @ share, atol=1e-12)
    close(found.cdf(value)[:, 0, 0], each.cdf(counts[:, None]) @ share, atol=6e-6)
    mean = float(rate @ share)
    assert found.mean().item() == pytest.approx(mean)
    within = rate + rate**2 / shape + (rate - mean) ** 2
    assert found.variance().item() == pytest.approx(within @ share)
    weight, alone = found.marginals(tensor([[0.5]]))
    close(weight.flatten(), 0.5 * np.array(share), atol=1e-15)
    close(alone.rate.flatten(), rate, atol=0)
    # A part of no weight may have no moments.
    heavy = student([[[[1.5, 5.0]]]])
    for weights, variance in (([0.0, 1.0], 5 / 3), ([0.5, 0.5], math.inf)):
        one = Blend(heavy, tensor([[[weights]]]).log())
        assert one.variance().item() == pytest.approx(variance)


def test_classes():
    p = np.array([0.2, 0.5, 0.3])
    found, two = Categorical(tensor([[p]]).log()), Bernoulli(tensor([0.3]))
    close(found.log_density(tensor([[[0.0]], [[2.0]]])).flatten(), np.log([0.2, 0.3]), 1e-15)
    for none in (-1.0, 3.0, 0.5, math.nan, math.inf):
        assert found.log_density(tensor([[[none]]])).item() == -math.inf
    values = tensor([[[-1.0]], [[0.0]], [[1.0]], [[9.0]]])
    close(found.cdf(values).flatten(), [0, 0.2, 0.7, 1], 1e-15)
    close(found.mean()[0, 0], p, 1e-15)
    close(found.within(CERTAIN)[0], np.diag(p) - np.outer(p, p), 1e-15)
    close(two.log_density(tensor([0.0, 1.0])), np.log([0.7, 0.3]), atol=1e-15)
    close(two.cdf(tensor([-0.1, 0.0, 0.9, 1.0, 5.0])), [0, 0.7, 0.7, 1, 1], atol=1e-15)
    with pytest.raises(ValueError, match="no order"):
        Mixture(tensor([[1.0]]).log(), found).quantile(LEVELS)


def test_multivariate_student_t():
    loc = np.array([1.0, -20.0, 0.5])
    factor = np.array([[2.0, 0, 0], [30.0, 10.0, 0], [-0.02, 0.01, 0.04]])
    shape = factor @ factor.T
    scale = np.sqrt(np.diag(shape))
    for df in (1.2, 5.0, 2e4):
        found = MultivariateStudentT(tensor([[[df]]]), tensor([[loc]]), tensor([[factor]]))
        y = stats.multivariate_t.rvs(loc, shape, df, size=50, random_state=0)
        y = np.concatenate((y, [loc, loc + 1e9, loc - 1e-9]))
        expected = stats.multivariate_t.logpdf(y, loc, shape, df)
        close(found.joint_log_density(tensor(y[:, None]))[:, 0], expected, 1e-8, 1e-10)
        close(found.log_density(tensor(y[:, None]))[:, 0], stats.t.logpdf(y, df, loc, scale), 1e-8)
        close(found.cdf(tensor(y[:, None]))[:, 0], stats.t.cdf(y, df, loc, scale), 1e-9)
        both = found.evaluate(tensor(y[:, None]), found.table())
        close(both[0][:, 0], stats.t.cdf(y, df, loc, scale), 1e-9)
        close(both[1][:, 0], stats.t.pdf(y, df, loc, scale), 1e-9)
        close(found.mean()[0, 0], loc, 0)
        exists = shape * df / (df - 2) if df > 2 else np.diag([math.inf] * 3)
        close(found.within(CERTAIN)[0], exists, atol=0, rtol=1e-13)
        close(found.covariance()[0, 0], exists, atol=0, rtol=1e-13)
        close(found.variance()[0, 0], np.diag(exists), atol=0, rtol=1e-13)


def test_lomax():
    for shape, scale in ((0.5, 1), (2.5, 3), (40, 1e-9), (2e4, 1e12)):
        y = scale / shape * np.concatenate(([0], 10.0 ** np.arange(-14, 12)))
        found, exact = Lomax(tensor([shape]), tensor([scale])), stats.lomax(shape, scale=scale)
        close(found.log_density(tensor(y)), exact.logpdf(y), atol=1e-9, rtol=1e-12)
        close(found.cdf(tensor(y)), -np.expm1(exact.logsf(y)), atol=0, rtol=1e-13)
        assert found.log_density(tensor([-1e-9, -math.inf])).tolist() == [-math.inf] * 2
        assert found.cdf(tensor([-1.0, -math.inf, math.inf])).tolist() == [0, 0, 1]
    found = Lomax(tensor([0.5, 1.0, 1.5, 2.0, 2.5, 4.0]), tensor([3.0] * 6))
    assert found.mean().tolist() == pytest.approx([math.inf, math.inf, 6, 3, 2, 1])
    assert found.variance().tolist() == pytest.approx([math.inf] * 4 + [20, 2])


def test_beta_prime():
    for shape, tail, scale in ((1, 2.5, 3), (5, 40, 1e-9), (16, 2e3, 1e12)):
        y = scale * shape / tail * 10.0 ** np.arange(-6, 2, 0.5)
        one = BetaPrime(*(tensor([value]) for value in (shape, tail, scale)))
        exact = stats.betaprime(shape, tail, scale=scale)
        close(one.log_density(tensor(y)), exact.logpdf(y), atol=1e-9, rtol=1e-12)
        close(one.cdf(tensor(y)), exact.cdf(y), atol=1e-14, rtol=1e-12)
        close(one.evaluate(tensor(y), one.table())[1], exact.pdf(y), atol=1e-300, rtol=1e-10)
        close(one.mean(), exact.mean(), atol=0, rtol=1e-13)
        close(one.variance(), exact.var(), atol=0, rtol=1e-12)
        peak = scale * (shape - 1) / (tail + 1)
        height = tail / scale if shape == 1 else exact.pdf(peak)
        close(one.width(), 1 / (math.sqrt(2 * math.pi) * height), atol=0, rtol=1e-11)
        assert one.log_density(tensor([0.0, -1e-9, -math.inf])).tolist() == [-math.inf] * 3
        assert one.cdf(tensor([0.0, -1.0, math.inf])).tolist() == [0, 0, 1]
    heavy = BetaPrime(tensor([4.0, 4.0]), tensor([1.0, 2.0]), tensor([3.0, 3.0]))
    assert heavy.mean().tolist() == [math.inf, 12]
    assert heavy.variance().tolist() == [math.inf] * 2


# --- moments and draws of a mixture ---------------------------------------------------------------


def mixture(family, weight, *parameters) -> Mixture:
    """One stream, one output."""
    return Mixture(tensor([weight]).log(), family(*(tensor([p]).unsqueeze(-1) for p in parameters)))


def test_moments_of_several_outputs():
    """Correlated only through the component."""
    loc = tensor([[[0.0, 0.0], [4.0, -2.0], [9.0, 9.0]]])
    scale = tensor([[[1.0, 0.5], [0.5, 2.0], [1.0, 1.0]]])
    mix, y = Mixture(tensor([[0.3, 0.7, 0.0]]).log(), Normal(loc, scale)), np.array([0.5, 0.1])
    assert mix.mean().flatten().tolist() == pytest.approx([2.8, -1.4])
    between = np.outer([4, -2], [4, -2]) * 0.21
    within = np.diag([0.3 * 1 + 0.7 * 0.25, 0.3 * 0.25 + 0.7 * 4])
    close(mix.covariance()[0], between + within, atol=1e-14)
    parts = [stats.norm.pdf(y, loc[0, m], scale[0, m]).prod() for m in range(2)]
    expected = math.log(0.3 * parts[0] + 0.7 * parts[1])
    assert mix.log_prob(tensor([y])).item() == pytest.approx(expected, abs=1e-13)
    drawn = mix.sample(20_000, torch.Generator().manual_seed(4))[0]
    np.testing.assert_allclose(np.cov(drawn.T), mix.covariance()[0], atol=0.15)
    assert join(mix.components, mix.components).loc.shape == (1, 6, 2)


def test_a_variance_that_does_not_exist_is_infinite():
    for df in (0.8, 2.0):
        mix = mixture(StudentT, [0.5, 0.5], [df, 8.0], [0.0, 3.0], [1.0, 1.0])
        assert mix.covariance().item() == math.inf
        assert mix.mean().item() == pytest.approx(1.5)
        nowhere = mixture(StudentT, [0.0, 1.0], [df, 8.0], [0.0, 3.0], [1.0, 1.0])
        assert nowhere.covariance().item() == pytest.approx(8 / 6)
        both = Mixture(mix.log_weight, StudentT(*(p.expand(1, 2, 2) for p in mix.components)))
        assert both.covariance()[0, 0, 1].item() == pytest.approx(2.25)


@pytest.mark.parametrize("df", [[9.0, 1.5], [9.0, 12.0]])
def test_the_covariance_within_is_the_average_of_all(df):
    factor = tensor([[[[1.0, 0.0], [0.9, 0.3]], [[2.0, 0.0], [-1.5, 0.5]]]])
    dfs, loc = tensor([[[each] for each in df]]), tensor([[[0, 1.0]] * 2])
    correlated = MultivariateStudentT(dfs, loc, factor)
    chances = Categorical(tensor([[[0.2, 0.8], [0.6, 0.4]]]).log())
    log_weight = tensor([[0.3, 0.7]]).log()
    for components in (correlated, correlated.each_output(), chances):
        alone = [
            components.rebuilt(*(p[:, m : m + 1] for p in components.parameters())).within(CERTAIN)
            for m in range(2)
        ]
        whole = average(log_weight, torch.stack(alone, 1).flatten(2))
        found = components.within(log_weight)
        torch.testing.assert_close(found, whole.reshape(found.shape), atol=1e-15, rtol=1e-14)


SAMPLED = {
    "normal": mixture(Normal, [0.2, 0.8], [-3, 1], [0.5, 2.0]),
    "student": mixture(StudentT, [0.3, 0.7], [8.0, 9.0], [-2, 4], [1.0, 0.3]),
    "duration": mixture(Lomax, [0.4, 0.6], [8.0, 9.0], [1.0, 30.0]),
    "regular duration": mixture(BetaPrime, [0.4, 0.6], [2.0, 9.0], [8.0, 20.0], [1.0, 30.0]),
    "count": mixture(NegativeBinomial, [0.4, 0.6], [0.5, 9.0], [4.0, 20.0]),
    "binary": mixture(Bernoulli, [0.4, 0.6], [0.9, 0.2]),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_follow_the_distribution(name):
    mix, draws = SAMPLED[name], 20_000
    found = mix.sample(draws, torch.Generator().manual_seed(3))
    assert found.shape == (1, draws, 1)
    assert torch.equal(found, mix.sample(draws, torch.Generator().manual_seed(3)))
    found, sd = found.flatten().numpy(), math.sqrt(mix.covariance().item())
    assert abs(found.mean() - mix.mean().item()) < 4 * sd / math.sqrt(draws)
    assert found.var() == pytest.approx(sd**2, rel=0.06)
    values = np.unique(found)
    expected = mix.cdf(tensor(values).unsqueeze(-1)).flatten().numpy()
    seen = np.searchsorted(np.sort(found), values, side="right") / draws
    assert np.abs(seen - expected).max() < 1.95 / math.sqrt(draws)  # Kolmogorov, p = 0.001


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("multivariate-2", MultivariateStudentT),
        ("alpaca-mixture-unknown-2", Choice),
        ("joint-2", Either),
        ("averaged-2", None),
    ],
)
def test_moments_and_marginals_of_a_component_are_those_of_its_draws(name, kind):
    state = run(case(name), [series(case(name), 1, 14)], 5)[-1].state
    phi = case(name).model.encode(tensor([[0.3, -0.2]]), state.context)
    each = case(name).model.predictive(state.stats, phi)
    assert kind is None or isinstance(each, kind)
    best = state.belief.log_prob[0].argmax()
    one = each.rebuilt(*(p[:, best : best + 1] for p in each.parameters()))
    if kind is Either:  # weights and tails that draws can tell
        df = [torch.full_like(one.parameters()[k], 30.0) for k in (0, 5)]
        alone = one.alone._replace(parts=one.alone.parts._replace(df=df[0]))
        together = one.together._replace(df=df[1])
        choice = tensor([[[0.5, 0.25, 0.15, 0.1]]]).log()
        one = one._replace(alone=alone, together=together, log_choice=choice)
    many = one.rebuilt(*(p.expand(-1, 100_000, *p.shape[2:]) for p in one.parameters()))
    drawn = many.sample(torch.Generator().manual_seed(0))[0]
    variance, mean = one.variance()[0, 0], one.mean()[0, 0]
    middle = drawn.median(0).values
    below = (drawn <= middle).double().mean(0)
    assert ((one.cdf(middle[None, None])[0, 0] - below).abs() < 0.008).all()
    if variance.isfinite().all() and kind is not None:
        spread = variance.sqrt()
        assert ((drawn.mean(0) - mean).abs() < 0.02 * spread).all()
        error = (drawn.T.cov() - one.covariance()[0, 0]).abs() / (spread[:, None] * spread)
        assert (error < 0.1).all()
        close(one.covariance()[0, 0].diagonal(), variance, 0, 1e-12)
    # Bayes: the joint density integrates to that of the first output over the second.
    width = (drawn[:, 1].quantile(0.75) - drawn[:, 1].quantile(0.25)).item()
    u = torch.linspace(-22, 22, 1_001, dtype=torch.float64)
    grid = middle[1] + width * torch.sinh(u)
    points = torch.stack((middle[0].expand_as(grid), grid), -1)
    wide = one.rebuilt(*(p.expand(len(u), *p.shape[1:]) for p in one.parameters()))
    joint = wide.joint_log_density(points[:, None])[:, 0].exp() * width * torch.cosh(u)
    alone = one.log_density(middle[None, None])[0, 0, 0].exp()
    assert torch.trapezoid(joint, u).item() == pytest.approx(alone.item(), rel=1e-6)


# --- quantiles ------------------------------------------------------------------------------------


def at(mix: Mixture, values: torch.Tensor) -> torch.Tensor:
    """CDF of each stream at its values (B, Q, d)."""
    return torch.stack([mix.cdf(values[:, i]) for i in range(values.shape[1])], 1)


def assert_quantiles(mix: Mixture, levels: torch.Tensor = LEVELS) -> None:
    """Ordered, and no neighbouring number is a better answer."""
    found, goal = mix.quantile(levels), levels.reshape(1, -1, 1)
    assert torch.isfinite(found).all()
    assert (found.diff(dim=1) >= 0).all()
    inf = torch.full_like(found, math.inf)
    below, above = (at(mix, torch.nextafter(found, to)) for to in (-inf, inf))
    tolerance = 1e-10 + 1e-7 * torch.minimum(goal, 1 - goal)
    assert (below <= goal + tolerance).all()
    assert (above >= goal - tolerance).all()


def random_mixture(family: str, scale: float, offset: float, seed: int = 0) -> Mixture:
    """Twenty streams of ten components around an offset."""
    generator = torch.Generator().manual_seed(seed)
    shape, options = (20, 10, 1), {"generator": generator, "dtype": torch.float64}
    weight = torch.log_softmax(3 * torch.randn(20, 10, **options), -1)
    loc = offset + 3 * scale * torch.randn(shape, **options)
    spread = scale * (0.05 + torch.rand(shape, **options))
    if family == "normal":
        return Mixture(weight, Normal(loc, spread))
    lowest = {"student": 2.05, "heavy": 1.0}[family]
    return Mixture(weight, StudentT(lowest + 8 * torch.rand(shape, **options), loc, spread))


@pytest.mark.parametrize("family", ["normal", "student", "heavy"])
def test_quantiles_of_any_scale(family):
    for scale, offset in ((1e-12, 0.0), (1e-6, 1e9), (1.0, 0.0), (1.0, 1e9), (1e12, 0.0)):
        assert_quantiles(random_mixture(family, scale, offset))
    mix = random_mixture(family, 2.0, 1.0, seed=1)
    assert (at(mix, mix.quantile(LEVELS)) - LEVELS.reshape(1, -1, 1)).abs().max() < 1e-12


SHAPES = {
    "bimodal": mixture(Normal, [0.5, 0.5], [-5, 5], [0.1, 0.1]),
    "far apart": mixture(Normal, [0.4, 0.6], [0, 1e9], [1e-3, 1e3]),
    "narrow in wide": mixture(Normal, [0.9, 0.1], [0, 0], [1e-6, 1e3]),
    "outlier": mixture(StudentT, [0.99, 0.01], [40.0, 4.0], [0.3, 0], [1e-6, 3]),
    "skewed": mixture(StudentT, [0.9, 0.1], [4, 4], [0, 1e6], [1e-3, 1e5]),
    "empty slot": mixture(Normal, [1, 0], [1, -1e300], [1, 1e-300]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_quantiles_of_any_shape(name):
    assert_quantiles(SHAPES[name])


def test_quantiles_to_their_own_precision():
    found = SHAPES["narrow in wide"].quantile(tensor([0.4, 0.5, 0.6])).flatten()
    expected = 1e-6 * stats.norm.ppf((np.array([0.4, 0.5, 0.6]) - 0.05) / 0.9)
    close(found, expected, atol=1e-12)
    heavy = mixture(StudentT, [1.0], [1.2], [7.0], [1e9])
    close(heavy.quantile(LEVELS).flatten(), stats.t.ppf(LEVELS.numpy(), 1.2, 7, 1e9), 0, 1e-7)
    far = tensor([1e-12, 1e-9, 1e-4, 0.05, 0.5, 0.95, 1 - 1e-4, 1 - 1e-9, 1 - 1e-12])
    for shape in (1.001, 2.5, 2e4):  # of durations, however near zero or far out
        found = mixture(Lomax, [1.0], [shape], [3.0]).quantile(far).flatten()
        expected = 3.0 * np.expm1(-np.log1p(-far.numpy()) / shape)
        close(found[:-1], expected[:-1], atol=0, rtol=2e-6)
        # The level itself is off by 1e-4 of what is left.
        close(found[-1], expected[-1], atol=0, rtol=3e-3)
    for shape, tail in ((1.0, 2.5), (4.0, 30.0), (16.0, 2e4)):
        found = mixture(BetaPrime, [1.0], [shape], [tail], [3.0]).quantile(far).flatten()
        expected = stats.betaprime.ppf(far.numpy(), shape, tail, scale=3.0)
        # Near zero the distribution function is 1 less what is beyond, to 1e-16.
        close(found[0], expected[0], atol=0, rtol=1e-3)
        close(found[1:-1], expected[1:-1], atol=0, rtol=2e-6)
        close(found[-1], expected[-1], atol=0, rtol=3e-3)


@pytest.mark.parametrize("mean", [0.05, 3.0, 700.0, 1e6])
def test_a_count_quantile_is_the_smallest_count_that_reaches_the_level(mean):
    rng, levels = np.random.default_rng(0), tensor([1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999])
    weight, rate, shape = (
        rng.dirichlet(np.ones(4)),
        mean * np.exp(rng.normal(size=4)),
        [0.1, 2, 9, 50],
    )
    mix, goal = mixture(NegativeBinomial, weight, shape, rate), levels.reshape(1, -1, 1)
    found = mix.quantile(levels)
    assert torch.equal(found, found.round())
    assert (at(mix, found) >= goal - 1e-12).all()
    assert (at(mix, found - 1) < goal).all()
    blend = Blend(
        NegativeBinomial(*(p.reshape(1, 1, 1, 4) for p in mix.components)),
        mix.log_weight.reshape(1, 1, 1, 4),
    )
    assert torch.equal(Mixture(tensor([[0.0]]), blend).quantile(levels), found)


def test_a_level_that_a_count_meets_exactly():
    geometric = mixture(NegativeBinomial, [1.0], [1.0], [1.0])
    assert geometric.quantile(tensor([0.5, 0.75, 0.750001])).flatten().tolist() == [0, 1, 2]
    for parts in (
        2,
        3,
        7,
        10,
        13,
        23,
        29,
        39,
    ):  # whose sum may end a rounding error below the level
        mix = mixture(Bernoulli, [1 / parts] * parts, [0.3] * parts)
        assert mix.quantile(tensor([0.7])).item() == 0
    two = mixture(Bernoulli, [0.5, 0.5], [0.2, 0.4])
    assert two.quantile(tensor([0.1, 0.7, 0.71, 0.99])).flatten().tolist() == [0, 0, 1, 1]
    for rate in (1e15, 1e20):  # they end whatever they are given
        huge = mixture(NegativeBinomial, [1.0], [3.0], [rate])
        expected = stats.gamma.ppf(0.5, 3.0, scale=rate / 3)
        assert huge.quantile(tensor([0.5])).item() == pytest.approx(expected, rel=1e-5)
    nothing = mixture(NegativeBinomial, [1.0], [math.nan], [3.0])
    assert not torch.isfinite(nothing.quantile(tensor([0.5]))).any()


@pytest.mark.parametrize("name", ["gaussian-3", "multivariate-2", "averaged-2"])
def test_of_many_outputs_what_has_no_weight_is_left_out(monkeypatch, name):
    """Quantiles and cdf are those of all components, and no row depends on another."""
    one = case(name)
    batch = [series(one, seed, 40, hazard=0.01) for seed in range(2)]
    mixture = run(one, batch, 30)[-1].info.predictive
    levels, y = tensor([1e-3, 0.5, 0.95]), tensor([batch[0].y[3], batch[1].y[5]])
    whole = mixture.quantile(levels, 1e-6), mixture.cdf(y)
    monkeypatch.setattr(predictive, "LARGE", 20)
    found = mixture.quantile(levels, 1e-6), mixture.cdf(y)
    torch.testing.assert_close(found, whole, atol=1e-11, rtol=1e-11)
    parts = (p[:1] for p in mixture.components.parameters())
    first = Mixture(mixture.log_weight[:1], mixture.components.rebuilt(*parts))
    assert torch.equal(first.quantile(levels, 1e-6), found[0][:1])
