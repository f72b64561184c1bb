"""`moca calibrate`: curves go where the service finds them."""

import json
import shutil
from unittest.mock import Mock

import pytest

from model_core import artifact
from model_core.errors import CannotSimulate
from model_core.sensitivity import read
from service.commands import calibrate
from service.models import sensitivity_curves
from service.models.catalogue import SHIPPED

FEW = ("--observations", "10000", "--shifted", "8")


@pytest.fixture
def models(tmp_path):
    """A model that ships, as one's own."""
    shutil.copytree(SHIPPED / "regimes" / "1", tmp_path / "kinds" / "1")
    return tmp_path


@pytest.fixture
def simulated(monkeypatch):
    """Curves of a built-in model in place of a simulation."""
    simulated = Mock(return_value=sensitivity_curves.of("nowhere", "bernoulli"))
    monkeypatch.setattr(calibrate, "_simulated", simulated)
    return simulated


def test_an_artifact_gets_its_curves_and_nothing_else_changes(moca, models, simulated):
    file = models / "kinds" / "1" / "model.json"
    before = {**json.loads(file.read_text()), "sensitivity": simulated.return_value}
    mode = file.stat().st_mode
    said = moca("calibrate", "kinds", "--models-dir", models, *FEW, "--hazard", "0.05", "--seed", 3)
    assert said.exit_code == 0, said.output
    assert "kinds@1" in said.output
    simulated.assert_called_once()
    plan = simulated.call_args.args[1]
    assert (plan.hazards, plan.seed, plan.shifted) == ((0.05,), 3, 8)
    after = json.loads(file.read_text())
    assert after == before
    assert file.stat().st_mode == mode
    assert len(list(file.parent.iterdir())) == len(list((SHIPPED / "regimes" / "1").iterdir()))
    assert sensitivity_curves.of(models, "kinds@1") == simulated.return_value
    artifact.load(file.parent)


def test_built_in_models_go_to_a_file_of_ones_own(moca, tmp_path, simulated):
    said = moca("calibrate", "bernoulli", *FEW, "--models-dir", tmp_path)
    assert said.exit_code == 2
    assert "--out FILE" in said.output
    out = tmp_path / "curves.json"
    for name in ("bernoulli", "poisson"):
        said = moca("calibrate", name, *FEW, "--out", out)
        assert said.exit_code == 0, said.output
    assert list(json.loads(out.read_text())) == ["bernoulli", "poisson"]
    out.write_text("mine")
    assert moca("calibrate", "bernoulli", *FEW, "--out", out).exit_code == 2
    assert out.read_text() == "mine"  # a file that is none of curves


@pytest.mark.slow
def test_a_model_is_simulated(moca, tmp_path):
    out = tmp_path / "curves.json"
    said = moca("calibrate", "bernoulli", *FEW, "--out", out, "--hazard", "0.05", "--seed", 3)
    assert said.exit_code == 0, said.output
    found = json.loads(out.read_text())["bernoulli"]
    assert read(found["curves"][0]).points[0].delays == ()
    assert 0.05 in [read(each).hazard for each in found["curves"]]
    assert found["simulated"]["seed"] == 3


def test_what_cannot_be_calibrated_is_said(moca, models, monkeypatch):
    refusal = CannotSimulate("a classifier that explains its inputs")
    monkeypatch.setattr(calibrate, "_simulated", Mock(side_effect=refusal))
    before = [path.read_bytes() for path in sorted(models.rglob("*.json"))]
    for arguments, said in (
        (("kinds",), "explains its inputs"),
        (("nothing",), "'nothing'"),
        (("kinds", "--hazard", "1.5"), "--hazard"),
        (("kinds", "--observations", "10"), "--observations"),
    ):
        result = moca("calibrate", *arguments, "--models-dir", models)
        assert result.exit_code in (1, 2)
        assert said in result.output
    assert [path.read_bytes() for path in sorted(models.rglob("*.json"))] == before
