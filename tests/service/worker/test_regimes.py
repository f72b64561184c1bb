"""The typical regime of a stream, from the filter to answers, history and tables."""

import json

import msgspec
import pytest
import torch

from model_core import artifact
from service.client.frames import to_frame
from service.models import catalogue
from service.schema import rendering
from service.schema.responses import Answer, Recorded
from service.tables.answers import answer_columns
from service.wire import Configure, Observation, SetBelief
from tests.service.worker.kinds import KINDS, configure, publish, series

LABELS = [0.2, -0.3, 0.1, 10.2, 9.9, 10.1, 10.3]


@pytest.fixture
def bench(make_bench, tmp_path):
    models = tmp_path / "models"
    publish(models)
    description = {
        "kind": "alpaca-mixture", "x_dim": 1, "y_dim": 1, "feature_dim": 1, "hazard": 0.05,
        "encoder": {"type": "identity"},
        "regimes": [{"name": "idle", "probability": 0.5}, {"name": "busy", "probability": 0.5}],
    }  # fmt: skip
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    tensors = {
        "prior_logits": torch.zeros(2),
        "prior_mean": torch.tensor([0.0, 10.0]).reshape(2, 1, 1).double(),
        "prior_covariance_factor": one,
        "log_noise_variance": torch.zeros(2, 1),
    }
    artifact.save(models / "shop" / "1", description, tensors)
    return make_bench()


def observed(bench, stream="a"):
    bench.ask(Configure(stream, {"model": "shop"}), status=201)
    return bench.observe(stream, [Observation(y=y, x=[1.0]) for y in LABELS])


def test_answers_history_and_summary_say_which(bench):
    answers = observed(bench)
    assert [each["regime"]["name"] for each in answers] == ["idle"] * 3 + ["busy"] * 4
    assert all(0.9 < each["regime"]["probability"] <= 1 for each in answers)
    recorded = [msgspec.to_builtins(rendering.record(each)) for each in bench.records("a")]
    assert [each["regime"] for each in recorded] == [each["regime"] for each in answers]
    summary = msgspec.to_builtins(rendering.summary("a", bench.head("a")))
    assert summary["regime"] == answers[-1]["regime"]


def test_it_is_as_before_after_a_restart(bench):
    observed(bench)
    bench.crash()
    (answer,) = bench.observe("a", [Observation(y=10.0, x=[1.0])])
    assert answer["regime"]["name"] == "busy"


def test_an_override_of_the_belief_moves_it(bench):
    observed(bench)
    (answer,) = bench.observe("a", [Observation(y=0.3, x=[1.0])])
    assert answer["regime"]["name"] == "idle"
    # No change now: this label was of the regime before.
    bench.ask(SetBelief("a", [(4, 1.0)]))
    regime = bench.head("a").regime
    assert regime.name == "busy"
    assert regime.probability > 0.99


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name in KINDS if name != "alpaca-mixture"])
def test_models_without_typical_regimes_have_none(bench, name):
    kind = KINDS[name]
    configure(bench, "a", kind)
    answers = bench.observe("a", series(kind, 25, plain=True))
    assert all("regime" not in each for each in answers)
    assert b"regime" not in bench.stored("a")["head"]


def test_tables_have_columns_of_it_where_there_is_one(bench):
    answers = [msgspec.convert(each, Answer) for each in observed(bench)]
    columns = answer_columns(answers)
    assert columns["regime"] == ["idle"] * 3 + ["busy"] * 4
    assert columns["regime_probability"] == [each.regime.probability for each in answers]
    assert "regime" not in answer_columns([Answer("a", 0, "gaussian@1")])
    stored = [msgspec.to_builtins(rendering.record(each)) for each in bench.records("a")]
    recorded = [msgspec.convert(each, Recorded) for each in stored]
    assert list(to_frame(recorded, "pandas")["regime"]) == columns["regime"]


def test_a_model_is_listed_with_them_and_may_be_named_anew(bench, tmp_path):
    models = tmp_path / "models"
    (listed,) = catalogue.Catalogue(models).versions("shop")
    assert [each["name"] for each in listed.regimes] == ["idle", "busy"]
    before = catalogue.digest(models, "shop@1")
    artifact.amend(
        models / "shop" / "1",
        regimes=[{"name": "calm", "probability": 0.5}, {"name": "busy", "probability": 0.5}],
    )
    assert catalogue.digest(models, "shop@1") == before
    assert json.loads((models / "shop" / "1" / "model.json").read_text())["regimes"][0] == {
        "name": "calm",
        "probability": 0.5,
    }
    answers = observed(bench)
    assert answers[0]["regime"]["name"] == "calm"
