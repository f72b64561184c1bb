"""The mixture that answers are read off: moments, distribution, quantiles and draws."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from model_core.components import (
    Bernoulli,
    Blend,
    Categorical,
    Lomax,
    MultivariateStudentT,
    NegativeBinomial,
    Normal,
    StudentT,
    join,
)
from model_core.predictive import Mixture
from tests.model_core.cases import tensor

LEVELS = tensor([1e-6, 0.001, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999, 1 - 1e-6])


def mixture(family, weight, *parameters) -> Mixture:
    """One stream, one output."""
    return Mixture(tensor([weight]).log(), family(*(tensor([p]).unsqueeze(-1) for p in parameters)))


def at(mix: Mixture, values: torch.Tensor) -> torch.Tensor:
    """CDF of each stream at its values (B, Q, d)."""
    return torch.stack([mix.cdf(values[:, i]) for i in range(values.shape[1])], 1)


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


SHAPES = {
    "bimodal": mixture(Normal, [0.5, 0.5], [-5, 5], [0.1, 0.1]),
    "far apart": mixture(Normal, [0.4, 0.6], [0, 1e9], [1e-3, 1e3]),
    "narrow in wide": mixture(Normal, [0.9, 0.1], [0, 0], [1e-6, 1e3]),
    "outlier": mixture(StudentT, [0.99, 0.01], [40.0, 4.0], [0.3, 0], [1e-6, 3]),
    "skewed": mixture(StudentT, [0.9, 0.1], [4, 4], [0, 1e6], [1e-3, 1e5]),
    "empty slot": mixture(Normal, [1, 0], [1, -1e300], [1, 1e-300]),
}


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


@pytest.mark.parametrize("family", ["normal", "student", "heavy"])
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e12])
@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_quantiles_of_any_scale(family, scale, offset):
    assert_quantiles(random_mixture(family, scale, offset))


@pytest.mark.parametrize("shape", SHAPES)
def test_quantiles_of_any_shape(shape):
    assert_quantiles(SHAPES[shape])


def test_a_narrow_mode_is_found_to_its_own_precision():
    found = SHAPES["narrow in wide"].quantile(tensor([0.4, 0.5, 0.6])).flatten()
    expected = 1e-6 * stats.norm.ppf((np.array([0.4, 0.5, 0.6]) - 0.05) / 0.9)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_quantiles_of_one_component():
    heavy = mixture(StudentT, [1.0], [1.2], [7.0], [1e9])
    expected = stats.t.ppf(LEVELS.numpy(), 1.2, 7, 1e9)
    np.testing.assert_allclose(heavy.quantile(LEVELS).flatten(), expected, rtol=1e-7)


def test_a_cdf_of_quantiles_is_the_level():
    for family in ("normal", "student", "heavy"):
        mix = random_mixture(family, 2.0, 1.0, seed=1)
        error = (at(mix, mix.quantile(LEVELS)) - LEVELS.reshape(1, -1, 1)).abs()
        assert error.max() < 1e-12


FAR = tensor([1e-12, 1e-9, 1e-4, 0.05, 0.5, 0.95, 1 - 1e-4, 1 - 1e-9, 1 - 1e-12])


@pytest.mark.parametrize("shape", [1.001, 1.1, 2.5, 30.0, 2e4])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_quantiles_of_a_duration(shape, scale):
    """Exact to the square of the last Newton step, however near zero or far out."""
    found = mixture(Lomax, [1.0], [shape], [scale]).quantile(FAR).flatten().numpy()
    # At a level of 1 - 1e-12 the level itself is off by 1e-4 of what is left.
    expected = scale * np.expm1(-np.log1p(-FAR.numpy()) / shape)
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=2e-6)
    np.testing.assert_allclose(found[-1], expected[-1], rtol=3e-3)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_quantiles_of_mixed_durations(scale):
    rng = np.random.default_rng(0)
    weight = tensor(rng.dirichlet(np.ones(8), 20)).log()
    shape = tensor(2.1 + rng.exponential(30, (20, 8, 1)))
    parts = Lomax(shape, shape * tensor(scale * 10 ** rng.uniform(-3, 3, (20, 8, 1))))
    assert_quantiles(Mixture(weight, parts))
    assert (Mixture(weight, parts).quantile(FAR) > 0).all()


def test_a_quantile_of_durations_close_to_zero_is_as_exact_as_others():
    """There the slope of what is solved has no bound, and a step of any length is short."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 5):
        weight = tensor(rng.dirichlet(np.ones(size), 500)).log()
        shape = tensor(1.001 + rng.exponential(10, (500, size, 1)))
        parts = Lomax(shape, shape * tensor(np.exp(rng.normal(size=(500, size, 1)))))
        mix = Mixture(weight, parts)
        error = (at(mix, mix.quantile(LEVELS)) - LEVELS.reshape(1, -1, 1)).abs()
        assert error.max() < 1e-10


def test_quantiles_of_correlated_outputs_are_those_of_each_alone():
    rng = np.random.default_rng(0)
    weight, df = tensor(rng.dirichlet(np.ones(6), 10)).log(), tensor(rng.uniform(2, 9, (10, 6, 1)))
    factor = tensor(np.tril(rng.normal(size=(10, 6, 3, 3)) + 2 * np.eye(3)))
    factor = factor * tensor([1e-6, 1.0, 1e6]).unsqueeze(-1)
    joint = MultivariateStudentT(df, tensor(5 * rng.normal(size=(10, 6, 3))), factor)
    together, alone = Mixture(weight, joint), Mixture(weight, joint.alone())
    assert_quantiles(together)
    assert torch.equal(together.quantile(LEVELS), alone.quantile(LEVELS))


def count_mixtures() -> list[Mixture]:
    rng = np.random.default_rng(0)
    found = []
    for mean in (0.05, 3.0, 40.0, 700.0, 2000.0, 1e6):
        weight = rng.dirichlet(np.ones(4))
        rate = mean * np.exp(rng.normal(size=4))
        found.append(mixture(NegativeBinomial, weight, rng.uniform(0.1, 50, 4), rate))
    return found


@pytest.mark.parametrize("mix", count_mixtures(), ids=lambda m: f"{m.mean().item():.3g}")
def test_a_count_quantile_is_the_smallest_count_that_reaches_the_level(mix):
    levels = tensor([1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999])
    found, goal = mix.quantile(levels), levels.reshape(1, -1, 1)
    assert torch.equal(found, found.round())
    assert (at(mix, found) >= goal - 1e-12).all()
    assert (at(mix, found - 1) < goal).all()
    weight, (shape, rate) = mix.log_weight.exp().numpy()[0], mix.components.parameters()
    frozen = stats.nbinom(shape[0, :, 0].numpy(), (shape / (shape + rate))[0, :, 0].numpy())
    counts = found.flatten().numpy()[:, None]
    assert (frozen.cdf(counts) @ weight >= levels.numpy() - 5e-6).all()
    assert (frozen.cdf(counts - 1) @ weight <= levels.numpy() + 5e-6).all()


def test_quantiles_of_a_blend_are_those_of_its_parts():
    """Two hypotheses of three negative binomials are a mixture of six."""
    rng = np.random.default_rng(3)
    shape, rate = rng.uniform(0.5, 9, 6), 10 ** rng.uniform(-1, 4, 6)
    weight, share = [0.3, 0.7], rng.dirichlet(np.ones(3), 2)
    parts = [tensor(each.reshape(1, 2, 1, 3)) for each in (shape, rate, np.log(share))]
    blended = Mixture(tensor([weight]).log(), Blend(NegativeBinomial(*parts[:2]), parts[2]))
    whole = (np.array(weight)[:, None] * share).ravel()
    flat = mixture(NegativeBinomial, whole, shape, rate)
    assert torch.equal(blended.quantile(LEVELS[1:-1]), flat.quantile(LEVELS[1:-1]))
    found = blended.quantile(LEVELS[1:-1])
    assert (at(blended, found) >= LEVELS[1:-1].reshape(1, -1, 1) - 1e-12).all()
    assert (at(blended, found - 1) < LEVELS[1:-1].reshape(1, -1, 1)).all()
    for value in (0.0, 7.0, 3000.0):
        y = tensor([[value]])
        assert blended.log_prob(y).item() == pytest.approx(flat.log_prob(y).item(), abs=1e-12)


def test_a_level_that_a_count_meets_exactly():
    geometric = mixture(NegativeBinomial, [1.0], [1.0], [1.0])
    assert geometric.quantile(tensor([0.5, 0.75, 0.750001])).flatten().tolist() == [0, 1, 2]
    for parts in range(2, 40):  # whose sum may end a rounding error below the level
        mix = mixture(Bernoulli, [1 / parts] * parts, [0.3] * parts)
        assert mix.quantile(tensor([0.7])).item() == 0


def test_count_quantiles_end_whatever_they_are_given():
    for rate in (1e15, 1e20):
        huge = mixture(NegativeBinomial, [1.0], [3.0], [rate])
        expected = stats.gamma.ppf(0.5, 3.0, scale=rate / 3)
        assert huge.quantile(tensor([0.5])).item() == pytest.approx(expected, rel=1e-5)
    nothing = mixture(NegativeBinomial, [1.0], [math.nan], [3.0])
    assert not torch.isfinite(nothing.quantile(tensor([0.5]))).any()


def test_binary_quantiles():
    mix = mixture(Bernoulli, [0.5, 0.5], [0.2, 0.4])
    assert mix.quantile(tensor([0.1, 0.7, 0.71, 0.99])).flatten().tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["bimodal", "skewed", "empty slot"])
def test_a_density_integrates_to_one(name):
    mix = SHAPES[name]
    parts = mix.components
    # In units of each component, on a grid that is fine near its centre and reaches far.
    grid = torch.sinh(torch.linspace(-30, 30, 6001, dtype=torch.float64))
    knots = torch.cat([a + b * grid for a, b in zip(parts.loc[0], parts.scale[0], strict=True)])
    knots = knots.sort().values.unsqueeze(-1)
    spread = Mixture(mix.log_weight.expand(len(knots), -1), parts)
    density = spread.log_prob(knots).exp().numpy()
    assert integrate.trapezoid(density, knots[:, 0].numpy()) == pytest.approx(1, abs=1e-4)


def test_masses_sum_to_one():
    mix = mixture(NegativeBinomial, [0.3, 0.7], [0.5, 4.0], [3.0, 20.0])
    total = sum(mix.log_prob(tensor([[k]])).exp().item() for k in range(600))
    assert total == pytest.approx(1, abs=1e-12)
    binary = mixture(Bernoulli, [0.3, 0.7], [0.5, 0.9])
    assert sum(binary.log_prob(tensor([[k]])).exp().item() for k in (0, 1)) == pytest.approx(1)


def two_outputs() -> Mixture:
    """Correlated only through the component."""
    loc = tensor([[[0.0, 0.0], [4.0, -2.0], [9.0, 9.0]]])
    scale = tensor([[[1.0, 0.5], [0.5, 2.0], [1.0, 1.0]]])
    return Mixture(tensor([[0.3, 0.7, 0.0]]).log(), Normal(loc, scale))


def test_moments_of_several_outputs():
    mix = two_outputs()
    assert mix.mean().flatten().tolist() == pytest.approx([2.8, -1.4])
    between = np.outer([4, -2], [4, -2]) * 0.21
    within = np.diag([0.3 * 1 + 0.7 * 0.25, 0.3 * 0.25 + 0.7 * 4])
    np.testing.assert_allclose(mix.covariance()[0].numpy(), between + within, atol=1e-14)
    y = np.array([0.5, 0.1])
    parts = [
        stats.norm.pdf(y, mix.components.loc[0, m], mix.components.scale[0, m]).prod()
        for m in range(2)
    ]
    expected = math.log(0.3 * parts[0] + 0.7 * parts[1])
    assert mix.log_prob(tensor([y])).item() == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("df", [0.8, 2.0])
def test_a_variance_that_does_not_exist_is_infinite(df):
    mix = mixture(StudentT, [0.5, 0.5], [df, 8.0], [0.0, 3.0], [1.0, 1.0])
    assert mix.covariance().item() == math.inf
    assert mix.mean().item() == pytest.approx(1.5)
    nowhere = mixture(StudentT, [0.0, 1.0], [df, 8.0], [0.0, 3.0], [1.0, 1.0])
    assert nowhere.covariance().item() == pytest.approx(8 / 6)
    both = Mixture(mix.log_weight, StudentT(*(p.expand(1, 2, 2) for p in mix.components)))
    assert both.covariance()[0, 0, 1].item() == pytest.approx(2.25)
    assert not torch.isnan(both.covariance()).any()


SAMPLED = {
    "normal": mixture(Normal, [0.2, 0.8], [-3, 1], [0.5, 2.0]),
    "student": mixture(StudentT, [0.3, 0.7], [8.0, 9.0], [-2, 4], [1.0, 0.3]),
    "duration": mixture(Lomax, [0.4, 0.6], [8.0, 9.0], [1.0, 30.0]),
    "count": mixture(NegativeBinomial, [0.4, 0.6], [0.5, 9.0], [4.0, 20.0]),
    "binary": mixture(Bernoulli, [0.4, 0.6], [0.9, 0.2]),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_follow_the_distribution(name):
    mix, draws = SAMPLED[name], 20_000
    found = mix.sample(draws, torch.Generator().manual_seed(3))
    assert found.shape == (1, draws, 1)
    assert torch.equal(found, mix.sample(draws, torch.Generator().manual_seed(3)))
    found = found.flatten().numpy()
    sd = math.sqrt(mix.covariance().item())
    assert abs(found.mean() - mix.mean().item()) < 4 * sd / math.sqrt(draws)
    assert found.var() == pytest.approx(sd**2, rel=0.06)
    values = np.unique(found)
    expected = mix.cdf(tensor(values).unsqueeze(-1)).flatten().numpy()
    seen = np.searchsorted(np.sort(found), values, side="right") / draws
    assert np.abs(seen - expected).max() < 1.95 / math.sqrt(draws)  # Kolmogorov, p = 0.001


def test_outputs_of_one_draw_share_the_component():
    mix, draws = two_outputs(), 20_000
    found = mix.sample(draws, torch.Generator().manual_seed(4))[0].numpy()
    assert found.shape == (draws, 2)
    np.testing.assert_allclose(np.cov(found.T), mix.covariance()[0].numpy(), atol=0.15)
    np.testing.assert_allclose(found.mean(0), mix.mean()[0].numpy(), atol=0.06)


def test_draws_of_correlated_outputs_follow_the_moments():
    factor = tensor([[[[1.0, 0.0], [0.9, 0.3]], [[2.0, 0.0], [-1.5, 0.5]]]])
    parts = MultivariateStudentT(tensor([[[9.0], [12.0]]]), tensor([[[0, 1], [3.0, -2]]]), factor)
    mix, draws = Mixture(tensor([[0.3, 0.7]]).log(), parts), 40_000
    found = mix.sample(draws, torch.Generator().manual_seed(5))[0].numpy()
    np.testing.assert_allclose(np.cov(found.T), mix.covariance()[0].numpy(), rtol=0.05)
    np.testing.assert_allclose(found.mean(0), mix.mean()[0].numpy(), atol=0.06)
    with pytest.raises(ValueError, match="no order"):
        Mixture(mix.log_weight, Categorical(tensor([[[0.0], [0.0]]]))).quantile(LEVELS)


def test_join_puts_components_side_by_side():
    first, second = SHAPES["bimodal"].components, SHAPES["far apart"].components
    assert join(first, second).loc.flatten().tolist() == [-5, 5, 0, 1e9]
