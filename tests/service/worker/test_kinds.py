"""What every model promises through the worker: answers, reads, and a state that is never lost."""

import json
import math
import random
from unittest.mock import patch

import msgspec
import pytest
import redis
import torch

from moca_client.frames import to_frame
from moca_client.responses import Answer, Recorded
from moca_client.tables import answer_columns
from model_core import artifact
from model_core.correction import LARGEST_SCALE, LEAST_SCALE
from model_core.upm.builtin import BUILTIN
from service import wire
from service.models import catalogue
from service.schema import rendering
from service.wire import Configure, Observation, Observe, Predict, RunLength, SetBelief
from tests.service.worker.kinds import (
    ALIKE,
    KINDS,
    amend,
    configure,
    held,
    kinds,
    publish,
    series,
)
from tests.stored import as_kept

WARMUP = 5
LEVELS = [0.9, 0.25]
FEW = {"gaussian", "pcoc"}  # of what is as good as alike in all kinds


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with the artifacts that KINDS names."""
    folder = tmp_path_factory.mktemp("kinds") / "models"
    publish(folder)
    return folder


@pytest.fixture
def make_bench(make_bench, models, tmp_path):
    (tmp_path / "models").symlink_to(models)
    return make_bench


def create(bench, kind, stream="a", status=201, **more):
    warmup = {"warmup": WARMUP} if kind.warms_up else {}
    return configure(bench, stream, kind, status, **warmup, **more)


def check_predictive(said, kind):
    if kind.probabilities:
        assert said.keys() == {"probabilities"}
        assert len(said["probabilities"]) == kind.probabilities
        assert sum(said["probabilities"]) == pytest.approx(1)
        assert min(said["probabilities"]) >= 0
        return
    assert all(map(math.isfinite, said["mean"]))
    assert len(said["mean"]) == kind.y_dim
    levels = list(said["quantiles"].values())
    for values in zip(*sorted(levels), strict=True):
        assert list(values) == sorted(values)
        assert len(set(values)) == len(values) or kind.counts
    if said["variance"] is not None:
        for i, row in enumerate(said["variance"]):
            assert row[i] > 0
            assert row == pytest.approx([other[i] for other in said["variance"]])


def check_details(found, kind):
    """Components make the mixture, but for its correction where labels are real numbers."""
    parts = found["components"]
    assert sum(part["weight"] for part in parts) == pytest.approx(1)
    name = "probabilities" if kind.classes else "mean"
    size = kind.classes or kind.y_dim
    assert all(len(part[name]) == size for part in parts)
    if kind.model == "bernoulli":
        return
    average = [sum(part["weight"] * part[name][i] for part in parts) for i in range(size)]
    if kind.probabilities or kind.counts or kind.positive:
        assert average == pytest.approx(found["predictive"][name])
        return
    for i, mean in enumerate(average):
        if found["predictive"]["variance"][i][i] is None:  # infinite
            continue
        squares = sum(part["weight"] * (part["variance"][i] + part[name][i] ** 2) for part in parts)
        sd = math.sqrt(squares - mean**2)
        corrected = math.sqrt(found["predictive"]["variance"][i][i])
        assert corrected / sd >= LEAST_SCALE * 0.999999
        assert corrected / sd <= LARGEST_SCALE * 1.000001


@pytest.mark.parametrize("name", kinds(KINDS.keys() - ALIKE))
def test_answers_are_what_was_predicted_and_are_kept(make_bench, close, name):
    kind = KINDS[name]
    bench = make_bench()
    create(bench, kind)
    observations, answers = series(kind, 20), []
    for upto in (0, 4, 12, 19):  # nothing seen, warming up, filtering
        answers += bench.observe("a", observations[len(answers) : upto])
        coming = series(kind, 20, plain=True)[upto]
        observations[upto] = coming
        x = None if coming.x is None else [[0.3] * kind.x_dim, coming.x]
        asked = Predict("a", x=x, samples=4, seed=7, components=True, quantiles=LEVELS)
        before = bench.stored("a")
        predicted = bench.ask(asked)
        close(bench.ask(asked), predicted)
        belief = bench.ask(RunLength("a"))["belief"]
        assert bench.stored("a") == before
        assert predicted["seq"] == upto
        answers += bench.observe("a", [coming], components=True, quantiles=LEVELS)
        last = predicted["predictions"][-1]
        close(last["predictive"], answers[-1]["predictive"], tolerance=1e-6)
        if last["predictive"] is not None:
            close(last["components"], answers[-1]["components"], tolerance=1e-6)
            check_predictive(last["predictive"], kind)
            check_details(last, kind)
            assert [len(draw) for draw in last["samples"]] == [kind.y_dim] * 4
            assert not belief or sum(e["probability"] for e in belief) == pytest.approx(1)
    check_answers(observations, answers, kind)
    for record, answer in zip(bench.records("a"), answers, strict=True):
        assert record == as_kept(record, answer, ("mean", "variance", "probabilities"))
    assert (bench.head("a").x_dim, bench.head("a").y_dim) == (kind.x_dim, kind.y_dim)


def check_answers(observations, answers, kind):
    labelled = [0] * kind.y_dim  # labels of each output
    again = kind.label is held  # labels that come again have no score, and do not count
    for seen, answer in zip(observations, answers, strict=True):
        version = "" if kind.model in BUILTIN or "@" in kind.model else "@1"
        assert answer["model"] == kind.model + version
        assert again or answer["warming_up"] == (kind.warms_up and min(labelled) < WARMUP)
        unscored = seen.y is None or answer["predictive"] is None
        assert again or (answer["log_score"] is None) == unscored
        assert ("regime" in answer) == (kind.model == "plant" and not answer["warming_up"])
        if answer["predictive"] is not None:
            check_predictive(answer["predictive"], kind)
        else:
            assert min(labelled) < 4, "two labels that differ are enough"
        known = [each == each for each in wire.numbers(seen.y)] or [False] * kind.y_dim
        labelled = [count + each for count, each in zip(labelled, known, strict=True)]
        if answer["warming_up"]:
            assert answer["run_length"] is answer["changed_probability"] is None
            continue
        assert 0 <= answer["changed_probability"] <= 1
        assert (answer["changepoint_probability"] is None) == (answer["seq"] == 0)
        assert answer["run_length"]["map"] <= answer["seq"]
        assert 1 <= answer["run_length"]["hypotheses"] <= 20


def lose_everything(bench):
    """As after a lost connection: every partition is taken again."""
    with patch.object(bench.worker.log, "end_read", side_effect=redis.ConnectionError("cut")):
        bench.turn()
    assert not bench.worker.engine.streams


@pytest.mark.parametrize("name", kinds(KINDS.keys() - ALIKE))
def test_lost_at_random_points(make_bench, close, name):
    """Labels are missing from the first on, and a list is repeated under its key."""
    kind = KINDS[name]
    bench = make_bench(checkpoint_every=8)
    plain = make_bench(db=1)
    rng, observations = random.Random(name), series(kind, 26)
    for seen in observations[:3]:
        seen.y = None
    for each in (bench, plain):
        create(each, kind)
    answers, at = [], 0
    while at < len(observations):
        part = observations[at : at + rng.choice([1, 2, 7, 16])]
        command = Observe("a", part, key=f"k{at}", digest="d")
        (first,) = bench.send(command)
        rng.choice([bench.stop, bench.crash, lambda: lose_everything(bench), lambda: None])()
        if rng.random() < 0.3:
            (again,) = bench.send(command)
            repeated = [{**json.loads(each), "duplicate": False} for each in again.body]
            assert repeated == [json.loads(each) for each in first.body]
        answers += map(json.loads, first.body)
        at += len(part)
    close(answers, plain.observe("a", observations))
    x = [[0.1] * kind.x_dim] if kind.x_dim else None
    for each in (RunLength("a"), Predict("a", x=x, samples=3, seed=1, components=True)):
        close(bench.ask(each), plain.ask(each))
    close(*([msgspec.to_builtins(e) for e in b.events("a")] for b in (bench, plain)))


ABSURD = [1e100, -1e100, 1e12, 5e-324, 1e50, -3e9]


@pytest.mark.parametrize("name", kinds(FEW | {"joint-partial"}))
def test_absurd_numbers_do_no_lasting_harm(make_bench, name):
    """A sensor's fault is taken in like any label; what comes after it is as likely as before."""
    kind, rng = KINDS[name], random.Random(5)
    bench = make_bench()
    for stream, outlier_rate in (("a", 0.0), ("b", 0.01)):
        create(bench, kind, stream, outlier_rate=outlier_rate)
        observations = series(kind, 36, plain=True)
        for seen in observations[12:24]:
            if kind.x_dim and rng.random() < 0.2:
                seen.x = [rng.choice([*ABSURD, each]) for each in seen.x]
            if not kind.probabilities and not kind.counts and rng.random() < 0.3:
                y = seen.y if isinstance(seen.y, list) else [seen.y]
                seen.y = [each if each is None else rng.choice([*ABSURD, each]) for each in y]
                seen.y = list(map(abs, seen.y)) if kind.positive else seen.y
        for answer in bench.observe(stream, observations)[10:]:
            assert kind.label is held or math.isfinite(answer["log_score"])
            for values in (answer["predictive"].get("quantiles") or {}).values():
                assert None not in values


def test_there_is_a_kind_of_every_built_in_model():
    assert set(BUILTIN) <= {kind.model for kind in KINDS.values()}, "add a kind of it to kinds.py"


def test_models_of_one_batch_do_not_meet(make_bench, close):
    """Observations of several models and streams in one batch are what each is alone."""
    bench, alone = make_bench(), make_bench(db=1)
    numbers, expected = [], []
    for name in ("gaussian", "poisson", "alpaca", "categorical"):
        kind = KINDS[name]
        for stream in (f"{name}-1", f"{name}-2"):
            observations = series(kind, 12, seed=len(numbers))
            for each in (bench, alone):
                create(each, kind, stream)
            numbers += bench.append(Observe(stream, observations))
            expected.append(alone.observe(stream, observations))
    for outcome, wanted in zip(bench.outcomes(numbers), expected, strict=True):
        close([json.loads(each) for each in outcome.body], wanted)


# --- details --------------------------------------------------------------------------------------


def test_details_behind_a_label_to_come_are_of_the_state_that_ran_ahead(make_bench, close):
    bench, kind = make_bench(), KINDS["linear"]
    seen = series(kind, 24, plain=True)
    create(bench, kind)
    bench.observe("a", seen[:20])
    bench.observe("a", [Observation(x=seen[20].x, pending=True)])
    asked = Predict("a", [seen[21].x], components=True, quantiles=LEVELS)
    (expected,) = bench.ask(asked)["predictions"]
    (answer,) = bench.observe("a", [seen[21]], components=True, quantiles=LEVELS)
    assert answer["provisional"]
    close(answer["components"], expected["components"])


def test_details_are_repeated_bounded_and_not_kept(make_bench):
    bench, kind = make_bench(), KINDS["gaussian"]
    create(bench, kind, max_hypotheses=2000)
    details = {"components": True, "quantiles": LEVELS}
    more = {"key": "k", "digest": "d", **details}
    bench.observe("a", series(kind, 8, plain=True))
    first, again = (bench.observe("a", [1.0], **more)[0] for _ in range(2))
    assert first["components"]
    assert again == {**first, "duplicate": True}
    assert bench.records("a")[-1].quantiles.keys() == {"0.05", "0.5", "0.95"}
    (outcome,) = bench.send(Observe("a", [Observation(y=1.0)] * 32, components=True))
    assert outcome.status == 422
    assert bench.head("a").seq == 9


# --- typical regimes ------------------------------------------------------------------------------


def test_the_typical_regime_is_in_answers_history_summary_and_tables(make_bench, models):
    bench = make_bench()
    description = {
        "kind": "alpaca-mixture", "x_dim": 1, "y_dim": 1, "feature_dim": 1, "hazard": 0.05,
        "encoder": {"type": "identity"},
        "regimes": [{"name": "idle", "probability": 0.5}, {"name": "busy", "probability": 0.5}],
    }  # fmt: skip
    tensors = {
        "prior_logits": torch.zeros(2),
        "prior_mean": torch.tensor([0.0, 10.0]).reshape(2, 1, 1).double(),
        "prior_covariance_factor": torch.ones(2, 1, 1, dtype=torch.float64),
        "log_noise_variance": torch.zeros(2, 1),
    }
    artifact.save(models / "shop" / "1", description, tensors)
    bench.ask(Configure("a", {"model": "shop"}), status=201)
    labels = [0.2, -0.3, 0.1, 10.2, 9.9, 10.1, 10.3]
    answers = bench.observe("a", [Observation(y=y, x=[1.0]) for y in labels])
    assert [each["regime"]["name"] for each in answers] == ["idle"] * 3 + ["busy"] * 4
    assert all(0.9 < each["regime"]["probability"] <= 1 for each in answers)
    recorded = [msgspec.to_builtins(rendering.record(each, True)) for each in bench.records("a")]
    assert [each["regime"] for each in recorded] == [each["regime"] for each in answers]
    summary = msgspec.to_builtins(rendering.summary("a", bench.head("a")))
    assert summary["regime"] == answers[-1]["regime"]
    columns = answer_columns([msgspec.convert(each, Answer) for each in answers])
    assert columns["regime"] == ["idle"] * 3 + ["busy"] * 4
    assert "regime" not in answer_columns([Answer("a", 0, "gaussian")])
    frame = to_frame([msgspec.convert(each, Recorded) for each in recorded], "pandas")
    assert list(frame["regime"]) == columns["regime"]
    bench.crash()
    (answer,) = bench.observe("a", [Observation(y=0.3, x=[1.0])])
    assert answer["regime"]["name"] == "idle"
    bench.ask(SetBelief("a", [(4, 1.0)]))  # no change: this label was of the regime before
    assert bench.head("a").regime.name == "busy"
    # Regimes may be named anew, and the model is the same.
    before = catalogue.Catalogue(models).digest("shop@1")
    calm = [{"name": "calm", "probability": 0.5}, {"name": "busy", "probability": 0.5}]
    amend(models / "shop" / "1", regimes=calm)
    assert catalogue.Catalogue(models).digest("shop@1") == before
    (listed,) = catalogue.Catalogue(models).versions("shop")
    assert [each["name"] for each in listed.regimes] == ["calm", "busy"]
