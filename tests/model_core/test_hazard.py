"""Hazards as tables: those of negative-binomial regimes, what is refused, and elapsed time."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from model_core import filter as moca
from model_core import hazard as hazards
from tests.model_core.cases import by_start, gaussian, inputs, run, series, tensor

MEANS, SHAPES = (1.5, 3, 20, 100, 1000, 10_000), (0.01, 0.5, 0.999, 1.001, 2, 5.5, 50, 1e3)
quick = settings(max_examples=50, deadline=None, derandomize=True)


def law(mean: float, shape: float):
    """Of the observations after a regime's first."""
    return stats.nbinom(shape, shape / (mean - 1 + shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", MEANS)
def test_negative_binomial_hazard_is_mass_over_survival(mean, shape):
    found = np.array(hazards.negative_binomial(mean, shape))
    run_length, after = np.arange(len(found)), law(mean, shape)
    mass, survival = after.pmf(run_length), after.sf(run_length - 1)
    exact = (survival > 1e-10) & (mass > 1e-200)  # scipy's own tails end somewhere
    assert exact.any()
    np.testing.assert_allclose(found[exact], (mass / survival)[exact], rtol=1e-9)


@pytest.mark.parametrize("shape", [*SHAPES, 1e6, 1e12])
@pytest.mark.parametrize("mean", MEANS)
def test_the_last_entry_is_exact_and_worth_keeping(mean, shape):
    found = hazards.negative_binomial(mean, shape)
    last = len(found) - 1
    with mpmath.workdps(40):
        k, m = mpmath.mpf(shape), mpmath.mpf(mean)
        limit = k / (m - 1 + k)
        exact = 1 / mpmath.hyp2f1(1, last + k, last + 1, 1 - limit)
    assert found[-1] == pytest.approx(float(exact), rel=1e-9)
    left = np.prod(1 - np.array(found))
    converged = abs(found[-1] / float(limit) - 1) <= hazards.NEGLIGIBLE
    assert left <= hazards.NEGLIGIBLE or converged or len(found) == hazards.LONGEST
    assert hazards.checked(found) == found


@pytest.mark.parametrize("mean", [2, 30, 700])
@pytest.mark.parametrize("shape", [0.3, 1, 4, 60])
def test_regimes_have_the_mean_and_spread_that_were_asked_for(mean, shape):
    """Longer regimes than the table keep its last hazard, which is seen in neither."""
    table = np.array(hazards.negative_binomial(mean, shape))
    hazard = np.concatenate((table, np.full(60 * mean, table[-1])))
    alive = np.concatenate(([1], np.cumprod(1 - hazard)))[:-1]
    duration, mass = np.arange(1, len(hazard) + 1), hazard * alive
    assert mass.sum() == pytest.approx(1, abs=1e-6)
    average = duration @ mass
    assert average == pytest.approx(mean, rel=1e-4)
    variance = (mean - 1) + (mean - 1) ** 2 / shape
    assert (duration - average) ** 2 @ mass == pytest.approx(variance, rel=1e-2)


def test_shape_one_is_constant():
    for mean in (1, 1.25, 7, 100, 10_000):
        assert hazards.negative_binomial(mean, 1) == (1 / mean,)
    assert hazards.negative_binomial(1, 5) == (1.0,)
    near = hazards.negative_binomial(50, 1 + 1e-9)
    assert near == pytest.approx([1 / 50] * len(near), rel=1e-8)


@quick
@given(st.floats(1, hazards.LONGEST), st.floats(-3, 12).map(lambda power: 10**power))
def test_any_regime_has_a_table_of_bounded_length(mean, shape):
    found = hazards.negative_binomial(mean, shape)
    assert 1 <= len(found) <= hazards.LONGEST
    assert all(0 <= each <= 1 for each in found)
    rises = np.diff(found)
    assert (rises >= -1e-9).all() if shape > 1 else (rises <= 1e-9).all()


@pytest.mark.parametrize("mean", [0.5, 0, -3, math.nan, math.inf, hazards.LONGEST + 1])
def test_a_mean_that_is_refused(mean):
    with pytest.raises(ValueError, match="mean regime duration"):
        hazards.negative_binomial(mean, 2)


@pytest.mark.parametrize("shape", [0, -1, math.nan, math.inf])
def test_a_shape_that_is_refused(shape):
    with pytest.raises(ValueError, match="shape"):
        hazards.negative_binomial(10, shape)


def test_tables_are_checked():
    assert hazards.checked(0.25) == (0.25,)
    assert hazards.checked([0, 1, 0.5]) == (0.0, 1.0, 0.5)
    for wrong, what in (
        ([], "entries"),
        ([0.1] * (hazards.LONGEST + 1), "entries"),
        ([0.1, 1.5], "at run length 1"),
        (-0.1, "at run length 0"),
        ([math.nan], "at run length 0"),
        ([0.0, 0.0], "never"),
    ):
        with pytest.raises(ValueError, match=what):
            hazards.checked(wrong)


def test_a_table_is_read_by_run_length():
    table = tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.5]])
    found = hazards.at(table, torch.tensor([[0, 1, 2, 7], [3, 0, 1, 2]]))
    assert found.tolist() == [[0.1, 0.2, 0.3, 0.3], [0.5, 0.4, 0.5, 0.5]]
    assert hazards.at(tensor([[0.2]]), torch.tensor([[0, 9]])).tolist() == [[0.2]]


def test_hazards_of_zero_and_one_and_no_time():
    hazard, nothing = tensor([[0.0, 1.0, 0.3]]), tensor([[math.nan]])
    for elapsed, change in ((0.0, [0, 0, 0]), (1.0, [0, 1, 0.3]), (2.0, [0, 1, 0.51])):
        found, survival = hazards.log_change(hazard, tensor([[elapsed]]), nothing)
        assert found.exp()[0].tolist() == pytest.approx(change, abs=1e-15)
        assert survival.exp()[0].tolist() == pytest.approx([1 - p for p in change], abs=1e-15)


def test_regimes_of_a_fixed_length():
    """A table that allows a change after every fifth observation only."""
    case = gaussian(1)
    steps = run(case, [series(case, 1, 30, (0.0, 0.0, 0.0, 0.0, 1.0))], 10)
    for t, step in enumerate(steps):
        assert step.info.ok.item()
        assert by_start(step.state, step.state.belief.log_prob.exp()) == {5 * (t // 5): 1.0}


def test_a_constant_table_is_the_constant():
    case = gaussian(1)
    one, other = series(case, 2, 30, 0.07), series(case, 2, 30, (0.07, 0.07, 0.07))
    for a, b in zip(run(case, [one], 8), run(case, [other], 8), strict=True):
        assert torch.equal(a.state.belief.log_prob, b.state.belief.log_prob)


def test_hazards_have_gradients():
    case = gaussian(1)
    one, prior = series(case, 3, 12), case.prior()
    table = tensor([[0.05, 0.1, 0.2]]).requires_grad_()
    elapsed = tensor([0.7]).requires_grad_()
    state, total = moca.init(prior, 12), tensor(0.0)
    for t in range(12):
        now = inputs([one], t)._replace(hazard=table, elapsed=elapsed)
        state, info = moca.step(case.model, state, prior, now)
        total = total + info.log_score.sum()
    total.backward()
    assert torch.isfinite(table.grad).all()
    assert (table.grad != 0).all()
    assert torch.isfinite(elapsed.grad).all()
