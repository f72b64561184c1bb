"""`moca train`: grids, files of settings, complete help, and refusals of one line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.training.moca import WIDE, moca, small
from training.commands.train import train
from training.meta_training.runs import Run, finished

ROOT = Path(__file__).parents[3]


def trained(runs, *arguments, **settings):
    return moca("train", *arguments, "--runs", runs, *small(**settings))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to train"),
        (["sinusoi"], "unknown experiment 'sinusoi': expected one of sinusoid, "),
        (
            ["sinusoid", "--preset", "papr"],
            "unknown preset 'papr' of sinusoid: expected one of quick, paper",
        ),
        (
            ["sinusoid", "--ablation", "nope"],
            "unknown ablation 'nope' of sinusoid: expected",
        ),
        (
            ["sinusoid", "--ablation", "length", "--mode", "oracle"],
            "--ablation length sets its own hazards, modes",
        ),
        (["sinusoid", "--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["sinusoid", "--mode", "sw0"], "objective.mode"),
        (["sinusoid", "--hazard", "2"], "model.hazard"),
        (["sinusoid", "--learning-rate", "-1"], "optimiser.learning_rate"),
        (["sinusoid", "--seed", "-1"], "seed"),
        (["sinusoid", "--set", "foo"], "--set foo"),
        (["sinusoid", "--set", "foo=1"], "foo: Extra inputs"),
        (["sinusoid", "--set", "model.kind=lstm"], "quote a string"),
        (["sinusoid", "--set", "model.foo=1"], "model.foo: Extra inputs"),
        (["sinusoid", "--set", "model.activation='cubic'"], "model.activation"),
        (["sinusoid", "--set", "model.blocks=[4,0]"], "model.blocks.1"),
        (["sinusoid", "--set", "model.kind='pcoc'"], "labels that are numbers"),
        (["sinusoid", "--set", "model.image=[3,8,8]"], "inputs are of 1 numbers"),
        (["sinusoid", "--set", "model.image=[1,1,1]"], "4 blocks leave nothing of 1 x 1"),
        (["sinusoid", "--set", "optimiser.length=1"], "optimiser.length"),
        (["sinusoid", "--set", "validation.metric='accuracy'"], "validation.metric"),
        (["sinusoid", "--set", "data.hazard=2"], "expected a hazard in [0, 1], got 2"),
        (["sinusoid", "--set", "data.foo=1"], "data: splits() got an unexpected"),
        (["sinusoid", "--set", "name='../a'"], "name: String should match"),
        (["sinusoid", "--config", "there-is-none.toml"], "there-is-none.toml"),
        (["sinusoid", "--lags", "2"], "are for --data"),
        (["sinusoid", "--data", "a.csv"], "one of the two"),
        (["players"], "--datasets is needed"),
        (["rainbow", "--datasets", "there-is-none"], "rainbow_mnist_train.npz does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, arguments, said):
    found = trained(tmp_path, *arguments)
    assert found.exit_code == 2
    (line,) = found.stderr.strip().splitlines()
    assert line.startswith("moca: ")
    assert said in line
    assert not list(tmp_path.iterdir())


def test_a_process_that_refuses_shows_no_traceback():
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "service.commands.main",
            "train",
            "sinusoid",
            "--set",
            "model.foo=1",
        ],
        cwd=ROOT,
        env={**os.environ, **WIDE},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2
    assert found.stderr == "moca: model.foo: Extra inputs are not permitted\n"
    assert found.stdout == ""


def test_a_file_that_is_no_toml_is_named(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[model\nfeatures = 3")
    found = moca("train", "sinusoid", "--config", file, "--runs", tmp_path / "runs")
    assert found.exit_code == 2
    (line,) = found.stderr.strip().splitlines()
    assert str(file) in line
    assert "line 1" in line


def test_a_file_wins_over_the_preset_and_an_option_over_the_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[optimiser]\nlearning_rate = 0.1\nclip = 3.0\n[model]\nnoise = 'unknown'\n")
    found = trained(tmp_path, "sinusoid", "--config", file, optimiser__clip=2.0)
    assert found.exit_code == 0, found.stderr
    config = Run(tmp_path / "sinusoid" / "quick" / "run").config()
    assert (config.optimiser.learning_rate, config.optimiser.clip) == (0.1, 2.0)
    assert config.model.noise == "unknown"
    assert config.optimiser.schedule == "cosine"  # as in the preset


def test_a_grid_is_a_run_for_each_cell(tmp_path):
    asked = ["--hazard", 0.1, "--hazard", 0.2, "--mode", "moca", "--mode", "sw3"]
    found = trained(tmp_path, "sinusoid", *asked)
    assert found.exit_code == 0, found.stderr
    runs = {run.folder.name: run.config() for run in finished(tmp_path)}
    assert runs.keys() == {f"hazard-{h}_{m}" for h in (0.1, 0.2) for m in ("moca", "sw3")}
    one = runs["hazard-0.2_sw3"]
    assert (one.data["hazard"], one.model.hazard, one.objective.mode) == (0.2, 0.2, "sw3")
    for name in runs:
        lines = [line for line in found.stdout.splitlines() if line.startswith(f"{name}")]
        assert len(lines) == 3, "two validations and the result"
        assert re.search(r": nll -?\d+\.\d{4} at iteration [36] of 6, \d+ s$", lines[-1])


def test_help_names_each_option_and_its_variable():
    app = typer.Typer()
    app.command()(train)
    said = moca("train", "--help").stdout
    for option in typer.main.get_command(app).params:
        if option.name in {"help", "install_completion", "show_completion", "stream"}:
            continue  # stream: hidden, refused
        assert option.help, option.name
        assert option.envvar is None or option.envvar in said
        for name in option.opts:
            assert name in said or option.param_type_name == "argument", name
    assert "--stream" not in said


def test_an_option_of_one_call_has_no_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("MOCA_SEED", "4 5")
    assert trained(tmp_path, "sinusoid", *small()).exit_code == 0
    assert [run.folder.name for run in finished(tmp_path)] == ["run"]  # no grid of seeds
