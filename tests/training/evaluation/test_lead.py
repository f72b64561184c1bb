"""The held-out lead over the built-in models, in the progress of a training run."""

import re

import pytest
import torch

from tests.training.moca import moca, small
from training.config import OWN
from training.data import own
from training.data.regime_series import RegimeSeries
from training.data.windows import Series
from training.evaluation import lead, own_data
from training.evaluation.lead import Lead, pieces
from training.experiments import catalogue
from training.experiments.jobs import learner
from training.learners.classifier import Classifier


def series(name, length):
    y = RegimeSeries(0.1).draw(torch.Generator().manual_seed(length), 1, length).y[0]
    return Series(None, y, None, name)


@pytest.fixture
def config():
    settings = {"model": {"lags": 2, "widths": [6], "features": 3}, "optimiser": {"length": 15}}
    return catalogue.preset(OWN, "quick", settings)


@pytest.fixture
def data(config, monkeypatch):
    """Two series whose validation part is of 90 observations."""
    monkeypatch.setattr(lead, "LENGTH", 70)
    source = own.Source(path="none.csv")
    return own.split(source, [series("a", 600), series("b", 600)], config)


def test_the_lead_is_over_the_best_of_the_built_in_models(config, data):
    built = learner(config, data.splits, data.scaling)
    before = {name: each.clone() for name, each in built.state_dict().items()}
    following, models = Lead(config, data), own_data.untrained(config, data.splits)
    assert following(built, 0.0) == {}
    said = following(built, 1e6)
    parts = [each.part(0, 70) for each in data.validation]
    means = []
    for model in (built.double().eval().served(), *models.values()):
        scores = torch.cat([each[50:] for each in own_data.log_scores(model, parts)])
        assert scores.isfinite().all()
        means.append(scores.mean().item())
    assert said == {"lead": pytest.approx(means[0] - max(means[1:]), abs=1e-9)}
    assert following(built.train(), 1e6) == said
    assert built.training
    assert all(torch.equal(each, before[name]) for name, each in built.state_dict().items())


def test_all_measurements_take_a_tenth_of_the_training(config, data, monkeypatch):
    clock = iter([0.0, 3.0, 3.0, 7.0, 7.0, 8.0])  # each measurement from when to when
    monkeypatch.setattr(lead.time, "process_time", lambda: next(clock))
    measured = []
    monkeypatch.setattr(Lead, "_measured", lambda self, _: measured.append(now) or {"lead": 1})
    following, built = Lead(config, data), learner(config, data.splits, data.scaling)
    for now in (9, 10, 59, 60, 109, 110):  # a second is guessed, 3 are known, then 4
        following(built, now)
    assert measured == [10, 60, 110]


def test_pieces_are_spread_over_what_can_be_scored():
    whole = series("a", 2 * lead.LENGTH + own_data.BURN_IN)
    assert [len(each.y) for each in pieces([whole])] == [lead.LENGTH] * 2
    whole.y[lead.LENGTH + own_data.BURN_IN :] = torch.nan
    assert len(pieces([whole])) == 1
    many = [series(str(k), own_data.BURN_IN + 1) for k in range(3 * lead.PIECES)]
    assert [each.name for each in pieces(many)] == [str(3 * k) for k in range(lead.PIECES)]
    assert pieces([series("short", own_data.BURN_IN)]) == []


def test_what_cannot_be_scored_or_served_has_no_lead(config, data):
    built = learner(config, data.splits, data.scaling)
    short = data._replace(validation=[series("short", own_data.BURN_IN)])
    assert Lead(config, short)(built, 1e6) == {}
    assert Lead(config, data)(Classifier(built.encoder, data.scaling, 2), 1e6) == {}


def test_a_run_of_own_data_shows_it_and_is_what_it_would_be_without(tmp_path, monkeypatch):
    file = tmp_path / "one.csv"
    file.write_text("y\n" + "\n".join(map(str, series("a", 400).y[:, 0].tolist())))

    def trained(name):
        settings = small(**{"optimiser.iterations": 4, "validation.every": 2})
        asked = ["--data", file, "--length", 15, "--runs", tmp_path / name, *settings]
        said = moca("train", *asked)
        assert said.exit_code == 0, said.stderr
        result = own_data.Run(tmp_path / name / "data" / "one" / "run").result()
        return said.stdout, [each["nll"] for each in result["history"]]

    monkeypatch.setattr(lead, "SHARE", 0.0)
    without, expected = trained("without")
    assert " lead " not in without
    monkeypatch.setattr(lead, "SHARE", 1e9)
    said, found = trained("with")
    assert found == expected
    assert re.search(r"run 4: loss \S+ nll \S+ lead -?\d+\.\d{3} ", said)
