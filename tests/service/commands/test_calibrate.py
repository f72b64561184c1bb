"""`moca calibrate`: curves go where the service finds them."""

import json

import pytest
from typer.testing import CliRunner

from model_core import artifact
from model_core.sensitivity import read
from service.commands.main import app
from service.models import sensitivity_curves
from tests.model_core.learned_cases import pcoc_case
from tests.model_core.regression_cases import alpaca_case

WIDE = {"COLUMNS": "250", "TERMINAL_WIDTH": "250", "NO_COLOR": "1"}
FEW = ("--observations", "10000", "--shifted", "8")


def moca(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], env=WIDE)


@pytest.fixture
def models(tmp_path):
    """Two models: a regression, and a classifier that explains its inputs."""
    model = alpaca_case(y_dim=1).model
    described = {"kind": "alpaca", "x_dim": model.x_dim, "y_dim": 1, "hazard": 0.02}
    described["feature_dim"] = model.x_dim
    described["encoder"] = {"type": "identity"}
    tensors = {
        "prior_mean": model.prior_mean.new_zeros(model.x_dim, 1),
        "prior_covariance_factor": 0.5 * model.prior_mean.new_ones(model.x_dim).diag(),
        "log_noise_variance": model.noise_variance.log(),
    }
    artifact.save(tmp_path / "rig" / "1", described, tensors)
    model = pcoc_case().model
    described = {"kind": "pcoc", "x_dim": 4, "y_dim": 3, "feature_dim": 4, "hazard": 0.1}
    described["encoder"] = {"type": "identity"}
    tensors = {
        "prior_mean": model.prior_mean,
        "log_prior_precision": model.prior_precision.log(),
        "log_noise_variance": model.noise_variance.log(),
        "log_dirichlet": model.dirichlet.log(),
    }
    artifact.save(tmp_path / "kinds" / "1", described, tensors)
    return tmp_path


def test_an_artifact_gets_its_curves_and_nothing_else_changes(models):
    file = models / "rig" / "1" / "model.json"
    before, mode = json.loads(file.read_text()), file.stat().st_mode
    said = moca("calibrate", "rig", "--models-dir", models, *FEW, "--hazard", "0.05", "--seed", 3)
    assert said.exit_code == 0, said.output
    assert "rig@1, hazard 0.02" in said.output
    after = json.loads(file.read_text())
    found = after.pop("sensitivity")
    assert after == before
    assert file.stat().st_mode == mode
    assert [path.name for path in sorted(file.parent.iterdir())] == ["model.json", artifact.TENSORS]
    assert sensitivity_curves.of(models, "rig@1") == found
    assert [read(each).hazard for each in found["curves"]] == [0.02, 0.05]
    assert found["simulated"]["seed"] == 3
    assert found["simulated"]["inputs"].startswith("standard normal")
    assert found["simulated"]["warmup"] is None
    artifact.load(file.parent)


def test_built_in_models_go_to_a_file_of_ones_own(tmp_path):
    said = moca("calibrate", "bernoulli", *FEW, "--models-dir", tmp_path)
    assert said.exit_code == 2
    assert "bernoulli@1 is built in: give --out FILE" in said.output
    out = tmp_path / "curves.json"
    for name in ("bernoulli", "poisson@1"):
        said = moca("calibrate", name, *FEW, "--out", out)
        assert said.exit_code == 0, said.output
    found = json.loads(out.read_text())
    assert list(found) == ["bernoulli@1", "poisson@1"]
    assert read(found["bernoulli@1"]["curves"][0]).points[0].delays == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kinds",), "kinds: cannot simulate quiet data for a model of kind 'pcoc': its regimes"),
        (("nothing",), "there is no model 'nothing'"),
        (("rig", "--hazard", "1.5"), "--hazard: expected numbers between 0 and 1"),
        (("rig", "--observations", "10"), "--observations"),
    ],
)
def test_what_cannot_be_calibrated_is_said(models, arguments, said):
    before = [path.read_bytes() for path in sorted(models.rglob("*.json"))]
    found = moca("calibrate", *arguments, "--models-dir", models)
    assert found.exit_code in (1, 2)
    assert said in found.output
    assert [path.read_bytes() for path in sorted(models.rglob("*.json"))] == before


def test_a_file_that_is_none_is_not_overwritten(tmp_path):
    out = tmp_path / "notes.txt"
    out.write_text("mine")
    assert moca("calibrate", "bernoulli", *FEW, "--out", out).exit_code == 2
    assert out.read_text() == "mine"
