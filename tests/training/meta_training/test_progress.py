"""What a training run shows: one line in a terminal, a line for each validation elsewhere."""

import io
import re

import pytest
from rich.console import Console

from training.experiments.catalogue import config
from training.meta_training.progress import shown
from training.meta_training.runs import Progress

TITLE = "hazard-0.05_moca_rate-0.005_seed-3_a-name-that-is-rather-long"
VALIDATED = {"loss": -12.3456, "validation/nll": -11.2345, "validation/accuracy": 0.98765}


def lines(tmp_path, terminal, progress, measured, **optimiser):
    """What is there at the end, each line as wide as it is."""
    out = io.StringIO()
    wanted = config({"experiment": "sinusoid", "optimiser": optimiser})
    console = Console(
        file=out, width=100, force_terminal=terminal, force_interactive=terminal, color_system=None
    )
    with shown(wanted, tmp_path, TITLE, console) as report:
        report(progress, measured)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("measured", [{"loss": 1.25}, VALIDATED], ids=["loss", "validated"])
def test_a_terminal_has_one_line(tmp_path, measured):
    progress = Progress(iteration=123_456, elapsed_s=1000.0)
    found = lines(tmp_path, True, progress, measured, iterations=1_000_000)
    assert all(len(line.rstrip()) <= 100 for line in found)
    last = found[-1]
    assert last.startswith("hazard-0.05")
    for name, value in measured.items():
        assert f"{name.split('/')[-1]} {value:.3f}" in last
    assert "123456" in last
    assert "123.5/s" in last
    assert last.rstrip().endswith("left")


def test_what_is_left_is_of_the_minutes_where_those_decide(tmp_path):
    """Half of the minutes are half of the bar, however many iterations there may be."""
    progress = Progress(iteration=10, elapsed_s=30.0)
    half = lines(tmp_path, True, progress, {"loss": 1.0}, iterations=10**6, minutes=1.0)[-1]
    assert half.count("━") == 5
    nothing = lines(tmp_path, True, progress, {"loss": 1.0}, iterations=10**6)[-1]
    assert nothing.count("━") == 0


def test_a_file_has_a_line_for_each_validation(tmp_path):
    progress = Progress(iteration=50, elapsed_s=10.0)
    assert lines(tmp_path, False, progress, {"loss": 1.0}) == []
    (found,) = lines(tmp_path, False, progress, {"loss": 1.0, "validation/nll": 2.0})
    assert found == f"{TITLE} 50: loss 1.000 nll 2.000 5.0/s"


def test_one_that_does_not_lead_shows_nothing(tmp_path):
    out = io.StringIO()
    wanted = config({"experiment": "sinusoid"})
    with shown(wanted, tmp_path / "none", "run", Console(file=out), leads=False) as report:
        report(Progress(iteration=1), {"loss": 1.0, "validation/nll": 2.0})
    assert out.getvalue() == ""
    assert not (tmp_path / "none").exists()
