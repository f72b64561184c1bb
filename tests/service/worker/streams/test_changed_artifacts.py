"""Artifacts edited in place: a stream is answered by the one it was made with, or not at all."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_core import artifact
from service.models import catalogue
from service.observability import metrics
from service.wire import Configure, Delete, Move, Observation, Observe, Predict, RunLength, WhatIf
from tests.service.worker.commands.test_rerun_commands import same_belief
from tests.service.worker.commands.test_snapshot import export, put
from tests.service.worker.streams.test_reload import series

AT = [[0.3, -1.0]]


@pytest.fixture
def edit(alpaca, tmp_path):
    """Change the weights of pump/1 in place; returns how to undo it."""
    kept = tmp_path / "kept"
    shutil.copytree(alpaca, kept)

    def change(factor=2.0):
        found = load_file(kept / "model.safetensors")
        found["prior_mean"] = found["prior_mean"] * factor
        save_file(found, alpaca / "model.safetensors")

    def undo():
        shutil.copytree(kept, alpaca, dirs_exist_ok=True)

    change.undo = undo
    return change


@pytest.fixture
def pump(bench, alpaca):
    bench.ask(Configure("a", {"model": "pump"}), status=201)
    bench.observe("a", series("pump", 40))
    return bench


def predicted(bench, stream):
    return bench.ask(Predict(stream, AT))["predictions"][0]["predictive"]["mean"]


def refused(bench, command):
    answer = bench.ask(command, status=500)
    assert answer["type"].endswith("/model-changed"), answer
    assert "pump@1" in answer["detail"]
    return answer


def value(name):
    return metrics.REGISTRY.get_sample_value(name)


def test_a_worker_that_would_answer_differently_refuses(pump, edit, caplog):
    before, expected = pump.stored("a"), predicted(pump, "a")
    counted = value("moca_model_changed_total")
    edit()
    assert predicted(pump, "a") == expected  # it holds the one that the stream was made with
    pump.crash()
    keyed = Observe("a", series("pump", 1), key="k", digest="d")
    for command in (RunLength("a"), Predict("a", AT), WhatIf("a", {}), keyed):
        detail = refused(pump, command)["detail"]
        assert "POST /v1/streams/{id}/model" in detail
    assert value("moca_model_changed_total") == counted + 4
    digest = pump.head("a").digest
    assert [r.levelname for r in caplog.records if digest in r.getMessage()] == ["ERROR"]
    assert pump.stored("a") == before
    assert not pump.quarantine("a")
    edit.undo()  # without a restart
    assert predicted(pump, "a") == pytest.approx(expected, abs=1e-9)
    (outcome,) = pump.send(keyed)
    assert outcome.status == 200
    assert not json.loads(outcome.body[0])["duplicate"]


def test_new_streams_get_what_is_there_and_no_answer_mixes_two(pump, edit):
    expected = predicted(pump, "a")
    edit()
    pump.ask(Configure("b", {"model": "pump@1"}), status=201)
    pump.observe("b", series("pump", 40))
    assert predicted(pump, "a") == expected
    other = predicted(pump, "b")
    assert other != pytest.approx(expected, abs=1e-3)
    pump.crash()
    assert predicted(pump, "b") == pytest.approx(other, abs=1e-9)
    refused(pump, Predict("a", AT))
    edit.undo()
    assert predicted(pump, "a") == pytest.approx(expected, abs=1e-9)
    assert predicted(pump, "b") == pytest.approx(other, abs=1e-9)  # loaded before


@pytest.mark.parametrize("leave", ["stay", "crash"])
def test_moved_by_replay_it_goes_on_under_what_is_there(pump, close, edit, leave):
    edit()
    if leave == "crash":
        pump.crash()
    answer = pump.ask(Move("a", "pump@1"))
    assert (answer["model"], answer["seq"]) == ("pump@1", 40)
    pump.ask(Configure("b", {"model": "pump@1"}), status=201)
    pump.observe("b", series("pump", 40))
    same_belief(pump, close, "a", "b", AT)
    pump.crash()
    same_belief(pump, close, "a", "b", AT)
    for each in ("a", "b"):
        pump.observe(each, series("pump", 60)[40:])
    same_belief(pump, close, "a", "b", AT)
    assert [record.seq for record in pump.records("a")] == list(range(60))


def test_moved_to_a_new_version_or_deleted(pump, alpaca, edit):
    other = alpaca.with_name("2")
    shutil.copytree(alpaca, other)
    edit()
    pump.crash()
    pump.ask(Configure("b", {"model": "linear"}), status=201)
    assert pump.ask(Move("a", "pump"))["model"] == "pump@2"
    shutil.rmtree(other)
    pump.crash()
    assert pump.ask(RunLength("a"), status=500)["type"].endswith("/corrupt-state")
    assert pump.ask(Move("a", "linear"))["model"] == "linear@1"
    pump.observe("a", series("pump", 5))
    pump.ask(Configure("c", {"model": "pump@1"}), status=201)
    edit(3.0)
    pump.crash()
    assert pump.send(Delete("c"))[0].status == 204


def test_a_move_that_does_not_fit_changes_nothing(pump, edit):
    edit()
    pump.crash()
    before = pump.stored("a")
    assert pump.ask(Move("a", "poisson"), status=422)
    assert pump.stored("a") == before
    refused(pump, RunLength("a"))


def test_what_is_said_about_a_model_does_not_make_it_another(pump, alpaca):
    expected = predicted(pump, "a")
    artifact.amend(alpaca, description="Other words.", sensitivity={"curves": []}, training={})
    pump.crash()
    assert predicted(pump, "a") == pytest.approx(expected, abs=1e-9)
    artifact.amend(alpaca, hazard=0.4)
    pump.crash()
    refused(pump, Predict("a", AT))


def test_a_change_is_noticed_before_anything_fails(pump, edit, alpaca, caplog):
    pump.turn()
    assert value("moca_changed_models") == 0
    edit()
    for _ in range(3):
        pump.turn()
    assert value("moca_changed_models") == 1
    assert caplog.text.count("pump@1") == 1
    edit.undo()
    pump.turn()
    assert value("moca_changed_models") == 0
    shutil.rmtree(alpaca)
    pump.turn()
    assert value("moca_changed_models") == 1


def test_streams_of_an_older_version_take_what_is_there(pump, edit):
    from service import wire
    from service.store import keys

    pump.stop()
    head = pump.head("a")
    head.digest = None
    pump.client.hset(keys.heads(pump.partition("a")), "a", wire.encode(head))
    pump.observe("a", series("pump", 1))
    assert pump.head("a").digest == catalogue.digest(pump.settings.models_dir, "pump@1")
    edit()
    pump.crash()
    refused(pump, RunLength("a"))


def test_a_snapshot_names_the_one_that_its_stream_was_made_with(pump, edit):
    blob = export(pump, "a")
    edit()
    put(pump, "b", blob, status=422)
    assert export(pump, "a") == blob
    edit.undo()
    put(pump, "b", blob)
    pump.crash()
    assert pump.observe("b", [Observation(x=[0.1, 0.2], y=[1.0, 2.0])])[0]["seq"] == 40


def test_a_state_that_was_not_there_yet_begins_with_what_is_there(bench, alpaca, edit):
    bench.ask(Configure("a", {"model": "pump"}), status=201)
    edit()
    bench.ask(Configure("a", {"hazard": 0.2}))
    bench.crash()
    with torch.inference_mode():
        assert bench.observe("a", series("pump", 5))[-1]["seq"] == 4
