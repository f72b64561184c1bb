"""What cannot be read hurts its own stream alone; its bytes are kept, and a delete is a way out."""

import json
import math
import shutil

import pytest

from service import wire
from service.store import keys
from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength


def slug(answer):
    return answer["type"].rpartition("/")[2]


def damage(bench, part):
    """Damage one part of what is stored of stream a; returns the bytes."""
    p, client, head = bench.partition("a"), bench.client, bench.head("a")
    place = {
        "head": (keys.heads(p), "a"),
        "checkpoint": (keys.checkpoint(p, "a"), f"{head.generation}:{head.checkpoint}"),
        "tail": (keys.tail(p, "a"), str(head.seq - 2)),
    }[part]
    blob = bytearray(client.hget(*place))
    blob[len(blob) // 2] ^= 0x55
    blob = bytes(blob) if part == "checkpoint" else b"\xc1" + bytes(blob)
    client.hset(*place, blob)
    return blob


@pytest.mark.parametrize("part", ["head", "checkpoint", "tail"])
def test_corrupt_bytes(make_bench, part):
    bench = make_bench(partitions=1, checkpoint_every=16)
    for stream in ("a", "b"):
        bench.send(Observe(stream, [Observation(y=1.0)], key="k", digest="d"))
        bench.observe(stream, [float(i) for i in range(41)])
    assert 0 < bench.head("a").checkpoint < bench.head("a").seq - 2
    bench.crash()
    blob = damage(bench, part)
    before = bench.stored("a")
    wrong, right = bench.send(
        Observe("a", [Observation(y=2.0)]), Observe("b", [Observation(y=2.0)])
    )
    assert right.status == 200
    assert wrong.status == 500
    assert slug(json.loads(wrong.body[0])) == "corrupt-state"
    assert json.loads(right.body[0])["seq"] == 42
    for command in (RunLength("a"), Predict("a"), Configure("a", {"hazard": 0.3})):
        assert slug(bench.ask(command, status=500)) == "corrupt-state"
    assert bench.stored("a") == before
    aside = bench.quarantine("a")
    assert any(blob in kept for kept in aside.values())
    assert all(name.startswith((b"head:a:", b"checkpoint:a:", b"tail:a:"))
               for name in aside)  # fmt: skip
    # Deleting it is the way out.
    assert bench.send(Delete("a"))[0].status == 204
    assert not bench.stored("a")["named"]
    bench.crash()
    (answer,) = bench.observe("a", [5.0])
    assert answer["seq"] == 0
    bench.crash()
    (answer,) = bench.observe("a", [5.0])
    assert answer["seq"] == 1
    assert any(blob in kept for kept in bench.quarantine("a").values())


@pytest.mark.parametrize("what", ["tail", "checkpoint", "sealed tail"])
def test_lost_parts(make_bench, what):
    bench = make_bench(partitions=1, checkpoint_every=16)
    bench.observe("a", [float(i % 7) for i in range(42)])
    bench.observe("b", [1.0])
    bench.crash()
    head, p = bench.head("a"), 0
    if what == "checkpoint":
        bench.client.delete(keys.checkpoint(p, "a"))
    else:
        seq = head.seq - 1 if what == "tail" else head.checkpoint - 1
        assert bench.client.hdel(keys.tail(p, "a"), str(seq)) == 1
    assert slug(bench.ask(Observe("a", [Observation(y=1.0)]), status=500)) == "corrupt-state"
    bench.observe("b", [1.0] * 100)


def test_mended_bytes_are_read_without_a_restart(make_bench):
    bench = make_bench(partitions=1, checkpoint_every=16)
    bench.observe("a", [float(i % 7) for i in range(42)])
    bench.crash()
    good = bench.client.hget(keys.heads(0), "a")
    damage(bench, "head")
    bench.ask(Observe("a", [Observation(y=1.0)]), status=500)
    bench.client.hset(keys.heads(0), "a", good)
    assert bench.observe("a", [1.0])[0]["seq"] == 42


def test_a_state_of_another_model_is_refused(make_bench):
    bench = make_bench(partitions=1, checkpoint_every=16)
    bench.observe("a", [float(i % 7) for i in range(42)])
    bench.ask(Configure("b", {"model": "poisson"}), status=201)
    bench.observe("b", [float(i % 7) for i in range(42)])
    bench.crash()
    ((field, blob),) = bench.client.hgetall(keys.checkpoint(0, "b")).items()
    place = keys.checkpoint(0, "a"), f"1:{bench.head('a').checkpoint}"
    bench.client.hset(*place, blob)
    assert "checksum" in bench.ask(RunLength("a"), status=500)["detail"]
    # An earlier version's has no checksum that says where it belongs.
    bench.client.hset(*place, wire.checked(blob, "checkpoint", "b", field.decode()))
    assert "poisson" in bench.ask(RunLength("a"), status=500)["detail"]


def test_a_missing_artifact_is_repaired_without_a_restart(make_bench, alpaca, tmp_path):
    bench = make_bench()
    bench.ask(Configure("a", {"model": "pump"}), status=201)
    seen = Observation(x=[0.1, 0.2], y=[1.0, 2.0])
    bench.observe("a", [seen] * 3)
    bench.crash()
    away = tmp_path / "away"
    shutil.move(alpaca, away)
    before = bench.stored("a")
    keyed = Observe("a", [seen], key="k", digest="d")
    for command in (keyed, RunLength("a"), Predict("a", x=[[0.0, 0.0]])):
        answer = bench.ask(command, status=500)
        assert "pump" in answer["detail"]
    assert slug(bench.ask(Configure("b", {"model": "pump"}), status=422)) == "unknown-model"
    assert bench.stored("a") == before
    assert not bench.quarantine("a")
    shutil.move(away, alpaca)
    (outcome,) = bench.send(keyed)  # not answered from memory: nothing was done
    assert json.loads(outcome.body[0])["seq"] == 3
    assert not json.loads(outcome.body[0])["duplicate"]


def test_a_damaged_artifact_is_an_answer_too(make_bench, alpaca):
    bench = make_bench()
    weights = alpaca / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:100])
    answer = bench.ask(Configure("a", {"model": "pump@1"}), status=422)
    assert "pump@1" in answer["detail"]
    weights.write_bytes(good)
    bench.ask(Configure("a", {"model": "pump@1"}), status=201)


def test_wrong_inputs_of_an_artifact(make_bench, alpaca):
    bench = make_bench()
    bench.ask(Configure("a", {"model": "pump"}), status=201)
    good = Observation(x=[0.1, 0.2], y=[1.0, 2.0])
    bench.observe("a", [good])
    before = bench.stored("a")
    for bad in (
        Observation(y=[1.0, 2.0]),
        Observation(x=[0.1], y=[1.0, 2.0]),
        Observation(x=[0.1, 0.2], y=1.0),
        Observation(x=[0.1, 1e101], y=[1.0, 2.0]),
        Observation(x=[0.1, math.nan], y=[1.0, 2.0]),
    ):
        assert bench.send(Observe("a", [good, bad]))[0].status == 422
    assert bench.send(Predict("a", x=[[0.1, 0.2], [0.1]]))[0].status == 422
    assert bench.send(Predict("a"))[0].status == 422
    assert bench.stored("a") == before
    assert bench.head("a").y_dim == 2
