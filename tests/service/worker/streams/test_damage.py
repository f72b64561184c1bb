"""Damaged streams, and models that are missing or changed: they hurt their own streams alone.

Nothing is answered by a guess. A damaged stream is refused whole, and its bytes stay.
"""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from model_core import codec
from model_core.stream_settings import DEFAULTS
from model_core.table import statistics_line
from service import wire
from service.observability import metrics
from service.store import keys
from service.store.streams import packed_state, state_of
from service.wire import (
    Configure,
    Delete,
    EventFeedback,
    Head,
    Move,
    Observation,
    Observe,
    Predict,
    RunLength,
    SegmentHistory,
    WhatIf,
)
from tests.service.worker.conftest import slug
from tests.service.worker.kinds import KINDS, amend, publish, series

PUMP = KINDS["alpaca"]
AT = [[0.3, -1.0, 0.5]]


@pytest.fixture
def bench(make_bench):
    return make_bench(partitions=1, checkpoint_every=16)


def observed(bench, stream="a", count=42):
    return bench.observe(stream, [float(i % 7) for i in range(count)])


# --- damaged and lost parts ---------------------------------------------------------------------

LOADED = [
    "head",
    "position",
    "no position",
    "checkpoint",
    "numbers",
    "compression",
    "length",
    "tail",
    "stray",
    "doubled",
    "idempotency",
]
READ = ["history", "events", "hindsight"]


def damage(bench, part):
    """Damage one part of what is stored of stream a."""
    client = bench.client
    tail = bench.tail("a")
    if part == "stray":
        client.rpush(keys.tail(0, "a"), b"?")
        return
    if part == "doubled":
        client.rpush(keys.tail(0, "a"), tail[-1])
        return
    if part in ("tail", "history"):
        at = -1 if part == "tail" else 0  # before the checkpoint
        blob = bytearray(tail[at])
        blob[len(blob) // 2] ^= 0x55
        client.lset(keys.tail(0, "a"), at, bytes(blob))
        return
    if part == "no position":
        client.hdel(keys.heads(0), "a")
        return
    key, field = {
        "head": (keys.heads(0), keys.settled_field("a")),
        "position": (keys.heads(0), "a"),
        "checkpoint": (keys.checkpoints(0), "a"),
        "numbers": (keys.checkpoints(0), "a"),
        "compression": (keys.checkpoints(0), "a"),
        "length": (keys.checkpoints(0), "a"),
        "idempotency": (keys.idempotency(0, "a"), b"k\x000"),
        "events": (keys.events(0, "a"), "change:1"),
        "hindsight": (keys.hindsight(0), "a"),
    }[part]
    blob = bytearray(client.hget(key, field))
    blob[len(blob) // 2] ^= 0x55
    if part == "numbers":  # not finite, of which no checksum tells
        blob = bytearray(broken_numbers(client.hget(key, field)))
    if part == "compression":  # a distance to before the beginning
        blob = bytearray(resealed(b"\x20\x00\x00\x00\x1f\x41\xff\xff" + bytes(9)))
    if part == "length":  # of more than memory has
        blob = bytearray(resealed(b"\xff\xff\xff\xff" + bytes(9)))
    client.hset(key, field, bytes(blob))


def resealed(body):
    return wire.checksummed(body, "checkpoint", "a")


def broken_numbers(blob):
    body = state_of("a", Head(1, DEFAULTS, checkpoint=1), blob)
    header, arrays = codec.unpack(codec.MAGIC, codec.VERSION, body)
    arrays["lines"][statistics_line(1) :] = float("inf")
    state = codec.pack(codec.MAGIC, codec.VERSION, {"kind": header["kind"]}, arrays)
    return packed_state("a", state)


def everything(bench):
    """All that is stored of stream a."""
    return bench.stored("a"), bench.client.hget(keys.hindsight(0), "a")


@pytest.mark.parametrize("part", LOADED)
def test_a_damaged_stream_is_refused_whole_and_its_bytes_stay(bench, part):
    bench.send(Observe("a", [Observation(y=0.0)], key="k", digest="d"))
    observed(bench, "b")
    for count in (30, 8, 3):  # as many blocks
        observed(bench, count=count)
    assert len(bench.tail("a")) == 3
    assert 30 <= bench.head("a").checkpoint < bench.head("a").seq
    bench.crash()
    good = bench.tail("a") if part == "tail" else None
    damage(bench, part)
    before = everything(bench)
    one = [Observation(y=2.0)]
    wrong, right = bench.send(Observe("a", one), Observe("b", one))
    assert slug(json.loads(wrong.body[0])) == "corrupt-state"
    assert json.loads(right.body[0])["seq"] == 42
    for command in (RunLength("a"), Predict("a"), Configure("a", {"hazard": 0.3})):
        assert slug(bench.ask(command, status=500)) == "corrupt-state"
    assert everything(bench) == before
    if good is not None:  # put back from elsewhere: read without a restart
        bench.client.lset(keys.tail(0, "a"), -1, good[-1])
        assert bench.observe("a", [1.0])[0]["seq"] == 42
        return
    # Deleting it is the way out.
    assert bench.send(Delete("a"))[0].status == 204
    assert not bench.stored("a")["named"]
    for seq in (0, 1):
        bench.crash()
        assert bench.observe("a", [5.0])[0]["seq"] == seq


@pytest.mark.parametrize("part", READ)
def test_a_damaged_part_that_is_read_later_refuses_what_reads_it(bench, part):
    bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
    bench.observe("a", [0.1 * (i % 5) + (8.0 if i >= 30 else 0.0) for i in range(100)])
    bench.send(SegmentHistory("a"))
    assert bench.head("a").checkpoint
    bench.crash()
    damage(bench, part)
    before = bench.client.hget(keys.hindsight(0), "a"), bench.client.hgetall(keys.events(0, "a"))
    reads = {
        "history": [WhatIf("a", {}), Move("a", "poisson")],
        "events": [EventFeedback("a", False, event=1), Move("a", "poisson")],
        "hindsight": [SegmentHistory("a")],
    }
    for command in reads[part]:
        assert slug(bench.ask(command, status=500)) == "corrupt-state"
    assert bench.observe("a", [8.0])[0]["seq"] == 100
    after = bench.client.hget(keys.hindsight(0), "a"), bench.client.hgetall(keys.events(0, "a"))
    assert after == before


def test_lost_parts_are_noticed(bench):
    for stream in ("a", "b", "c", "d", "j"):
        for count in (30, 8, 4):
            observed(bench, stream, count)
    bench.crash()
    assert bench.client.hdel(keys.checkpoints(0), "a") == 1
    for stream, at in (("b", -1), ("c", 0)):  # the second was before a checkpoint
        assert len(bench.tail(stream)) >= 3
        bench.client.lset(keys.tail(0, stream), at, b"gone")
        assert bench.client.lrem(keys.tail(0, stream), 1, b"gone") == 1
    one = [Observation(y=1.0)]
    for command in (Observe("a", one), Observe("b", one), WhatIf("c", {})):
        assert slug(bench.ask(command, status=500)) == "corrupt-state", command
    assert bench.observe("d", [1.0] * 60)[-1]["seq"] == 101


def test_a_state_of_another_stream_is_refused(bench):
    """By the checksum, which says where it belongs, and by the model it names."""
    observed(bench)
    bench.ask(Configure("b", {"model": "poisson"}), status=201)
    observed(bench, "b")
    bench.crash()
    blob = bench.client.hget(keys.checkpoints(0), "b")
    for forged in (blob, resealed(wire.checked(blob, "checkpoint", "b"))):
        bench.client.hset(keys.checkpoints(0), "a", forged)
        assert slug(bench.ask(RunLength("a"), status=500)) == "corrupt-state"


# --- artifacts ----------------------------------------------------------------------------------


@pytest.fixture
def artifacts(tmp_path):
    """The folder of the artifact that stream a has, version 1."""
    publish(tmp_path / "models")
    return tmp_path / "models" / PUMP.model / "1"


@pytest.fixture
def pump(make_bench, artifacts):
    bench = make_bench()
    bench.ask(Configure("a", {"model": PUMP.model}), status=201)
    bench.observe("a", series(PUMP, 40))
    return bench


@pytest.fixture
def edit(artifacts, tmp_path):
    """Change the weights in place; `undo` takes that back."""
    kept = tmp_path / "kept"
    shutil.copytree(artifacts, kept)

    def change(factor=2.0):
        found = load_file(kept / "model.safetensors")
        found["prior_mean"] = found["prior_mean"] * factor
        save_file(found, artifacts / "model.safetensors")

    change.undo = lambda: shutil.copytree(kept, artifacts, dirs_exist_ok=True)
    return change


def predicted(bench, stream):
    return bench.ask(Predict(stream, AT))["predictions"][0]["predictive"]["mean"]


def refused(bench, command):
    answer = bench.ask(command, status=500)
    assert slug(answer) == "model-changed", answer


def value(name):
    return metrics.REGISTRY.get_sample_value(name)


def test_a_missing_artifact_is_repaired_without_a_restart(pump, artifacts, tmp_path):
    pump.crash()
    shutil.move(artifacts, tmp_path / "away")
    before = pump.stored("a")
    keyed = Observe("a", series(PUMP, 1), key="k", digest="d")
    for command in (keyed, RunLength("a"), Predict("a", x=AT)):
        assert slug(pump.ask(command, status=500)) == "corrupt-state"
    assert slug(pump.ask(Configure("b", {"model": PUMP.model}), status=422)) == "unknown-model"
    assert pump.stored("a") == before
    shutil.move(tmp_path / "away", artifacts)
    (outcome,) = pump.send(keyed)  # not answered from memory: nothing was done
    assert json.loads(outcome.body[0])["seq"] == 40
    assert not json.loads(outcome.body[0])["duplicate"]


def test_a_worker_that_would_answer_by_other_weights_refuses(pump, edit, caplog):
    before, expected = pump.stored("a"), predicted(pump, "a")
    edit()
    assert predicted(pump, "a") == expected  # it holds the one that the stream was made with
    pump.crash()
    keyed = Observe("a", series(PUMP, 1), key="k", digest="d")
    for command in (RunLength("a"), Predict("a", AT), WhatIf("a", {}), keyed):
        refused(pump, command)
    digest = pump.head("a").digest
    assert [r.levelname for r in caplog.records if digest in r.getMessage()] == ["ERROR"]
    assert pump.ask(Move("a", "poisson"), status=422)  # a move that does not fit changes nothing
    assert pump.stored("a") == before
    edit.undo()  # without a restart
    assert predicted(pump, "a") == pytest.approx(expected, abs=1e-9)
    (outcome,) = pump.send(keyed)
    assert outcome.status == 200
    assert not json.loads(outcome.body[0])["duplicate"]


def test_new_streams_get_what_is_there_and_no_answer_mixes_two(pump, edit):
    expected = predicted(pump, "a")
    edit()
    pump.ask(Configure("b", {"model": f"{PUMP.model}@1"}), status=201)
    pump.observe("b", series(PUMP, 40))
    assert predicted(pump, "a") == expected
    other = predicted(pump, "b")
    assert other != pytest.approx(expected, abs=1e-3)
    pump.crash()
    assert predicted(pump, "b") == pytest.approx(other, abs=1e-9)
    refused(pump, Predict("a", AT))
    edit.undo()
    assert predicted(pump, "a") == pytest.approx(expected, abs=1e-9)
    assert predicted(pump, "b") == pytest.approx(other, abs=1e-9)  # loaded before


def test_moved_by_replay_it_goes_on_under_what_is_there(pump, close, edit):
    edit()
    pump.crash()
    answer = pump.ask(Move("a", f"{PUMP.model}@1"))
    assert (answer["model"], answer["seq"]) == (f"{PUMP.model}@1", 40)
    pump.ask(Configure("b", {"model": f"{PUMP.model}@1"}), status=201)
    pump.observe("b", series(PUMP, 40))
    pump.crash()
    for each in ("a", "b"):
        pump.observe(each, series(PUMP, 60)[40:])
    found, expected = pump.ask(RunLength("a")), pump.ask(RunLength("b"))
    close(found["belief"], expected["belief"])
    close(predicted(pump, "a"), predicted(pump, "b"))
    assert [record.seq for record in pump.records("a")] == list(range(60))


def test_what_is_written_about_a_model_does_not_make_it_another(pump, artifacts):
    expected = predicted(pump, "a")
    amend(artifacts, description="Other words.", training={})
    pump.crash()
    assert predicted(pump, "a") == pytest.approx(expected, abs=1e-9)
    amend(artifacts, hazard=0.4)
    pump.crash()
    refused(pump, Predict("a", AT))


def test_a_change_is_noticed_before_anything_fails(pump, edit, artifacts, caplog):
    pump.turn()
    assert value("moca_changed_models") == 0
    edit()
    for _ in range(3):
        pump.turn()
    assert value("moca_changed_models") == 1
    assert caplog.text.count(f"{PUMP.model}@1") == 1
    edit.undo()
    pump.turn()
    assert value("moca_changed_models") == 0
    shutil.rmtree(artifacts)
    pump.turn()
    assert value("moca_changed_models") == 1
