"""Fused steps against the eager filter, which is what they are to compute."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from model_core import filter as moca
from model_core import fused, kernel
from model_core.fused.kernel import Kernel, Views
from model_core.upm import conjugate
from model_core.upm.lstm import Lstm
from tests.model_core.compiled.pairs import OK, Pair, check_table, copied, observed, run_beside

# The interpreter computes both sides of a choice by numpy, which warns of what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODELS = {"gaussian": conjugate.Gaussian(), "gaussian-2": conjugate.Gaussian(y_dim=2)}
QUICK = settings(max_examples=2, deadline=None, derandomize=True)
MANY = settings(max_examples=20, deadline=None)
# Not 0.5: what a missing label leaves as likely as before is then a tie, which rounding breaks.
HAZARDS = st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.4, 1.0]), min_size=1, max_size=7).filter(any)


class Fused(Pair):
    """Stepped in place by the fused kernel, on the CPU."""

    def kernel_of(self, model, max_hypotheses):
        return fused.kernel_of(model, max_hypotheses, "cpu"), Views


@pytest.mark.parametrize("name", MODELS)
@QUICK
@given(st.integers(0, 2**32), st.sampled_from([2, 7, 50]), HAZARDS)
def test_a_kernel_takes_the_steps_of_the_filter(name, seed, hypotheses, hazard):
    run_beside(MODELS[name], seed, hypotheses, hazard, 6, Fused)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@MANY
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 10, 31, 32, 50, 64]), HAZARDS)
def test_a_kernel_takes_many_steps_of_the_filter(name, seed, hypotheses, hazard):
    run_beside(MODELS[name], seed, hypotheses, hazard, 80, Fused)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_does_not_depend_on_its_batch_mates(name):
    model, rng = MODELS[name], np.random.default_rng(3)
    together, alone = Fused(model, 3, 5), Fused(model, 3, 5)
    for at in range(3):
        seen = observed(model, rng, 3, at)
        table, summary = together.advance(seen)
        for row in range(3):
            only = type(seen)(*(None if each is None else each[row : row + 1] for each in seen))
            own, known = alone.advance(only, np.array([row]))
            np.testing.assert_array_equal(own[0], table[row])
            np.testing.assert_array_equal(known.numbers[0], summary.numbers[row])
    for one, other in zip(moca.leaves(together.own), moca.leaves(alone.own), strict=True):
        assert torch.equal(one, other)


def test_rows_that_are_named_again_are_stepped_in_order():
    model, rng = MODELS["gaussian"], np.random.default_rng(4)
    once, apart = Fused(model, 3, 6), Fused(model, 3, 6)
    seen = observed(model, rng, 5, 3)
    rows = np.array([2, 0, 2, 2, 0])
    table, _ = once.advance(seen, rows)
    for i, row in enumerate(rows):
        only = type(seen)(*(None if each is None else each[i : i + 1] for each in seen))
        own, _ = apart.advance(only, np.array([row]))
        np.testing.assert_array_equal(own[0], table[i])
    for one, other in zip(moca.leaves(once.own), moca.leaves(apart.own), strict=True):
        assert torch.equal(one, other)
    assert once.own.seq.tolist() == [2, 0, 3]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wrong", ["label", "nan", "state"])
def test_a_row_that_is_not_finite_stays_as_it_was(name, wrong):
    model, rng = MODELS[name], np.random.default_rng(5)
    pair = Fused(model, 3, 4)
    for at in range(2):
        pair.advance(observed(model, rng, 3, at))
    if wrong == "state":
        pair.own.stats[0][1] = torch.inf
    seen = observed(model, rng, 3, 2, labelled=np.ones(3, bool))
    if wrong != "state":
        seen.y[1] = np.nan if wrong == "nan" else 1e200
    before = copied(pair.own)
    table, _ = pair.advance(seen)
    assert table[:, OK].tolist() == [1.0, 0.0, 1.0]
    for one, other in zip(moca.leaves(before), moca.leaves(pair.own), strict=True):
        assert torch.equal(one[1], other[1])
    assert pair.own.seq.tolist() == [3, 2, 3]


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
    assert isinstance(kernel.in_place(conjugate.Gaussian(), "cuda", 10), Kernel)
    assert kernel.in_place(conjugate.Gaussian(), "meta", 10) is None
    with kernel.eager_only():
        assert kernel.in_place(conjugate.Gaussian(), "cuda", 10) is None
