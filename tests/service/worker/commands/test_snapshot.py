"""A stream moves to another deployment, under the same name or another, and goes on exactly."""

import asyncio
import json
import random

import msgspec
import pytest

from model_core import artifact
from service.models import catalogue
from service.store.api_reads import AsyncStore
from service.store.connection import connect_async
from service.wire import (
    Configure,
    Delete,
    Import,
    Observation,
    Observe,
    Predict,
    RunLength,
    snapshot,
)
from tests.service.worker.streams.test_reload import MODELS, configure, series

TOKEN = "0123"


def export(bench, stream):
    """As the API does."""

    async def read():
        client = connect_async(bench.settings.redis_url)
        try:
            store = AsyncStore(client, bench.settings.partitions)
            return await store.parts(bench.partition(stream), stream)
        finally:
            await client.aclose()

    parts = asyncio.run(read())
    place = bench.settings.models_dir, parts.head.settings.model
    digest = parts.head.digest or catalogue.digest(*place)
    return snapshot.dump(snapshot.Snapshot(stream, bench.now_ms, digest, *parts))


def put(bench, stream, blob, status=201, **options):
    async def stage():
        client = connect_async(bench.settings.redis_url)
        try:
            store = AsyncStore(client, bench.settings.partitions)
            await store.stage(bench.partition(stream), TOKEN, blob)
        finally:
            await client.aclose()

    asyncio.run(stage())
    return bench.ask(Import(stream, TOKEN, **options), status=status)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("at", [7, 61, 150])
def test_it_goes_on_as_the_uninterrupted_one(bench, make_bench, alpaca, kind, at, close):
    labels = series(kind, 200)
    configure(bench, "a", kind, history=100)
    bench.observe("a", labels[:at])
    blob = export(bench, "a")
    expected = bench.observe("a", labels[at:])
    other = make_bench(db=1)
    put(other, "b", blob)
    assert other.head("b").seq == at
    found = other.observe("b", labels[at:])
    close([{**each, "stream": "a"} for each in found], expected)
    close(
        [msgspec.to_builtins(each) for each in other.events("b")],
        [msgspec.to_builtins(each) for each in bench.events("a")],
    )
    kept, theirs = other.records("b"), bench.records("a")
    close(msgspec.to_builtins(kept), msgspec.to_builtins(theirs))


def test_it_outlives_its_worker_at_once(bench, make_bench, close):
    labels = series("gaussian", 120)
    bench.observe("a", labels[:90])
    other = make_bench(db=1)
    put(other, "a", export(bench, "a"))
    other.crash()
    close(other.ask(RunLength("a")), bench.ask(RunLength("a")))
    close(other.observe("a", labels[90:]), bench.observe("a", labels[90:]))


def test_keys_travel_too(bench, make_bench):
    (first,) = bench.send(Observe("a", [Observation(y=1.0)], key="k", digest="d"))
    other = make_bench(db=1)
    put(other, "a", export(bench, "a"))
    (again,) = other.send(Observe("a", [Observation(y=1.0)], key="k", digest="d"))
    assert json.loads(again.body[0]) == {**json.loads(first.body[0]), "duplicate": True}
    assert other.head("a").seq == 1


def test_in_place_of_a_stream_only_when_asked(bench, close):
    labels = series("gaussian", 130)
    bench.observe("a", labels[:100])
    blob, then = export(bench, "a"), bench.ask(Predict("a"))
    bench.observe("a", labels[100:])
    before = bench.stored("a")
    refused = put(bench, "a", blob, status=409)
    assert refused["type"].endswith("/stream-exists")
    assert bench.stored("a") == before
    generation = bench.head("a").generation
    put(bench, "a", blob, status=200, replace=True)
    assert bench.head("a").generation == generation + 1
    close(bench.ask(Predict("a")), then)
    assert [record.seq for record in bench.records("a")] == list(range(100))
    bench.send(Delete("a"))
    put(bench, "a", blob, status=201)
    bench.crash()
    close(bench.ask(Predict("a")), then)


def damaged(blob, rng):
    at = rng.randrange(len(blob))
    return blob[:at] + bytes([blob[at] ^ (1 << rng.randrange(8))]) + blob[at + 1 :]


def test_damaged_ones_are_refused_and_change_nothing(bench):
    bench.observe("a", series("gaussian", 80))
    blob, rng = export(bench, "a"), random.Random(3)
    for broken in [b"", b"MOCASNAP", blob[:-1], *(damaged(blob, rng) for _ in range(20))]:
        answer = put(bench, "b", broken, status=422)
        assert answer["type"].endswith("/unfit-snapshot")
        assert bench.stored("b") == {**dict.fromkeys(bench.stored("b"), {}), "head": None,
                                     "named": False}  # fmt: skip


def altered(blob, change):
    found = snapshot.load(blob)
    change(found)
    return snapshot.dump(found)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.records.pop(40), "do not connect"),
        (lambda s: setattr(s, "checkpoint", None), "does not match its head"),
        (lambda s: setattr(s, "checkpoint", s.checkpoint[:-9] + bytes(9)), "unusable state"),
        (lambda s: setattr(s.head.settings, "max_hypotheses", 3), "unusable state"),
        (lambda s: setattr(s.head.settings, "model", "poisson@1"), "expected a count"),
        (lambda s: setattr(s, "model_digest", "0" * 32), "differs from the one"),
    ],
)
def test_what_does_not_hold_together_is_refused(bench, change, says):
    bench.observe("a", series("gaussian", 100))
    answer = put(bench, "b", altered(export(bench, "a"), change), status=422)
    assert says in answer["detail"]


def test_a_model_that_is_not_there_or_another(bench, make_bench, alpaca, tmp_path):
    configure(bench, "a", "pump")
    bench.observe("a", series("pump", 70))
    blob = export(bench, "a")
    artifact.amend(alpaca, hazard=0.2)
    assert "differs from the one" in put(bench, "b", blob, status=422)["detail"]
    for file in alpaca.iterdir():
        file.unlink()
    alpaca.rmdir()
    assert put(bench, "b", blob, status=422)["type"].endswith("/unknown-model")


def test_one_that_was_not_kept(bench):
    assert "upload it again" in bench.ask(Import("a", "nothing"), status=422)["detail"]


@pytest.mark.parametrize(
    ("given", "rule"),
    [({}, 0.99), ({"confirm_probability": 0.8}, 0.8), ({"confirm_after": 3}, None)],
)
def test_a_stream_keeps_its_rule_of_confirmation(bench, make_bench, given, rule):
    bench.ask(Configure("a", given), status=201)
    bench.observe("a", series("gaussian", 40))
    other = make_bench(db=1)
    put(other, "b", export(bench, "a"))
    head = other.head("b")
    assert head.settings.confirm_probability == (head.alarm and head.alarm.threshold) == rule
    assert head.settings.confirm_after == given.get("confirm_after", 10)
