"""The catalogue lists what the worker builds, and names mean the newest version."""

import json

import pytest

from model_core.upm.builtin import BUILTIN, NEWEST, Options
from service.errors.base import UnknownModel
from service.models import catalogue as models
from service.worker.streams.models import Catalogue

OPTIONS = Options(x_dim=3, classes=4)


@pytest.fixture
def catalogue(tmp_path):
    return Catalogue(tmp_path, "cpu")


def test_what_is_listed_is_what_is_built():
    listed = {model.reference: model for model in models.BUILT_IN}
    assert listed.keys() == BUILTIN.keys()
    for reference, model in listed.items():
        built = BUILTIN[reference].build(OPTIONS._replace(y_dim=model.y_dim or 2))
        assert (model.kind, model.hazard) == (built.kind, built.hazard)
        assert built.y_dim == (model.y_dim or 2)
        assert built.x_dim == (OPTIONS.x_dim if model.x_dim is None else model.x_dim)


def test_no_two_read_each_others_states():
    kinds = [each.build(OPTIONS).kind for each in BUILTIN.values()]
    assert kinds == [each.kind for each in BUILTIN.values()]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("name", NEWEST)
def test_a_name_means_the_newest_version(name, tmp_path):
    versions = [model.reference for model in models.BUILT_IN if model.name == name]
    assert models.resolve(tmp_path, name) == NEWEST[name] == f"{name}@{len(versions)}"


def test_an_earlier_version_stays(tmp_path, catalogue):
    assert models.resolve(tmp_path, "poisson@1") == "poisson@1"
    assert catalogue.get("poisson@1").kind == "poisson"
    assert catalogue.get("poisson@2").kind == "mixed-poisson"
    assert catalogue.dimensions("poisson@1") == catalogue.dimensions("poisson@2") == (0, 1)


def test_a_version_that_is_not_there(tmp_path, catalogue):
    assert models.resolve(tmp_path, "gaussian@7") is None
    with pytest.raises(UnknownModel, match="gaussian@7"):
        catalogue.get("gaussian@7")


def put(folder, name, version, report=None, **changes):
    described = {"format": 1, "kind": "alpaca", "x_dim": 1, "y_dim": 1, "hazard": 0.1, **changes}
    place = folder / name / version
    place.mkdir(parents=True)
    (place / "model.json").write_text(json.dumps(described))
    if report is not None:
        (place / "report.json").write_text(report)
    return place


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    folder = tmp_path / "shipped"
    monkeypatch.setattr(models, "SHIPPED", folder)
    return folder


def test_what_ships_is_listed_unless_the_folder_has_one_of_its_name(tmp_path, shipped):
    own = tmp_path / "models"
    put(shipped, "sine", "2")
    put(shipped, "wave", "1")
    put(shipped, "gaussian", "9")
    (own / "sine").mkdir(parents=True)  # a folder without versions is no model
    listed = [model.reference for model in models.Catalogue(own).models() if not model.built_in]
    assert listed == ["sine@2", "wave@1"]
    assert models.resolve(own, "sine") == "sine@2"
    assert models.place(own, "sine") == shipped / "sine"
    put(own, "sine", "1")
    listed = [model.reference for model in models.Catalogue(own).models() if not model.built_in]
    assert listed == ["sine@1", "wave@1"]
    assert models.resolve(own, "sine@2") is None
    assert models.place(own, "sine") == own / "sine"
    assert [each.version for each in models.Catalogue(own).versions("wave")] == ["1"]


def test_reports(tmp_path, shipped):
    catalogue = models.Catalogue(tmp_path)
    put(tmp_path, "a", "1", '{"version": 1, "metrics": []}')
    put(tmp_path, "a", "2")
    put(tmp_path, "a", "3", "{")
    put(tmp_path, "a", "4", "[1]")
    put(tmp_path, "a", "5", "[" * 100_000)
    put(tmp_path, "a", "6", '"' + "x" * models.LARGEST_REPORT + '"')
    put(shipped, "b", "1", '{"version": 2}')
    found = [catalogue.report(each) for each in catalogue.versions("a")]
    assert found == [{"version": 1, "metrics": []}, None, None, None, None, None]
    assert catalogue.report(catalogue.versions("b")[0]) == {"version": 2}
    assert catalogue.report(catalogue.versions("gaussian")[0]) is None


def test_the_worker_loads_what_ships(tmp_path):
    """Each of them, small, described, with a report of a test better than nothing."""
    listed = [model for model in models.Catalogue(tmp_path).models() if not model.built_in]
    assert {"regimes", "sinusoid"} <= {model.name for model in listed}
    catalogue = Catalogue(tmp_path, "cpu")
    for model in listed:
        assert model.error is None
        assert model.description
        loaded = catalogue.get(model.reference)
        assert (loaded.x_dim, loaded.y_dim) == (model.x_dim, model.y_dim)
        folder = models.place(tmp_path, model.name) / model.version
        assert sum(file.stat().st_size for file in folder.iterdir()) < 200_000
        report = models.Catalogue(tmp_path).report(model)
        assert report["metrics"][0]["estimate"]["mean"] == model.training["metric"]["mean"]
