"""What `moca bench train` compares are ways to the same loss and the same gradients."""

import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.training.moca import WIDE
from training.bench import losses
from training.bench import train as bench
from training.experiments import catalogue
from training.experiments.catalogue import Place
from training.experiments.jobs import learner

BATCH, LENGTH = 3, 27  # more than a block, and no whole number of them
NAMES = [name for name in bench.WAYS if name != "plain"]


@pytest.fixture(scope="module")
def found():
    """Loss and gradients of every way, in float64, on a small problem."""
    config = catalogue.preset(
        "sinusoid", "quick", {"model": {"widths": [9], "features": 6, "learn_hazard": True}}
    )
    splits = catalogue.splits(config, Place(None, None))
    batch = splits.train.draw(torch.Generator().manual_seed(0), BATCH, LENGTH)
    made, each = learner(config, splits).double(), {}
    for name in bench.WAYS:
        made.zero_grad()
        loss = losses.WAYS[name](made, batch)
        loss.backward()
        each[name] = loss.item(), {n: p.grad.clone() for n, p in made.named_parameters()}
    return each


def test_every_way_that_is_named_is_there():
    assert tuple(losses.WAYS) == bench.WAYS


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_the_plain_recursions(found, name):
    assert found[name][0] == pytest.approx(found["plain"][0], abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_are_the_plain_recursions(found, name):
    gradients = found["plain"][1]
    assert all(each.abs().max() > 1e-6 for each in gradients.values())
    for parameter, expected in gradients.items():
        close = torch.allclose(found[name][1][parameter], expected, atol=1e-9, rtol=1e-9)
        assert close, parameter


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "BATCH", BATCH)
    monkeypatch.setattr(bench, "LENGTH", LENGTH)


def test_measuring_in_this_process(small):
    lattice, rows = (bench.measure(name, "float64", 2) for name in ("lattice", "rows"))
    assert lattice.loss == pytest.approx(rows.loss, abs=1e-9)
    assert lattice.seconds > 0
    assert lattice.peak_mb >= 0


def test_the_command_prints_a_row_for_each_way(small, monkeypatch):
    values = {
        "plain": bench.Measured(6.0, 2000.0, 1.5),
        "rows": bench.Measured(3.0, 500.0, 1.5),
        "blocks": bench.Measured(1.5, 250.0, 1.5),
        "lattice": bench.Measured(0.5, 100.0, 1.5),
    }
    asked = []

    def apart(name, dtype, repeats):
        asked.append((name, dtype, repeats))
        return values[name]

    monkeypatch.setattr(bench, "_in_subprocess", apart)
    app = typer.Typer()
    app.command()(bench.command)
    said = CliRunner().invoke(app, ["--dtype", "float64", "--repeats", "2"], env=WIDE)
    assert said.exit_code == 0
    assert asked == [(name, "float64", 2) for name in bench.WAYS]
    rows = {line.split()[0]: line.split()[1:] for line in said.stdout.splitlines() if line.split()}
    assert rows["plain"] == ["6.000", "1.0", "2000", "1.000", "1.50000"]
    assert rows["lattice"] == ["0.500", "12.0", "100", "0.050", "1.50000"]
    assert f"batch {BATCH}, T = {LENGTH}" in said.stdout


def test_each_way_is_measured_in_a_process_of_its_own():
    """Of the full size: small ones would leave no mark on the peak."""
    found = bench._in_subprocess("lattice", "float32", 1)
    assert found.seconds > 0
    assert found.peak_mb > 1
    assert 0 < found.loss < 10


def test_help_is_complete():
    app = typer.Typer()
    app.command()(bench.command)
    for option in typer.main.get_command(app).params:
        if option.name not in {"help", "install_completion", "show_completion"}:
            assert option.help, option.name
            assert option.envvar is None
    assert CliRunner().invoke(app, ["--dtype", "float16"], env=WIDE).exit_code == 2
