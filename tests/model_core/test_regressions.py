"""Regressions and what else is learned: lags, typical regimes, classes, cells."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core import readout
from model_core.encoder import Identity, Mlp
from model_core.segments import Sequences, segment_matrix
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.builtin import Options, build
from model_core.upm.lags import push
from model_core.upm.linear import Autoregressive, Linear
from tests.model_core.cases import inputs, leaves, of_labels, row_by_row, run, series, walk
from tests.model_core.references import lags_of
from tests.model_core.registry import case, tensor


def test_what_is_refused():
    model = case("alpaca-1").model
    for wrong in (model, case("alpaca-mixture-1").model):
        with pytest.raises(ValueError, match="one of noise_variance and noise_prior"):
            dataclasses.replace(wrong, noise_variance=None)
    for what, value in (("order", -1), ("season", 1), ("season", -3)):
        with pytest.raises(ValueError, match=f"{what} is {value}"):
            Autoregressive(**{what: value})
    linear, one = Linear(x_dim=2), torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="requires an input x of 2 numbers"):
        linear.encode(None, linear.context(one, one))


def test_autoregressive_models_of_any_size():
    location, scale = tensor([[5.0, -1.0]]), tensor([[2.0, 0.1]])
    for order, season, trend in ((0, 0, False), (1, 2, True), (3, 3, False), (1, 100, True)):
        options = Options(y_dim=2, order=order, season=season, trend=trend)
        model, y = build("autoregressive", options), location + scale
        prior, context = model.prior(location, scale), model.context(location, scale)
        for t in range(4):
            phi = model.encode(None, context)
            assert phi.shape == (1, prior.mean.shape[2])
            expected = [1.0, 1.0] * min(t, order) + [0.0, 0.0] * (order - t)
            assert phi[0, 1 : 1 + 2 * order].tolist() == pytest.approx(expected)
            there = torch.tensor([t != 2])
            context = model.remember(context, torch.nan * y if t == 2 else y, there)
        assert model.predictive(prior, phi).mean()[0, 0].tolist() == pytest.approx([5.0, -1.0])
    level = build("linear", Options(y_dim=2))  # without inputs
    phi = level.encode(None, level.context(location, scale))
    assert level.predictive(level.prior(location, scale), phi).mean()[0, 0].tolist() == [5.0, -1.0]


def test_lags_of_outputs_do_not_mix():
    generator = torch.Generator().manual_seed(1)
    y = 4 * torch.randn(30, 2, generator=generator, dtype=torch.float64)
    whole = torch.rand(30, generator=generator) > 0.2
    recent, lags = y.new_zeros(1, 4), y.new_zeros(1, 6)
    for t, expected in enumerate(lags_of(y.numpy(), whole.numpy(), 3)):
        assert lags.reshape(3, 2).tolist() == [each.tolist() for each in expected]
        recent, lags = push(recent, lags, y[t : t + 1], whole[t : t + 1])
    known = torch.rand(30, 2, generator=generator) > 0.3  # outputs that lack, each alone
    recent, lags = y.new_zeros(1, 4), y.new_zeros(1, 6)
    alone = [(y.new_zeros(1, 2), y.new_zeros(1, 3)) for _ in range(2)]
    for at in (slice(t, t + 1) for t in range(30)):
        recent, lags = push(recent, lags, y[at].masked_fill(~known[at], torch.nan), known[at])
        alone = [push(*each, y[at, o : o + 1], known[at, o]) for o, each in enumerate(alone)]
        assert torch.equal(lags, torch.stack([each for _, each in alone], -1).flatten(1))


# --- typical regimes ------------------------------------------------------------------------------


def typical(names=()) -> AlpacaMixture:
    """Level 0, 10 or -10, of one feature that is 1."""
    one = torch.ones(1, dtype=torch.float64)
    return AlpacaMixture(
        encoder=Identity(),
        log_weight=tensor([0.2, 0.5, 0.3]).log(),
        prior_mean=tensor([0.0, 10.0, -10.0]).reshape(3, 1, 1),
        prior_cov=tensor([1.0, 1.0, 1.0]).reshape(3, 1, 1),
        noise_variance=tensor([1.0, 1.0, 1.0]).reshape(3, 1),
        x_offset=0 * one,
        x_scale=one,
        y_offset=0 * one,
        y_scale=one,
        hazard=0.05,
        names=names,
    )


def followed(model, labels: list[float]):
    """Regime after each label, and the last state."""
    y, zero = np.array(labels)[:, None], torch.zeros(1, 1, dtype=torch.float64)
    stream = of_labels(y, np.ones_like(y), 0.05)
    steps = list(walk(model, moca.make_prior(model, zero, zero + 1), [stream], 10))
    return [readout.typical_regimes(model, step.state)[0] for step in steps], steps[-1].state


def test_the_regime_is_that_of_the_labels():
    labels = [9.5, 10.4, 10.1, -9.3, -10.2, 0.4, 0.1]
    found, _ = followed(typical(), labels)
    assert [each.name for each in found] == ["2", "2", "2", "3", "3", "1", "1"]
    assert all(0.97 < each.probability <= 1 for each in found)
    found, state = followed(typical(("idle", "up", "down")), labels)
    assert [each.name for each in found][::3] == ["up", "down", "idle"]
    weights = state.belief.log_prob.exp().unsqueeze(-1) * state.stats.log_weight.exp()
    assert found[-1].probability == pytest.approx(weights.sum(1)[0, 0].item(), abs=1e-14)
    unsure = followed(typical(), [5.0])[0][0]  # as far from level 0 as from level 10
    assert unsure.name == "2"
    assert unsure.probability == pytest.approx(0.5 / 0.7, abs=1e-9)
    with pytest.raises(ValueError, match="expected 3 names, got 2"):
        typical(("a", "b"))
    assert case("alpaca-1").model.typical == ()
    with pytest.raises(TypeError, match="no typical regimes"):
        case("alpaca-1").model.types(case("alpaca-1").prior().stats)


def test_draws_are_functions_of_one_type():
    model, zero = typical(), torch.zeros(400, 1, dtype=torch.float64)
    phi = torch.ones(400, 2, 1, dtype=torch.float64) * tensor([1.0, 2.0]).reshape(1, 2, 1)
    generators = [torch.Generator().manual_seed(i) for i in range(400)]
    drawn = model.draw(model.prior(zero, zero + 1), phi, generators)[:, 0, :, 0]
    torch.testing.assert_close(drawn[:, 1], 2 * drawn[:, 0])  # one function, at two inputs
    near = (drawn[:, :1] - tensor([0.0, 10.0, -10.0])).abs() < 4.5
    # Four standard deviations of 400 draws.
    assert near.double().mean(0).tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.1)


# --- classes and cells ----------------------------------------------------------------------------


def test_class_probabilities_sum_to_one_and_what_is_no_class_is_refused():
    one = case("pcoc-3")
    steps = run(one, [series(one, 5, 30, outlier_rate=[0.0, 0.2])], 12)
    for step in steps:
        each = step.info.predictive.components.mean().sum(-1)
        torch.testing.assert_close(each, torch.ones_like(each), atol=1e-13, rtol=0)
        assert step.info.predictive.mean().sum().item() == pytest.approx(1, abs=1e-12)
    for label in (-1.0, 3.0, 0.5):
        wrong = inputs([series(one, 5, 30)], 29)._replace(y=tensor([[label]]))
        state, info = moca.step(one.model, steps[28].state, one.prior(), wrong)
        assert not info.ok.item()
        pairs = zip(leaves(state), leaves(steps[28].state), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    # An input far from every class still gets probabilities.
    phi = one.model.encode(tensor([[1e8, -1e8, 1e8]]), tensor([]))
    far = one.model.predictive(one.prior().stats, phi)
    assert torch.isfinite(far.log_probability).all()
    assert far.mean().sum().item() == pytest.approx(1, abs=1e-12)


def test_pcoc_in_single_precision_far_from_the_origin():
    """Sums of features would lose the digits that those of deviations keep."""
    one, far = case("pcoc-3"), 300.0
    model = dataclasses.replace(
        one.model,
        encoder=lambda x: x.new_tensor([1.0, 2, 3, 4]) * x[:, :1] + far,
        prior_mean=one.model.prior_mean + far,
    )
    many = [series(one, seed, 120) for seed in range(2)]
    x, y = (tensor([getattr(each, name) for each in many]) for name in ("x", "y"))
    names = ("prior_mean", "prior_precision", "noise_variance", "dirichlet", "x_offset", "x_scale")
    half = {name: getattr(model, name).float() for name in names}
    prior = one.prior(2)
    expected = segment_matrix(model, prior, Sequences(x, y)).input
    held = type(prior.stats)(*(each.float() for each in prior.stats))
    single = moca.Prior(held, prior.location.float(), prior.context.float())
    data = Sequences(x.float(), y.float())
    found = segment_matrix(dataclasses.replace(model, **half), single, data).input
    seen = torch.isfinite(expected)
    off = (found.double() - expected)[seen].abs() / (1 + expected[seen].abs())
    assert off.max() < 2e-3


def test_every_start_of_an_lstm_with_other_decoders_is_the_starts_row_by_row():
    one, decoder = case("lstm-2"), case("lstm-2").model.decoder
    eye, bias = torch.eye(5).double(), torch.ones(5).double()
    weights, biases = decoder.weights, decoder.biases
    many = [series(one, seed, 12) for seed in range(2)]
    data = Sequences(*(tensor([getattr(each, name) for each in many]) for name in ("x", "y")))
    for made in (
        Mlp((weights[0], eye, weights[1]), (biases[0], bias, biases[1])),
        Mlp((0.3 * torch.ones(4, 7).double().tril(),), biases[1:], output_activation="tanh"),
    ):
        model = dataclasses.replace(one.model, decoder=made)
        for longest in (None, 3):
            given = model, one.prior(2), data, longest
            pair = segment_matrix(*given).label, row_by_row(*given).label
            torch.testing.assert_close(*pair, atol=1e-12, rtol=1e-12)
