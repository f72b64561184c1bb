"""Artifacts that are no artifacts: their own streams are refused, and nothing waits for them."""

import os

import pytest

from service.errors.base import UnknownModel
from service.models import catalogue
from service.worker.streams.models import Catalogue
from tests.service.models.test_catalogue import put


def fifo(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def sparse(folder, name):
    """As large as it says, and empty on disk."""
    with (folder / name).open("wb") as file:
        file.truncate(1 << 35)


def loop(folder, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / name)


def deep(folder, name):
    (folder / name).write_text("[" * 200_000)


BREAK = [(fifo, "model.json"), (sparse, "model.json"), (loop, "model.json"), (deep, "model.json"),
         (fifo, "model.safetensors"), (sparse, "model.safetensors"),
         (loop, "model.safetensors")]  # fmt: skip


@pytest.mark.parametrize(("broken", "name"), BREAK)
def test_it_is_listed_and_not_loaded(tmp_path, broken, name):
    put(tmp_path, "pump", "1")
    put(tmp_path, "good", "1")
    broken(tmp_path / "pump" / "1", name)
    listed = {model.reference: model for model in catalogue.Catalogue(tmp_path).models()}
    assert listed["good@1"].error is None
    if name == "model.json":
        assert "model.json" in listed["pump@1"].error
    with pytest.raises(UnknownModel, match="cannot load model pump@1"):
        Catalogue(tmp_path, "cpu").get("pump@1")
    if broken is not sparse:
        assert catalogue.digest(tmp_path, "pump@1") is None


def test_a_loop_of_folders_is_no_model(tmp_path):
    put(tmp_path, "good", "1")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    (tmp_path / "good" / "2").symlink_to(tmp_path / "good" / "2")
    (tmp_path / "up").symlink_to(tmp_path)
    names = {model.reference for model in catalogue.Catalogue(tmp_path).models()}
    assert "good@1" in names
    assert "good@2" not in names
