"""What a run shows: one line that fits, however long its name; lines where nobody watches."""

import io
import re

import pytest
from rich.console import Console

from tests.training.tiny import tiny
from training import console as ours
from training.runs import Progress

ACCURATE = {"loss": -1.25, "validation/nll": -1.5, "validation/accuracy": 0.8125}


def shown(tmp_path, *, terminal, name="hazard-0.01_moca_rate-0.005_seed-12", measured=ACCURATE):
    """Lines as they stand after each of two reports, on a screen of 100 columns."""
    config = tiny(optimiser={"iterations": 3000})
    screen = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
    with ours.shown(config, tmp_path, name, screen) as report:
        report(Progress(iteration=2899), {"loss": 5.0})
        report(Progress(iteration=2900), measured)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


@pytest.mark.parametrize("name", ["run", "hazard-0.01_moca_rate-0.005_seed-12", "x" * 90])
def test_a_terminal_has_one_line(tmp_path, name):
    lines = shown(tmp_path, terminal=True, name=name)
    assert all(len(line) <= 100 for line in lines)
    assert all(line.startswith(name[:5]) for line in lines)  # or it would go over two
    assert "2900/3000" in lines[-1]
    assert "loss -1.250 validation -1.500 accuracy 0.812" in lines[-1]
    assert re.search(r"\d/s +(\d+:\d\d:\d\d|-:--:--) left", lines[-1])


def test_a_file_has_a_line_for_each_validation(tmp_path):
    (line,) = shown(tmp_path, terminal=False, name="run")
    assert re.match(r"run 2900: loss -1.250 validation -1.500 accuracy 0.812 [\d.]+/s$", line)


def test_speed_is_of_what_was_done_here(monkeypatch):
    """Not of what was done before a run was interrupted."""
    now = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr(ours.time, "monotonic", lambda: next(now))
    speed = ours.Speed()
    assert [speed(iteration) for iteration in (500, 505, 520)] == ["", " 2.5/s", " 5.0/s"]


def test_who_does_not_lead_shows_nothing(tmp_path):
    screen = Console(file=io.StringIO(), width=100)
    with ours.shown(tiny(), tmp_path, "run", screen, leads=False) as report:
        report(Progress(iteration=3), ACCURATE)
    assert screen.file.getvalue() == ""
    assert not list(tmp_path.iterdir())


def test_numbers_are_logged(tmp_path):
    shown(tmp_path, terminal=False)
    (log,) = (tmp_path / "tensorboard").iterdir()
    assert b"validation/nll" in log.read_bytes()
