"""The catalogue lists what the worker builds, and names mean the newest version."""

import pytest

from model_core.upm.builtin import BUILTIN, NEWEST, Options
from service import models
from service.errors import UnknownModel
from service.worker.catalogue import Catalogue

OPTIONS = Options(x_dim=3, classes=4)


@pytest.fixture
def catalogue(tmp_path):
    return Catalogue(tmp_path, "cpu")


def test_what_is_listed_is_what_is_built():
    listed = {model.reference: model for model in models.BUILT_IN}
    assert listed.keys() == BUILTIN.keys()
    for reference, model in listed.items():
        built = BUILTIN[reference](OPTIONS._replace(y_dim=model.y_dim or 2))
        assert (model.kind, model.hazard) == (built.kind, built.hazard)
        assert built.y_dim == (model.y_dim or 2)
        assert built.x_dim == (OPTIONS.x_dim if model.x_dim is None else model.x_dim)


def test_no_two_read_each_others_states():
    kinds = [build(OPTIONS).kind for build in BUILTIN.values()]
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
