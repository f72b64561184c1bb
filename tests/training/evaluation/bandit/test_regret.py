"""Regret of trained runs: from small runs to tables and figures, as the command line does it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.training.moca import moca
from training.data import wheel
from training.errors import BadRun
from training.evaluation.bandit import regret as bandit
from training.evaluation.bandit import trials as playing
from training.evaluation.bandit.agents import AGENTS, Random
from training.evaluation.bandit.trials import STRATEGIES
from training.evaluation.paper import Wanted
from training.evaluation.paper_figures import bandit as drawing
from training.evaluation.trained import best, trained
from training.experiments.catalogue import Place
from training.experiments.jobs import Wanted as Training
from training.experiments.jobs import train
from training.figures.chart import Coloured, Image, Line, Rules
from training.statistics.intervals import estimate

SMALL = {
    "model": {"widths": (8,), "features": 4},
    "optimiser": {"iterations": 3, "batch": 3, "length": 12},
    "validation": {"every": 3, "windows": 3},
}
HAZARDS, METHODS, STEPS, TRIALS = (0.02, 0.1), {"MOCA", "SW5", "oracle"}, 140, 3


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three methods at two hazards, and one that is no agent's."""
    folder = tmp_path_factory.mktemp("runs")
    place = Place(None, folder / "cache")
    modes = ["moca", "sw5", "oracle", "coe"]
    train(Training("bandit", "quick", folder), SMALL, place, HAZARDS, modes, [], [])
    return folder


@pytest.fixture
def wanted(runs, tmp_path):
    return Wanted("bandit", "quick", runs, Place(None, runs / "cache"), tmp_path)


@pytest.fixture
def one(wanted):
    """MOCA's run at the hazard of the paper's figure."""
    return best(list(trained(wanted.folder)))[0.02, "MOCA"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(bandit, "STEPS", STEPS)


def test_percent_is_of_the_random_agents_regret_on_the_same_worlds(wanted, one):
    got = bandit.play(one, wanted, TRIALS, "optimistic-3")
    met = wheel.world(torch.Generator().manual_seed(bandit.SEED), TRIALS, STEPS, 0.02)
    strategy, model = STRATEGIES["optimistic-3"], bandit.model(one, wanted)
    with torch.no_grad():
        ours, anything = (
            playing.run(each, model, met, strategy, torch.Generator().manual_seed(bandit.SEED))
            for each in (AGENTS["MOCA"], Random())
        )
    np.testing.assert_allclose(got.percent, 100 * ours.regret.sum(-1) / anything.regret.sum(-1))
    np.testing.assert_allclose(got.cumulative[:, -1], ours.regret.sum(-1), rtol=1e-6)
    assert got.cumulative.shape == (TRIALS, STEPS)


def test_every_method_has_its_own_model_and_the_same_worlds(wanted):
    found = best(list(trained(wanted.folder)))
    played = {name: bandit.play(found[0.1, name], wanted, TRIALS, "thompson") for name in METHODS}
    # What 100 % is in each trial does not depend on the method.
    whole = [100 * each.cumulative[:, -1] / each.percent for each in played.values()]
    for other in whole[1:]:
        np.testing.assert_allclose(whole[0], other, rtol=1e-6)
    weights = [bandit.model(found[0.1, name], wanted).prior_mean for name in METHODS]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_trials_are_kept_by_their_number_and_strategy(wanted, one, monkeypatch):
    first = bandit.play(one, wanted, TRIALS, "greedy")
    monkeypatch.setattr(bandit, "load", None)  # nothing is played again
    again = bandit.play(one, wanted, TRIALS, "greedy")
    np.testing.assert_array_equal(first.percent, again.percent)
    np.testing.assert_array_equal(first.cumulative, again.cumulative)
    for trials, strategy in ((TRIALS + 1, "greedy"), (TRIALS, "optimistic-5")):
        with pytest.raises(TypeError):
            bandit.play(one, wanted, trials, strategy)


def test_tables_and_figures_of_the_command(runs, tmp_path):
    asked = ["--strategy", "thompson", "--strategy", "greedy", "--trials", TRIALS]
    found = moca("evaluate", "bandit", "--runs", runs, "--out", tmp_path, *asked)
    assert found.exit_code == 0, found.stderr
    assert "MOCA's lead" in found.stdout
    chosen = best(list(trained(runs / "bandit" / "quick")))
    for strategy in ("thompson", "greedy"):
        rows = json.loads((tmp_path / strategy / "table.json").read_text())["rows"]
        assert {(row["hazard"], row["method"]) for row in rows} == {
            (hazard, method) for hazard in HAZARDS for method in METHODS
        }
        wanted = Wanted("bandit", "quick", runs, Place(None, runs / "cache"), tmp_path)
        for row in rows:
            each = chosen[row["hazard"], row["method"]]
            expected = estimate(bandit.play(each, wanted, TRIALS, strategy).percent)
            assert (row["mean"], row["low"], row["sequences"]) == (*expected[:2], TRIALS)
            assert row["iterations"] == 3
        assert (tmp_path / strategy / "table.md").exists()
        for name in ("regret", "cumulative"):
            assert (tmp_path / f"{name}-{strategy}.png").exists()
            assert (tmp_path / f"{name}-{strategy}.html").exists()
    assert {"wheel.png", "losses-0.02.png"} <= {file.name for file in tmp_path.iterdir()}


def test_the_papers_figure_is_of_one_trial(wanted, one):
    chart = drawing._wheel(wanted, {("0.02", "MOCA"): one})
    (samples, mean), (belief,) = chart.rows
    met = bandit.world(0.02, 1)
    (rewards,) = (each for each in samples.layers if isinstance(each, Coloured))
    radius = met.delta[0, drawing.AT]
    states = torch.from_numpy(np.stack((rewards.x, rewards.y), -1))
    expected = wheel.reward_mean(states, torch.ones(len(states), dtype=torch.int64), radius)
    error = rewards.value - expected.numpy()
    assert abs(error.mean()) < 0.1
    assert error.std() == pytest.approx(wheel.NOISE, rel=0.15)
    (surface,) = (each for each in mean.layers if isinstance(each, Image))
    outside = surface.x[None] ** 2 + surface.y[:, None] ** 2 > 1
    assert np.array_equal(np.isnan(surface.z), outside)
    switches, shown = (each for each in belief.layers if isinstance(each, Rules))
    at = np.flatnonzero(met.switch[0].numpy())
    np.testing.assert_array_equal(switches.at, at[at > 0] - 0.5)
    assert shown.at.tolist() == [drawing.AT]


def test_regret_over_time_is_the_mean_of_the_trials():
    steps = np.arange(1, 21)
    cumulative = np.stack((steps, 3 * steps)).astype(np.float32)
    results = {
        ("0.1", "SW5", "greedy"): bandit.Played(np.array([50.0, 60.0]), cumulative),
        ("0.1", "SW5", "thompson"): bandit.Played(np.array([50.0, 60.0]), 0 * cumulative),
    }
    (panel,) = drawing._cumulative(results, "greedy").rows[0]
    (line,) = (each for each in panel.layers if isinstance(each, Line))
    np.testing.assert_allclose(line.y, 2 * line.x)
    several = {(f"{k / 10}", "SW5", "greedy"): results["0.1", "SW5", "greedy"] for k in range(1, 6)}
    assert [len(row) for row in drawing._cumulative(several, "greedy").rows] == [3, 2]


def test_what_cannot_be_evaluated_says_why(runs, tmp_path):
    def failed(*arguments):
        found = moca("evaluate", "bandit", "--out", tmp_path / "out", *arguments)
        assert found.exit_code == 2
        return found.stderr

    assert "optimistic-3" in failed("--runs", runs, "--strategy", "bold")
    assert "moca train bandit" in failed("--runs", tmp_path)


def test_a_model_that_no_agent_can_hold_is_refused(tmp_path):
    place = Place(None, tmp_path / "cache")
    settings = SMALL | {"model": {"kind": "lstm", "hidden": 4, "decoder": (4,)}}
    train(Training("bandit", "quick", tmp_path), settings, place, [0.1], ["moca"], [], [])
    (each,) = trained(tmp_path)
    with pytest.raises(BadRun, match="kind alpaca, got 'lstm'"):
        bandit.model(each, Wanted("bandit", "quick", tmp_path, place, tmp_path))
