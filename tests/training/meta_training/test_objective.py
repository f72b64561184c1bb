"""Every way to condition, beside its definition: absorb what it may see, then predict."""

import math

import pytest
import torch

from tests.training.learners.test_learners import drawn, made
from training.config import ModelConfig, Objective
from training.data.base import Batch
from training.learners import build
from training.learners.base import Scaling
from training.meta_training.objective import (
    accuracy,
    class_log_probabilities,
    log_scores,
    reveal,
    start,
)
from training.meta_training.validation import measured

KINDS = pytest.mark.parametrize(
    "kind", ["alpaca-known", "alpaca-unknown", "alpaca-mixture", "lstm", "pcoc"]
)


def literal(learner, batch, first):
    """`log p(y_t | x_t, rows first(b, t)..t-1)`, one window after another."""
    model = learner.model()
    found = torch.full(batch.y.shape[:2], math.nan, dtype=batch.y.dtype)
    for b, t in torch.cartesian_prod(*map(torch.arange, batch.y.shape[:2])).tolist():
        one = batch.part(slice(b, b + 1))
        prior = start(model, one)
        phi, stats = [model.encode(x, prior.context) for x in one.x.unbind(1)], prior.stats
        for i in range(first(b, t), t):
            if not one.y[0, i].isnan().any():
                weight = one.y.new_ones(1, 1)
                stats = model.update(stats, phi[i], one.y[:, i], weight)
        if not one.y[0, t].isnan().any():
            found[b, t] = model.predictive(stats, phi[t]).joint_log_density(one.y[:, None, t])
    return found


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0, equal_nan=True)


def scored(learner, batch, mode, told=None, **others):
    with torch.no_grad():
        return log_scores(learner, batch, Objective(mode=mode, **others), told)


def regime(batch):
    """Start of the regime of each observation, read off the switches."""
    return lambda b, t: max((i for i in range(t + 1) if batch.switch[b, i]), default=0)


@KINDS
@pytest.mark.parametrize("mode", ["oracle", "toe", "coe", "sw1", "sw3", "sw50"])
@torch.no_grad()
def test_a_baseline_is_its_definition(kind, mode):
    learner, batch = made(kind), drawn(kind)
    firsts = {
        "oracle": regime(batch),
        "toe": lambda b, t: t,
        "coe": lambda b, t: 0,
        "sw1": lambda b, t: max(t - 1, 0),
        "sw3": lambda b, t: max(t - 3, 0),
        "sw50": lambda b, t: 0,
    }
    expected = literal(learner, batch, firsts[mode])
    same(scored(learner, batch, mode), expected)
    assert torch.equal(torch.isnan(expected), torch.isnan(batch.y).any(-1))


@KINDS
@torch.no_grad()
def test_an_oracle_may_doubt(kind):
    """With a weight of the prior it is a mixture of densities."""
    learner, batch = made(kind), drawn(kind)
    known = literal(learner, batch, regime(batch)).exp()
    prior = literal(learner, batch, lambda b, t: t).exp()
    for weight in (1e-8, 0.3):
        expected = ((1 - weight) * known + weight * prior).log()
        same(scored(learner, batch, "oracle", prior_weight=weight), expected)


@pytest.mark.parametrize("kind", ["alpaca-known", "alpaca-mixture", "lstm"])
@torch.no_grad()
def test_moca_is_a_mixture_over_run_lengths(kind):
    """The paper's recursion in plain probabilities, of each window's definition."""
    learner, batch = made(kind), drawn(kind)
    hazard, (count, steps) = learner.hazard.item(), batch.y.shape[:2]
    each = torch.stack([literal(learner, batch, lambda b, t, r=r: max(t - r, 0)) for r in range(9)])
    expected = torch.full((count, steps), math.nan, dtype=batch.y.dtype)
    for b in range(count):
        belief = batch.y.new_ones(1)
        for t in range(steps):
            density = each[: t + 1, b, t].exp()
            if not density.isnan().any():
                expected[b, t] = (belief * density).sum().log()
                belief = belief * density / (belief * density).sum()
            belief = torch.cat((belief.new_tensor([hazard]), (1 - hazard) * belief))
    same(scored(learner, batch, "moca"), expected)


@torch.no_grad()
def test_supervision_tells_of_true_switches_only():
    batch = drawn("alpaca-known", 200, 50)
    told = reveal(batch.switch, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(told == 1, batch.switch)
    assert torch.equal(told.isnan(), ~batch.switch)
    some = reveal(batch.switch, 0.3, torch.Generator().manual_seed(0))
    assert not (some == 1)[~batch.switch].any()
    share = (some == 1)[batch.switch].double().mean().item()
    count = batch.switch.sum().item()
    assert share == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))
    assert reveal(batch.switch, 0.0, torch.Generator()).isnan().all()
    again = reveal(batch.switch, 0.3, torch.Generator().manual_seed(0))
    assert torch.equal(some.isnan(), again.isnan())


@KINDS
@torch.no_grad()
def test_told_of_every_switch_and_sure_of_no_other_it_is_the_oracle(kind):
    learner, batch = made(kind), drawn(kind)
    learner.hazard_logit.fill_(-40.0)
    told = reveal(batch.switch, 1.0, torch.Generator()).to(batch.y)
    same(scored(learner, batch, "moca", told), scored(learner, batch, "oracle"))
    untold = scored(learner, batch, "moca")
    assert not torch.allclose(untold.nan_to_num(), scored(learner, batch, "oracle").nan_to_num())
    same(untold, scored(learner, batch, "coe"))


def test_an_oracle_that_nobody_tells_is_refused():
    batch = drawn("alpaca-known")._replace(switch=None)
    with pytest.raises(ValueError, match="needs the true switches"):
        log_scores(made("alpaca-known"), batch, Objective(mode="oracle"), None)


def test_modes_and_windows():
    assert [Objective(mode=m).window for m in ("sw12", "toe", "moca", "coe")] == [12, 0, None, None]
    for wrong in ("sw0", "sw", "swx", "Moca", "sw3 "):
        with pytest.raises(ValueError, match="expected moca, oracle, toe, coe or swN"):
            Objective(mode=wrong)


@pytest.mark.parametrize("mode", ["moca", "oracle", "toe", "coe", "sw2"])
@torch.no_grad()
def test_class_probabilities_are_those_that_labels_are_scored_with(mode):
    learner, batch = made("pcoc"), drawn("pcoc")
    told = reveal(batch.switch, 0.5, torch.Generator().manual_seed(1)).to(batch.y)
    told = told if mode == "moca" else None
    each = class_log_probabilities(learner, batch, Objective(mode=mode), told)
    total = each.exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-12, rtol=0)
    known = ~batch.y.isnan()
    label = torch.where(known, batch.y, 0.0).long()
    at_label = torch.where(known, each.gather(-1, label), math.nan).squeeze(-1)
    same(at_label, scored(learner, batch, mode, told))


@torch.no_grad()
def test_a_classifier_that_trains_on_everything_is_a_softmax():
    config = ModelConfig(kind="pcoc", widths=(7,), features=5)
    learner = build(config, Scaling.none(3, 1), 3, 0, adapts=False).double()
    batch = drawn("pcoc")
    hidden = torch.relu(batch.x @ learner.encoder[0].weight.T + learner.encoder[0].bias)
    features = torch.tanh(hidden @ learner.encoder[1].weight.T + learner.encoder[1].bias)
    expected = (features @ learner.last.weight.T + learner.last.bias).softmax(-1).log()
    objective = Objective(mode="toe")
    torch.testing.assert_close(class_log_probabilities(learner, batch, objective), expected)
    found = log_scores(learner, batch, objective, None)
    assert torch.equal(found.isnan(), batch.y.squeeze(-1).isnan())
    for b, t in (~found.isnan()).nonzero().tolist():
        assert found[b, t].item() == pytest.approx(expected[b, t, int(batch.y[b, t])].item())


def test_accuracy():
    each = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3], [0.1, 0.1, 0.8]]).log()[None]
    y = torch.tensor([1.0, 2.0, math.nan])[None, :, None]
    found = accuracy(each, y)
    assert found[0, :2].tolist() == [1.0, 0.0]
    assert found[0, 2].isnan()


@pytest.mark.parametrize("kind", ["alpaca-unknown", "pcoc"])
def test_measuring_in_parts_is_measuring_at_once(kind):
    learner, batch, objective = made(kind).eval(), drawn(kind, 7), Objective()
    classes = 3 if kind == "pcoc" else 0
    found = [
        measured(learner, batch, objective, None, classes=classes, part=size) for size in (2, 25)
    ]
    assert found[0].keys() == found[1].keys() == ({"nll", "accuracy"} if classes else {"nll"})
    for name in found[0]:
        same(found[0][name], found[1][name])
    same(found[0]["nll"], -scored(learner, batch, "moca"))


def test_windows_without_inputs():
    """Of labels alone, lags stand in for inputs."""
    config = ModelConfig(lags=2, widths=(5,), features=4)
    learner = build(config, Scaling.none(0, 1), 0, 0).double()
    batch = Batch(None, drawn("alpaca-known").y[..., :1])
    for mode in ("moca", "toe", "coe", "sw2"):
        found = scored(learner, batch, mode)
        assert torch.equal(found.isnan(), batch.y.squeeze(-1).isnan())
