"""Class probabilities of every mode, step by step; a trained encoder's artifact."""

from __future__ import annotations

import math

import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from training.config import ModelConfig, Objective
from training.data.base import Batch
from training.evaluation.filter_trace import trace
from training.evaluation.online import observed
from training.learners import Classifier, Learner, PcocLearner, build
from training.learners.base import Scaling
from training.learners.encoders import NoEncoder
from training.meta_training.objective import accuracy, class_log_probabilities, log_scores, start
from training.meta_training.validation import measured

CLASSES, FEATURES, STEPS = 3, 2, 14
MODES = ("moca", "oracle", "sw1", "sw5", "toe", "coe")


@pytest.fixture
def learner() -> PcocLearner:
    torch.manual_seed(0)
    found = PcocLearner(
        NoEncoder(FEATURES), Scaling.none(FEATURES, 1), CLASSES, hazard=0.2, dirichlet=1.5
    )
    for each in (found.log_prior_precision, found.log_noise_variance, found.log_dirichlet):
        each.data.normal_(0.0, 0.5)
    return found.double()


@pytest.fixture
def batch() -> Batch:
    """Two sequences of two regimes, some labels missing."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(CLASSES, (2, STEPS, 1), generator=generator).double()
    x = torch.randn(2, STEPS, FEATURES, generator=generator, dtype=torch.float64)
    late = torch.arange(STEPS)[:, None] >= 6
    x[..., :1] += torch.where(late, CLASSES - 1 - y, y)
    y[0, 3], y[1, 0], y[:, 9] = math.nan, math.nan, math.nan
    switch = torch.zeros(2, STEPS, dtype=torch.bool)
    switch[:, 0], switch[0, 6], switch[1, 8] = True, True, True
    return Batch(x, y, switch)


def first(mode: str, batch: Batch, row: int, t: int) -> int:
    """The observation from which on those before `t` count."""
    if mode == "oracle":
        return max(s for s in range(t + 1) if batch.switch[row, s])
    known = {"coe": 0, "toe": t}
    return known[mode] if mode in known else max(t - int(mode[2:]), 0)


def one_by_one(learner: Learner, batch: Batch, mode: str) -> torch.Tensor:
    """Every prediction from its own window, absorbed observation after observation."""
    model, found = learner.model(), torch.zeros(*batch.y.shape[:2], CLASSES, dtype=torch.float64)
    for row in range(len(batch.y)):
        for t in range(STEPS):
            stats = start(model, batch.part(slice(0, 1))).stats
            for i in range(first(mode, batch, row, t), t):
                label = batch.y[row, i]
                if not torch.isnan(label):
                    one = torch.ones(1, 1, dtype=torch.float64)
                    stats = model.update(stats, batch.x[row, i][None], label[None], one)
            found[row, t] = model.predictive(stats, batch.x[row, t][None]).mean()[0, 0]
    return found


@pytest.mark.parametrize("mode", MODES[1:])
def test_probabilities_given_a_window(learner, batch, mode):
    with torch.no_grad():
        found = class_log_probabilities(learner, batch, Objective(mode=mode)).exp()
        torch.testing.assert_close(found, one_by_one(learner, batch, mode), atol=1e-10, rtol=0)


def test_probabilities_of_moca_are_the_filters(learner, batch):
    with torch.no_grad():
        found = class_log_probabilities(learner, batch, Objective()).exp()
        assert found.sum(-1).allclose(torch.ones(2, STEPS, dtype=torch.float64))
        expected = trace(learner.model(), batch).probability
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_probabilities_of_moca_that_is_told_switches(learner, batch):
    told = torch.full((2, STEPS), math.nan, dtype=torch.float64)
    told[0, 6], told[1, 8], told[1, 4] = 1.0, 1.0, 0.3
    with torch.no_grad():
        model = learner.model()
        prior, found = start(model, batch), []
        state = moca.init(prior, STEPS)
        for t in range(STEPS):
            inputs = observed(model, batch, t)._replace(changepoint=told[:, t])
            state, info = moca.step(model, state, prior, inputs)
            found.append(info.predictive.mean())
        got = class_log_probabilities(learner, batch, Objective(), told).exp()
        untold = class_log_probabilities(learner, batch, Objective()).exp()
    torch.testing.assert_close(got, torch.stack(found, 1), atol=1e-10, rtol=0)
    assert (got - untold).abs().max() > 0.01


@pytest.mark.parametrize("mode", MODES)
def test_the_label_has_the_probability_that_training_gives_it(learner, batch, mode):
    with torch.no_grad():
        each = class_log_probabilities(learner, batch, Objective(mode=mode))
        score = log_scores(learner, batch, Objective(mode=mode), None)
        found = measured(learner, batch, Objective(mode=mode), classes=CLASSES, part=1)
    labelled = ~torch.isnan(batch.y)
    own = each.gather(-1, torch.where(labelled, batch.y, 0.0).long())
    expected = torch.where(labelled, own, torch.nan).squeeze(-1)
    torch.testing.assert_close(score, expected, atol=1e-10, rtol=0, equal_nan=True)
    torch.testing.assert_close(found["nll"], -score, atol=1e-10, rtol=0, equal_nan=True)


def test_accuracy_counts_labels_alone():
    log_probability = torch.tensor([[[0.1, 0.7, 0.2], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6]]]).log()
    y = torch.tensor([[[1.0], [2.0], [math.nan]]])
    found = accuracy(log_probability, y)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, math.nan]]), equal_nan=True)


def test_a_classifier_does_not_care_what_was_before():
    config = ModelConfig(kind="pcoc", image=(3, 8, 8), blocks=(4, 5))
    found = build(config, Scaling.none(192, 1), CLASSES, 0, adapts=False).eval()
    assert isinstance(found, Classifier)
    x = torch.rand(2, 6, 192)
    batch = Batch(x, torch.zeros(2, 6, 1))
    with torch.no_grad():
        each = class_log_probabilities(found, batch, Objective(mode="toe"))
        moved = class_log_probabilities(found, Batch(x.flip(1), batch.y), Objective(mode="toe"))
    torch.testing.assert_close(moved.flip(1), each)
    torch.testing.assert_close(each.exp().sum(-1), torch.ones(2, 6))


def test_a_trained_encoder_is_served_as_it_was_trained(tmp_path):
    config = ModelConfig(kind="pcoc", image=(3, 12, 12), blocks=(6, 5, 4), hazard=0.1)
    found = build(config, Scaling.none(432, 1), CLASSES, 3)
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(2, 10, 432, generator=generator)
    batch = Batch(x, torch.randint(CLASSES, (2, 10, 1), generator=generator).float())
    optimiser = torch.optim.Adam(found.parameters(), lr=0.05)
    for _ in range(3):  # so that running moments and weights are not those of the start
        optimiser.zero_grad()
        (-log_scores(found, batch, Objective(), None).mean()).backward()
        optimiser.step()
    artifact.save(tmp_path, *found.artifact())
    served = artifact.load(tmp_path)
    found.eval()
    with torch.no_grad():
        trained = class_log_probabilities(found, batch, Objective()).exp()
    probability = trace(served, batch.to("cpu", torch.float64)).probability
    torch.testing.assert_close(trained.double(), probability, atol=1e-5, rtol=0)
    assert (probability[:, 1:] - probability[:, :1]).abs().max() > 0.01
