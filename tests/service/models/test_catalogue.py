"""The catalogue lists what the worker builds; names of trained models mean the newest version."""

import json
import os

import pytest

from model_core.hazard import BY_STREAM
from model_core.upm.builtin import BUILTIN, Options
from service.models import catalogue as models
from service.problems import UnknownModel
from service.worker.streams.loaded_models import LoadedModels

OPTIONS = Options(x_dim=3, classes=4)


def put(folder, name, version, report=None, **changes):
    described = {"format": 1, "kind": "alpaca", "x_dim": 1, "y_dim": 1, "hazard": 0.1, **changes}
    place = folder / name / version
    place.mkdir(parents=True)
    (place / "model.json").write_text(json.dumps(described))
    if report is not None:
        (place / "report.json").write_text(report)
    return place


def artifacts(folder):
    """References of what is listed and not built in."""
    return [each.reference for each in models.Catalogue(folder).models() if not each.built_in]


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    folder = tmp_path / "shipped"
    monkeypatch.setattr(models, "SHIPPED", folder)
    return folder


def test_what_is_listed_is_what_is_built_and_none_reads_anothers_states():
    listed = {model.reference: model for model in models.BUILT_IN}
    assert listed.keys() == BUILTIN.keys()
    kinds = set()
    for reference, model in listed.items():
        built = BUILTIN[reference].build(OPTIONS._replace(y_dim=model.y_dim or 2))
        assert model.kind == built.kind
        assert (model.hazard, built.hazard) == (None, BY_STREAM)  # each stream learns its own
        assert built.y_dim == (model.y_dim or 2)
        assert built.x_dim == (OPTIONS.x_dim if model.x_dim is None else model.x_dim)
        kinds.add(built.kind)
    assert len(kinds) == len(listed)


def test_built_in_models_have_a_name_and_no_version(tmp_path):
    for name in BUILTIN:
        assert models.Catalogue(tmp_path).resolve(name) == name
        assert models.Catalogue(tmp_path).resolve(f"{name}@1") is None
    with pytest.raises(UnknownModel, match=r"'gausian'; did you mean 'gaussian'\?"):
        raise models.unknown("gausian")
    with pytest.raises(UnknownModel, match="averaged@2"):
        LoadedModels(tmp_path, "cpu").get("averaged@2")


def test_what_ships_is_listed_unless_the_folder_has_one_of_its_name(tmp_path, shipped):
    own = tmp_path / "models"
    put(shipped, "sine", "2")
    put(shipped, "wave", "1")
    put(shipped, "gaussian", "9")
    (own / "sine").mkdir(parents=True)  # a folder without versions is no model
    assert artifacts(own) == ["sine@2", "wave@1"]
    assert models.Catalogue(own).resolve("sine") == "sine@2"
    assert models.Catalogue(own).place("sine") == shipped / "sine"
    put(own, "sine", "1")
    assert artifacts(own) == ["sine@1", "wave@1"]
    assert models.Catalogue(own).resolve("sine@2") is None
    assert models.Catalogue(own).place("sine") == own / "sine"
    assert [each.version for each in models.Catalogue(own).versions("wave")] == ["1"]


def test_versions_are_ordered_by_their_numbers_and_a_name_means_a_usable_one(tmp_path):
    for version in ("9", "10", "1.9", "1.10"):
        put(tmp_path, "pump", version)
    put(tmp_path, "pump", "11", format=2)
    versions = models.Catalogue(tmp_path).versions("pump")
    assert [each.version for each in versions] == ["1.9", "1.10", "9", "10", "11"]
    assert versions[-1].error is not None
    assert models.Catalogue(tmp_path).resolve("pump") == "pump@10"
    assert models.Catalogue(tmp_path).usable("pump") == ["1.9", "1.10", "9", "10"]


def test_reports_that_can_be_read_are_shown(tmp_path, shipped):
    catalogue = models.Catalogue(tmp_path)
    put(tmp_path, "a", "1", '{"version": 1, "metrics": []}')
    put(tmp_path, "a", "2")
    put(tmp_path, "a", "3", "{")
    put(tmp_path, "a", "4", "[1]")
    put(tmp_path, "a", "5", "[" * 100_000)
    for version, size in (("6", models.LARGEST_REPORT), ("7", models.LARGEST_REPORT + 1)):
        put(tmp_path, "a", version, '{"a":"' + "x" * (size - 8) + '"}')
    put(shipped, "b", "1", '{"version": 2}')
    reports = [catalogue.report(each) for each in catalogue.versions("a")]
    assert reports[0] == {"version": 1, "metrics": []}
    assert [each is None for each in reports] == [False, True, True, True, True, False, True]
    assert catalogue.report(catalogue.versions("b")[0]) == {"version": 2}
    assert catalogue.report(catalogue.versions("gaussian")[0]) is None


def test_the_worker_loads_what_ships(tmp_path):
    """Each of them, small, described, with a report of a test better than nothing."""
    listed = [model for model in models.Catalogue(tmp_path).models() if not model.built_in]
    assert {"regimes", "sinusoid"} <= {model.name for model in listed}
    catalogue = LoadedModels(tmp_path, "cpu")
    for model in listed:
        assert model.error is None
        assert model.description
        loaded = catalogue.get(model.reference)
        assert (loaded.x_dim, loaded.y_dim) == (model.x_dim, model.y_dim)
        folder = models.Catalogue(tmp_path).place(model.name) / model.version
        assert sum(file.stat().st_size for file in folder.iterdir()) < 200_000
        report = models.Catalogue(tmp_path).report(model)
        assert report["metrics"][0]["estimate"]["mean"] == model.training["metric"]["mean"]


def fifo(file):
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def sparse(file):
    """As large as it says, and empty on disk."""
    with file.open("wb") as opened:
        opened.truncate(1 << 35)


def loop(file):
    file.unlink(missing_ok=True)
    file.symlink_to(file)


def deep(file):
    file.write_text("[" * 200_000)


@pytest.mark.parametrize("broken", [fifo, sparse, loop, deep])
def test_a_broken_artifact_is_listed_with_its_error_and_not_loaded(tmp_path, broken):
    put(tmp_path, "good", "1")
    for name in ("model.json", "model.safetensors"):
        folder = put(tmp_path, "pump", name)
        broken(folder / name)
        listed = {each.reference: each for each in models.Catalogue(tmp_path).models()}
        assert listed["good@1"].error is None
        if name == "model.json":
            assert name in listed[f"pump@{name}"].error
        with pytest.raises(UnknownModel, match=f"pump@{name}"):
            LoadedModels(tmp_path, "cpu").get(f"pump@{name}")
        if broken in (fifo, loop):
            assert models.Catalogue(tmp_path).digest(f"pump@{name}") is None
