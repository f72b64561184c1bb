"""Image experiments from small runs to figures, on images that are made here."""

from __future__ import annotations

import numpy as np
import pytest

from training.evaluation import trained
from training.evaluation.paper import Wanted, evaluate
from training.evaluation.paper_figures import DRAW, images
from training.evaluation.trained import Protocol
from training.experiments import catalogue
from training.experiments.catalogue import Place
from training.experiments.jobs import Wanted as Training
from training.experiments.jobs import train
from training.figures.chart import Image, Line

SMALL = {
    "model": {"blocks": (4, 4, 4)},
    "optimiser": {"iterations": 4, "batch": 2, "length": 12},
    "validation": {"every": 2, "windows": 2},
}
TINY = Protocol(4, 20, "accuracy", trained.PROTOCOLS["rainbow"].dtype, 2)


@pytest.fixture(autouse=True)
def small_protocol(monkeypatch):
    monkeypatch.setitem(trained.PROTOCOLS, "rainbow", TINY)
    monkeypatch.setattr(images, "COUNT", 4)
    monkeypatch.setattr(images, "STEPS", 16)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Digits that are bars at the height of their number, in two colours."""
    folder = tmp_path_factory.mktemp("rainbow")
    rng = np.random.default_rng(0)
    for split, tasks in (("train", 3), ("val", 2)):
        y = rng.integers(10, size=(tasks, 120)).astype(np.uint8)
        gray = rng.integers(40, size=(tasks, 120, 28, 28)).astype(np.uint8)
        for task in range(tasks):
            for i in range(120):
                gray[task, i, 2 * y[task, i] + 4] = 255
        rgb = rng.integers(256, size=(tasks, 3)).astype(np.uint8)
        np.savez(folder / f"rainbow_mnist_{split}.npz", gray=gray, y=y, rgb=rgb)
    return Place(folder, folder / "cache")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, place):
    folder = tmp_path_factory.mktemp("runs")
    modes = ["moca", "oracle", "toe", "sw5"]
    train(Training("rainbow", "quick", folder), SMALL, place, [0.2], modes, [0.01], [])
    return folder


def test_tables_and_figures(runs, place, tmp_path, capsys):
    found = evaluate(Wanted("rainbow", "quick", runs, place, tmp_path), DRAW["rainbow"])
    assert {"MOCA", "oracle", "TOE", "SW5"} <= set(found.methods())
    assert "test accuracy" in capsys.readouterr().out
    for values in found.values.values():
        assert values.shape == (4,)
        assert ((values >= 0) & (values <= 1)).all()
    written = {file.name for file in tmp_path.iterdir()}
    for name in ("belief-0.2", "calibration-0.2", "losses-0.2"):
        assert {f"{name}.html", f"{name}.png"} <= written


def test_a_figure_shows_the_first_test_sequence(runs, place):
    each = next(e for e in trained.trained(runs / "rainbow") if e.method == "MOCA")
    splits = catalogue.splits(each.config, place)
    ((panel,),) = images.belief(each, splits).rows
    (image,) = [layer for layer in panel.layers if isinstance(layer, Image)]
    np.testing.assert_allclose(np.nansum(image.z, 0), 1, atol=0.01)
    assert image.z.shape[1] == images.STEPS
    ((above,), _) = images.calibrated(each, splits, 4).rows
    (line,) = [layer for layer in above.layers if isinstance(layer, Line) and layer.symbol]
    values = trained.scores(each, splits, TINY)
    assert line.y.min() - 1e-6 <= values.mean() <= line.y.max() + 1e-6
