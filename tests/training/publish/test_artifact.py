"""`moca publish`: what is put in place is what was trained, complete or not at all."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from model_core import artifact, sensitivity
from model_core.upm.robust_averaged import RobustAveraged
from tests.training.moca import moca, small
from training.data.regime_series import RegimeSeries
from training.errors import BadConfig, BadData, BadRun
from training.evaluation import own_data
from training.evaluation.own_data import BlockScores, finished
from training.evaluation.trained import load
from training.experiments.catalogue import Place, splits
from training.publish import artifact as publishing
from training.publish.artifact import Wanted, publish


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of numbers, by MOCA and conditioned on everything; and of another kind."""
    folder = tmp_path_factory.mktemp("published")
    y = RegimeSeries(0.1).draw(torch.Generator().manual_seed(0), 1, 600).y[0, :, 0]
    (folder / "secret.csv").write_text("y\n" + "\n".join(map(str, (1e3 + 50 * y).tolist())))
    said = moca(
        "train", "--data", folder / "secret.csv", "--length", 20, "--runs", folder / "runs",
        "--mode", "moca", "--mode", "coe", *small(),
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    said = moca(
        "train", "--data", folder / "secret.csv", "--length", 20, "--runs", folder / "runs",
        "--model", "alpaca", "--name", "alpaca", "--mode", "moca", "--mode", "coe", *small(),
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    return folder / "runs" / "data" / "secret"


@pytest.fixture
def behind(runs):
    """A run whose scaling is that of the data; of six iterations."""
    return runs.parent / "alpaca" / "moca"


@pytest.fixture
def wanted(runs, tmp_path):
    return Wanted(runs / "moca", "pumps", tmp_path / "models", page=False, anyway=True)


def test_the_artifact_is_what_was_trained(wanted, tmp_path):
    said = moca(
        "publish", wanted.run, "--name", "pumps", "--models-dir", tmp_path / "models", "--anyway"
    )
    assert said.exit_code == 0, said.stderr
    folder = tmp_path / "models" / "pumps" / "1"
    assert f"pumps@1 in {folder}" in said.stdout
    files = ["model.json", "model.safetensors", "report.html", "report.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["1"]
    each = finished(wanted.run)
    learner = load(each, splits(each.config, Place(None, tmp_path)))
    written = artifact.load(folder)
    built_in = RobustAveraged()
    assert (written.kind, written.lags) == ("fleet", 5)
    assert (written.hazard, written.outlier_rate) == (built_in.hazard, built_in.outlier_rate)
    y = 1e3 + 50 * RegimeSeries(0.1).draw(torch.Generator().manual_seed(9), 2, 30).y
    batch = publishing.Batch(None, y)
    ours, theirs = (publishing._scores(model, batch) for model in (learner.served(), written))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_false_alarms_are_simulated_unless_they_are_not_wanted(wanted, tmp_path):
    said = moca(
        "publish", wanted.run, "--name", "pumps", "--models-dir", tmp_path / "models", "--no-page",
        "--sensitivity", 2_000, "--anyway",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    folder = tmp_path / "models" / "pumps" / "1"
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    described = json.loads((folder / "model.json").read_text())
    assert described["sensitivity"]["simulated"]["observations"] == 2_000
    curve = sensitivity.read(described["sensitivity"]["curves"][0])
    assert curve.hazard == described["hazard"] == artifact.load(folder).hazard
    assert all(len(point.delays) == 3 for point in curve.points)
    plain = publish(wanted)
    assert "sensitivity" not in json.loads((plain / "model.json").read_text())


def test_what_is_said_of_it(wanted, behind, runs):
    wanted = wanted._replace(run=behind)
    folder = publish(wanted._replace(date="2026-01-02", description="Of the rig."))
    described = json.loads((folder / "model.json").read_text())
    found = described["training"]
    assert described["description"] == "Of the rig."
    assert found["date"] == "2026-01-02"
    assert (found["experiment"], found["mode"], found["iterations"]) == ("data", "moca", 6)
    assert found["metric"]["low"] < found["metric"]["mean"] < found["metric"]["high"]
    assert found["data_digest"].startswith("sha256:")
    assert found["versions"]["torch"] == torch.__version__
    report = json.loads((folder / "report.json").read_text())
    assert not (folder / "report.html").exists()
    assert str(runs.parent) not in json.dumps(report)
    assert report["configuration"]["data"]["path"] == "secret.csv"
    (other,) = report["comparisons"]
    assert other["method"] == "COE"
    ahead = report["metrics"][0]["estimate"]["mean"] - other["estimate"]["mean"]
    assert other["difference"]["mean"] == pytest.approx(ahead)
    assert 0 < report["calibration"]["pit_distance"] < 1
    assert [level for level, _ in report["calibration"]["coverage"]] == [0.5, 0.8, 0.9, 0.95]
    assert [row["iteration"] for row in report["history"]] == [3, 6]
    assert report["environment"]["device"] == "cpu"
    assert "date" not in publishing.summary(finished(wanted.run), _report(wanted), None)


@pytest.fixture(scope="module")
def typical(runs):
    """A run with two typical regimes."""
    said = moca(
        "train", "--data", runs.parents[2] / "secret.csv", "--length", 20, "--runs",
        runs.parents[1], "--model", "alpaca", "--name", "typical", "--set", "model.priors=2",
        *small(),
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    return runs.parent / "typical" / "run"


def test_typical_regimes_are_numbered_or_named(typical, tmp_path):
    command = ["publish", typical, "--name", "p", "--models-dir", tmp_path, "--no-page", "--anyway"]
    for options in ([], ["--regimes", "idle, busy"]):
        said = moca(*command, *options)
        assert said.exit_code == 0, said.stderr
    for version, names in (("1", ("1", "2")), ("2", ("idle", "busy"))):
        model = artifact.load(tmp_path / "p" / version)
        assert (model.kind, model.typical) == ("alpaca-mixture", names)
        regimes = json.loads((tmp_path / "p" / version / "model.json").read_text())["regimes"]
        chances = [each["probability"] for each in regimes]
        assert chances == pytest.approx(model.log_weight.exp().tolist(), abs=1e-6)
        assert sum(chances) == pytest.approx(1)


def test_names_that_are_not_one_for_each_typical_regime(typical, behind, tmp_path):
    for run, names, said in (
        (typical, ["a"], "--regimes: expected 2 different names, got 'a'"),
        (typical, ["a", "a"], "expected 2 different names"),
        (typical, ["a", ""], "expected 2 different names"),
        (behind, ["a"], "--regimes: the model has no typical regimes"),
    ):
        with pytest.raises(BadConfig, match=said):
            publish(Wanted(run, "p", tmp_path, page=False, anyway=True, regimes=names))
        assert not (tmp_path / "p").exists()


def test_a_model_behind_a_built_in_one_is_published_on_demand_alone(behind, tmp_path):
    command = ["publish", behind, "--name", "p", "--models-dir", tmp_path, "--sensitivity", 0]
    said = moca(*command)
    assert said.exit_code == 2, said.stdout  # of six iterations
    assert "--anyway" in said.stderr
    assert not (tmp_path / "p").exists()
    said = moca(*command, "--anyway", "--no-page")
    assert said.exit_code == 0, said.stderr
    assert "Warning: the built-in model" in said.stdout
    rows = json.loads((tmp_path / "p" / "1" / "report.json").read_text())["untrained"]
    names = ["autoregressive", "averaged", "autoregressive, order 5", "gaussian"]
    assert [row["method"] for row in rows] == names
    run, place = finished(behind), Place(None, tmp_path)
    hazard = load(run, splits(run.config, place)).hazard.item()
    assert artifact.load(tmp_path / "p" / "1").hazard == pytest.approx(hazard, abs=1e-7)
    scores = own_data.compare(run, splits(run.config, place), place)
    trained, *_ = (values.mean() for values in scores.values.values())
    for row in rows:
        theirs = scores.values[row["method"]].mean()
        assert row["estimate"]["mean"] == pytest.approx(theirs, abs=1e-6)
        assert row["difference"]["mean"] == pytest.approx(trained - theirs, abs=1e-6)
    assert min(row["difference"]["high"] for row in rows) < 0


def test_a_fleet_is_hardly_behind_a_built_in_model_even_after_six_iterations(wanted, tmp_path):
    said = moca("publish", wanted.run, "--name", "p", "--models-dir", tmp_path, "--no-page")
    assert said.exit_code == 0, said.stderr
    rows = json.loads((tmp_path / "p" / "1" / "report.json").read_text())["untrained"]
    assert min(row["difference"]["mean"] for row in rows) > -0.1


def test_a_model_that_is_level_is_published_with_a_warning(wanted, monkeypatch, capsys):
    noise = np.random.default_rng(0).normal(size=(2, 40))
    scores = BlockScores({"trained": noise[0] - 0.01, "averaged": noise[1]}, 20, 800)
    monkeypatch.setattr(own_data, "compare", lambda *_: scores)
    publish(wanted._replace(anyway=False), console=Console(width=200))
    said = capsys.readouterr().out
    assert ("Warning: the built-in model" in said) == (noise[0].mean() - 0.01 < noise[1].mean())
    better = scores._replace(values={**scores.values, "trained": noise[1] + 1})
    monkeypatch.setattr(own_data, "compare", lambda *_: better)
    publish(wanted._replace(anyway=False), console=Console(width=200))
    assert "Warning" not in capsys.readouterr().out


def test_series_too_short_to_compare(wanted, monkeypatch, capsys):
    def refuse(*_):
        raise BadData("nothing to score")

    monkeypatch.setattr(own_data, "compare", refuse)
    folder = publish(wanted._replace(anyway=False), console=Console(width=200))
    assert "Not compared with the built-in models: nothing to score" in capsys.readouterr().out
    assert json.loads((folder / "report.json").read_text())["untrained"] == []


def test_a_fleet_is_compared_with_runs_of_its_mode_alone(wanted):
    report = json.loads((publish(wanted) / "report.json").read_text())
    assert report["kind"] == "fleet"
    assert report["comparisons"] == []  # what conditions on everything has no filter
    assert report["untrained"]


def test_runs_beside_are_known_where_the_data_were_moved(wanted, behind, runs, tmp_path):
    moved = tmp_path / "elsewhere.csv"
    moved.write_bytes((runs.parents[2] / "secret.csv").read_bytes())
    folder = publish(wanted._replace(run=behind, data=moved))
    report = json.loads((folder / "report.json").read_text())
    assert [other["method"] for other in report["comparisons"]] == ["COE"]


def _report(wanted):
    each = finished(wanted.run)
    protocol = publishing.protocol_of(each.config)
    found = splits(each.config, wanted.place)
    return publishing.measure.report("pumps", each, found, protocol, "sha256:0")


def test_versions_are_whole_numbers_and_never_overwritten(wanted):
    assert publish(wanted).name == "1"
    before = (wanted.models_dir / "pumps" / "1" / "model.json").read_bytes()
    assert publish(wanted._replace(version="7")).name == "7"
    assert publish(wanted).name == "8"
    for version, said in (("1", "never overwritten"), ("v2", "whole number"), ("01", "whole")):
        with pytest.raises(BadConfig, match=said):
            publish(wanted._replace(version=version))
    assert (wanted.models_dir / "pumps" / "1" / "model.json").read_bytes() == before


def test_a_version_that_was_taken_meanwhile(wanted, monkeypatch):
    check, models = publishing._check, wanted.models_dir / "pumps"

    def while_another_publishes(*arguments):
        check(*arguments)
        (models / "1").mkdir()
        (models / "1" / "model.json").write_text("another's")

    monkeypatch.setattr(publishing, "_check", while_another_publishes)
    assert publish(wanted).name == "2"
    assert (models / "1" / "model.json").read_text() == "another's"
    monkeypatch.setattr(publishing, "_check", check)


def test_what_does_not_score_as_trained_is_not_published(wanted, monkeypatch):
    save = artifact.save

    def wrong(folder, description, tensors):
        save(folder, description, {**tensors, "prior_mean": tensors["prior_mean"] + 0.01})

    monkeypatch.setattr(publishing.artifact, "save", wrong)
    with pytest.raises(BadRun, match="nothing is published"):
        publish(wanted)
    assert not (wanted.models_dir / "pumps").exists()


@pytest.mark.parametrize("name", ["averaged", "../x", ".hidden", ""])
def test_names_that_cannot_be_had(wanted, name):
    with pytest.raises(BadConfig, match="--name"):
        publish(wanted._replace(name=name))


def test_refusals_end_the_command(tmp_path, runs):
    said = moca("publish", tmp_path, "--name", "a", "--models-dir", tmp_path)
    assert said.exit_code == 2
    assert "config.json" in said.stderr


def test_a_classifier_from_file_to_model(tmp_path):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(3, (600,), generator=generator)
    x = label + 0.2 * torch.randn(600, generator=generator)
    lines = [f"{a},{b}" for a, b in zip(x.tolist(), label.tolist(), strict=True)]
    (tmp_path / "kinds.csv").write_text("\n".join(["x,y", *lines]))
    said = moca(
        "train", "--data", tmp_path / "kinds.csv", "--model", "pcoc", "--length", 20,
        "--runs", tmp_path / "runs", *small(),
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    run = tmp_path / "runs" / "data" / "kinds" / "run"
    assert moca("evaluate", "data", run).exit_code == 0
    rows = json.loads((run / "evaluation" / "table.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["trained pcoc", "categorical"]
    folder = publish(Wanted(run, "kinds", tmp_path / "models", page=False, anyway=True))
    model = artifact.load(folder)
    assert (model.kind, model.classes, model.x_dim) == ("pcoc", 3, 1)
    report = json.loads((folder / "report.json").read_text())
    assert [each["name"] for each in report["metrics"]] == ["test accuracy", "test NLL"]
    assert 0 <= report["calibration"]["class_error"] <= 1


def test_an_experiment_is_published_as_well(tmp_path):
    said = moca("train", "regimes", "--runs", tmp_path, "--set", "optimiser.length=20", *small())
    assert said.exit_code == 0, said.stderr
    run = tmp_path / "regimes" / "quick" / "run"
    short = publishing.PROTOCOLS["regimes"]._replace(sequences=5, length=20)
    publishing.PROTOCOLS["regimes"], kept = short, publishing.PROTOCOLS["regimes"]
    try:
        folder = publish(Wanted(run, "regimes", tmp_path / "models", page=False))
    finally:
        publishing.PROTOCOLS["regimes"] = kept
    found = json.loads((folder / "model.json").read_text())["training"]
    assert found["data_digest"].endswith("(test sequences)")
    assert found["metric"]["count"] == 5
