"""`moca publish`: what is put in place is what was trained, complete or not at all."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from model_core import artifact
from tests.training.moca import moca, small
from training import publish as publishing
from training.catalogue import splits
from training.data.files import Place
from training.errors import BadConfig, BadData, BadRun
from training.experiments import own
from training.experiments.own import HeldOutScores, finished
from training.experiments.regimes import regime_series
from training.paper import load
from training.publish import Publication, publish
from training.results import MethodComparison, estimate, paired


def trained(folder, *more):
    result = moca(
        "train", "--data", folder / "secret.csv", "--length", 20, "--runs", folder / "runs",
        *more, *small(),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A fleet; a model by MOCA and one conditioned on everything."""
    folder = tmp_path_factory.mktemp("published")
    y = regime_series(torch.Generator().manual_seed(0), 1, 600, 0.1).y[0, :, 0]
    (folder / "secret.csv").write_text("y\n" + "\n".join(map(str, (1e3 + 50 * y).tolist())))
    trained(folder)
    trained(folder, "--model", "alpaca", "--name", "alpaca", "--mode", "moca", "--mode", "coe")
    return folder / "runs" / "data"


@pytest.fixture
def wanted(runs, tmp_path):
    run, models = runs / "secret" / "run", tmp_path / "models"
    return Publication(run, "pumps", models, page=False, anyway=True)


def test_the_artifact_is_what_was_trained(wanted, tmp_path):
    models = tmp_path / "models"
    command = ["publish", wanted.run, "--name", "pumps", "--models-dir", models, "--anyway"]
    result = moca(*command)
    assert result.exit_code == 0, result.stderr
    folder = models / "pumps" / "1"
    assert f"pumps@1 in {folder}" in result.stdout
    files = ["model.json", "model.safetensors", "report.html", "report.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["1"]
    written = artifact.load(folder)
    assert (written.kind, written.lags) == ("fleet", 5)
    report = json.loads((folder / "report.json").read_text())
    assert report["kind"] == "fleet"
    assert report["comparisons"] == []  # runs of another model
    assert min(row["difference"]["mean"] for row in report["untrained"]) > -0.1


def test_what_is_said_of_it_names_no_place_of_this_machine(wanted, runs, uncompared):
    wanted = wanted._replace(run=runs / "alpaca" / "moca")
    moved = runs.parents[1] / "elsewhere.csv"  # runs beside it are known where data were moved
    moved.write_bytes((runs.parents[1] / "secret.csv").read_bytes())
    wanted = wanted._replace(data=moved, date="2026-01-02", description="Of the rig.")
    folder = publish(wanted)
    described = json.loads((folder / "model.json").read_text())
    summary = described["training"]
    assert described["description"] == "Of the rig."
    assert summary["date"] == "2026-01-02"
    assert (summary["experiment"], summary["mode"], summary["iterations"]) == ("data", "moca", 6)
    assert summary["metric"]["low"] < summary["metric"]["mean"] < summary["metric"]["high"]
    assert summary["data_digest"].startswith("sha256:")
    report = json.loads((folder / "report.json").read_text())
    assert not (folder / "report.html").exists()
    assert str(runs.parents[1]) not in json.dumps(report)
    (other,) = report["comparisons"]
    assert other["method"] == "COE"
    ahead = report["metrics"][0]["estimate"]["mean"] - other["estimate"]["mean"]
    assert other["difference"]["mean"] == pytest.approx(ahead)
    assert [row["iteration"] for row in report["history"]] == [3, 6]


def test_a_model_behind_a_built_in_one_is_published_on_demand_alone(runs, tmp_path, monkeypatch):
    behind = runs / "alpaca" / "moca"  # of six iterations
    run, place = finished(behind), Place(None, tmp_path)
    scores = own.compare(run, splits(run.config, place), Console(quiet=True))

    def compared(other, *_):
        assert other.config == run.config
        return scores

    monkeypatch.setattr(own, "compare", compared)
    command = ["publish", behind, "--name", "p", "--models-dir", tmp_path]
    result = moca(*command)
    assert result.exit_code == 2, result.stdout
    assert "--anyway" in result.stderr
    assert not (tmp_path / "p").exists()
    result = moca(*command, "--anyway", "--no-page")
    assert result.exit_code == 0, result.stderr
    rows = json.loads((tmp_path / "p" / "1" / "report.json").read_text())["untrained"]
    hazard = load(run, splits(run.config, place)).hazard.item()
    assert artifact.load(tmp_path / "p" / "1").hazard == pytest.approx(hazard, abs=1e-7)
    theirs = {other.method: other.estimate.mean for other in scores.untrained}
    for row in rows:
        mean = theirs.pop(row["method"])
        assert row["estimate"]["mean"] == pytest.approx(mean, abs=1e-6)
        assert row["difference"]["mean"] == pytest.approx(scores.trained.mean - mean, abs=1e-6)
    assert not theirs
    assert min(row["difference"]["high"] for row in rows) < 0


def test_a_model_that_is_level_is_published_with_a_warning(wanted, monkeypatch, capsys):
    theirs = np.random.default_rng(0).normal(size=40)
    for lead, level in ((-0.01 * np.linspace(-20, 22, 40), True), (1.0, False)):
        ahead = paired(theirs + lead, theirs)
        other = MethodComparison("averaged", "log score", estimate(theirs), ahead)
        scores = HeldOutScores("trained fleet", estimate(theirs + lead), (other,), 20, 800, 50)
        monkeypatch.setattr(own, "compare", lambda *_, scores=scores: scores)
        publish(wanted._replace(anyway=False), console=Console(width=200))
        assert ("Warning: the built-in model" in capsys.readouterr().out) == level


def test_what_cannot_be_compared_is_published_with_a_warning(wanted, uncompared, capsys):
    publish(wanted, console=Console(width=400))
    assert "Warning: this model is published without a comparison" in capsys.readouterr().out


@pytest.mark.slow
def test_typical_regimes_are_numbered_or_named(runs, tmp_path):
    settings = ("--model", "alpaca", "--name", "typical", "--set", "model.priors=2")
    trained(runs.parents[1], *settings)
    run = runs / "typical" / "run"
    command = ["publish", run, "--name", "p", "--models-dir", tmp_path, "--no-page", "--anyway"]
    for version, options, names in (
        ("1", [], ("1", "2")),
        ("2", ["--regimes", "idle, busy"], ("idle", "busy")),
    ):
        result = moca(*command, *options)
        assert result.exit_code == 0, result.stderr
        model = artifact.load(tmp_path / "p" / version)
        assert (model.kind, model.typical) == ("alpaca-mixture", names)
        regimes = json.loads((tmp_path / "p" / version / "model.json").read_text())["regimes"]
        chances = [regime["probability"] for regime in regimes]
        assert chances == pytest.approx(model.log_weight.exp().tolist(), abs=1e-6)
        assert sum(chances) == pytest.approx(1)
    for names in (["a"], ["a", "a"], ["a", ""]):
        with pytest.raises(BadConfig, match="--regimes: expected 2 different names"):
            publish(Publication(run, "q", tmp_path, page=False, anyway=True, regimes=names))
    with pytest.raises(BadConfig, match="--regimes: the model has no typical regimes"):
        publish(Publication(runs / "secret" / "run", "q", tmp_path, page=False, regimes=["a"]))
    assert not (tmp_path / "q").exists()


@pytest.fixture
def uncompared(monkeypatch):
    """Nothing is compared with built-in models, which takes a second each time."""

    def refuse(*_):
        raise BadData("nothing to score")

    monkeypatch.setattr(own, "compare", refuse)


def test_versions_are_whole_numbers_and_never_overwritten(wanted, uncompared, monkeypatch):
    assert publish(wanted).name == "1"
    report = json.loads((wanted.models_dir / "pumps" / "1" / "report.json").read_text())
    assert report["untrained"] == []
    before = (wanted.models_dir / "pumps" / "1" / "model.json").read_bytes()
    assert publish(wanted._replace(version="7")).name == "7"
    assert publish(wanted).name == "8"
    for version, message in (("1", "never overwritten"), ("v2", "whole number"), ("01", "whole")):
        with pytest.raises(BadConfig, match=message):
            publish(wanted._replace(version=version))
    assert (wanted.models_dir / "pumps" / "1" / "model.json").read_bytes() == before
    for name in ("averaged", "../x", ".hidden", ""):
        with pytest.raises(BadConfig, match="--name"):
            publish(wanted._replace(name=name))
    check, taken = publishing._check, wanted.models_dir / "pumps" / "9"

    def while_another_publishes(*arguments):
        check(*arguments)
        taken.mkdir()
        (taken / "model.json").write_text("another's")

    monkeypatch.setattr(publishing, "_check", while_another_publishes)
    assert publish(wanted).name == "10"
    assert (taken / "model.json").read_text() == "another's"


def test_what_does_not_score_as_trained_is_not_published(wanted, uncompared, monkeypatch):
    save = artifact.save

    def wrong(folder, description, tensors):
        save(folder, description, {**tensors, "prior_mean": tensors["prior_mean"] + 0.01})

    monkeypatch.setattr(publishing.artifact, "save", wrong)
    with pytest.raises(BadRun, match="nothing is published"):
        publish(wanted)
    assert not (wanted.models_dir / "pumps").exists()


@pytest.mark.slow
def test_a_classifier_from_file_to_model(tmp_path):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(3, (600,), generator=generator)
    x = label + 0.2 * torch.randn(600, generator=generator)
    lines = [f"{a},{b}" for a, b in zip(x.tolist(), label.tolist(), strict=True)]
    (tmp_path / "kinds.csv").write_text("\n".join(["x,y", *lines]))
    result = moca(
        "train", "--data", tmp_path / "kinds.csv", "--model", "pcoc", "--length", 20,
        "--runs", tmp_path / "runs", *small(),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    run = tmp_path / "runs" / "data" / "kinds" / "run"
    assert moca("evaluate", "data", run).exit_code == 0
    scores = json.loads((run / "evaluation" / "table.json").read_text())
    assert scores["name"] == "trained pcoc"
    assert [other["method"] for other in scores["untrained"]] == ["categorical"]
    folder = publish(Publication(run, "kinds", tmp_path / "models", page=False, anyway=True))
    model = artifact.load(folder)
    assert (model.kind, model.classes, model.x_dim) == ("pcoc", 3, 1)
    report = json.loads((folder / "report.json").read_text())
    assert [metric["name"] for metric in report["metrics"]] == ["test accuracy", "test NLL"]
    assert 0 <= report["calibration"]["class_error"] <= 1
