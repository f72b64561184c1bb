"""Labels to come: exact marginals against drawn paths, and paths against quadrature."""

import numpy as np
import pytest
import torch
from scipy import stats

from model_core import Detector
from model_core import filter as moca
from model_core.stream import forecasts
from model_core.upm.base import tree_map
from model_core.upm.builtin import BUILTIN, Options
from tests.model_core.cases import leaves

PATHS = 2000
RNG = np.random.default_rng(7)


def inputs(count: int, y=0.0, hazard: float = 0.1):
    ones = torch.ones(count, dtype=torch.float64)
    label = torch.full((count, 1), float(y), dtype=torch.float64)
    told = hazard * ones[:, None], ones, ones * torch.nan, 0 * ones
    return moca.Inputs(None, label, ones > 0, *told)


def filtered(name: str, labels, **options):
    """Model, state after the labels, prior."""
    model = BUILTIN[name].build(Options(**options))
    one = torch.ones(1, model.scaled, dtype=torch.float64)
    prior = moca.make_prior(model, 0.5 * one, one)
    state = moca.init(prior, 10)
    for y in labels:
        state, info = moca.step(model, state, prior, inputs(1, y))
        assert bool(info.ok)
    return model, state, prior


def drawn(model, state, prior, steps: int, count: int = PATHS, seed: int = 0):
    rows = forecasts.repeated(state, prior, count)
    generator = torch.Generator().manual_seed(seed)
    steps = forecasts.paths(model, rows, inputs(count), steps, generator)
    return torch.stack([labels for _, labels in steps], 1)


MARGINALS = [
    ("gaussian", [0.1, -0.4, 0.3, 3.0, 3.2]),
    ("poisson", [3.0, 4.0, 2.0, 9.0]),
    ("exponential", [0.5, 0.2, 3.0]),
    ("gamma", [0.5, 0.2, 3.0]),
]


@pytest.mark.parametrize(("name", "labels"), MARGINALS)
def test_paths_have_the_exact_marginals(name, labels):
    model, state, prior = filtered(name, labels)
    found = drawn(model, state, prior, 4)
    for step, mixture in enumerate(forecasts.mixtures(model, state, prior, inputs(1), 4)):
        values = found[:, step, 0]
        grid = torch.quantile(values, torch.linspace(0.02, 0.98, 25, dtype=torch.float64)).unique()
        expected = [float(mixture.cdf(torch.full((1, 1), float(v)))) for v in grid]
        share = [(values <= v).double().mean().item() for v in grid]
        # The largest deviation of an empirical distribution from its own: Kolmogorov's bound.
        assert np.abs(np.subtract(share, expected)).max() < stats.kstwobign.ppf(0.999) / PATHS**0.5


@pytest.mark.parametrize("name", ["autoregressive", "averaged"])
def test_the_second_label_of_a_path_is_the_integral_over_the_first(name):
    """E[y2] = E[E[y2 | y1]], by 400 quantiles of the first label."""
    rng = np.random.default_rng(0)
    labels = [0.0]
    for _ in range(25):
        labels.append(0.8 * labels[-1] + 0.3 * rng.standard_normal())
    model, state, prior = filtered(name, labels[1:])
    first = moca.step(model, state, prior, inputs(1))[1].predictive
    count = 400
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    points = first.quantile(levels)[0]
    rows = forecasts.repeated(state, prior, count)
    after, _ = moca.step(model, *rows, inputs(count)._replace(y=points))
    second = moca.step(model, after, rows[1], inputs(count))[1].predictive
    found = drawn(model, state, prior, 2)[:, 1, 0]
    # Medians: means of heavy tails converge slowly.
    middle = float(torch.median(found))
    below = second.cdf(torch.full((count, 1), middle, dtype=torch.float64)).mean()
    assert abs(float(below) - 0.5) < 4 * 0.5 / PATHS**0.5 + 1 / count


def test_a_seed_means_the_same_paths_and_what_feeds_back_has_no_exact_marginals():
    case = filtered("averaged", [0.1, 0.5, 0.2, 0.9])
    one, again, other = (drawn(*case, 3, 20, seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    with pytest.raises(ValueError, match="not exchangeable"):
        next(forecasts.mixtures(*case, inputs(1), 2))


@pytest.mark.parametrize("name", ["averaged", "poisson"])
def test_a_seed_means_the_same_paths_whatever_slots_hypotheses_are_in(name):
    model, state, prior = filtered(name, [3.0, 1.0, 4.0, 1.0, 5.0])
    slots = state.belief.log_prob.shape[1]
    turned = torch.randperm(slots, generator=torch.Generator().manual_seed(3))
    per_slot = {id(each) for each in (*state.belief, state.totals_at_start, *state.stats)}
    other = tree_map(lambda leaf: leaf[:, turned] if id(leaf) in per_slot else leaf, state)
    expected = drawn(model, state, prior, 4, 20)
    assert torch.equal(drawn(model, other, prior, 4, 20), expected)


def test_the_first_marginal_is_the_next_predictive_and_the_state_stays_as_it_is():
    model, state, prior = filtered("gaussian", [0.1, 0.5, 2.0])
    before = [each.clone() for each in leaves(state)]
    first, second = forecasts.mixtures(model, state, prior, inputs(1), 2)
    drawn(model, state, prior, 3, 5)
    assert all(map(torch.equal, before, leaves(state)))
    expected = moca.step(model, state, prior, inputs(1))[1].predictive
    assert torch.equal(first.mean(), expected.mean())
    # What is told of the first of them, supervision and time, is not told of the others.
    told = inputs(1)._replace(changepoint=torch.zeros(1).double(), elapsed=torch.full((1,), 9.0))
    _, later = forecasts.mixtures(model, state, prior, told, 2)
    certain, _ = moca.step(model, state, prior, told._replace(labelled=torch.tensor([False])))
    expected = moca.step(model, certain, prior, inputs(1))[1].predictive
    assert torch.equal(later.mean(), expected.mean())


@pytest.mark.parametrize(
    ("name", "outputs", "regimes"),
    [("averaged", 1, 0), ("averaged", 1, 4), ("joint", 2, 0), ("joint", 2, 4)],
)
def test_paths_are_stepped_by_a_kernel_as_by_the_filter(name, outputs, regimes, monkeypatch):
    """Whatever slots the hypotheses are in."""
    detector = Detector(name, regimes=regimes)
    levels = np.repeat([0.0, 6.0, 0.0], 40)[:, None]
    detector.update_many((levels + RNG.normal(size=(120, outputs))).squeeze().tolist())
    pipeline = detector._all.pipeline
    slab, row = pipeline.slab, pipeline.series[0].row
    coming = pipeline.coming(16)
    rows = forecasts.repeated(slab.state(row), slab.prior(row), 16)
    generator = torch.Generator().manual_seed(1)
    steps = forecasts.paths(pipeline.model, rows, coming, 6, generator)
    expected = torch.stack([labels for _, labels in steps], 1)
    own = slab.row(row)
    slots = RNG.permutation(slab.layout.slots)
    own.lines[:, : len(slots)] = own.lines[:, slots]
    slab.put(row, own)
    monkeypatch.setattr(forecasts, "moved", lambda labels, _: labels)
    assert slab.in_series
    _, paths = forecasts.drawn(slab, row, coming, np.zeros((6, outputs)), [0.5], 1)
    torch.testing.assert_close(paths, expected, rtol=1e-9, atol=1e-9)
