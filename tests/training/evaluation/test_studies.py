"""Studies beside the service: each works, and its numbers are what it says they are."""

import itertools
import math
from functools import partial
from io import StringIO

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from model_core import filter as moca
from model_core import segments
from model_core.defaults import Defaults
from model_core.events import Event
from model_core.segments import Changes, Sequences
from model_core.upm.averaged import Averaged
from model_core.upm.builtin import Options, build
from tests.training.moca import WIDE
from training.bench import losses
from training.bench import train as bench
from training.config import Objective
from training.data.sinusoid import splits
from training.evaluation import outliers, step_time
from training.evaluation.filter_trace import density, log_scores, trace
from training.evaluation.online import Followed, Settings
from training.evaluation.optimum import optimum
from training.evaluation.quality import selection
from training.evaluation.quality.families import FAMILIES, WALK_LENGTH
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
LONG = 200_000


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


def test_of_recurring_tasks_it_is_every_segmentation_and_task():
    source = splits(HAZARD, tasks=3).test
    batch = source.draw(torch.Generator().manual_seed(4), 6, STEPS)
    found = optimum(batch, HAZARD, tasks=source.tasks)
    mean = source.tasks[:, 0] * torch.sin(batch.x - source.tasks[:, 1])
    density = torch.exp(-10 * (batch.y - mean).square()) / math.sqrt(0.1 * math.pi)
    for i, each in enumerate(density.numpy()):
        total = 0.0
        for switch in itertools.product((False, True), repeat=STEPS - 1):
            bounds = [0, *(t + 1 for t, now in enumerate(switch) if now), STEPS]
            told = math.prod(each[a:b].prod(0).mean() for a, b in itertools.pairwise(bounds))
            total += HAZARD ** sum(switch) * (1 - HAZARD) ** (STEPS - 1 - sum(switch)) * told
            if list(switch) == batch.switch[i, 1:].tolist():
                assert found.known[i].sum() == pytest.approx(-math.log(told), abs=1e-10)
        assert found.unknown[i].sum() == pytest.approx(-math.log(total), abs=1e-10)


def test_alarms_are_counted_when_they_go_off():
    one, two = Event(1, "suspected", 5, 7), Event(2, "suspected", 20, 21)
    events = [
        (7, one), (8, one._replace(start=6)), (17, one._replace(state="confirmed")),
        (21, two), (23, two._replace(state="withdrawn")),
    ]  # fmt: skip
    changed = [0.1, 0.95, 0.99, 0.2, 0.91]
    found = outliers.alarms(Followed(events, changed))
    assert list(found.values()) == [[7, 21], [17], [1, 4]]


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


def test_families_are_what_they_are_said_to_be():
    rng = np.random.default_rng(2)
    drawn = {family.name: family.draw(rng, LONG) for family in FAMILIES}
    other = {"1 % outliers": (0.0, math.sqrt(0.99 + 0.01 * 64)), "counts": (4.0, 2.0)}
    for name, y in drawn.items():
        if name in ("random walk", "slow drift"):
            continue
        mean, sd = other.get(name, (0.0, 1.0))
        assert y.mean() == pytest.approx(mean, abs=0.03), name
        # The variance of squares of Student-t3 does not exist.
        assert y.std() == pytest.approx(sd, rel=0.15 if name == "Student-t3" else 0.03), name
    for name, lag, coefficient in (
        ("AR(0.5)", 1, 0.5),
        ("AR(0.9)", 1, 0.9),
        ("normal", 1, 0.0),
        ("season of 24", 24, 0.75),
        ("season of 288", 288, 0.75),
    ):
        y = drawn[name]
        assert np.corrcoef(y[lag:], y[:-lag])[0, 1] == pytest.approx(coefficient, abs=0.01), name
    assert np.mean(np.abs(drawn["1 % outliers"]) == 8.0) == pytest.approx(0.01, abs=0.001)
    assert np.diff(drawn["random walk"]).std() == pytest.approx(1.0, abs=0.01)
    assert np.polyfit(np.arange(LONG), drawn["slow drift"], 1)[0] == pytest.approx(0.002, rel=0.01)
    walk = next(family for family in FAMILIES if family.name == "random walk")
    variances = [walk.draw(rng, WALK_LENGTH).var() for _ in range(2000)]
    assert math.sqrt(np.mean(variances)) == pytest.approx(walk.sd, rel=0.07)
    for family in FAMILIES:
        quiet = family.draw(np.random.default_rng(4), 50)
        shifted = family.shifted(np.random.default_rng(4), 50, 30, 2.0)
        assert shifted[:30] == pytest.approx(quiet[:30])
        assert shifted[30:] - quiet[30:] == pytest.approx(2.0 * family.sd)


def test_the_choice_of_one_half_is_scored_on_the_other():
    """The candidate that wins on each series alone scores nothing on all others."""
    table = np.full((5, 4, 2), 0.2)
    table[0] = 0.4
    for series in range(4):
        table[1 + series, series] = 2.0
    halves = [np.array([0, 1, 2, 3])]
    row = selection._row("online", table, halves)
    # On either half one of two candidates comes to 1.1, and to .2 on the other.
    assert row.chosen == (pytest.approx((0.2, 0.0)), pytest.approx((0.2, 0.0)))
    assert row.default == (pytest.approx((0.4, 0.0)), pytest.approx((0.4, 0.0)))
    assert row.beaten == 0.0


def test_candidates_lie_around_the_defaults():
    model = Averaged()
    first, *others = selection.candidates(model, 10, np.random.default_rng(1))
    assert first[0] is model
    names = ("kappa", "slope", "autoregression", "alpha", "beta", "hazard")
    for changed, settings in others:
        factors = [getattr(changed, name) / getattr(model, name) for name in names]
        assert all(0.5 <= factor <= 2.0 for factor in factors)
        assert len(set(factors)) == 6
        odds = settings.threshold / (1 - settings.threshold)
        assert 49.4 <= odds <= 198.1  # of .99, times 1/2 to 2


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


def test_the_command_compares_ways_of_training(monkeypatch):
    monkeypatch.setattr(bench, "BATCH", 3)
    monkeypatch.setattr(bench, "LENGTH", 27)
    lattice, rows = (bench.measure(name, "float64", 1) for name in ("lattice", "rows"))
    assert lattice.loss == pytest.approx(rows.loss, abs=1e-9)
    took = dict(zip(("plain", "rows", "blocks", "lattice"), (6.0, 3.0, 1.5, 0.5), strict=True))
    monkeypatch.setattr(
        bench, "_in_subprocess", lambda name, *_: bench.Measured(took[name], 1000.0, 1.5)
    )
    app = typer.Typer()
    app.command()(bench.command)
    said = CliRunner().invoke(app, ["--dtype", "float64", "--repeats", "2"], env=WIDE)
    assert said.exit_code == 0
    table = {
        line.split()[0]: line.split()[1:3] for line in said.stdout.splitlines() if line.split()
    }
    assert (table["plain"], table["lattice"]) == (["6.000", "1.0"], ["0.500", "12.0"])
    assert CliRunner().invoke(app, ["--dtype", "float16"], env=WIDE).exit_code == 2
