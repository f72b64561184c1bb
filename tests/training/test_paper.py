"""The paper's experiments: from small runs to tables and figures, as the command line does it."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from model_core.stream_settings import DEFAULTS
from tests.training.test_learners import drawn, learner_of
from tests.training.tiny import SETTINGS, seeded, splits, tiny, untold
from training import catalogue, jobs, paper
from training.catalogue import Ablation
from training.config import Objective
from training.data.files import Place
from training.errors import BadConfig, BadRun
from training.experiments import players, sinusoid
from training.jobs import Training, train
from training.learners import learner
from training.meta_training import objective
from training.meta_training.runs import Run
from training.online import follow
from training.paper import (
    CROSSED,
    Comparison,
    Protocol,
    Study,
    density,
    evaluate,
    log_scores,
    show_table,
    trace,
)
from training.results import estimate

TINY = Protocol(6, 160)
STEPS = 260
RESULT = {"iterations": 4, "elapsed_s": 1.0}
SHARED = np.random.default_rng(5).normal(size=40)
VALUES = {
    (0.1, "SW5"): 1.5 + SHARED,
    (0.1, "MOCA"): 1.0 + SHARED + 0.01 * np.random.default_rng(6).normal(size=40),
    (0.1, "TOE"): 1.9 + SHARED,
    (0.01, "MOCA"): 0.2 + SHARED,
}


def test_the_lead_in_a_table_is_paired_and_over_the_best():
    comparison = Comparison("sinusoid", "test NLL (nats)", -1, VALUES)
    assert comparison.settings() == [0.01, 0.1]
    assert comparison.methods() == ["MOCA", "SW5", "TOE"]
    best, lead = comparison.leads()[0.1]
    assert best == "SW5"
    assert lead.mean == pytest.approx(0.5, abs=0.01)
    # Sequences differ by far more than the methods do.
    assert lead.half_width < 0.01 < estimate(VALUES[0.1, "MOCA"]).half_width
    assert 0.01 not in comparison.leads()
    values = {(None, "MOCA"): np.array([0.9, 0.8]), (None, "SW5"): np.array([0.5, 0.6])}
    best, lead = Comparison("x", "accuracy", 1, values).leads()[None]
    assert (best, round(lead.mean, 3)) == ("SW5", 0.3)
    values = {(priors, "MOCA"): SHARED - 0.1 * priors for priors in (1.0, 4.0)}
    over, lead = Comparison("x", "NLL", -1, values, "typical regimes").leads()[4.0]
    assert (over, round(lead.mean, 3)) == ("1", 0.3)


def test_what_is_printed_and_written_are_the_numbers_beside_the_papers(tmp_path):
    values = {(None, "MOCA"): np.array([-1.5, -1.7]), (None, "oracle"): np.array([-1.0, -2.0])}
    comparison = Comparison("players", "test NLL (nats)", -1, values)
    run = Run(tmp_path)
    run.config = catalogue.preset("players", "quick", {"seed": 4})
    run.result = RESULT
    console = Console(record=True, width=100)
    show_table(comparison, {(None, "MOCA"): run}, tmp_path, console)
    words = [line.split() for line in console.export_text().splitlines() if line.strip()]
    ours = {method: str(estimate(values[None, method])) for method in ("MOCA", "oracle")}
    assert ["MOCA", *ours["MOCA"].split(), "-3.291", "±", "0.074"] in words
    assert ["oracle", *ours["oracle"].split()] in words  # the paper has none
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    (row,) = (one for one in rows if one["method"] == "MOCA")
    expected = estimate(values[None, "MOCA"])
    assert (row["mean"], row["low"], row["count"], row["seed"]) == (*expected[:2], 2, 4)
    table = (tmp_path / "table.md").read_text()
    assert "| -3.291 ± 0.074 |" in table
    assert {line.count("|") for line in table.splitlines() if "|" in line} == {4}


@pytest.fixture(autouse=True)
def small_protocols(monkeypatch):
    monkeypatch.setattr(sinusoid, "PROTOCOL", TINY)
    monkeypatch.setattr(players, "PROTOCOL", Protocol(5, 150))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(None, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, place):
    """Two methods at two hazards with two learning rates."""
    folder = tmp_path_factory.mktemp("runs")
    axes = {"hazards": [0.05, 0.2], "modes": ["moca", "oracle", "sw5"], "rates": [0.01, 1e-6]}
    train(Training("sinusoid", "quick", folder, **axes), SETTINGS, place)
    return folder


def test_the_rate_that_validated_best_is_chosen(runs):
    all_runs = paper.finished(runs / "sinusoid")
    assert len(all_runs) == 12
    chosen = paper.best(all_runs)
    assert set(chosen) == {(h, m) for h in (0.05, 0.2) for m in ("MOCA", "oracle", "SW5")}
    for key, run in chosen.items():
        others = [
            e.result["best_metric"]
            for e in all_runs
            if (e.config.data["hazard"], e.config.method) == key
        ]
        assert run.result["best_metric"] == min(others)
        assert len(others) == 2


def test_pictures_of_mocas_runs_are_named_by_their_hazard(runs, place, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(paper, "scores", lambda *_: np.arange(3.0))
    monkeypatch.setattr(
        paper, "calibration", lambda run, splits: ({}, f"of {run.config.data['hazard']}")
    )
    monkeypatch.setattr(
        sinusoid, "picture", lambda run, *_: (run.config.method, run.config.data["hazard"])
    )
    monkeypatch.setattr(paper, "save_charts", lambda charts, *_: drawn.update(charts))
    evaluate(Study("sinusoid", "quick", runs, place, tmp_path))
    names = {f"{name}-{h}" for name in ("belief", "calibration", "losses") for h in (0.05, 0.2)}
    assert drawn.keys() == names | {"performance"}
    assert drawn["belief-0.05"] == ("MOCA", 0.05)
    assert drawn["calibration-0.2"] == "of 0.2"
    validated = drawn["losses-0.2"]
    assert validated.description.startswith("MOCA, oracle, SW5: validation NLL (nats) against")
    assert validated.title == "Validation at hazard 0.2"


def test_scores_are_kept_and_of_the_same_sequences(runs, place, monkeypatch):
    run = next(iter(paper.finished(runs / "sinusoid")))
    splits = catalogue.splits(run.config, place)
    first = paper.scores(run, splits, TINY)
    assert first.shape == (6,)
    other = paper.scores(run, splits, TINY, Objective(mode="toe"))
    assert not np.allclose(first, other)
    monkeypatch.setattr(paper, "load", None)  # nothing is measured again
    np.testing.assert_array_equal(paper.scores(run, splits, TINY), first)
    anew = Run(run.folder)
    anew.result = {**run.result, "best_metric": 0.0}
    with pytest.raises(TypeError):  # but what was trained anew is
        paper.scores(anew, splits, TINY)
    monkeypatch.setattr(paper, "VERSION", paper.VERSION + 1)
    with pytest.raises(TypeError):  # or tested by other rules
        paper.scores(run, splits, TINY)


@pytest.mark.slow
def test_tables_and_figures_of_a_sweep(runs, place, tmp_path, capsys):
    comparison = evaluate(Study("sinusoid", "quick", runs, place, tmp_path))
    learned = {"MOCA", "oracle", "SW5", *CROSSED.values()}
    assert set(comparison.methods()) == learned
    assert "MOCA's lead" in capsys.readouterr().out
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert len(rows) == 2 * len(learned)
    assert {row.get("iterations") for row in rows if row["method"] == "SW5"} == {12}
    written = {file.name for file in tmp_path.iterdir()}
    for name in ("performance", "belief-0.05", "calibration-0.2", "losses-0.2"):
        assert {f"{name}.svg", f"{name}.png"} <= written


def test_an_ablation_is_tested_at_every_share_of_known_switches(place, tmp_path, monkeypatch):
    asked = Ablation(
        question="What is it worth?",
        axis="objective.supervision",
        label="share known",
        hazards=(0.2,),
        values=(0.0, 1.0),
        supervision=(0.0, 1.0),
    )
    monkeypatch.setattr(catalogue, "ablation", lambda name, experiment: asked)
    wanted = Study("sinusoid", "known", tmp_path, place, tmp_path / "out", asked)
    with pytest.raises(BadRun, match="moca train sinusoid --ablation known"):
        evaluate(wanted)
    train(Training("sinusoid", "quick", tmp_path, ablation="known"), SETTINGS, place)
    longer = asked.model_copy(update={"values": (0.0, 0.5, 1.0)})
    with pytest.raises(BadRun, match="2 of 3 runs are finished; .*--ablation known"):
        evaluate(wanted._replace(ablation=longer))
    comparison = evaluate(wanted)
    assert comparison.settings() == [0.0, 1.0]
    unknown, known = comparison.methods()
    for setting in comparison.settings():
        assert comparison.ahead((setting, known), (setting, unknown)).mean > 0
    table = (wanted.out / "table.md").read_text()
    assert "| method, by share known | 0 | 1 |" in table
    assert "| 1 known in the test |" in table
    assert {file.suffix for file in wanted.out.iterdir()} == {".svg", ".png", ".md", ".json"}


def test_what_cannot_be_evaluated_says_what_to_do(runs, place, tmp_path):
    with pytest.raises(BadRun, match="moca train sinusoid"):
        evaluate(Study("sinusoid", "quick", tmp_path, place, tmp_path))
    with pytest.raises(BadConfig, match="supervision, prior-weight, length"):
        catalogue.ablation("colour", "sinusoid")
    run = next(iter(paper.finished(runs / "sinusoid")))
    splits = catalogue.splits(run.config, place)

    secret = splits._replace(test=untold(splits.test))
    with pytest.raises(BadConfig, match="switches"):
        paper.scores(run, secret, TINY, Objective(supervision=0.5))


def walks(rows, seed):
    """Players who go straight on, in feet, and turn now and then."""
    rng = np.random.default_rng(seed)
    turns = rng.normal(size=(rows, STEPS // 26, 2)).repeat(26, 1)
    return (20 + np.cumsum(turns + 0.1 * rng.normal(size=(rows, STEPS, 2)), 1)).astype(np.float32)


@pytest.fixture(scope="module")
def court(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("nba_cle_5hz", "nba_12p5hz")):
        x = walks(8, seed)
        content = {"x": x, "length": np.full(8, STEPS, np.int32), "play": np.arange(8) // 2}
        np.savez(folder / f"{name}_train.npz", **content)
        late = walks(6, seed + 2)
        np.savez(folder / f"{name}_val.npz", **content, w151=late[:, :151], w201=late[:, :201])
    return Place(folder, tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
def test_players_from_runs_to_figures(court, tmp_path):
    modes = ["moca", "toe", "sw5", "coe"]
    runs = tmp_path / "runs"
    train(Training("players", "quick", runs, modes=modes), SETTINGS, court)
    train(Training("players", "quick-12p5hz", runs, modes=["moca"]), SETTINGS, court)
    comparison = evaluate(Study("players", "quick", runs, court, tmp_path))
    assert comparison.methods() == ["MOCA", "SW5", "TOE", "COE"]
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert len({row["mean"] for row in rows}) == 4
    written = {file.name for file in tmp_path.iterdir()}
    for name in ("belief", "calibration", "losses"):
        assert {f"{name}.svg", f"{name}.png"} <= written
    run = next(iter(paper.finished(runs / "players" / "quick-12p5hz")))
    assert run.config.data["name"] == "nba_12p5hz"  # a preset for each recording


def test_denormals_count_as_nothing_in_training_only(court, tmp_path, monkeypatch):
    tiny, largest = torch.full((3,), 2e-38), []
    original = jobs.loop

    def loop(*arguments, **options):
        largest.append((tiny * 0.25).max().item())
        return original(*arguments, **options)

    monkeypatch.setattr(jobs, "loop", loop)
    train(Training("players", "quick", tmp_path, modes=["toe"]), SETTINGS, court)
    assert largest == [0.0]
    assert (tiny * 0.25).max().item() == pytest.approx(5e-39, rel=1e-6)


@torch.no_grad()
def test_traces_and_densities_are_those_of_the_filter():
    config = tiny()
    sources = splits(config)
    model, batch = learner(config, sources).double().model(), sources.test(seeded(), 1, 30)
    (alone,) = batch.series()
    whole = follow(model, alone.y, DEFAULTS._replace(max_hypotheses=30), (0.5,), alone.x)
    lengths, chances = whole.pipeline.slab.belief(0)
    assert lengths == list(range(30))
    assert trace(model, batch)[0, -1].tolist() == pytest.approx(chances, abs=1e-9)
    grid = torch.linspace(-30, 30, 6001, dtype=torch.float64).unsqueeze(-1)
    density_of = density(model, alone.part(slice(0, 7)), batch.x[0, 7:8], grid)[:, 0]
    below = torch.trapezoid(density_of * (grid[:, 0] <= batch.y[0, 7, 0]), grid[:, 0])
    assert torch.trapezoid(density_of, grid[:, 0]).item() == pytest.approx(1, abs=1e-6)
    assert below.item() == pytest.approx(whole.summary.cdf[7, 0], abs=2e-3)


@pytest.mark.parametrize("kind", ["alpaca-lags", "alpaca-mixture-unknown", "lstm-lags"])
@torch.no_grad()
def test_what_is_minimised_is_the_score_of_the_filter_without_pruning(kind):
    """At odd times, some labels missing."""
    learned, batch = learner_of(kind), drawn(kind, 2, 12)
    elapsed = 20 * torch.rand(batch.y.shape[:2], generator=torch.Generator().manual_seed(5))
    batch = batch._replace(elapsed=elapsed.double())
    learned.eval()
    model = learned.model()
    expected = log_scores(model, batch)
    minimised = objective.log_scores(learned, batch, Objective(), None)
    torch.testing.assert_close(minimised, expected, atol=1e-9, rtol=0, equal_nan=True)
