"""What an older version stored must still load. Field lists here are frozen: never change them."""

import zlib
from typing import Any

import msgspec
import pytest

from model_core import codec
from service import wire
from service.store import keys
from service.store.worker_reads import decoded, unseal
from service.wire import Configure, Observation, Predict, RunLength
from tests.service.worker.kinds import KINDS, publish, series

SETTINGS_0_1 = ("model", "hazard", "max_hypotheses", "outlier_rate", "confirm_after", "warmup",
                "location", "scale", "history")  # fmt: skip
HEAD_0_1 = (
    "generation", "settings", "seq", "y_dim", "deleted", "created_ms", "updated_ms", "warm",
    "location", "scale", "checkpoint", "checkpoint_ms", "sealed", "oldest", "confirmed_start",
    "before_start", "confirmed_totals", "before_totals", "kept_since", "event", "last_event",
    "next_event", "best_start", "map_run_length", "changed_probability", "log_score_sum", "scored",
    "pruned_mass", "pruned_mass_sum", "last",
)  # fmt: skip
RECORD_0_1 = (
    "seq", "y", "x", "time", "elapsed", "changepoint", "hazard", "outlier_rate", "log_score",
    "changed_probability", "changepoint_probability", "recent_change_probability",
    "map_run_length", "mean", "quantiles", "probabilities", "previous_start", "variance",
)  # fmt: skip
SETTINGS = msgspec.defstruct("Settings", [(n, Any, None) for n in SETTINGS_0_1], omit_defaults=True)
HEAD = msgspec.defstruct("Head", [(n, Any, None) for n in HEAD_0_1], omit_defaults=True)
RECORD = msgspec.defstruct("Record", [(n, Any, None) for n in RECORD_0_1], array_like=True)
OBSERVED = {
    "gaussian": ({}, "gaussian"),
    "poisson": ({"model": "poisson@1"}, "poisson"),
    "bernoulli": ({"model": "bernoulli"}, "bernoulli"),
    "vector": ({"hazard": 0.05, "max_hypotheses": 12}, "gaussian-3"),
    "pump": ({"model": "pump", "hazard": 0.05}, "alpaca"),
}


def head_0_1(stream, blob):
    """The head as version 0.1 would have written it."""
    head = decoded(wire.decode_head, blob, "head", stream)
    stored = {f.encode_name: getattr(head, f.name) for f in msgspec.structs.fields(head)}
    old = {name: stored.get(name, 3) for name in HEAD_0_1}  # 3: what is no longer kept
    settings = SETTINGS(**{name: getattr(head.settings, name) for name in SETTINGS_0_1})
    return wire.encode(HEAD(**{**old, "settings": settings}))


def record_0_1(stream, seq, blob):
    return plain_record(decoded(wire.decode_record, blob, "tail", stream, seq))


def plain_record(record):
    assert isinstance(record.hazard, float)
    return wire.encode(RECORD(*(getattr(record, name) for name in RECORD_0_1)))


def chunk_0_1(stream, number, blob):
    records = [msgspec.Raw(plain_record(record)) for record in unseal(stream, number, blob)]
    return zlib.compress(wire.encode(records))


def age(bench, stream):
    """Have everything stored of a stream be as version 0.1 wrote it."""
    p, found = bench.partition(stream), bench.stored(stream)
    bench.client.hset(keys.heads(p), stream, head_0_1(stream, found["head"]))
    for key, parts, written in (
        (keys.tail, found["tail"], record_0_1),
        (keys.history, found["history"], chunk_0_1),
    ):
        for field, blob in parts.items():
            bench.client.hset(key(p, stream), field, written(stream, int(field), blob))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OBSERVED)
@pytest.mark.parametrize("length", [0, 7, 45, 150])
def test_streams_of_version_0_1(make_bench, close, tmp_path, name, length):
    publish(tmp_path / "models")
    bench, plain = make_bench(checkpoint_every=32), make_bench(db=1)
    settings, shape = OBSERVED[name]
    observations = series(KINDS[shape], length + 40)
    for each in (bench, plain):
        each.default_model = "gaussian"
        each.ask(Configure("a", {"confirm_after": 10, **settings}), status=201)
        each.observe("a", observations[:length])
    bench.crash()
    age(bench, "a")
    close(bench.ask(RunLength("a")), plain.ask(RunLength("a")))
    close(bench.observe("a", observations[length:]), plain.observe("a", observations[length:]))
    assert [r.seq for r in bench.records("a")] == list(range(length + 40))
    assert bench.head("a").x_dim == KINDS[shape].x_dim


SHIFTED = [0.3 * (-1) ** i for i in range(60)] + [4.0 + 0.3 * (-1) ** i for i in range(40)]


def confirmed(events):
    return [(e.id, e.start, e.suspected_at, e.confirmed_at) for e in events if e.confirmed_at]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("length", [0, 7, 45, 62])
def test_streams_of_earlier_versions_stay_at_ten_observations(make_bench, length):
    """Their settings name no rule, as ten observations were the default."""
    bench, explicit = make_bench(), make_bench(db=1)
    for each, settings in ((bench, {}), (explicit, {"confirm_after": 10})):
        each.ask(Configure("a", settings), status=201)
        each.observe("a", SHIFTED[:length])
    bench.crash()
    age(bench, "a")
    assert bench.head("a").settings.confirm_probability is None
    changed = {"history": 500, "hazard": 0.02}  # also where nothing was observed yet
    for each in (bench, explicit):
        found = each.ask(Configure("a", changed))["settings"]
        assert (found["confirm_after"], found["confirm_probability"]) == (10, None)
        each.observe("a", SHIFTED[length:])
    assert confirmed(bench.events("a")) == confirmed(explicit.events("a"))
    ((_, start, suspected, at),) = confirmed(bench.events("a"))
    assert (start, at) == (60, suspected + 10)


def forget(bench, stream):
    """Have the head be as a worker that does not know the setting would write it."""
    key, p = keys.heads(bench.partition(stream)), bench.partition(stream)
    head = decoded(wire.decode_head, bench.client.hget(key, stream), "head", stream)
    plain = msgspec.msgpack.decode(wire.encode(head))
    del plain["settings"]["confirm_probability"]
    bench.client.hset(keys.heads(p), stream, wire.encode(plain))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("length", [0, 20, 45, 62])
def test_an_older_worker_on_the_way_leaves_a_stream_its_rule(make_bench, length):
    """It confirms by the alarm, too, and keeps it; settings that it does not know it drops."""
    bench, plain = make_bench(), make_bench(db=1)
    for each in (bench, plain):
        each.ask(Configure("a", {"confirm_probability": 0.9}), status=201)
        each.observe("a", SHIFTED[:length])
    bench.crash()
    forget(bench, "a")
    found = bench.ask(Configure("a", {"hazard": 0.02}))
    assert found["settings"]["confirm_probability"] == 0.9
    assert (found["settings"]["confirm_after"], found["sensitivity"]) == (None, None)
    plain.ask(Configure("a", {"hazard": 0.02}))
    for each in (bench, plain):
        each.observe("a", SHIFTED[length:])
    assert confirmed(bench.events("a")) == confirmed(plain.events("a"))
    assert len(confirmed(bench.events("a"))) == 1


def test_the_bytes_of_a_head_and_a_record():
    """Written down once, so that a change of names or types is noticed."""
    head = bytes.fromhex(
        "8aaa67656e65726174696f6e01a873657474696e677382a56d6f64656caa676175737369616e4031"
        "a668617a617264cb3f947ae147ae147ba373657102a5795f64696d01a47761726dc3a86c6f636174"
        "696f6e91cb0000000000000000a57363616c6591cb3ff0000000000000aa6e6578745f6576656e74"
        "01ae6d61705f72756e5f6c656e67746801a46c61737491cb4004000000000000"
    )
    found = wire.decode_head(head)
    assert found.settings.model == "gaussian@1"
    assert found.settings.hazard == 0.02
    assert (found.settings.order, found.settings.classes, found.x_dim) == (1, None, None)
    assert (found.seq, found.y_dim, found.last_label) == (2, 1, [2.5])
    record = wire.decode_record(wire.encode([1, 2.5, None, None, 1.0, None, 0.02, 0.01]))
    assert (record.hazard, record.outlier_rate, record.previous_start) == (0.02, 0.01, -1)


def test_a_checkpoint_of_version_0_1_has_no_context(make_bench, close):
    """Its layout is that of the code; of the models there were then, none has a context."""
    bench = make_bench(checkpoint_every=16)
    bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
    bench.observe("a", [Observation(y=float(i % 4)) for i in range(40)])
    said = bench.ask(Predict("a"))
    bench.crash()
    (blob,) = bench.stored("a")["checkpoint"].values()
    assert b'"context"' not in blob
    assert codec.VERSION == 1
    close(bench.ask(Predict("a")), said)
