"""What version 0.1 stored still loads. Field lists here are frozen: never change them."""

from typing import Any

import msgspec

from service import wire
from service.store import keys
from service.store.worker_reads import decoded
from service.wire import Configure, RunLength
from tests.service.worker.kinds import KINDS, series

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


def age(bench, stream):
    """Have the head and the tail be as version 0.1 wrote them."""
    p, head = bench.partition(stream), bench.head(stream)
    stored = {f.encode_name: getattr(head, f.name) for f in msgspec.structs.fields(head)}
    old = {name: stored.get(name, 3) for name in HEAD_0_1}  # 3: what is no longer kept
    settings = SETTINGS(**{name: getattr(head.settings, name) for name in SETTINGS_0_1})
    written = wire.encode(HEAD(**{**old, "settings": settings}))
    bench.client.hset(keys.heads(p), stream, written)
    for seq, blob in bench.stored(stream)["tail"].items():
        record = decoded(wire.decode_record, blob, "tail", stream, int(seq))
        plain = RECORD(*(getattr(record, name) for name in RECORD_0_1))
        bench.client.hset(keys.tail(p, stream), seq, wire.encode(plain))


def test_a_stream_of_version_0_1_goes_on(make_bench, close):
    """Its settings name no rule of confirmation, as ten observations were the default."""
    bench, plain = make_bench(checkpoint_every=32), make_bench(db=1)
    observations = series(KINDS["gaussian"], 120)
    for each in (bench, plain):
        each.ask(Configure("a", {"confirm_after": 10}), status=201)
        each.observe("a", observations[:60])
    bench.crash()
    age(bench, "a")
    found, expected = bench.ask(RunLength("a")), plain.ask(RunLength("a"))
    close(found, expected)
    assert bench.head("a").settings.confirm_probability is None
    close(bench.observe("a", observations[60:]), plain.observe("a", observations[60:]))
    assert [r.seq for r in bench.records("a")] == list(range(120))
    assert bench.events("a") == plain.events("a")
