"""Conjugate models: variances of their priors; counts that jump."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from model_core.explanation import RULES
from model_core.stream.detector import Detector
from model_core.upm.builtin import BUILTIN, Options, build
from model_core.upm.conjugate import Poisson
from model_core.upm.gamma import Gamma
from tests.model_core.cases import of_labels, walk
from tests.model_core.registry import Case, case, tensor


def test_priors_have_a_variance():
    """With the parameters that a stream gets, of any location and scale."""
    for name in ("gaussian", "multivariate", "exponential", "gamma", "poisson"):
        model = build(name, Options(y_dim=2))
        for size in (1e-6, 1.0, 1e6):
            given = [tensor([[size] * model.y_dim])] * 2
            prior, phi = model.prior(*given), model.encode(None, model.context(*given))
            for each in (model.predictive(prior, phi), model.outlier(prior, phi)):
                assert np.isfinite(each.variance().numpy()).all()


AT = 60  # of the jump


def changed(y, location: float, hazard: float = 0.01):
    """Probability after each count that the regime began at the jump or later; last mixture."""
    one = Case("", Poisson(), np.array([location]), np.ones(1), None, None)
    stream, found = of_labels(np.array(y, dtype=float)[:, None], None, hazard, 0.01), []
    for t, step in enumerate(walk(one.model, one.prior(), [stream], 30)):
        late = t - step.state.belief.run_length >= AT
        found.append(step.state.belief.log_prob.exp()[late].sum().item())
    return found, step.info.predictive


@pytest.mark.parametrize(("before", "after"), [(0.5, 50), (0.5, 5000), (3, 120), (50, 0.5)])
def test_a_lasting_jump_is_found_whatever_its_factor(before, after):
    rng = np.random.default_rng(0)
    found, mixture = changed([*rng.poisson(before, AT), *rng.poisson(after, 15)], before)
    assert max(found[:AT]) == 0
    assert min(found[AT + 1 :]) > 0.9
    assert mixture.quantile(tensor([0.5])).item() == pytest.approx(after, rel=0.3, abs=1)


@pytest.mark.parametrize(("rate", "factor"), [(0.5, 1000), (5, 10), (50, 100)])
def test_single_outliers_are_no_change(rate, factor):
    y = np.random.default_rng(1).poisson(rate, AT + 15)
    y[AT] = rate * factor
    found, _ = changed(y, rate)
    assert max(found) < 0.9
    assert found[-1] < 0.2


def test_forecasts_of_a_steady_rate_hardly_know_of_rates_far_off():
    _, mixture = changed(np.random.default_rng(2).poisson(20.0, 300), 20.0, hazard=1 / 250)
    assert mixture.mean().item() == pytest.approx(20, rel=0.05)
    low, high = mixture.quantile(tensor([0.05, 0.95])).flatten().tolist()
    assert (low, high) == (pytest.approx(13, abs=1), pytest.approx(28, abs=1))


def test_shares_of_the_gammas_survive_any_number_of_counts():
    """They sum to one, and tend to those of gammas that differ in nothing but their density."""
    one = case("poisson")
    model, prior = one.model, one.prior()
    for exposure, shape in ((0, 0.8), (1e-9, 0.8), (1e5, 1e17), (1e12, 1e3), (1e12, 1e24)):
        held = type(prior.stats)(*(tensor([[[each]]]) for each in (shape, exposure)))
        share = model.predictive(held, prior.context).log_weight[0, 0, 0].exp().numpy()
        assert share.sum() == pytest.approx(1, abs=1e-12)
        if exposure > 1 and shape / exposure < 1e12:
            start = model.shape / (np.array(model.factors) * one.location)
            limit = np.log(model.weights) + model.shape * np.log(start) - shape / exposure * start
            expected = np.exp(limit - np.logaddexp.reduce(limit))
            assert share == pytest.approx(expected, rel=1e-3, abs=1e-12)
    for location in (1e-99, 1e-9, 1e9, 1e11):
        found, mixture = changed([3, 0, 7, 1], location)
        assert np.isfinite(found).all()
        assert torch.isfinite(mixture.log_prob(tensor([[2.0]]))).all()
        assert torch.isfinite(mixture.quantile(tensor([0.5]))).all()


def test_the_shape_of_durations_is_learned_and_its_change_found():
    """Of one mean throughout; a shape between two of the grid is one of both."""
    rng = np.random.default_rng(3)
    durations = [*rng.gamma(1.0, 5.0, 100), *rng.gamma(12.0, 5.0 / 12, 100)]
    found = Detector("gamma").update_many(durations)
    assert found[99].changed_probability < 0.2
    starts = [e.start for e in (answer.event for answer in found) if e and e.state == "confirmed"]
    assert starts
    assert 95 <= starts[-1] <= 105
    blind = Detector("exponential").update_many(durations)
    assert not any(answer.event for answer in blind)
    model = Gamma()
    stats = model.prior(tensor([[5.0]]), tensor([[1.0]]))
    for y in durations[100:]:
        stats = model.update(stats, None, tensor([[y]]), tensor([[1.0]]))
    predictive = model.predictive(stats, tensor([[5.0]]))
    likely = predictive.log_weight.exp()[0, 0, 0]
    assert likely[3:].sum().item() > 0.99


def test_shapes_are_whole_numbers_of_the_sum():
    for shapes in ((0.5,), (1.5,), (32.0,)):
        with pytest.raises(ValueError, match="shapes"):
            Gamma(shapes=shapes)


def test_equations_beside_a_class_are_bound_before_anybody_imports_it():
    code = "from model_core.tensor_ops import maths; print(maths('model_core.upm.gamma').mean)"
    command = [sys.executable, "-c", code]
    assert "function mean" in subprocess.run(command, capture_output=True, text=True).stdout


def test_all_models_are_explained_by_their_kind_of_label():
    assert {entry.build(entry.example).label for entry in BUILTIN.values()} == RULES.keys()
