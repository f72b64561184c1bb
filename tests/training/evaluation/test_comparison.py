"""Tables of methods on the same sequences."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from training.evaluation import comparison
from training.evaluation.comparison import Comparison
from training.statistics.intervals import estimate, formatted

RNG = np.random.default_rng(5)
SHARED = RNG.normal(size=40)
VALUES = {
    ("0.1", "SW5"): 1.5 + SHARED,
    ("0.1", "MOCA"): 1.0 + SHARED + 0.01 * RNG.normal(size=40),
    ("0.1", "TOE"): 1.9 + SHARED,
    ("0.01", "MOCA"): 0.2 + SHARED,
}


@pytest.fixture
def found():
    return Comparison("sinusoid", "test NLL (nats)", -1, VALUES)


def test_settings_and_methods_are_in_order(found):
    assert found.settings() == ["0.01", "0.1"]
    assert found.methods() == ["MOCA", "SW5", "TOE"]


def test_the_lead_is_paired_and_over_the_best(found):
    best, lead = found.lead("0.1", "MOCA", comparison.BASELINES)
    assert best == "SW5"
    assert lead.mean == pytest.approx(0.5, abs=0.01)
    # Sequences differ by far more than the methods do.
    assert lead.half_width < 0.01 < estimate(VALUES["0.1", "MOCA"]).half_width
    assert found.lead("0.01", "MOCA", comparison.BASELINES) is None


def test_more_is_better_of_an_accuracy():
    values = {("all", "MOCA"): np.array([0.9, 0.8]), ("all", "SW5"): np.array([0.5, 0.6])}
    best, lead = Comparison("x", "accuracy", 1, values).lead("all", "MOCA", ["SW5"])
    assert (best, round(lead.mean, 3)) == ("SW5", 0.3)


def test_what_is_printed_and_written_are_the_numbers(found, tmp_path):
    console = Console(record=True, width=100)
    for table in comparison.tables(found):
        console.print(table)
    text = console.export_text()
    moca = estimate(VALUES["0.01", "MOCA"])
    assert f"{moca.mean:.3f} ± {moca.half_width:.3f}" in text
    comparison.save(found, {("0.01", "MOCA"): {"seed": 4}}, tmp_path)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    (row,) = (each for each in rows if each["hazard"] == 0.01)
    assert (row["mean"], row["low"], row["sequences"], row["seed"]) == (*moca[:2], 40, 4)
    assert f"| MOCA | {moca} |" in (tmp_path / "table.md").read_text()


def test_the_figure_has_a_curve_for_each_method(found):
    (panel,) = comparison.chart(found).rows[0]
    text = repr(panel)
    assert all(name in text for name in found.methods())


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    values = {("all", "MOCA"): np.array([-1.5, -1.7]), ("all", "oracle"): np.array([-1.0, -2.0])}
    found = Comparison("players", "test NLL (nats)", -1, values)
    console = Console(record=True, width=100)
    console.print(*comparison.tables(found))
    lines = [line.strip() for line in console.export_text().splitlines()]
    ours = {method: formatted(estimate(values["all", method])) for method in ("MOCA", "oracle")}
    (moca,) = (line for line in lines if line.startswith("MOCA "))
    assert moca.removeprefix("MOCA").strip().startswith(ours["MOCA"])
    assert moca.endswith("-3.291 ± 0.074")
    (oracle,) = (line for line in lines if line.startswith("oracle"))
    assert oracle.removeprefix("oracle").strip() == ours["oracle"]  # the paper has none
    comparison.save(found, {}, tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| -3.291 ± 0.074 |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
