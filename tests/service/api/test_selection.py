"""Lists of streams and results for Prometheus: each head is read once for an answer."""

import time
from collections import Counter
from types import SimpleNamespace

import pytest

from service import wire
from service.api.gateway import results, selection
from service.store import keys
from service.store.api_reads import AsyncStore
from service.store.connection import connect, connect_async

PARTITIONS, STREAMS = 3, 25
GATEWAY = SimpleNamespace(partition=lambda stream: keys.partition_of(stream, PARTITIONS))


@pytest.fixture
def filled(valkey_url, monkeypatch):
    """Streams with one record each, of which every fifth is in the south; groups are small."""
    monkeypatch.setattr(selection, "READ_AT_ONCE", 10)
    monkeypatch.setattr(results, "READ_AT_ONCE", 4)
    now_ms = time.time_ns() // 1_000_000
    with connect(valkey_url) as client:
        for i in range(STREAMS):
            name = f"s{i:02}"
            partition = GATEWAY.partition(name)
            settings = wire.StreamSettings(tags={"site": "north" if i % 5 else "south"})
            head = wire.Head(1, settings, seq=1, updated_ms=now_ms)
            record = wire.Record(0, 1.0, None, None, 1.0, None, None, 0.0, anomaly=i / 100)
            client.zadd(keys.names(partition), {name: 0})
            blob = wire.checksummed(wire.encode(head), "head", name)
            client.hset(keys.heads(partition), name, blob)
            blob = wire.checksummed(wire.encode(record), "tail", name, 0)
            client.hset(keys.tail(partition, name), "0", blob)
        yield client


@pytest.fixture
async def store(valkey_url, filled):
    client = connect_async(valkey_url)
    yield AsyncStore(client, PARTITIONS)
    await client.aclose()


class HeadReads:
    """Numbers of reads of each head from the server, by any client."""

    def __init__(self, client):
        self._client, self.counts = client, Counter()

    def __enter__(self):
        self._monitor = self._client.monitor()
        self._monitor.__enter__()
        return self

    def __exit__(self, *_):
        self._client.echo("end of the test")
        for command in self._monitor.listen():
            operation, _, rest = command["command"].partition(" ")
            if operation.upper() == "ECHO":
                break
            key, *fields = rest.split(" ")
            if operation.upper() in {"HMGET", "HGET"} and key.endswith(":heads"):
                self.counts.update(fields)
            assert operation.upper() not in {"HGETALL", "HVALS", "HSCAN"}
        self._monitor.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("match", "expected"),
    [([], range(STREAMS)), (['{site="south"}'], range(0, STREAMS, 5))],
    ids=["all", "by tags"],
)
async def test_results_read_each_head_once(store, filled, match, expected):
    with HeadReads(filled) as reads:
        found = await results.results(store, GATEWAY, match, STREAMS)
    assert reads.counts == {f"s{i:02}": 1 for i in range(STREAMS)}
    assert [(name, labels["stream"], value) for name, labels, value in found] == [
        ("moca_anomaly", f"s{i:02}", i / 100) for i in expected
    ]


async def test_a_list_without_selectors_reads_each_head_once(store, filled):
    names, cursor = [], None
    with HeadReads(filled) as reads:
        while True:
            page = await selection.select(store, GATEWAY, "", [], cursor, 7)
            names += [row.stream for row in page.rows]
            assert len(page.rows) == 7 or page.cursor is None
            if (cursor := page.cursor) is None:
                break
    assert reads.counts == dict.fromkeys(names, 1)
    assert names == [f"s{i:02}" for i in range(STREAMS)]


async def test_results_leave_out_streams_deleted_after_their_names_were_read(
    store, filled, monkeypatch
):
    read_heads = store.heads

    async def heads(streams):
        partition, name = GATEWAY.partition("s01"), "s01"
        gone = wire.Head(1, wire.StreamSettings(), deleted=True)
        blob = wire.checksummed(wire.encode(gone), "head", name)
        filled.hset(keys.heads(partition), name, blob)
        filled.hdel(keys.heads(GATEWAY.partition("s02")), "s02")
        return await read_heads(streams)

    monkeypatch.setattr(store, "heads", heads)
    found = await results.results(store, GATEWAY, [], STREAMS)
    assert [labels["stream"] for _, labels, _ in found] == ["s00"] + [
        f"s{i:02}" for i in range(3, STREAMS)
    ]
