"""Traces of the filter over sequences: beliefs, scores, densities and PITs."""

import numpy as np
import pytest
import torch

from model_core import segments
from model_core.segments import Changes, Sequences
from tests.training.test_learners import drawn, learner_of
from tests.training.tiny import seeded, splits, tiny
from training.config import Objective
from training.learners import learner
from training.meta_training import objective
from training.meta_training.objective import start
from training.trained import density, log_scores, trace


@torch.no_grad()
def test_a_trace_of_the_filter_is_the_forward_pass():
    config = tiny()
    sources = splits(config)
    model, batch = learner(config, sources).double().model(), sources.test(seeded(), 3, 30)
    matrix = segments.segment_matrix(model, start(model, batch), Sequences(batch.x, batch.y))
    hazard = torch.full((1, 1), model.hazard, dtype=torch.float64)
    expected = segments.forward(matrix, Changes(hazard)).log_posterior.exp()
    traced = trace(model, batch)
    torch.testing.assert_close(traced.belief, expected, atol=1e-9, rtol=0)
    one = batch.part(slice(0, 1))
    grid = torch.linspace(-30, 30, 6001, dtype=torch.float64).unsqueeze(-1)
    state = trace(model, one, at=(7,)).states[7]
    density_of = density(model, state, batch.x[0, 7:8], grid)[:, 0]
    below = torch.trapezoid(density_of * (grid[:, 0] <= batch.y[0, 7, 0]), grid[:, 0])
    assert torch.trapezoid(density_of, grid[:, 0]).item() == pytest.approx(1, abs=1e-6)
    assert below.item() == pytest.approx(traced.pit[0, 7, 0].item(), abs=2e-3)
    y = batch.y.clone()
    y[1, 4] = torch.nan
    assert np.isnan(trace(model, batch._replace(y=y)).pit[1, 4]).all()


@pytest.mark.parametrize("kind", ["alpaca-lags", "alpaca-mixture-unknown", "lstm-lags"])
@torch.no_grad()
def test_what_is_minimised_is_the_score_of_the_filter_without_pruning(kind):
    """At odd times, some labels missing."""
    learned, batch = learner_of(kind), drawn(kind, 2, 12)
    elapsed = 20 * torch.rand(batch.y.shape[:2], generator=torch.Generator().manual_seed(5))
    batch = batch._replace(elapsed=elapsed.double())
    learned.eval()
    model = learned.model()
    expected = log_scores(model, batch)
    minimised = objective.log_scores(learned, batch, Objective(), None)
    torch.testing.assert_close(minimised, expected, atol=1e-9, rtol=0, equal_nan=True)
