"""Counts that jump by a large factor and stay: found, and forecasts hardly pay for it."""

import math

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core.upm.conjugate import Poisson
from model_core.upm.mixed_poisson import MixedPoisson
from tests.model_core.cases import mixed_poisson, tensor

AT = 60  # of the jump


def changed(model, y, location, hazard=0.01):
    """Probability after each count that the regime began at the jump or later; the last mixture."""
    one = tensor([1.0])
    prior = moca.make_prior(model, tensor([[location]]), tensor([[1.0]]))
    state, found = moca.init(prior, 50), []
    for t, count in enumerate(y):
        there, told = torch.tensor([True]), (tensor([[hazard]]), one, math.nan * one)
        inputs = moca.Inputs(None, tensor([[float(count)]]), there, *told, 0.01 * one)
        state, info = moca.step(model, state, prior, inputs)
        belief = state.belief
        late = t - belief.run_length >= AT
        found.append(belief.log_prob.exp()[late].sum().item())
    return found, info.predictive


def jump(before, after):
    rng = np.random.default_rng(0)
    return [*rng.poisson(before, AT), *rng.poisson(after, 15)]


@pytest.mark.parametrize(
    ("before", "after"),
    [(0.5, 50), (0.5, 500), (0.5, 5000), (5, 500), (3, 120), (500, 5), (50, 0.5)],
)
def test_a_lasting_jump_is_found_whatever_its_factor(before, after):
    found, mixture = changed(MixedPoisson(), jump(before, after), before)
    assert max(found[:AT]) == 0
    assert min(found[AT + 1 :]) > 0.9
    assert mixture.quantile(tensor([0.5])).item() == pytest.approx(after, rel=0.3, abs=1)


def test_version_one_explains_it_as_outliers():
    found, mixture = changed(Poisson(), jump(0.5, 50), 0.5)
    assert max(found) < 0.9
    assert mixture.quantile(tensor([0.5])).item() < 5


@pytest.mark.parametrize("factor", [10, 100, 1000])
@pytest.mark.parametrize("rate", [0.5, 5, 50])
def test_single_outliers_are_no_change(rate, factor):
    y = np.random.default_rng(1).poisson(rate, AT + 15)
    y[AT] = rate * factor
    found, _ = changed(MixedPoisson(), y, rate)
    assert max(found) < 0.9
    assert found[-1] < 0.2


def test_forecasts_of_a_steady_rate_hardly_know_of_rates_far_off():
    rng = np.random.default_rng(2)
    _, mixture = changed(MixedPoisson(), rng.poisson(20.0, 400), 20.0, hazard=1 / 250)
    assert mixture.mean().item() == pytest.approx(20, rel=0.05)
    low, high = mixture.quantile(tensor([0.05, 0.95])).flatten().tolist()
    assert (low, high) == (pytest.approx(13, abs=1), pytest.approx(28, abs=1))


def test_shares_of_the_gammas_survive_any_number_of_counts():
    """They sum to one, and tend to those of gammas that differ in nothing but their density."""
    case = mixed_poisson()
    model, prior = case.model, case.prior()
    for exposure, shape in ((0, 0.8), (1e-9, 0.8), (1e5, 1e17), (1e12, 1e3), (1e12, 1e24)):
        stats = type(prior.stats)(*(tensor([[[each]]]) for each in (shape, exposure)))
        share = model.predictive(stats, prior.context).log_weight[0, 0, 0].exp().numpy()
        assert share.sum() == pytest.approx(1, abs=1e-12)
        start = model.shape / (np.array(model.factors) * case.location)
        if exposure and shape / exposure < 1e12:
            limit = np.log(model.weights) + model.shape * np.log(start) - shape / exposure * start
            expected = np.exp(limit - np.logaddexp.reduce(limit))
            loose = exposure < 1  # not that many counts
            assert loose or share == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_a_location_of_any_size():
    for location in (1e-99, 1e-9, 1e9, 1e11):
        found, mixture = changed(MixedPoisson(), [3, 0, 7, 1], location)
        assert np.isfinite(found).all()
        assert torch.isfinite(mixture.log_prob(tensor([[2.0]]))).all()
        assert torch.isfinite(mixture.quantile(tensor([0.5]))).all()
