"""Own series: how they are split, and trained models of them beside the built-in ones.

Scores are those of the service, of the same observations for every model.
"""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from rich.console import Console

from model_core.stream.slab import Refused
from model_core.upm.builtin import Options, build
from tests.training.moca import moca, small
from tests.training.tiny import seeded
from training import catalogue, paper
from training.catalogue import splits
from training.data.files import Place
from training.data.tables import DataSource
from training.data.windows import Series
from training.errors import BadData
from training.experiments import own
from training.experiments.regimes import regime_series
from training.paper import load

QUIET = Console(quiet=True)


def series(*lengths, missing=()):
    drawn = []
    for k, length in enumerate(lengths):
        y = regime_series(torch.Generator().manual_seed(k), 1, length, 0.1).y[0]
        y[list(missing)] = torch.nan
        drawn.append(Series(None, y, name=str(k)))
    return drawn


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on a file of two series."""
    folder = tmp_path_factory.mktemp("own")
    lines = ["stream,y"]
    for one in series(420, 400):
        lines += [f"{one.name},{y}" for y in one.y[:, 0].tolist()]
    file = folder / "two.csv"
    file.write_text("\n".join(lines))
    result = moca("train", "--data", file, "--length", 20, "--runs", folder / "runs", *small())
    assert result.exit_code == 0, result.stderr
    return folder / "runs" / "data" / "two" / "run"


def test_a_fleet_has_its_units_from_each_series(run):
    trained_run = own.finished(run)
    served = load(trained_run, splits(trained_run.config, Place(None, run))).served()
    some = series(45, 40, missing=[7])
    moved = [one._replace(y=1e4 * one.y + 3.0) for one in some]
    pairs = zip(own.log_scores(served, some), own.log_scores(served, moved), strict=True)
    for scores, others in pairs:
        expected = scores - np.log(1e4)
        torch.testing.assert_close(others, expected, atol=1e-7, rtol=0, equal_nan=True)
        assert scores[21:].isfinite().all()


def test_all_models_are_scored_on_whole_labels():
    some = [Series(None, torch.cat((one.y, one.y.flip(0)), -1), name=one.name)
            for one in series(40, 30)]  # fmt: skip
    some[0].y[[7, 25], [0, 1]] = torch.nan
    some[1].y[5] = torch.nan
    for name in ("averaged", "gaussian"):
        scores = own.log_scores(build(name, Options(y_dim=2)), some)
        missing = [row.isnan().nonzero().flatten().tolist() for row in scores]
        assert missing == [list(range(21)) + [25], list(range(21))]  # in the warm-up all


def test_the_table(run):
    result = moca("evaluate", "data", run)
    assert result.exit_code == 0, result.stderr
    content = json.loads((run / "evaluation" / "table.json").read_text())
    names = [content["name"], *(other["method"] for other in content["untrained"])]
    assert names == ["trained fleet", "autoregressive", "averaged",
                     "autoregressive, order 5", "gaussian"]  # fmt: skip
    # 63 and 60 observations are for the test, of which 50 are not scored.
    assert content["observations"] == 13 + 10
    other = content["untrained"][0]
    ahead = content["trained"]["mean"] - other["estimate"]["mean"]
    assert other["difference"]["mean"] == pytest.approx(ahead)
    assert other["estimate"]["count"] == 2
    page = (run / "evaluation" / "table.md").read_text()
    assert page.count("\n| ") == 6
    assert "blocks of at most" in page
    assert all(name in result.stdout and name in page for name in names)


def test_models_are_compared_where_all_of_them_have_a_score(run, tmp_path, monkeypatch):
    calls = itertools.count()

    def scored(model, series):
        rows = [one.y[:, 0].clone() for one in series]
        rows[0][51 + next(calls)] = torch.nan  # of each model another one
        return rows

    monkeypatch.setattr(own, "log_scores", scored)
    trained_run = own.finished(run)
    scores = own.compare(trained_run, splits(trained_run.config, Place(None, tmp_path)), QUIET)
    assert scores.observations == 13 - next(calls) + 10
    assert all(other.difference.mean == 0 for other in scores.untrained)


def test_blocks():
    scores = torch.cat((torch.full((own.BURN_IN,), 99.0), torch.arange(25.0)))
    np.testing.assert_allclose(own.block_means([scores], 10, own.BURN_IN), [4.5, 14.5, 22.0])
    np.testing.assert_allclose(own.block_means([scores[:-1]], 10, own.BURN_IN), [4.5, 14.5])
    np.testing.assert_allclose(own.block_means([scores[: own.BURN_IN + 3]], 10, own.BURN_IN), [1.0])
    scores[own.BURN_IN + 1] = torch.nan
    np.testing.assert_allclose(
        own.block_means([scores, scores[:20]], 25, own.BURN_IN), [(300 - 1) / 24]
    )


def refuse(*_):
    raise Refused("numbers are not finite")


def test_what_cannot_be_scored_is_refused(run, tmp_path, monkeypatch):
    result = run / "result.json"
    kept = result.read_bytes()
    result.unlink()
    outcome = moca("evaluate", "data", run)
    result.write_bytes(kept)
    assert outcome.exit_code == 2
    assert "not finished" in outcome.stderr
    assert moca("evaluate", "data", tmp_path / "none").exit_code == 2
    with monkeypatch.context() as patch:
        patch.setattr(paper, "follow", refuse)
        outcome = moca("evaluate", "data", run)
    assert outcome.exit_code == 2
    assert "series '0' cannot be filtered by fleet: numbers are not finite" in outcome.stderr
    monkeypatch.setattr(own, "log_scores", lambda _, series: [one.y[:, 0] for one in series])
    outcome = moca("evaluate", "data", run, "--out", result)  # no folder
    assert outcome.exit_code == 2
    assert str(result) in outcome.stderr
    monkeypatch.setattr(own, "BURN_IN", 63)
    assert moca("evaluate", "data", run).exit_code == 0  # after the warm-up alone
    content = json.loads((run / "evaluation" / "table.json").read_text())
    assert (content["burn_in"], content["observations"]) == (20, 43 + 40)
    monkeypatch.setattr(own, "LEAST_BURN_IN", 63)
    outcome = moca("evaluate", "data", run)
    assert outcome.exit_code == 2
    assert "more than 63 observations" in outcome.stderr


def test_short_series_are_held_out_whole_so_that_models_are_compared(tmp_path):
    file = tmp_path / "short.csv"
    lines = ["stream,y"]
    for one in series(*[45] * 10):
        lines += [f"{one.name},{y}" for y in one.y[:, 0].tolist()]
    file.write_text("\n".join(lines))
    command = ("train", "--data", file, "--length", 20, *small())
    result = moca(*command, "--runs", tmp_path / "runs")
    assert result.exit_code == 0, result.stderr
    assert "whole streams are held out" in result.stderr
    trained_run = own.finished(tmp_path / "runs" / "data" / "short" / "run")
    assert trained_run.config.data["by"] == "stream"
    scores = own.compare(trained_run, splits(trained_run.config, Place(None, tmp_path)), QUIET)
    assert (scores.burn_in, scores.observations) == (20, 2 * 25)
    result = moca(*command, "--runs", tmp_path / "other", "--hold-out", "time")
    assert result.exit_code == 2
    assert "no window for validation by time" in result.stderr


def test_series_are_held_out_whole_where_that_alone_can_be_compared():
    source = DataSource(path="own.csv")
    for lengths, alone in (
        ([45] * 10, True),
        ([133] * 10, True),  # .15 of it is no more than a warm-up
        ([134] * 10, False),
        ([45] * 9 + [400], False),
        ([45] * 3, False),  # none of three is for validation
        ([15] * 10, False),
    ):
        assert own.by_streams_alone(source, series(*lengths)) == alone, lengths


def split(series, length, kind="alpaca", **source):
    settings = {"model": {"kind": kind}, "optimiser": {"length": length}}
    config = catalogue.preset("data", "quick", settings)
    return own.split(DataSource(path="own.csv", **source), series, config)


def counted(sizes, classes=2):
    """Series whose inputs count their observations."""
    counting = []
    for name, size in sizes.items():
        x = torch.arange(float(size)).double().unsqueeze(-1)
        counting.append(Series(x, x % classes, name=name))
    return counting


def test_a_split_by_time_keeps_the_order_and_shares_nothing():
    splits, lines = split(counted({"a": 100, "b": 200, "short": 8}, classes=3), 10, "pcoc")
    train, validation, test = (source(seeded(), 5000, 10) for source in splits[:3])
    assert train.y.shape == (5000, 10, 1)
    assert sorted(train.x.unique().tolist()) == list(range(140))
    assert validation.x[:, 0, 0].tolist() == [70, 140, 150, 160, 6]
    assert test.x[:, 0, 0].tolist() == [85, 170, 180, 190, 7]
    assert (splits.x_dim, splits.y_dim, splits.classes) == (1, 1, 3)
    padded = train.y[train.y[:, -1, 0].isnan()]
    assert len(padded) > 0
    assert padded.nan_to_num(-1)[:, :, 0].unique(dim=0).tolist() == [[0, 1, 2, 0, 1, 2] + 4 * [-1]]
    assert len(lines) == 3
    for line, part in zip(lines, ("training", "validation", "test"), strict=True):
        assert f"1 of 3 streams for {part}, 'short'" in line


def test_what_has_nothing_after_its_warm_up_is_left_out_and_named():
    _, lines = split(counted({"a": 400, "b": 80, "c": 28}), 10, "fleet")
    left_out = re.findall(r"out: stream '(.)': (\d+) observations for (\w+)", "\n".join(lines))
    late = [(*row, part) for part in ("validation", "test") for row in (("b", "12"), ("c", "4"))]
    assert left_out == [("c", "20", "training"), *late]


def test_a_split_by_stream_keeps_streams_whole():
    series = counted(dict.fromkeys("abcdefghij", 10))
    series = [one._replace(x=one.x + 100 * k) for k, one in enumerate(series)]
    splits, lines = split(series, 10, train=0.6, validation=0.2, by="stream")
    sizes = [len(source(seeded(), 99, 10).y) for source in splits[1:3]]
    assert sizes == [2, 2]
    first = splits.train(seeded(), 200, 10).x[:, 0, 0]
    assert first.unique().tolist() == [0, 100, 200, 300, 400, 500]
    assert lines == []
    assert splits.classes == 0


def test_what_cannot_be_split_is_refused():
    labels = torch.arange(100.0).double().unsqueeze(-1).repeat(1, 2)
    late, early = labels.clone(), labels.clone()
    late[60:] = torch.nan
    early[20:70] = torch.nan
    two = counted({"a": 40, "b": 30})
    for series, kind, options, message in (
        (counted({"a": 28, "b": 25}), "fleet", {}, "for training by time: stream 'a': 20 ob"),
        (two, "fleet", {}, r"for validation by time: .*'b': [45] ob"),
        (two, "alpaca", {"by": "stream"}, "test by stream: there is no stream"),
        (two, "alpaca", {"train": 0.9, "validation": 0.2}, "train 0.9, validation 0.2"),
        ([Series(None, late, name="a")], "alpaca", {}, "no row for validation by time has a"),
        ([Series(None, early, name="a")], "fleet", {}, "no row for training by time has a"),
    ):
        with pytest.raises(BadData, match=message):
            split(series, 5, kind, **options)
