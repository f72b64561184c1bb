"""Every way to condition, beside its definition: absorb what it may see, then predict.

What is minimised is the score of the filter without pruning, of labels as of classes.
"""

import math

import numpy as np
import pytest
import torch

from tests.model_core.cases import of_labels, walk
from tests.training.test_learners import drawn, learner_of
from tests.training.tiny import gaps, splits, tiny
from training.config import ModelConfig, Objective
from training.data.windows import Batch, Scaling
from training.learners import build
from training.learners import learner as new_learner
from training.meta_training.loop import TrainingLoss
from training.meta_training.objective import (
    Validation,
    accuracy,
    class_log_probabilities,
    log_scores,
    measured,
    reveal,
    start,
)

KINDS = pytest.mark.parametrize("kind", ["alpaca-lags", "alpaca-mixture", "lstm-lags", "pcoc"])
MODES = ["oracle", "toe", "coe", "sw3", "sw50"]


def literal(learner, batch, first):
    """`log p(y_t | x_t, rows first(b, t)..t-1)`, one window after another."""
    model = learner.model()
    scores = torch.full(batch.y.shape[:2], math.nan, dtype=batch.y.dtype)
    for b, t in torch.cartesian_prod(*map(torch.arange, batch.y.shape[:2])).tolist():
        one = batch.part(slice(b, b + 1))
        prior = start(model, one)
        context, stats = prior.context, prior.stats
        phi = encoded(model, one, context)
        for i in range(first(b, t), t):
            if not one.y[0, i].isnan().any():
                weight = one.y.new_ones(1, 1)
                stats = model.update(stats, phi[i], one.y[:, i], weight)
        if not one.y[0, t].isnan().any():
            scores[b, t] = model.predictive(stats, phi[t]).joint_log_density(one.y[:, None, t])
    return scores


def encoded(model, one, context):
    """Features of every observation of one window, whose lags are of the labels before."""
    features = []
    for x, y in zip(one.x.unbind(1), one.y.unbind(1), strict=True):
        features.append(model.encode(x, context))
        if getattr(model, "lags", 0):
            context = model.remember(context, y, ~y.isnan().any(-1))
    return features


def same(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=0, equal_nan=True)


def scored(learner, batch, mode, supervision=None, **others):
    with torch.no_grad():
        return log_scores(learner, batch, Objective(mode=mode, **others), supervision)


@KINDS
@torch.no_grad()
def test_a_baseline_is_its_definition(kind):
    learner, batch = learner_of(kind), drawn(kind)
    firsts = {
        "oracle": lambda b, t: max((i for i in range(t + 1) if batch.switch[b, i]), default=0),
        "toe": lambda b, t: t,
        "coe": lambda b, t: 0,
        "sw3": lambda b, t: max(t - 3, 0),
        "sw50": lambda b, t: 0,
    }
    expected = {mode: literal(learner, batch, firsts[mode]) for mode in MODES}
    for mode in MODES:
        same(scored(learner, batch, mode), expected[mode])
        assert torch.equal(torch.isnan(expected[mode]), torch.isnan(batch.y).any(-1))
    known, prior = expected["oracle"].exp(), expected["toe"].exp()
    for weight in (1e-8, 0.3):  # an oracle that doubts is a mixture of densities
        mixed = ((1 - weight) * known + weight * prior).log()
        same(scored(learner, batch, "oracle", prior_weight=weight), mixed)


@torch.no_grad()
def test_supervision_tells_of_true_switches_only():
    batch = drawn("alpaca-known", 200, 50)
    supervision = reveal(batch, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(supervision == 1, batch.switch)
    assert torch.equal(supervision.isnan(), ~batch.switch)
    some = reveal(batch, 0.3, torch.Generator().manual_seed(0))
    assert not (some == 1)[~batch.switch].any()
    share = (some == 1)[batch.switch].double().mean().item()
    count = batch.switch.sum().item()
    assert share == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))
    assert reveal(batch, 0.0, torch.Generator()) is None
    again = reveal(batch, 0.3, torch.Generator().manual_seed(0))
    assert torch.equal(some.isnan(), again.isnan())


@torch.no_grad()
def test_told_of_every_switch_and_sure_of_no_other_it_is_the_oracle():
    learner, batch = learner_of("alpaca-lags"), drawn("alpaca-lags")
    learner.hazard_logit.fill_(-40.0)
    supervision = reveal(batch, 1.0, torch.Generator()).to(batch.y)
    same(scored(learner, batch, "moca", supervision), scored(learner, batch, "oracle"))
    untold = scored(learner, batch, "moca")
    assert not torch.allclose(untold.nan_to_num(), scored(learner, batch, "oracle").nan_to_num())
    same(untold, scored(learner, batch, "coe"))


def test_modes_and_windows():
    assert [Objective(mode=m).window for m in ("sw12", "toe", "moca", "coe")] == [12, 0, None, None]
    for wrong in ("sw0", "sw", "swx", "Moca", "sw3 "):
        with pytest.raises(ValueError, match="expected moca, oracle, toe, coe or swN"):
            Objective(mode=wrong)


@torch.no_grad()
def test_what_nobody_tells_is_refused_or_not_needed():
    batch = drawn("alpaca-known")._replace(switch=None)
    with pytest.raises(ValueError, match="needs the true switches"):
        log_scores(learner_of("alpaca-known"), batch, Objective(mode="oracle"), None)
    # Of labels alone, lags stand in for inputs.
    settings = ModelConfig(lags=2, widths=(5,), features=4)
    learner = build(settings, Scaling.none(0, 1), 0, 0).double()
    batch = Batch(None, batch.y[..., :1])
    for mode in ("moca", "toe", "coe", "sw2"):
        assert torch.equal(scored(learner, batch, mode).isnan(), batch.y.squeeze(-1).isnan())


@torch.no_grad()
def test_class_probabilities_are_those_that_labels_are_scored_with():
    learner, batch = learner_of("pcoc"), drawn("pcoc")
    shares = reveal(batch, 0.5, torch.Generator().manual_seed(1)).to(batch.y)
    for mode in ("moca", *MODES):
        supervision = shares if mode == "moca" else None
        log_class = class_log_probabilities(learner, batch, Objective(mode=mode), supervision)
        total = log_class.exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-12, rtol=0)
        present = ~batch.y.isnan()
        label = torch.where(present, batch.y, 0.0).long()
        at_label = torch.where(present, log_class.gather(-1, label), math.nan).squeeze(-1)
        same(at_label, scored(learner, batch, mode, supervision))


@torch.no_grad()
def test_class_probabilities_of_moca_are_the_filters_told_of_switches_or_not():
    learner, batch = learner_of("pcoc"), drawn("pcoc", 2, 14)
    model, supervision = learner.model(), torch.full((2, 14), math.nan, dtype=torch.float64)
    supervision[0, 6], supervision[1, 8], supervision[1, 4] = 1.0, 1.0, 0.3
    streams = [
        of_labels(y, x, model.hazard)._replace(labelled=~np.isnan(y[:, 0]), changepoint=switch)
        for x, y, switch in zip(batch.x.numpy(), batch.y.numpy(), supervision.numpy(), strict=True)
    ]
    steps = walk(model, start(model, batch), streams, 14)
    expected = torch.stack([step.info.predictive.mean() for step in steps], 1)
    same(class_log_probabilities(learner, batch, Objective(), supervision).exp(), expected)


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
    scores = log_scores(learner, batch, objective, None)
    assert torch.equal(scores.isnan(), batch.y.squeeze(-1).isnan())
    for b, t in (~scores.isnan()).nonzero().tolist():
        assert scores[b, t].item() == pytest.approx(expected[b, t, int(batch.y[b, t])].item())


def test_accuracy_counts_labels_alone_and_nothing_unknown_is_right():
    log_probability = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3], [0.1, 0.1, 0.8]]).log()[None]
    y = torch.tensor([1.0, 2.0, math.nan])[None, :, None]
    right = accuracy(log_probability, y)
    assert right[0, :2].tolist() == [1.0, 0.0]
    assert right[0, 2].isnan()
    assert accuracy(torch.full((1, 1, 2), math.nan), torch.zeros(1, 1, 1)).isnan().all()


WIDE = 1e6  # scale of prior factors at which no digits are left


def test_a_score_that_fails_does_not_pass_for_a_label_that_is_missing(tmp_path):
    for scale, fails in ((0.2, False), (WIDE, True)):
        wanted = tiny(
            model={"widths": [16], "features": 24, "prior_scale": scale},
            optimiser={"length": 100, "dtype": "float32"},
            validation={"windows": 6},
        )
        sources = splits(wanted)
        sources = sources._replace(validation=gaps(sources.validation))
        untrained, validation = new_learner(wanted, sources), Validation(wanted, sources, "cpu")
        batch = validation.batch.to("cpu", torch.float32)
        present = ~torch.isnan(batch.y).any(-1)
        score = measured(untrained, batch, wanted.objective)["nll"]
        failed = torch.isnan(score) & present
        assert fails == bool(failed.any())
        assert not failed[present].all()
        assert not torch.isfinite(score[~present]).any()
        expected = math.nan if fails else score[present].mean().item()
        nll = validation.measure(untrained)["nll"]
        assert nll == pytest.approx(expected, rel=1e-6, nan_ok=True)
        total, count = TrainingLoss(untrained, wanted)(batch, None)
        assert (math.isnan(total.item()), count) == (fails, present.sum())
