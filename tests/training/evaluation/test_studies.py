"""Studies beside the service: each works, and its numbers are what it says they are."""

import itertools
import math
from functools import partial
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

from model_core import filter as moca
from model_core import segments
from model_core.defaults import Defaults
from model_core.segments import Changes, Sequences
from model_core.upm.builtin import Options, build
from training.bench import losses
from training.bench import train as bench
from training.config import Objective
from training.data.sinusoid import splits
from training.evaluation import outliers, step_time
from training.evaluation.filter_trace import density, log_scores, trace
from training.evaluation.online import Settings
from training.evaluation.optimum import optimum
from training.experiments import catalogue
from training.experiments.catalogue import Place
from training.experiments.jobs import learner as new_learner
from training.learners import AlpacaLearner
from training.learners.base import Scaling
from training.learners.encoders import MlpEncoder
from training.meta_training import objective
from training.meta_training.objective import start

HAZARD = 0.3
STEPS = 4


@pytest.fixture(scope="module")
def learner():
    torch.manual_seed(3)
    encoder = MlpEncoder([1, 8, 6], "relu", "tanh")
    return AlpacaLearner(encoder, Scaling.none(1, 1), hazard=0.1, prior_scale=0.6).double()


@pytest.fixture(scope="module")
def batch():
    return splits(0.1).test.draw(torch.Generator().manual_seed(0), 3, 30)


@torch.no_grad()
def test_a_trace_of_the_filter_is_the_forward_pass(learner, batch):
    """Its beliefs, its scores at odd times, its densities and shares below the label."""
    model = learner.model()
    matrix = segments.segment_matrix(model, start(model, batch), Sequences(batch.x, batch.y))
    hazard = torch.full((1, 1), model.hazard, dtype=torch.float64)
    expected = segments.forward(matrix, Changes(hazard)).log_posterior.exp()
    found = trace(model, batch)
    torch.testing.assert_close(found.belief, expected, atol=1e-9, rtol=0)
    elapsed = 20 * torch.rand(batch.y.shape[:2], generator=torch.Generator().manual_seed(5))
    timed = batch._replace(elapsed=elapsed.double())
    scores = log_scores(model, start(model, timed), timed)
    trained = objective.log_scores(learner, timed, Objective(), None)
    torch.testing.assert_close(scores, trained, atol=1e-9, rtol=0)
    one = batch.part(slice(0, 1))
    grid = torch.linspace(-30, 30, 6001, dtype=torch.float64).unsqueeze(-1)
    state = trace(model, one, at=(7,)).states[7]
    each = density(model, state, start(model, one), batch.x[0, 7:8], grid)[:, 0]
    below = torch.trapezoid(each * (grid[:, 0] <= batch.y[0, 7, 0]), grid[:, 0])
    assert torch.trapezoid(each, grid[:, 0]).item() == pytest.approx(1, abs=1e-6)
    assert below.item() == pytest.approx(found.pit[0, 7, 0].item(), abs=2e-3)
    y = batch.y.clone()
    y[1, 4] = torch.nan
    assert torch.isnan(trace(model, batch._replace(y=y)).pit[1, 4]).all()


def evidence(x, y):
    """Of one task: an integral over amplitude and phase, by Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(160)
    amplitude, phase = 2.55 + 2.45 * nodes, 0.5 * math.pi * (1 + nodes)
    mean = amplitude[:, None, None] * np.sin(x - phase[:, None])
    density = np.exp(-((y - mean) ** 2) / 0.1) / math.sqrt(0.1 * math.pi)
    return 0.25 * weights @ density.prod(-1) @ weights


def of_segments(x, y, bounds):
    pairs = itertools.pairwise((0, *bounds, len(x)))
    return math.prod(evidence(x[a:b], y[a:b]) for a, b in pairs)


def test_the_optimum_of_the_sinusoid_is_that_of_every_segmentation():
    batch = splits(HAZARD).test.draw(torch.Generator().manual_seed(3), 3, STEPS)
    bound = optimum(batch, HAZARD)
    for i, (x, y) in enumerate(zip(batch.x[..., 0].numpy(), batch.y[..., 0].numpy(), strict=True)):
        total = 0.0
        for switch in itertools.product((False, True), repeat=STEPS - 1):
            told = of_segments(x, y, [t + 1 for t, now in enumerate(switch) if now])
            total += HAZARD ** sum(switch) * (1 - HAZARD) ** (STEPS - 1 - sum(switch)) * told
            if list(switch) == batch.switch[i, 1:].tolist():
                assert bound.known[i].sum() == pytest.approx(-math.log(told), abs=2e-3)
        assert bound.unknown[i].sum() == pytest.approx(-math.log(total), abs=2e-3)


IN_TIME = Defaults(confirm_probability=None, confirm_after=10)


def test_outliers_hardly_ever_alarm_and_shifts_do(monkeypatch):
    monkeypatch.setattr(outliers, "Settings", partial(Settings, IN_TIME))
    for name, value in {
        "QUIET_STREAMS": 4, "QUIET_LENGTH": 500, "SHIFT_STREAMS": 10, "SHIFT_AT": 100,
        "SHIFT_LENGTH": 160, "SHIFTS": (2.0, 3.0),
    }.items():  # fmt: skip
        monkeypatch.setattr(outliers, name, value)
    text = StringIO()
    found = outliers.report("gaussian", 1 / 250, 0, Console(file=text, width=120))
    suspected, confirmed, high = found.false_per_1000.values()
    assert suspected <= 2.5
    assert confirmed <= 0.5
    assert high <= 1.0
    assert all(each <= 8 for each in found.delay["suspected"])
    assert all(each <= 18 for each in found.delay["confirmed"])
    assert "changed_probability > 0.9" in text.getvalue()


def test_time_per_step_grows_with_the_hypotheses_unless_they_are_pruned(monkeypatch):
    model = build("gaussian", Options())
    nothing = torch.zeros(1, model.scaled, dtype=torch.float64)
    prior = moca.make_prior(model, nothing, nothing + 1)
    state = step_time._full(prior, 40, 40)
    state, info = moca.step(model, state, prior, step_time._inputs(model, 0, "cpu"))
    assert info.ok.all()
    assert state.seq.item() == 41
    assert torch.isfinite(state.belief.log_prob).sum() == 40
    monkeypatch.setattr(step_time, "STEPS", (5, 60))
    console = Console(record=True, width=80)
    step_time.report(model, "cpu", console)
    text = console.export_text()
    assert "nothing pruned" in text
    assert "50 hypotheses" in text


def test_every_way_of_training_has_the_same_loss_and_gradients():
    config = catalogue.preset(
        "sinusoid", "quick", {"model": {"widths": [9], "features": 6, "learn_hazard": True}}
    )
    found = catalogue.splits(config, Place(None, None))
    drawn = found.train.draw(torch.Generator().manual_seed(0), 3, 27)  # no whole number of blocks
    made, each = new_learner(config, found).double(), {}
    assert tuple(losses.WAYS) == bench.WAYS
    for name in bench.WAYS:
        made.zero_grad()
        loss = losses.WAYS[name](made, drawn)
        loss.backward()
        each[name] = loss.item(), {n: p.grad.clone() for n, p in made.named_parameters()}
    plain, gradients = each["plain"]
    assert all(one.abs().max() > 1e-6 for one in gradients.values())
    for name, (loss, others) in each.items():
        assert loss == pytest.approx(plain, abs=1e-9), name
        for parameter, expected in gradients.items():
            assert torch.allclose(others[parameter], expected, atol=1e-9, rtol=1e-9), parameter
