"""Files and folders that `moca train` cannot use: one line that names them, and status 2."""

import pytest

from tests.training.moca import moca, small


def refused(*arguments):
    said = moca("train", "sinusoid", *arguments, *small())
    assert said.exit_code == 2
    assert said.stdout == ""
    (line,) = said.stderr.splitlines()
    assert line.startswith("moca: ")
    return line


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a = = 1", b"[optimiser]\nrat = 1"])
def test_settings_that_cannot_be_read(tmp_path, content):
    file = tmp_path / "own.toml"
    file.write_bytes(content)
    line = refused("--config", file, "--runs", tmp_path / "runs")
    assert "own.toml" in line or "optimiser.rat" in line
    assert not (tmp_path / "runs").exists()


def test_settings_that_are_not_there(tmp_path):
    assert "none.toml" in refused("--config", tmp_path / "none.toml", "--runs", tmp_path / "runs")


def test_runs_in_a_place_that_is_no_folder(tmp_path):
    place = tmp_path / "runs"
    place.write_text("")
    assert str(place) in refused("--runs", place)
