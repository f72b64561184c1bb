"""Streams sorted by P(changed), page by page, against a sort of all of them."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from service import wire
from service.api.gateway import ranking
from service.api.gateway.ranking import Ranking
from service.schema.commands import OverviewQuery
from service.store import keys
from service.store.api_reads import AsyncStore
from service.store.connection import connect, connect_async

PARTITIONS = 3
SITES = ("north", "süd", "東", "north-🜁", "ＮＯ")


@pytest.fixture
def values(valkey_url):
    """Streams with P(changed), many of them equal; None for one without, and for a damaged head."""
    rng, found = random.Random(3), {}
    with connect(valkey_url) as client:
        for i in range(150):
            name = f"{rng.choice(SITES)}-{i}"
            found[name] = rng.choice([None, 0.5, 0.5, rng.random()])
            head = wire.Head(1, wire.StreamSettings(), changed_probability=found[name])
            blob = wire.checksummed(wire.encode(head), "head", name)
            if i % 10 == 0:
                found[name], blob = None, blob[:-1] + b"?"
            partition = keys.partition_of(name, PARTITIONS)
            client.zadd(keys.names(partition), {name: 0})
            client.hset(keys.heads(partition), name, blob)
    return found


@pytest.mark.parametrize("prefix", ["", "north", "東"])
@pytest.mark.parametrize("contains", ["", "1", "ü", "-🜁-"])
async def test_pages_are_those_of_a_sort_of_all(valkey_url, values, monkeypatch, prefix, contains):
    monkeypatch.setattr(ranking, "AT_ONCE", 40)
    client = connect_async(valkey_url)
    expected = sorted(
        (name for name in values if name.startswith(prefix) and contains in name),
        key=lambda name: (1.0 if values[name] is None else -values[name], name),
    )
    with ThreadPoolExecutor(1) as thread:
        chosen, names, cursor = Ranking(AsyncStore(client, PARTITIONS), None, thread), [], None
        while True:
            query = OverviewQuery(
                sort="changed_probability", prefix=prefix, contains=contains, limit=7, cursor=cursor
            )
            page = await chosen.page(query)
            assert page.total == len(expected)
            assert len(page.names) == 7 or page.cursor is None
            names += page.names
            if (cursor := page.cursor) is None:
                break
    await client.aclose()
    assert names == expected
