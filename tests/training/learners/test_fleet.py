"""The learned part of a fleet's model: what it starts from, and what of it is served."""

import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from model_core.upm.robust_averaged import RobustAveraged
from training.config import ModelConfig
from training.data.base import Batch
from training.evaluation import filter_trace
from training.learners import build
from training.learners.base import Scaling
from training.meta_training.objective import start

OUTPUTS, LAGS = 2, 3


def made(x_dim=1, lags=LAGS, seed=0):
    """A learner of float64, whose inputs have a scaling."""
    settings = {"kind": "fleet", "noise": "unknown", "widths": (7,), "features": 5, "lags": lags}
    scaling = Scaling.none(x_dim, OUTPUTS)._replace(
        x_offset=torch.full((x_dim,), 2.0), x_scale=torch.full((x_dim,), 4.0)
    )
    return build(ModelConfig(**settings), scaling, 0, seed).double()


def drawn(x_dim=1, steps=25):
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(3, steps, OUTPUTS, generator=generator, dtype=torch.float64)
    y[0, 4] = torch.nan
    y[1, 6, 1] = torch.nan
    x = torch.randn(3, steps, x_dim, generator=generator, dtype=torch.float64)
    return Batch(x if x_dim else None, y, None)


@pytest.mark.parametrize(("x_dim", "lags"), [(1, LAGS), (0, LAGS), (2, 0)])
def test_an_artifact_is_the_model_that_is_served(tmp_path, x_dim, lags):
    learner, batch = made(x_dim, lags), drawn(x_dim)
    with torch.no_grad():
        for each in learner.parameters():
            each.add_(0.1 * torch.randn(each.shape, dtype=each.dtype))
    description, tensors = learner.artifact()
    assert not {"output_scaling", "noise"} & description.keys()
    artifact.save(tmp_path, description, tensors)
    served, loaded = learner.served(), artifact.load(tmp_path)
    found, expected = (
        filter_trace.log_scores(each, start(each, batch), batch) for each in (loaded, served)
    )
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0, equal_nan=True)
    built_in = RobustAveraged()
    for model in (served, loaded):
        assert (model.kind, model.hazard) == ("fleet", built_in.hazard)
        assert model.outlier_rate == built_in.outlier_rate
        assert (model.x_dim, model.lags, model.chance) == (x_dim, lags, 0.5)
    assert learner.hazard.item() != pytest.approx(served.hazard, abs=1e-3)


def test_the_first_forecast_is_the_label_before():
    learner, batch = made(seed=3), drawn()
    model, served = learner.model(), learner.served()
    state = moca.init(start(served, batch), 1)
    for label in batch.y[:, 7:9].unbind(1):
        there = torch.ones(3, dtype=torch.bool)
        context = served.remember(state.context, label, there)
        state = state._replace(context=context)
    phi = served.features(batch.x[:, 9], state.context)
    mean = model.predictive(start(model, batch).stats, phi).mean()
    torch.testing.assert_close(mean[:, 0], batch.y[:, 8], atol=1e-12, rtol=0)


def test_what_is_trained_alone_is_the_part_that_is_served():
    learner = made()
    model, served = learner.model(), learner.served()
    assert torch.equal(served.prior_mean, model.prior_mean)
    assert torch.equal(served.prior_cov, model.prior_cov)
    assert torch.equal(served.noise_alpha, model.noise_prior.alpha)
    assert torch.equal(served.noise_beta, model.noise_prior.beta)
    assert (model.y_offset.tolist(), model.y_scale.tolist()) == ([0, 0], [1, 1])
