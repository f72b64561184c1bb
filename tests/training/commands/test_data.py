"""`moca data prepare`: what it writes, what it says."""

import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from training.commands.data import app


@pytest.fixture
def moca():
    def run(*arguments, **environ):
        return CliRunner().invoke(app, [str(each) for each in arguments], env=environ)

    return run


def write_mnist(folder):
    for name in ("train", "t10k"):
        head = bytes([0, 0, 8, 3, 0, 0, 0, 56, 0, 0, 0, 28, 0, 0, 0, 28])
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + bytes(56 * 784))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1, 0, 0, 0, 56]) + bytes(56)
        )


def test_mnist_is_prepared_and_the_files_are_named(moca, tmp_path):
    write_mnist(tmp_path)
    result = moca("prepare", "mnist", tmp_path, "--out", tmp_path / "out", "--images", "1")
    assert result.exit_code == 0, result.output
    assert "rainbow_mnist_val.npz" in result.output
    with np.load(tmp_path / "out" / "rainbow_mnist_train.npz") as found:
        assert found["gray"].shape == (42, 1, 28, 28)


@pytest.mark.parametrize("name", ["mnist", "sportvu", "miniimagenet"])
def test_what_is_wrong_is_one_line(moca, tmp_path, name):
    result = moca("prepare", name, tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    said = [line for line in result.output.splitlines() if line.startswith("moca: ")]
    assert len(said) == 1
    assert str(tmp_path) in said[0]
    assert not (tmp_path / "out").exists()


def every_option(command):
    for each in getattr(command, "commands", {}).values():
        yield from every_option(each)
    yield from (each for each in command.params if each.param_type_name == "option")


def test_every_option_has_a_line_of_help_and_no_variable():
    found = list(every_option(typer.main.get_command(app)))
    named = [each for each in found if each.name not in {"install_completion", "show_completion"}]
    assert len(named) == 6
    for option in named:
        assert option.envvar is None, option.name
        assert option.help, option.name


def test_the_command_line_does_not_import_torch():
    code = "import sys, training.commands.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
