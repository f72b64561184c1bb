"""Players from files to tables and figures: every way to condition, resumed runs, other data."""

import json

import numpy as np
import pytest
import torch

from tests.training.moca import SMALL, moca
from training.errors import BadRun
from training.evaluation import trained
from training.evaluation.paper import Wanted, evaluate
from training.evaluation.paper_figures import players
from training.experiments import catalogue, jobs
from training.experiments.catalogue import Place
from training.experiments.jobs import Wanted as Training
from training.experiments.jobs import overrides, train
from training.meta_training.runs import Run

MODES = ["moca", "toe", "sw5", "coe"]
TINY = trained.Protocol(5, 150)
COMMON = overrides(None, [f"{name}={value}" for name, value in SMALL.items()])
COMMON["optimiser"]["length"] = 20
STEPS = 260


def walks(rows, seed):
    """Players who go straight on, in feet, and turn now and then."""
    rng = np.random.default_rng(seed)
    turns = rng.normal(size=(rows, STEPS // 26, 2)).repeat(26, 1)
    return (20 + np.cumsum(turns + 0.1 * rng.normal(size=(rows, STEPS, 2)), 1)).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("nba_cle_5hz", "nba_12p5hz")):
        x = walks(8, seed)
        found = {"x": x, "length": np.full(8, STEPS, np.int32), "play": np.arange(8) // 2}
        np.savez(folder / f"{name}_train.npz", **found)
        late = walks(6, seed + 2)
        np.savez(folder / f"{name}_val.npz", **found, w151=late[:, :151], w201=late[:, :201])
    return Place(folder, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, place):
    folder = tmp_path_factory.mktemp("runs")
    for preset in ("quick", "quick-12p5hz"):
        train(Training("players", preset, folder), COMMON, place, [], MODES, [], [])
    return folder


@pytest.fixture(autouse=True)
def small_protocol(monkeypatch):
    monkeypatch.setitem(trained.PROTOCOLS, "players", TINY)


def test_every_method_from_runs_to_figures(runs, place, tmp_path):
    found = evaluate(Wanted("players", "quick", runs, place, tmp_path), players.draw)
    assert found.methods() == ["MOCA", "SW5", "TOE", "COE"]
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert len({row["mean"] for row in rows}) == 4
    written = {file.name for file in tmp_path.iterdir()}
    for name in ("trajectory", "calibration", "losses", "methods"):
        assert {f"{name}.html", f"{name}.png"} <= written
    assert "window" in (tmp_path / "trajectory.html").read_text()


def test_a_preset_for_each_recording(runs, place, tmp_path):
    """The same protocol on the windows of its own file."""
    each = next(trained.trained(runs / "players" / "quick-12p5hz"))
    assert each.config.data["name"] == "nba_12p5hz"
    own, other = (
        trained.sequences(catalogue.splits(config, place), TINY).y
        for config in (each.config, catalogue.preset("players", "quick"))
    )
    assert own.shape == other.shape == (5, 150, 2)
    assert not torch.equal(own, other)
    evaluate(Wanted("players", "quick-12p5hz", runs, place, tmp_path), players.draw)
    assert "nba_12p5hz" in (tmp_path / "trajectory.html").read_text()


def test_runs_on_different_data_are_not_put_in_one_table(place, tmp_path):
    other = COMMON | {"name": "other", "data": {"name": "nba_12p5hz"}}
    for common in (COMMON, other):
        train(Training("players", "quick", tmp_path), common, place, [], ["toe"], [], [])
    with pytest.raises(BadRun, match="different data"):
        evaluate(Wanted("players", "quick", tmp_path, place, tmp_path), players.draw)


def test_the_player_who_goes_farthest_is_drawn(place):
    batch, name = players.farthest(place, "nba_cle_5hz")
    windows = np.load(place.data / "nba_cle_5hz_val.npz")["w201"].astype(np.float64)
    way = np.linalg.norm(np.diff(windows, axis=1), axis=-1).sum(-1)
    assert name == f"window {way.argmax()} of nba_cle_5hz"
    assert batch.x.shape == batch.y.shape == (1, 200, 2)
    np.testing.assert_allclose(batch.x[0].numpy() * 50, windows[way.argmax()][:-1], atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_resumed_ends_as_one_that_was_not(mode, place, tmp_path):
    ends = []
    for name, stops in (("whole", (6,)), ("parted", (3, 6))):
        for resume, iterations in enumerate(stops):
            wanted = Training("players", "quick", tmp_path / name, resume=bool(resume))
            # A constant rate does not know when the run ends.
            settings = {"iterations": iterations, "schedule": "constant"}
            common = COMMON | {"optimiser": COMMON["optimiser"] | settings}
            [run] = train(wanted, common, place, [], [mode], [], [])
            if iterations != stops[-1]:
                _as_if_stopped(run, stops[-1])
        ends.append(run.load()[0])
    assert [end.iteration for end in ends] == [6, 6]
    for name, value in ends[0].best.items():
        assert torch.equal(value, ends[1].best[name]), name


def test_denormals_count_as_nothing_in_training_only(place, tmp_path, monkeypatch):
    tiny, found = torch.full((3,), 2e-38), []
    original = jobs.loop

    def loop(*arguments, **options):
        found.append((tiny * 0.25).max().item())
        return original(*arguments, **options)

    monkeypatch.setattr(jobs, "loop", loop)
    train(Training("players", "quick", tmp_path), COMMON, place, [], ["toe"], [], [])
    assert found == [0.0]
    assert (tiny * 0.25).max().item() == pytest.approx(5e-39, rel=1e-6)


def _as_if_stopped(run: Run, iterations):
    """A run that was to be longer, at one of its checkpoints."""
    (run.folder / "result.json").unlink()
    config = run.config()
    optimiser = config.optimiser.model_copy(update={"iterations": iterations})
    run.begin(config.model_copy(update={"optimiser": optimiser}))


def test_the_command_trains_and_evaluates(place, tmp_path):
    there = ("--runs", tmp_path / "runs", "--datasets", place.data)
    options = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    done = moca("train", "players", *there, "--mode", "sw10", *options)
    assert done.exit_code == 0, done.stderr
    shown = moca("evaluate", "players", *there, "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.stderr
    assert "SW10" in shown.stdout
    assert (tmp_path / "out" / "methods.png").exists()
