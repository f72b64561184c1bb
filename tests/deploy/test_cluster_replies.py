"""Outcomes of a cluster's partitions stay in their shards, and are heard wherever slots go."""

import asyncio
import contextlib
import itertools
import time

import pytest

from service.settings import Settings
from service.store import keys
from service.store.cluster import subscription
from service.store.cluster.routing import slot_of
from service.store.connection import connect
from service.store.log import START, Commit, Log
from tests.clusters import running_cluster
from tests.deploy.test_cluster_moves import SLOT, Move, P
from tests.listening import listening
from tests.service.api.conftest import FakeWorker, running

PARTITIONS = 64
SHARDED = [keys.reply_channel(p, "i") for p in range(PARTITIONS)]
PLAIN = keys.plain_reply_channel("i")
CHANNELS = [*SHARDED, PLAIN]
BUS = "cluster_stats_messages_publish"  # of both kinds: publish, publishshard
SOON_S = 5.0  # far below the deadline of requests


class Publisher:
    """Commits that publish, one message each."""

    def __init__(self, client):
        self.log = Log(client, "w", 60_000, PARTITIONS)
        self.leases = {p: self.log.acquire(p) for p in range(PARTITIONS)}
        self.count = itertools.count()

    def publish(self, channel, p):
        message = b"%d" % next(self.count)
        commit = Commit(p, self.leases[p].token, START, START, 0, [], [(channel, message)])
        assert self.log.commit([commit]) == ["OK"]
        return message


def over_the_bus(nodes):
    """Messages that the nodes have sent each other for publications, so far."""
    infos = [nodes.client(port).execute_command("CLUSTER INFO") for port in nodes.running]
    found = [info if isinstance(info, dict) else _parsed(info) for info in infos]
    return sum(int(n) for info in found for name, n in info.items() if _of_the_bus(name))


def _of_the_bus(name):
    return name.startswith(BUS) and name.endswith("_sent")


def _parsed(info):
    return dict(line.split(":") for line in info.split())


async def test_no_other_node_gets_what_is_published_in_a_shard(cluster):
    url, nodes = cluster
    with connect(url) as client:
        publisher = Publisher(client)
        async with listening(url, CHANNELS) as found:
            before = over_the_bus(nodes)
            sent = [publisher.publish(SHARDED[p], p) for p in range(PARTITIONS)]
            await found.until(lambda: sorted(found.messages) == sorted(sent))
            assert over_the_bus(nodes) == before
            # An earlier API hears of its outcomes at the earlier price.
            sent += [publisher.publish(PLAIN, p) for p in range(PARTITIONS)]
            await found.until(lambda: sorted(found.messages) == sorted(sent))
            assert over_the_bus(nodes) - before == 2 * PARTITIONS


async def test_each_master_has_one_connection_with_the_channels_of_its_slots(cluster):
    url, nodes = cluster
    with connect(url) as client:
        async with listening(url, CHANNELS) as found:
            assert sorted(found.recovered) == sorted(CHANNELS)
            for port in nodes.running:
                node = nodes.client(port)
                (each,) = node.client_list("pubsub")
                mine = [c for c in SHARDED if client.get_node_from_key(c).port == port]
                assert sorted(node.pubsub_shardchannels()) == sorted(mine)
                assert int(each["ssub"]) == len(mine) > 0


@pytest.fixture(params=["the server says so", "the slots are looked up"])
def how_known(request, monkeypatch):
    """How it becomes known that a slot has moved, each without the other."""
    if request.param == "the server says so":
        monkeypatch.setattr(subscription, "LOOK_S", 600.0)
    else:
        monkeypatch.setattr(subscription, "LOOK_S", 0.2)
        monkeypatch.setattr(subscription._Link, "_lost", lambda *_: None)


async def test_a_channel_follows_its_slot_and_the_others_stay(cluster, how_known, caplog):
    url, nodes = cluster
    move = Move(nodes)
    with connect(url) as client:
        publisher = Publisher(client)
        async with listening(url, CHANNELS) as found:
            ids = [_pubsub(nodes, port) for port in nodes.running]
            found.recovered.clear()
            move.begin()
            while move.keys():
                pass
            move.end()
            await found.until(lambda: SHARDED[P] in found.recovered)
            assert {slot_of(channel) for channel in found.recovered} == {SLOT}
            last = publisher.publish(SHARDED[P], P)
            await found.until(lambda: last in found.messages)
            assert [_pubsub(nodes, port) for port in nodes.running] == ids
            assert found.subscriptions.complete.is_set()
    assert "connection lost" not in caplog.text


def _pubsub(nodes, port):
    (each,) = nodes.client(port).client_list("pubsub")
    return each["id"]


async def test_a_killed_connection_recovers_the_partitions_of_its_master(cluster):
    url, nodes = cluster
    with connect(url) as client:
        publisher = Publisher(client)
        async with listening(url, CHANNELS) as found:
            port = client.get_node_from_key(SHARDED[P]).port
            mine = {c for c in CHANNELS if client.get_node_from_key(c).port == port}
            found.recovered.clear()
            nodes.client(port).client_kill_filter(_type="pubsub")
            await found.until(lambda: set(found.recovered) >= mine)
            assert set(found.recovered) == mine
            sent = [publisher.publish(SHARDED[p], p) for p in range(PARTITIONS)]
            await found.until(lambda: sorted(found.messages) == sorted(sent))


@pytest.mark.slow
async def test_channels_of_a_dead_master_are_subscribed_at_its_replica():
    with running_cluster(replicas=1) as (url, nodes), connect(url) as client:
        port = client.get_node_from_key(SHARDED[P]).port
        mine = {c for c in SHARDED if client.get_node_from_key(c).port == port}
        async with listening(url, CHANNELS) as found:
            # One that has not copied its master yet does not take its place.
            await found.until(lambda: all(_copied(nodes, each) for each in nodes.running))
            found.recovered.clear()
            nodes.kill(port)
            await found.until(lambda: set(found.recovered) >= mine)
            await found.until(found.subscriptions.complete.is_set)
            with connect(url) as now:
                publisher = Publisher(now)
                sent = [publisher.publish(SHARDED[p], p) for p in range(PARTITIONS)]
            await found.until(lambda: set(sent) <= set(found.messages))


def _copied(nodes, port):
    return nodes.client(port).info("replication").get("master_link_status", "up") == "up"


async def posted(api, streams, until):
    """Observe in turns until an event is set; the longest that a request took."""
    longest, turn = 0.0, itertools.cycle(streams)
    while not until.is_set():
        began = time.monotonic()
        response = await api.post(f"/v1/streams/{next(turn)}/observations", json={"y": 0})
        assert response.status_code == 200, response.text
        longest = max(longest, time.monotonic() - began)
    return longest


@contextlib.asynccontextmanager
async def under_load(url, tmp_path):
    """An API and a worker; yields how to end the load, which returns the longest request."""
    settings = Settings(
        redis_url=url, models_dir=tmp_path, partitions=8, request_deadline_s=60.0, lease_ttl_ms=1000
    )
    worker = FakeWorker(url, 8)
    try:
        async with running(settings) as api:
            names = [f"s{i}" for i in range(40)]
            done = asyncio.Event()
            loads = [asyncio.create_task(posted(api, names[i::4], done)) for i in range(4)]

            async def end():
                done.set()
                return max(await asyncio.gather(*loads))

            await asyncio.sleep(0.5)
            yield end
    finally:
        await asyncio.to_thread(worker.stop)


async def test_requests_do_not_wait_for_their_deadline_when_a_slot_moves(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(subscription, "LOOK_S", 600.0)
    url, nodes = cluster
    async with under_load(url, tmp_path) as end:
        for _ in range(3):
            move = Move(nodes)
            move.begin()
            while await asyncio.to_thread(move.keys):
                pass
            move.end()
            await asyncio.sleep(0.5)
        assert await end() < SOON_S


async def test_requests_do_not_wait_for_their_deadline_when_subscriptions_are_cut(
    cluster, tmp_path
):
    url, nodes = cluster
    async with under_load(url, tmp_path) as end:
        for port in [*nodes.running] * 3:
            nodes.client(port).client_kill_filter(_type="pubsub")
            await asyncio.sleep(0.2)
        assert await end() < SOON_S
