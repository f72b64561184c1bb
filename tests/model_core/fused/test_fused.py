"""Fused steps against the eager filter, which is what they are to compute."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from model_core import filter as moca
from model_core import fused, kernel
from model_core.fused import kernel as fused_kernel
from model_core.fused.kernel import Kernel, Views
from model_core.transfer import moved
from model_core.upm import conjugate, untrained
from model_core.upm.lstm import Lstm
from tests.guarded import guarded, waits
from tests.model_core.compiled.pairs import (
    OK,
    Pair,
    check_table,
    close,
    copied,
    observed,
    run_beside,
)

# The interpreter computes both sides of a choice by numpy, which warns of what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODELS = {
    "gaussian": conjugate.Gaussian(),
    "gaussian-2": conjugate.Gaussian(y_dim=2),
    "alpaca": untrained.alpaca(3, 2, widths=()),
    "alpaca-lags": untrained.alpaca(3, 1, 2, (), lags=2, known_noise=True),
}
ALPACAS = st.builds(
    untrained.alpaca,
    features=st.integers(1, 20),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    widths=st.just(()),
    lags=st.sampled_from([0, 0, 2]),
    known_noise=st.booleans(),
    seed=st.integers(0, 99),
)
ONE_OF_EACH = ["gaussian", "alpaca"]
QUICK = settings(max_examples=2, deadline=None, derandomize=True)
MANY = settings(max_examples=20, deadline=None)
# Not 0.5: what a missing label leaves as likely as before is then a tie, which rounding breaks.
HAZARDS = st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.4, 1.0]), min_size=1, max_size=7).filter(any)


class Fused(Pair):
    """Stepped in place by the fused kernel, on the CPU."""

    def kernel_of(self, model, max_hypotheses):
        return fused.kernel_of(model, max_hypotheses, "cpu"), Views


@pytest.mark.parametrize("name", ["gaussian-2", "alpaca", "alpaca-lags"])
@QUICK
@given(st.integers(0, 2**32), st.sampled_from([2, 4]), HAZARDS)
def test_a_kernel_takes_the_steps_of_the_filter(name, seed, hypotheses, hazard):
    run_beside(MODELS[name], seed, hypotheses, hazard, 5, Fused, batch=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "gaussian-2"])
@MANY
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 10, 31, 32, 50, 64]), HAZARDS)
def test_a_kernel_takes_many_steps_of_the_filter(name, seed, hypotheses, hazard):
    run_beside(MODELS[name], seed, hypotheses, hazard, 80, Fused)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(MANY, max_examples=10)
@given(ALPACAS, st.integers(0, 2**32), st.sampled_from([1, 2, 7, 16]), HAZARDS)
def test_regressions_of_any_size_take_many_steps_of_the_filter(model, seed, hypotheses, hazard):
    run_beside(model, seed, hypotheses, hazard, 15, Fused, batch=1)


def batched(name):
    """How far numbers of a batch may be from those of its rows: torch encodes it as it likes."""
    return 0.0 if name == "gaussian" else 1e-12


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_row_does_not_depend_on_its_batch_mates(name):
    model, rng = MODELS[name], np.random.default_rng(3)
    together, alone = Fused(model, 3, 5), Fused(model, 3, 5)
    for at in range(2):
        seen = observed(model, rng, 3, at)
        table, summary = together.advance(seen)
        for row in range(3):
            only = type(seen)(*(None if each is None else each[row : row + 1] for each in seen))
            own, known = alone.advance(only, np.array([row]))
            close(own[0], table[row], batched(name))
            close(known.numbers[0], summary.numbers[row], batched(name))
    for one, other in zip(moca.leaves(together.own), moca.leaves(alone.own), strict=True):
        close(one, other, batched(name))


@pytest.mark.parametrize("name", ["gaussian", "alpaca-lags"])
def test_rows_that_are_named_again_are_stepped_in_order(name):
    model, rng = MODELS[name], np.random.default_rng(4)
    once, apart = Fused(model, 3, 6), Fused(model, 3, 6)
    seen = observed(model, rng, 5, 3)
    rows = np.array([2, 0, 2, 2, 0])
    beliefs = np.empty((5, 2, once.own.belief.log_prob.shape[1]))
    table, _ = once.advance(seen, rows, beliefs=beliefs, summarised=False)
    for i, row in enumerate(rows):
        only = type(seen)(*(None if each is None else each[i : i + 1] for each in seen))
        own, _ = apart.advance(only, np.array([row]), summarised=False)
        close(own[0], table[i], batched(name))
        after = [each[row].numpy() for each in apart.own.belief[:2]]
        close(np.array(after), beliefs[i], batched(name))
    for one, other in zip(moca.leaves(once.own), moca.leaves(apart.own), strict=True):
        close(one, other, batched(name))
    if name == "alpaca-lags":
        assert once.own.context[:, 0].tolist() == [2.0, 0.0, 3.0]  # time moves on with the labels
    assert once.own.seq.tolist() == [2, 0, 3]


@pytest.mark.parametrize("name", ["gaussian-2", "alpaca-lags"])
@pytest.mark.parametrize("wrong", ["label", "nan", "state"])
def test_a_row_that_is_not_finite_stays_as_it_was(name, wrong):
    model, rng = MODELS[name], np.random.default_rng(5)
    pair = Fused(model, 3, 4)
    for at in range(2):
        pair.advance(observed(model, rng, 3, at), summarised=False)
    if wrong == "state":
        pair.own.stats[0][1] = torch.inf
    # Without outliers a hypothesis of an infinite mean is excluded by its label, and no matter.
    told = {"labelled": np.ones(3, bool), "outlier_rate": np.full(3, 0.01)}
    seen = observed(model, rng, 3, 2, **told)
    if wrong != "state":
        seen.y[1] = np.nan if wrong == "nan" else 1e200
    before = copied(pair.own)
    table, _ = pair.advance(seen, summarised=False)
    assert table[:, OK].tolist() == [1.0, 0.0, 1.0]
    for one, other in zip(moca.leaves(before), moca.leaves(pair.own), strict=True):
        assert torch.equal(one[1], other[1])
    assert pair.own.seq.tolist() == [3, 2, 3]


@pytest.mark.parametrize("peak", [1e150, 1e300])
def test_a_covariance_that_overflows_is_not_written(peak):
    pair, rng = Fused(MODELS["alpaca"], 2, 3), np.random.default_rng(5)
    for at in range(2):
        pair.advance(observed(pair.model, rng, 2, at), summarised=False)
    pair.own.stats.cov[1] *= peak
    before = copied(pair.own)
    seen = observed(pair.model, rng, 2, 2, labelled=np.ones(2, bool))
    table, _ = pair.advance(seen, summarised=False)
    assert table[0, OK] == 1.0
    assert table[1, OK] == (peak < 1e200)
    for one, other in zip(moca.leaves(before), moca.leaves(pair.own), strict=True):
        assert torch.isfinite(other).all() or one.isneginf().any()
        assert table[1, OK] or torch.equal(one[1], other[1])
    cov = pair.own.stats.cov
    assert torch.equal(cov, cov.mT)


@pytest.mark.parametrize("name", MODELS)
def test_the_host_waits_once_for_a_batch(name, monkeypatch):
    """Also where it is stepped in turns; nothing is launched here."""
    model = MODELS[name]
    launched = []
    monkeypatch.setattr(fused_kernel, "start", lambda each, *_, **__: launched.append(each))
    seen, rows = observed(model, np.random.default_rng(7), 4, 3), np.array([2, 0, 2, 1])
    with guarded() as device:
        on = moved(model, device)
        one = torch.ones(3, model.scaled, dtype=torch.float64, device=device)
        prior = moca.make_prior(on, one, one)
        state = moca.init(prior, 4)
        views = SimpleNamespace(
            device=device, slots=5, belief=state.belief[:2], context=state.context, table=state.seq
        )
        own = fused.kernel_of(on, 4, device)
        with waits() as found:
            own.advance(views, rows, seen.packed(), seen.hazard, 5, beliefs=np.empty((4, 2, 5)))
    assert len(found) == 1
    assert len(launched) == (2 if name.startswith("gaussian") else 6)


def test_a_label_that_is_missing_may_be_anything():
    pair, rng = Fused(MODELS["gaussian"], 2, 4), np.random.default_rng(6)
    for at in range(5):
        plain = {"changepoint": np.full(2, np.nan), "outlier_rate": np.full(2, 0.01)}
        seen = observed(pair.model, rng, 2, at, **plain, labelled=np.array([True, at % 2 == 0]))
        seen.y[1, 0] = seen.y[1, 0] if seen.labelled[1] else np.nan
        _, expected, table, _ = pair.step(seen)
        check_table(table, expected, 1e-11, paths=False)


def test_a_kernel_that_differs_from_the_filter_is_not_ready(monkeypatch):
    own, other = (fused.kernel_of(conjugate.Gaussian(), 5, "cpu") for _ in range(2))
    own.compile()
    assert own.ready
    right = Kernel.advance
    monkeypatch.setattr(Kernel, "advance", lambda *args: (right(*args)[0] + 1e-6, right(*args)[1]))
    with pytest.raises(RuntimeError, match="differs from the eager one"):
        other.compile()
    assert not other.ready


def test_views_are_of_contiguous_tensors():
    with pytest.raises(ValueError, match="contiguous"):
        Views([torch.zeros(4, 4, dtype=torch.float64).T])
    with pytest.raises(ValueError, match="64-bit"):
        Views([torch.zeros(4, 4)])


def test_models_without_a_kernel_have_none():
    class Own(conjugate.Gaussian):
        """It may compute anything."""

    assert fused.kernel_of(Own(), 10, "cuda") is None
    assert fused.kernel_of(Lstm.__new__(Lstm), 10, "cuda") is None
    assert fused.kernel_of(untrained.alpaca(65, widths=()), 10, "cuda") is None
    assert isinstance(kernel.in_place(conjugate.Gaussian(), "cuda", 10), Kernel)
    assert kernel.in_place(conjugate.Gaussian(), "meta", 10) is None
    with kernel.eager_only():
        assert kernel.in_place(conjugate.Gaussian(), "cuda", 10) is None
