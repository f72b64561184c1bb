"""Kernels of models with an encoder: all sizes, series of one stream, and what is shared."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from model_core import compiled
from model_core import filter as moca
from model_core.compiled import step as steps
from model_core.upm import untrained
from model_core.upm.lstm import Lstm
from tests.model_core.compiled.pairs import OK, Pair, close, observed, run_beside

QUICK = settings(max_examples=8, deadline=None, derandomize=True)
MANY = settings(max_examples=60, deadline=None)
HAZARDS = st.sampled_from([[0.01], [0.3], [1e-6, 0.4, 0.02], [1.0, 0.05]])
REGRESSIONS = st.builds(
    untrained.alpaca,
    features=st.integers(1, 64),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    widths=st.sampled_from([(), (5,)]),
    lags=st.sampled_from([0, 0, 2]),
    known_noise=st.booleans(),
    seed=st.integers(0, 99),
)
CLASSIFIERS = st.builds(
    untrained.pcoc,
    classes=st.integers(2, 6),
    features=st.integers(1, 64),
    inputs=st.integers(1, 3),
    widths=st.sampled_from([(), (5,)]),
    seed=st.integers(0, 99),
)
FLEETS = st.builds(
    untrained.fleet,
    features=st.integers(1, 64),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    widths=st.sampled_from([(), (5,)]),
    lags=st.sampled_from([0, 0, 2]),
    chance=st.sampled_from([0.1, 0.5, 0.99]),
    seed=st.integers(0, 99),
)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def run_sized(model, seed, hypotheses, hazard, steps):
    """Of many features an input is an outlier to all hypotheses or to none: ties, if it may be."""
    certain = model.label == "class" and model.prior_mean.shape[1] > 6
    told = {"outlier_rate": np.zeros(3)} if certain else {}
    run_beside(model, seed, hypotheses, hazard, steps, **told)


@pytest.mark.parametrize(
    "models", [REGRESSIONS, CLASSIFIERS, FLEETS], ids=["alpaca", "pcoc", "fleet"]
)
@QUICK
@given(data=st.data(), seed=SEEDS, hypotheses=st.sampled_from([2, 7, 50]), hazard=HAZARDS)
def test_models_of_any_size_are_stepped_as_by_the_filter(models, data, seed, hypotheses, hazard):
    run_sized(data.draw(models), seed, hypotheses, hazard, 25)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "models", [REGRESSIONS, CLASSIFIERS, FLEETS], ids=["alpaca", "pcoc", "fleet"]
)
@MANY
@given(data=st.data(), seed=SEEDS, hypotheses=st.sampled_from([1, 2, 50, 500]), hazard=HAZARDS)
def test_models_of_any_size_are_stepped_as_by_the_filter_for_long(
    models, data, seed, hypotheses, hazard
):
    run_sized(data.draw(models), seed, hypotheses, hazard, 80)


MODELS = {
    "alpaca": untrained.alpaca(6),
    "alpaca-lags": untrained.alpaca(6, lags=2, outputs=2),
    "alpaca-lags-alone": untrained.alpaca(6, inputs=0, lags=3, known_noise=True),
    "pcoc": untrained.pcoc(features=6),
    "fleet": untrained.fleet(6, outputs=2),
    "fleet-lags": untrained.fleet(6, lags=2),
    "fleet-lags-alone": untrained.fleet(6, inputs=0, outputs=2, lags=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_row_that_is_named_again_is_stepped_again(name):
    """Two streams, turn by turn, in one call and in many."""
    model, rng = MODELS[name], np.random.default_rng(2)
    together, alone = Pair(model, 2, 6), Pair(model, 2, 6)
    seen = observed(model, rng, 30, 5)
    rows = np.arange(30) % 2
    table, summary = together.advance(seen, rows)
    for at, row in enumerate(rows):
        only = type(seen)(*(None if each is None else each[at : at + 1] for each in seen))
        own, known = alone.advance(only, np.array([row]))
        close(table[at], own[0], 1e-12)
        close(summary.numbers[at], known.numbers[0], 1e-12)
    for one, other in zip(moca.leaves(together.own), moca.leaves(alone.own), strict=True):
        close(one, other, 1e-12)


@pytest.mark.parametrize("build", [untrained.alpaca, untrained.fleet])
def test_models_of_one_class_share_what_is_compiled(build):
    kernels = [compiled.kernel_of(build(n, outputs=d)) for n, d in ((3, 1), (9, 2))]
    kernels[0].compile()
    before = len(steps.advance.signatures)
    kernels[1].compile()
    assert len(steps.advance.signatures) == before


def test_a_kernel_does_not_keep_a_learned_model():
    model = untrained.alpaca(3)
    assert compiled.kernel_of(model) is not compiled.kernel_of(model)


def test_recurrent_models_have_no_kernel():
    assert compiled.kernel_of(Lstm.__new__(Lstm)) is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("name", MODELS)
def test_an_input_that_is_not_finite_is_left_to_the_filter(name, wrong):
    model, rng = MODELS[name], np.random.default_rng(5)
    if model.x_dim == 0:
        pytest.skip("takes no input")
    pair = Pair(model, 3, 4)
    for at in range(8):
        pair.advance(observed(model, rng, 3, at))
    seen = observed(model, rng, 3, 8)
    seen.x[1] = wrong
    before = [each[1].clone() for each in moca.leaves(pair.own)]
    table, _ = pair.advance(seen)
    if not np.isfinite(wrong):
        assert table[:, OK].tolist() == [1.0, 0.0, 1.0]
    if table[1, OK] == 0:
        for one, other in zip(before, moca.leaves(pair.own), strict=True):
            assert torch.equal(one, other[1])
    else:  # the encoder's features are within bounds
        assert all(torch.isfinite(each[1]).all() for each in pair.own.stats)


@pytest.mark.parametrize("build", [untrained.alpaca, untrained.fleet])
@pytest.mark.parametrize("peak", [1e150, 1e300])
def test_a_covariance_that_overflows_is_not_written(peak, build):
    model, rng = build(4), np.random.default_rng(5)
    pair = Pair(model, 2, 4)
    for at in range(5):
        pair.advance(observed(model, rng, 2, at))
    pair.own.stats.cov[1] *= peak
    before = [each[1].clone() for each in moca.leaves(pair.own)]
    table, _ = pair.advance(observed(model, rng, 2, 5, labelled=np.ones(2, bool)))
    assert table[0, OK] == 1.0
    if table[1, OK] == 0:
        for one, other in zip(before, moca.leaves(pair.own), strict=True):
            assert torch.equal(one, other[1])
    assert torch.isfinite(pair.own.stats.cov).all()
