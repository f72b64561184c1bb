"""From small runs to tables and figures, as the command line does it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from training.config import Objective
from training.errors import BadConfig, BadRun
from training.evaluation import trained
from training.evaluation.paper import (
    OPTIMUM,
    SUPERVISED,
    UNSUPERVISED,
    Wanted,
    evaluate,
    evaluate_ablation,
)
from training.evaluation.paper_figures import sinusoid
from training.evaluation.trained import Protocol
from training.experiments import catalogue, grid
from training.experiments.catalogue import Place
from training.experiments.jobs import Wanted as Training
from training.experiments.jobs import train

SMALL = {
    "model": {"widths": (8,), "features": 4},
    "optimiser": {"iterations": 4, "batch": 4, "length": 12},
    "validation": {"every": 2, "windows": 4},
}
TINY = Protocol(6, 160)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(None, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, place):
    """Two methods at two hazards with two learning rates."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = Training("sinusoid", "quick", folder)
    train(wanted, SMALL, place, [0.05, 0.2], ["moca", "oracle", "sw5"], [0.01, 1e-6], [])
    return folder


@pytest.fixture(autouse=True)
def small_protocol(monkeypatch):
    monkeypatch.setitem(trained.PROTOCOLS, "sinusoid", TINY)


def test_the_rate_that_validated_best_is_chosen(runs):
    found = list(trained.trained(runs / "sinusoid"))
    assert len(found) == 12
    chosen = trained.best(found)
    assert set(chosen) == {(h, m) for h in (0.05, 0.2) for m in ("MOCA", "oracle", "SW5")}
    for key, each in chosen.items():
        others = [e.result["best_metric"] for e in found if (e.hazard, e.method) == key]
        assert each.result["best_metric"] == min(others)
        assert len(others) == 2


def test_scores_are_kept_and_of_the_same_sequences(runs, place, monkeypatch):
    each = next(trained.trained(runs / "sinusoid"))
    splits = catalogue.splits(each.config, place)
    first = trained.scores(each, splits, TINY)
    assert first.shape == (6,)
    other = trained.scores(each, splits, TINY, Objective(mode="toe"))
    assert not np.allclose(first, other)
    monkeypatch.setattr(trained, "load", None)  # nothing is measured again
    np.testing.assert_array_equal(trained.scores(each, splits, TINY), first)
    anew = each._replace(result={**each.result, "best_metric": 0.0})
    with pytest.raises(TypeError):  # but what was trained anew is
        trained.scores(anew, splits, TINY)
    monkeypatch.setattr(trained, "VERSION", trained.VERSION + 1)
    with pytest.raises(TypeError):  # or tested by other rules
        trained.scores(each, splits, TINY)


def test_tables_and_figures_of_a_sweep(runs, place, tmp_path, capsys):
    found = evaluate(Wanted("sinusoid", "quick", runs, place, tmp_path), sinusoid.draw)
    learned = {"MOCA", "oracle", "SW5", SUPERVISED, UNSUPERVISED}
    assert set(found.methods()) == learned | set(OPTIMUM)
    assert "MOCA's lead" in capsys.readouterr().out
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert len(rows) == 2 * len(learned | set(OPTIMUM))
    assert {row.get("iterations") for row in rows if row["method"] == "SW5"} == {4}
    written = {file.name for file in tmp_path.iterdir()}
    for name in ("performance", "belief-0.05", "calibration-0.2", "losses-0.2", "supervision"):
        assert {f"{name}.html", f"{name}.png"} <= written


def test_nothing_trained_is_an_error_that_says_what_to_do(place, tmp_path):
    with pytest.raises(BadRun, match="moca train sinusoid"):
        evaluate(Wanted("sinusoid", "quick", tmp_path, place, tmp_path), sinusoid.draw)


def test_an_ablation_from_training_to_its_figure(place, tmp_path, monkeypatch):
    whole = grid.ablation("supervision", "sinusoid")
    short = whole._replace(variations=whole.variations[::4], supervision=(0.0, 1.0))
    monkeypatch.setattr(grid, "ablation", lambda name, experiment: short)
    runs, out = tmp_path / "runs", tmp_path / "out"
    train(Training("sinusoid", "quick", runs, ablation="supervision"), SMALL, place, [], [], [], [])
    found = evaluate_ablation(Wanted("sinusoid", "supervision", runs, place, out), "supervision")
    assert found.settings() == ["0", "1"]
    for each in trained.trained(runs):
        share = f"{each.config.objective.supervision:g}"
        splits = catalogue.splits(each.config, place)
        for told in (0.0, 1.0):
            expected = trained.scores(each, splits, TINY, Objective(supervision=told))
            np.testing.assert_array_equal(
                found.values[share, f"told {told:g} in the test"], expected
            )
        assert not np.array_equal(*(found.values[share, f"told {t} in the test"] for t in (0, 1)))
    assert (out / "supervision.png").exists()


def test_an_unknown_ablation_names_those_there_are():
    with pytest.raises(BadConfig, match="supervision, prior-weight, length"):
        grid.ablation("colour", "sinusoid")


def test_supervision_without_known_switches_is_refused(runs, place):
    each = next(trained.trained(runs / "sinusoid"))
    splits = catalogue.splits(each.config, place)

    class Untold:
        def draw(self, generator: torch.Generator, count: int, length: int):
            return splits.test.draw(generator, count, length)._replace(switch=None)

    with pytest.raises(BadRun, match="switches"):
        trained.scores(each, splits._replace(test=Untold()), TINY, Objective(supervision=0.5))
