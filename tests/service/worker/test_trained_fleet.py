"""`moca train --data` as it is by default, `moca publish`, and a stream of what they made."""

import random

import pytest
import torch

from model_core import artifact
from service.wire import Configure
from tests.training.moca import moca, small
from training.data.windows import Series
from training.evaluation import own_data

WARMUP = 20


def labels(rng, location, scale, steps=150):
    """Two numbers that return to a level, which changes once."""
    y, made = [0.0, 0.0], []
    for t in range(steps):
        level = 0.0 if t < steps // 2 else 5.0
        y = [level + 0.8 * (each - level) + rng.gauss(0, 0.5) for each in y]
        made.append([location + scale * each for each in y])
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model of four streams, each in units of its own."""
    folder, rng = tmp_path_factory.mktemp("fleet"), random.Random(0)
    rows = ["stream,y1,y2"]
    for k in range(4):
        rows += [f"s{k},{a},{b}" for a, b in labels(rng, 100.0 * k, 10.0**k, 300)]
    (folder / "depot.csv").write_text("\n".join(rows))
    runs = folder / "runs"
    said = moca("train", "--data", folder / "depot.csv", "--length", 20, "--runs", runs, *small())
    assert said.exit_code == 0, said.stderr
    run = runs / "data" / "depot" / "run"
    command = ["publish", run, "--name", "depot", "--models-dir", folder / "models", "--no-page"]
    said = moca(*command)
    assert said.exit_code == 0, said.stderr
    return folder / "models"


def test_a_stream_of_the_default_is_served_in_its_own_units(models, make_bench, tmp_path):
    (tmp_path / "models").symlink_to(models)
    bench = make_bench()
    bench.ask(Configure("a", {"model": "depot"}), status=201)
    y = labels(random.Random(1), -5e4, 300.0)
    y[60] = None  # a label that is missing
    answers = bench.observe("a", y)
    assert {answer["model"] for answer in answers} == {"depot@1"}
    assert [answer["warming_up"] for answer in answers] == [t < WARMUP for t in range(len(y))]
    model = artifact.load(models / "depot" / "1")
    assert (model.kind, model.lags) == ("fleet", 5)
    rows = [[torch.nan] * 2 if each is None else each for each in y]
    series = Series(None, torch.tensor(rows, dtype=torch.float64), None, "a")
    (expected,) = own_data.log_scores(model, [series])
    for t in range(WARMUP, len(y)):
        if t == 60:
            assert answers[t]["log_score"] is None
            continue
        assert answers[t]["log_score"] == pytest.approx(expected[t].item(), abs=1e-9)
        mean = answers[t]["predictive"]["mean"]
        assert all(-5e4 - 3e3 < each < -5e4 + 5e3 for each in mean)
    starts = [event.start for event in bench.events("a") if event.state == "confirmed"]
    assert any(abs(start - len(y) // 2) <= 3 for start in starts)
