"""The history of a stream's settings: every change that was made, in order, and no other."""

import asyncio

import pytest

from service import wire
from service.store import keys
from service.store.api_reads import AsyncStore
from service.store.connection import connect_async
from service.wire import Configure, Move, Observation, Observe
from tests.service.worker.commands.test_snapshot import export, put

KNOWN = {"location": [0.0], "scale": [1.0]}


def changes(bench, stream):
    """As the API reads them."""

    async def read():
        client = connect_async(bench.settings.redis_url)
        try:
            store = AsyncStore(client, bench.settings.partitions)
            found, unreadable = await store.changes(bench.partition(stream), stream, 0, 1000)
            assert not unreadable
            return found
        finally:
            await client.aclose()

    return [(each.seq, each.settings) for each in asyncio.run(read())]


@pytest.fixture
def stream(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [0.1, -0.4, 0.3])
    return "a"


def test_changes_within_a_millisecond_are_all_kept(bench, stream):
    bench.ask(Configure(stream, {"hazard": 0.2}))
    bench.ask(Configure(stream, {"confirm_after": 3}))
    bench.send(
        Configure(stream, {"hazard": 0.3}),
        Observe(stream, [Observation(y=0.0)]),
        Configure(stream, {"hazard": 0.4}),
        Move(stream, "averaged"),
        Configure(stream, {"outlier_rate": 0.0}),
    )
    expected = [
        (3, {"hazard": 0.2}),
        (3, {"confirm_after": 3}),
        (3, {"hazard": 0.3}),
        (4, {"hazard": 0.4}),
        (4, {"model": "averaged@2"}),
        (4, {"outlier_rate": 0.0}),
    ]
    assert changes(bench, stream) == expected
    bench.crash()
    bench.ask(Configure(stream, {"hazard": 0.5}))
    assert changes(bench, stream) == [*expected, (4, {"hazard": 0.5})]


def test_they_are_in_the_order_they_were_made_in_whatever_clocks_say(bench, stream):
    bench.ask(Configure(stream, {"hazard": 0.2}))
    bench.now_ms -= 5000
    bench.ask(Configure(stream, {"hazard": 0.3}))
    assert changes(bench, stream) == [(3, {"hazard": 0.2}), (3, {"hazard": 0.3})]


def test_those_of_an_older_version_stay_and_come_first(bench, stream):
    old = wire.encode([3, bench.now_ms, {"hazard": 0.9}])
    key = keys.changes(bench.partition(stream), stream)
    bench.client.hset(key, f"3:{bench.now_ms}", old)
    bench.ask(Configure(stream, {"hazard": 0.2}))
    bench.ask(Configure(stream, {"hazard": 0.3}))
    found = [(3, {"hazard": 0.9}), (3, {"hazard": 0.2}), (3, {"hazard": 0.3})]
    assert changes(bench, stream) == found
    put(bench, "b", export(bench, stream), status=201)
    assert changes(bench, "b") == found
    bench.ask(Configure("b", {"hazard": 0.4}))
    assert changes(bench, "b") == [*found, (3, {"hazard": 0.4})]


def test_a_refused_change_was_not_made(bench, stream):
    assert bench.ask(Configure(stream, {"hazard": 0.2, "warmup": 7}), status=409)
    bench.observe(stream, [0.0])
    assert changes(bench, stream) == []


def test_a_new_life_has_no_changes(bench, stream):
    bench.ask(Configure(stream, {"hazard": 0.2}))
    bench.send(wire.Delete(stream))
    bench.ask(Configure(stream, KNOWN), status=201)
    bench.observe(stream, [0.0])
    bench.ask(Configure(stream, {"hazard": 0.3}))
    assert changes(bench, stream) == [(1, {"hazard": 0.3})]
