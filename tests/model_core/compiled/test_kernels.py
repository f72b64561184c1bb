"""Compiled steps against the eager filter, which is what they are to compute."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from model_core import compiled, kernel
from model_core import filter as moca
from model_core.compiled.kernel import Views
from model_core.encoder import Identity
from model_core.upm import conjugate, linear, mixed_poisson, untrained
from model_core.upm.averaged import Averaged
from model_core.upm.joint import Joint
from model_core.upm.lstm import Lstm
from model_core.upm.multivariate import Multivariate
from model_core.upm.robust_averaged import RobustAveraged
from tests.model_core.compiled.pairs import OK, Pair, check_table, observed, run_beside
from tests.model_core.learned_cases import pcoc_case
from tests.model_core.regression_cases import alpaca_case, lagged_case, noisy_alpaca_case

MODELS = {
    "gaussian": conjugate.Gaussian(),
    "gaussian-2": conjugate.Gaussian(y_dim=2),
    "averaged": Averaged(),
    "averaged-2": Averaged(y_dim=2),
    "robust-averaged": RobustAveraged(),
    "robust-averaged-2": RobustAveraged(y_dim=2),
    "joint-2": Joint(),
    "joint-3": Joint(y_dim=3),
    "autoregressive": linear.Autoregressive(),
    "autoregressive-all": linear.Autoregressive(y_dim=2, order=2, trend=True, season=7),
    "autoregressive-none": linear.Autoregressive(order=0, trend=True, season=4),
    "linear": linear.Linear(x_dim=2),
    "linear-2": linear.Linear(y_dim=2, x_dim=1),
    "multivariate": Multivariate(),
    "multivariate-3": Multivariate(y_dim=3),
    "poisson": conjugate.Poisson(),
    "mixed-poisson": mixed_poisson.MixedPoisson(),
    "bernoulli": conjugate.BernoulliModel(),
    "categorical": conjugate.CategoricalModel(classes=3),
    "exponential": conjugate.Exponential(),
    "alpaca": alpaca_case(1).model,
    "alpaca-unknown-2": noisy_alpaca_case(2).model,
    "alpaca-lags": lagged_case(1).model,
    "alpaca-lags-alone": lagged_case(0).model,
    "pcoc": pcoc_case().model,
    "fleet": untrained.fleet(6, inputs=2, widths=(5,)),
    "fleet-2": untrained.fleet(9, inputs=2, outputs=2, widths=(5,)),
    "fleet-lags": untrained.fleet(6, inputs=2, widths=(5,), lags=3),
    "fleet-lags-alone-2": untrained.fleet(5, inputs=0, outputs=2, widths=(5,), lags=3),
}
# The same examples in every run; the slow tests look for others.
QUICK = settings(max_examples=4, deadline=None, derandomize=True)
MANY = settings(max_examples=60, deadline=None)
# Not 0.5: what a missing label leaves as likely as before is then a tie, which rounding breaks.
HAZARDS = st.one_of(
    st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.4, 1.0]), min_size=1, max_size=7).filter(any),
    st.just([0.01]),
)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("name", MODELS)
@QUICK
@given(st.integers(0, 2**32), st.sampled_from([2, 7, 50]), HAZARDS)
def test_a_kernel_takes_the_steps_of_the_filter(name, seed, hypotheses, hazard):
    run_beside(MODELS[name], seed, hypotheses, hazard, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@MANY
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 10, 50, 500]), HAZARDS)
def test_a_kernel_takes_many_steps_of_the_filter(name, seed, hypotheses, hazard):
    run_beside(MODELS[name], seed, hypotheses, hazard, 80)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODELS)
def test_ten_thousand_steps_do_not_drift_apart(name):
    model, rng = MODELS[name], np.random.default_rng(7)
    pair = Pair(model, 2, 20)
    tolerance = 1e-9
    for at in range(10_000):
        # Each label a million scales off would cost the weights of lags digits, in either.
        plain = {"elapsed": np.ones(2), "changepoint": np.full(2, np.nan), "far": 1e2}
        seen = observed(model, rng, 2, 0, **plain, outlier_rate=np.full(2, 0.01))
        if at % 1000 < 990:
            pair.advance(seen)
            pair.eager, _ = moca.step(model, pair.eager, pair.prior, seen.inputs())
        else:
            _, expected, table, _ = pair.step(seen)
            check_table(table, expected, tolerance)
    pair.check_states(tolerance)


def with_own_features(model):
    """Products by torch round as the size of the batch has it: features are inputs here."""
    if not hasattr(model, "encoder"):
        return model
    size = model.prior_mean.shape[-1 if model.label == "class" else 0]
    offset = torch.zeros(size, dtype=torch.float64)
    changes = {"encoder": Identity(), "x_offset": offset, "x_scale": offset + 1.0}
    if getattr(model, "lags", 0):
        changes = {**changes, "lags": 0}
    return dataclasses.replace(model, **changes)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_does_not_depend_on_its_batch_mates(name):
    model, rng = with_own_features(MODELS[name]), np.random.default_rng(3)
    together, alone = Pair(model, 5, 10), Pair(model, 5, 10)
    for at in range(25):
        seen = observed(model, rng, 5, at)
        table, summary = together.advance(seen)
        for row in range(5):
            only = type(seen)(*(None if each is None else each[row : row + 1] for each in seen))
            own, known = alone.advance(only, np.array([row]))
            np.testing.assert_array_equal(own[0], table[row])
            np.testing.assert_array_equal(known.numbers[0], summary.numbers[row])
    for one, other in zip(moca.leaves(together.own), moca.leaves(alone.own), strict=True):
        assert torch.equal(one, other)


WRONG = {"real": 1e200, "count": 1e200, "positive": -1.0, "binary": np.nan, "class": 7.0}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wrong", ["label", "nan", "state"])
def test_a_row_that_is_not_finite_stays_as_it_was(name, wrong):
    model, rng = MODELS[name], np.random.default_rng(5)
    pair = Pair(model, 3, 4)
    for at in range(8):
        pair.advance(observed(model, rng, 3, at))
    if wrong == "state":
        moca.leaves(pair.own)[-1][1] = torch.inf
        pair.own.stats[0][1] = torch.inf
    seen = observed(model, rng, 3, 8, labelled=np.ones(3, bool))
    if wrong != "state":
        seen.y[1] = np.nan if wrong == "nan" else WRONG[model.label]
    before = [each[1].clone() for each in moca.leaves(pair.own)]
    table, _ = pair.advance(seen)
    assert table[:, OK].tolist() == [1.0, 0.0, 1.0]
    for one, other in zip(before, moca.leaves(pair.own), strict=True):
        assert torch.equal(one, other[1])


def test_models_without_a_kernel_have_none():
    class Own(conjugate.Gaussian):
        """It may compute anything."""

    assert compiled.kernel_of(Own()) is None
    assert compiled.kernel_of(linear.Linear(x_dim=200)) is None
    assert not compiled.has_kernel(Lstm.__new__(Lstm))
    assert kernel.in_place(conjugate.Gaussian(), "meta") is None


def test_kernels_can_be_turned_off():
    model = conjugate.Gaussian()
    own = kernel.in_place(model, "cpu")
    own.compile()
    assert kernel.usable(own)
    with kernel.eager_only():
        assert not kernel.usable(own)
        assert kernel.in_place(model, "cpu") is None
    assert kernel.in_place(model, "cpu") is own


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rows", np.arange(2, dtype=np.int32)),
        ("rows", np.arange(4)[::2]),
        ("inputs", np.asfortranarray(np.ones((2, 7)))),
        ("hazards", np.full((2, 2), 0.1)[:, :1]),
        ("levels", np.zeros((2, 1), dtype=np.float32)),
    ],
)
def test_numbers_that_compiled_code_would_misread_are_refused(name, wrong):
    pair = Pair(conjugate.Gaussian(), 2, 4)
    views = Views([*moca.leaves(pair.own), *pair.prior.stats, *pair.prior[1:]])
    told = {"rows": np.arange(2), "inputs": np.ones((2, 7)), "hazards": np.full((2, 1), 0.1)}
    before = [each.clone() for each in moca.leaves(pair.own)]
    with pytest.raises(ValueError, match="expected contiguous numbers"):
        pair.kernel.advance(views, window=5, **{**told, name: wrong})
    for one, other in zip(before, moca.leaves(pair.own), strict=True):
        assert torch.equal(one, other)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("hypotheses", [1, 6, 7, 8, 15, 16])
@pytest.mark.parametrize(
    "name", ["gaussian", "averaged-2", "mixed-poisson", "pcoc", "alpaca", "fleet"]
)
def test_slots_need_not_fill_whole_vectors(name, hypotheses):
    run_beside(MODELS[name], 11, hypotheses, [0.05], 25)
