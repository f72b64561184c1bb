"""Step by step is the same as all at once."""

from __future__ import annotations

import pytest
import torch

from model_core import segments
from model_core.segments import Changes, Sequences
from training.config import Objective
from training.data.sinusoid import splits
from training.evaluation.filter_trace import density, log_scores, trace
from training.learners import AlpacaLearner
from training.learners.base import Scaling
from training.learners.encoders import MlpEncoder
from training.meta_training import objective
from training.meta_training.objective import start


@pytest.fixture(scope="module")
def learner():
    torch.manual_seed(3)
    encoder = MlpEncoder([1, 8, 6], "relu", "tanh")
    return AlpacaLearner(encoder, Scaling.none(1, 1), hazard=0.1, prior_scale=0.6).double()


@pytest.fixture(scope="module")
def model(learner):
    with torch.no_grad():
        return learner.model()


@pytest.fixture(scope="module")
def batch():
    return splits(0.1).test.draw(torch.Generator().manual_seed(0), 3, 30)


@torch.no_grad()
def test_beliefs_are_those_of_the_forward_pass(model, batch):
    found = trace(model, batch)
    matrix = segments.segment_matrix(model, start(model, batch), Sequences(batch.x, batch.y))
    hazard = torch.full((1, 1), model.hazard, dtype=torch.float64)
    expected = segments.forward(matrix, Changes(hazard)).log_posterior.exp()
    torch.testing.assert_close(found.belief, expected, atol=1e-9, rtol=0)


@torch.no_grad()
def test_pits_are_shares_of_the_mixture_below_the_label(model, batch):
    found = trace(model, batch, at=(7,))
    x = batch.x[0, 7:8]
    grid = torch.linspace(-30, 30, 6001, dtype=torch.float64).unsqueeze(-1)
    prior = start(model, batch.part(slice(0, 1)))
    state = trace(model, batch.part(slice(0, 1)), at=(7,)).states[7]
    each = density(model, state, prior, x, grid)[:, 0]
    below = torch.trapezoid(each * (grid[:, 0] <= batch.y[0, 7, 0]), grid[:, 0])
    assert torch.trapezoid(each, grid[:, 0]).item() == pytest.approx(1, abs=1e-6)
    assert below.item() == pytest.approx(found.pit[0, 7, 0].item(), abs=2e-3)


@torch.no_grad()
def test_a_missing_label_has_no_pit_and_density_is_of_each_input(model, batch):
    y = batch.y.clone()
    y[1, 4] = torch.nan
    found = trace(model, batch._replace(y=y), at=(5,))
    assert torch.isnan(found.pit[1, 4]).all()
    assert torch.isfinite(found.pit[0]).all()
    one = batch._replace(y=y).part(slice(1, 2))
    state, prior = trace(model, one, at=(5,)).states[5], start(model, one)
    x, y = torch.tensor([[-2.0], [1.0]]).double(), torch.tensor([[0.0], [1.5]]).double()
    both = density(model, state, prior, x, y)
    assert both.shape == (2, 2)
    alone = density(model, state, prior, x[1:], y)
    torch.testing.assert_close(both[:, 1:], alone)


@torch.no_grad()
def test_a_stream_at_odd_times_is_scored_as_it_is_trained(learner, model, batch):
    elapsed = 20 * torch.rand(batch.y.shape[:2], generator=torch.Generator().manual_seed(5))
    timed = batch._replace(elapsed=elapsed.double())
    found = log_scores(model, start(model, timed), timed)
    trained = objective.log_scores(learner, timed, Objective(), None)
    torch.testing.assert_close(found, trained, atol=1e-9, rtol=0)
    regular = objective.log_scores(learner, batch, Objective(), None)
    assert (found - regular).abs().max() > 0.1
