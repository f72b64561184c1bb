"""A slot that moves to another master is followed, and what is cut is never sent again."""

import asyncio
import time

import pytest
import redis

from service.store import keys
from service.store.append import Appender
from service.store.cluster.routing import slot_of
from service.store.connection import READ_TIMEOUT_S, connect, connect_async
from service.store.event_log import Feeds
from service.store.log import DONE, Log, Offset

P, OTHER = 3, 5
SLOT = slot_of(keys.log(P))


class Move:
    """One slot on its way from its master to another."""

    def __init__(self, nodes):
        self.clients = {port: nodes.client(port) for port in nodes.running}
        self.ids = {p: c.execute_command("CLUSTER MYID") for p, c in self.clients.items()}
        self.source = next(p for p, client in self.clients.items() if self._owns(client))
        self.target = next(p for p in self.clients if p != self.source)

    def _owns(self, client):
        try:
            client.exists(keys.log(P))
        except redis.exceptions.MovedError:
            return False
        return True

    def _set(self, port, *words):
        self.clients[port].execute_command("CLUSTER SETSLOT", SLOT, *words)

    def begin(self):
        self._set(self.target, "IMPORTING", self.ids[self.source])
        self._set(self.source, "MIGRATING", self.ids[self.target])

    def keys(self, at_most=100):
        """Move so many keys; returns what is left."""
        source = self.clients[self.source]
        names = source.execute_command("CLUSTER GETKEYSINSLOT", SLOT, 100)
        for name in names[:at_most]:
            source.execute_command("MIGRATE", "127.0.0.1", self.target, name, 0, 5000)
        return len(names[at_most:])

    def end(self):
        for port in (self.target, self.source, *self.clients):
            self._set(port, "NODE", self.ids[self.target])


async def test_appends_and_commits_follow_a_slot(cluster):
    url, nodes = cluster
    append = connect_async(url)
    move = Move(nodes)
    try:
        with connect(url) as client:
            log, appender = Log(client, "w", 60_000, 8), Appender(append, "inc", 100)
            lease = log.acquire(P)
            await appender.append(P, 1, 1, b"a")
            move.begin()
            assert move.keys(at_most=1) > 0  # half of them here, half of them there
            both = asyncio.ensure_future(appender.append(P, 2, 1, b"b"))
            await asyncio.sleep(0.1)
            assert not both.done(), "a script ran on half of its keys"
            move.keys()
            await asyncio.wait_for(both, 5)
            found = log.read({P: lease.offset}, 10, 0)[P]
            assert [entry.payload for entry in found] == [b"a", b"b"]
            move.end()
            await asyncio.wait_for(appender.append(P, 3, 1, b"c"), 5)
            found = log.read({P: lease.offset}, 10, 0)[P]
            assert [entry.payload for entry in found] == [b"a", b"b", b"c"]
            assert log.renew([lease]) == [True]
    finally:
        await append.aclose()


def test_a_waiting_reader_follows_a_slot(cluster):
    url, nodes = cluster
    move = Move(nodes)
    with connect(url) as client, connect(url) as writer:
        writer.xadd(keys.log(P), {"b": "a"})
        log = Log(client, "w", 60_000, 8)
        at = {P: Offset(log.read({P: Offset("0-0", DONE)}, 1, 0)[P][0].id, DONE)}
        assert log.read(at, 1, 50) == {}  # its blocking read goes on
        move.begin()
        move.keys()
        move.end()
        writer.xadd(keys.log(P), {"b": "b"})
        end = time.monotonic() + 5
        while not (found := log.read(at, 1, 200)):
            assert time.monotonic() < end
        assert found[P][0].payload == b"b"


def test_a_reader_wakes_at_once_and_only_for_what_is_new(cluster):
    url, _ = cluster
    with connect(url) as client, connect(url) as writer:
        log = Log(client, "w", 60_000, 8)
        at = {p: Offset("0-0", DONE) for p in range(8)}
        assert log.read(at, 1, 100) == {}
        for round_ in range(3):
            entry = writer.xadd(keys.log(OTHER), {"b": str(round_)}).decode()
            began = time.monotonic()
            found = log.read(at, 1, 2000)
            assert time.monotonic() - began < 0.5
            assert {p: [e.id for e in entries] for p, entries in found.items()} == {OTHER: [entry]}
            at[OTHER] = Offset(entry, DONE)
            assert log.read(at, 1, 50) == {}


def test_a_master_that_dies_is_a_lost_connection(cluster):
    url, nodes = cluster
    with connect(url) as client:
        log = Log(client, "w", 60_000, 8)
        at = {p: Offset("0-0", DONE) for p in range(8)}
        log.read(at, 1, 50)
        nodes.kill(Move(nodes).source)
        with pytest.raises(redis.RedisError):
            log.read(at, 1, 2000)


def test_no_node_at_all_is_a_lost_connection():
    with pytest.raises(redis.ConnectionError, match="cannot connect to the cluster"):
        connect("redis+cluster://127.0.0.1:1,127.0.0.1:2")


async def test_a_quiet_wait_is_not_a_lost_connection(cluster):
    """It lasts longer than an answer may take; and ends with the first entry."""
    url, _ = cluster
    waiting, reading = connect_async(url), connect_async(url)
    feeds = Feeds(waiting, reading, 8)
    try:
        end = time.monotonic() + READ_TIMEOUT_S + 1.5
        while time.monotonic() < end:
            assert await feeds.follow({}, 10, 1000) == []
        following = asyncio.create_task(feeds.follow({}, 10, 5000))
        await asyncio.sleep(0.2)
        await reading.xadd(keys.feed(P), {"e": b"", "b": b"0-0"})
        (entry,) = await asyncio.wait_for(following, 1)
        assert entry.partition == P
    finally:
        await waiting.aclose()
        await reading.aclose()
