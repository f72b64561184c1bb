"""What docs/training.md says is what the commands have."""

import csv
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import torch
import typer

from tests.training.moca import moca, small
from training.commands.publish import publish
from training.commands.train import train
from training.config import merged
from training.data import own, tables
from training.experiments.catalogue import preset
from training.meta_training.runs import Run

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "training.md").read_text()


def options(command):
    app = typer.Typer()
    app.command()(command)
    return {name for each in typer.main.get_command(app).params
            for name in (*each.opts, *each.secondary_opts)}  # fmt: skip


def test_every_option_of_the_page_exists():
    known = options(train) | options(publish)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", TEXT))
    assert {"--data", "--lags", "--no-page", "--by", "--hold-out"} <= named
    assert named <= known, named - known


def test_the_settings_of_the_page_are_the_defaults():
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    said, base = tomllib.loads(text), preset("data", "quick")
    data = own.Source.model_validate({"path": "a.csv", **said.pop("data")})
    assert data == own.Source(path=Path("a.csv"))
    assert preset("data", "quick", said) == base
    changed = merged(said, {"model": {"features": 33}})
    assert preset("data", "quick", changed) != base


def to_csv(source, target):
    script = DOCS / "examples" / "npz_to_csv.py"
    subprocess.run([sys.executable, script, source, target], check=True)


def test_arrays_become_a_long_table(tmp_path):
    rng = np.random.default_rng(0)
    x = {"a__x": rng.normal(size=(5, 2)), "b__c__x": rng.normal(size=(7, 2)), "a__time": [1]}
    np.savez(tmp_path / "some.npz", **x)
    to_csv(tmp_path / "some.npz", tmp_path / "some.csv")
    found = tables.read(tmp_path / "some.csv")
    assert [each.name for each in found] == ["a", "b__c"]
    torch.testing.assert_close(found[1].y, torch.from_numpy(x["b__c__x"]))


def test_the_tutorial_on_its_data(data, tmp_path):
    """The first part of it, with a model that is too small to be any good."""
    to_csv(data / "hasc.npz", tmp_path / "hasc.csv")
    with (tmp_path / "hasc.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert (rows[0], len(rows)) == (["stream", "time", "y1", "y2", "y3"], 23639)
    short = tmp_path / "short.csv"
    short.write_text("\n".join(",".join(row) for row in rows[:901]))
    runs, models = tmp_path / "runs", tmp_path / "models"
    commands = [
        ("train", "--data", short, "--name", "hasc", "--runs", runs, *small()),
        ("evaluate", "data", runs / "data" / "hasc" / "run"),
        ("publish", runs / "data" / "hasc" / "run", "--name", "walker", "--models-dir", models),
    ]
    for command in commands:
        said = moca(*command)
        assert said.exit_code == 0, said.stderr
    assert Run(runs / "data" / "hasc" / "run").config().model.lags == 5
    assert (models / "walker" / "1" / "report.html").stat().st_size > 1_000_000
