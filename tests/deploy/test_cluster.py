"""Stores of several servers: slots that move, nodes that die, and the service's own tests on them.

The contract of the store on a cluster is in tests/service/store.
"""

import asyncio
import contextlib
import itertools
import time

import pytest
import redis

from service.store import keys, subscription
from service.store.connection import connect, connect_async
from service.store.feed import Feeds
from service.store.health import check_server
from service.store.log import DONE, START, Appender, Commit, Log, Offset
from service.wire import Id
from tests.clusters import SlotMove, running_cluster, running_sentinels
from tests.e2e.deployment import (
    Load,
    check_as_uninterrupted,
    create_streams,
    series,
)
from tests.e2e.test_events import (  # noqa: F401
    test_consumers_and_followers_see_all_once_whatever_restarts,
)
from tests.e2e.test_kill import test_a_worker_is_killed_under_load  # noqa: F401
from tests.listening import listening
from tests.service.api.conftest import settings, start, worker  # noqa: F401
from tests.service.api.test_keys import (  # noqa: F401
    now,
    test_a_key_over_its_rate,
    test_a_revoked_key_counts_until_the_end_of_the_cache_and_no_longer,
)
from tests.service.webhooks.conftest import delivering, receiver, writer  # noqa: F401
from tests.service.webhooks.test_delivery import (  # noqa: F401
    test_a_second_process_waits_and_takes_over_in_order,
    test_wanted_events_are_posted_signed_and_in_order,
)
from tests.waiting import barring, until

pytestmark = pytest.mark.slow
P = 3
PARTITIONS = 64
SHARDED = [keys.results(p, "i") for p in range(PARTITIONS)]


async def test_appends_and_commits_follow_a_slot(cluster):
    url, nodes = cluster
    move = SlotMove(nodes, keys.log(P))
    async with connect_async(url) as append:
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
            await both
            entries = log.read({P: lease.offset}, 10, 0)[P]
            assert [entry.payload for entry in entries] == [b"a", b"b"]
            move.end()
            await appender.append(P, 3, 1, b"c")
            entries = log.read({P: lease.offset}, 10, 0)[P]
            assert [entry.payload for entry in entries] == [b"a", b"b", b"c"]
            assert log.renew([lease]) == [True]


def test_a_waiting_reader_follows_a_slot_and_a_dead_master_is_a_lost_connection(cluster):
    url, nodes = cluster
    move = SlotMove(nodes, keys.log(P))
    with connect(url) as client, connect(url) as writes:
        writes.xadd(keys.log(P), {"b": "a"})
        log = Log(client, "w", 60_000, 8)
        at = {P: Offset(log.read({P: Offset("0-0", DONE)}, 1, 0)[P][0].id, DONE)}
        assert log.read(at, 1, 50) == {}  # its blocking read goes on
        move.begin()
        move.keys()
        move.end()
        writes.xadd(keys.log(P), {"b": "b"})
        entries = until(lambda: log.read(at, 1, 200))
        assert entries[P][0].payload == b"b"
        nodes.kill(move.target)
        with pytest.raises(redis.RedisError):
            log.read(at, 1, 2000)
    with pytest.raises(redis.ConnectionError, match="cannot connect to the cluster"):
        connect("redis+cluster://127.0.0.1:1,127.0.0.1:2")


async def test_how_far_feeds_have_grown(redis_url):
    async with connect_async(redis_url) as client:
        feeds = Feeds(client, 8)
        assert await feeds.grown({}, 10) == {}
        ids = [await client.xadd(keys.feed(p), {"e": b"", "b": b"0-0"}) for p in (P, P + 1, P)]
        ends = {P: Id.parse(ids[2]), P + 1: Id.parse(ids[1])}
        assert await feeds.grown({}, 10) == ends == await feeds.newest()
        assert await feeds.grown({P: Id.parse(ids[0])}, 10) == ends
        assert await feeds.grown(ends, 10) == {}


async def test_behind_sentinels_the_new_master_is_found_and_nothing_is_sent_twice():
    with running_sentinels() as (url, nodes, master, replica), connect(url) as client:
        waiting = connect_async(url)
        check_server(client)
        assert client.info("server")["tcp_port"] == master
        client.set("a", "1")
        until(lambda: client.wait(1, 500) == 1)
        assert await waiting.get("a") == b"1"
        nodes.kill(master)
        with pytest.raises(redis.ConnectionError):
            client.set("b", "2")  # never sent again by itself
        await asyncio.to_thread(until, barring(redis.RedisError, lambda: client.set("b", "2")))
        assert client.info("server")["tcp_port"] == replica
        assert client.get("a") == b"1"
        with contextlib.suppress(redis.ConnectionError):  # of the old one, unless it is known
            await waiting.get("b")
        assert await waiting.get("b") == b"2"
        await waiting.aclose()


class Publisher:
    """Commits that publish, one message each."""

    def __init__(self, client):
        self.log = Log(client, "w", 60_000, PARTITIONS)
        self.leases = {p: self.log.acquire(p) for p in range(PARTITIONS)}
        self.count = itertools.count(1)

    def publish(self, channel, p):
        id_ = f"1-{next(self.count)}"
        answer = ("ANSWER", channel, 60_000, "1-1", id_, b"x")
        commit = Commit(p, self.leases[p].token, START, START, 0, [answer])
        assert self.log.commit([commit]) == ["OK"]
        return channel, f"{p} {id_} 1\nx".encode()


async def test_each_master_has_one_connection_with_the_channels_of_its_slots(cluster):
    url, nodes = cluster
    with connect(url) as client:
        async with listening(url, SHARDED) as found:
            assert sorted(found.recovered) == sorted(SHARDED)
            for port in nodes.running:
                node = nodes.client(port)
                (each,) = node.client_list("pubsub")
                mine = [c for c in SHARDED if port_of(client, c) == port]
                assert sorted(node.pubsub_shardchannels()) == sorted(mine)
                assert int(each["ssub"]) == len(mine) > 0


@pytest.mark.parametrize("look_s", [600.0, 0.2])
async def test_a_channel_follows_its_slot_and_other_servers_keep_theirs(
    cluster, look_s, monkeypatch, caplog
):
    monkeypatch.setattr(subscription, "LOOK_S", look_s)
    url, nodes = cluster
    move = SlotMove(nodes, keys.log(P))
    with connect(url) as client:
        publisher = Publisher(client)
        async with listening(url, SHARDED) as found:
            ids = [_pubsub(nodes, port) for port in nodes.running]
            found.recovered.clear()
            move.begin()
            while move.keys():
                pass
            move.end()
            await found.until(lambda: SHARDED[P] in found.recovered)
            await found.until(found.subscriptions.complete.is_set)
            last = publisher.publish(SHARDED[P], P)
            await found.until(lambda: last in found.messages)
            kept = [_pubsub(nodes, port) for port in nodes.running]
            assert sum(new == old for new, old in zip(kept, ids, strict=True)) == len(ids) - 2
    assert "connection lost" not in caplog.text


def port_of(client, key):
    """Port of the master that has a key."""
    return client.shards.pool_of(("GET", key)).connection_kwargs["port"]


def _pubsub(nodes, port):
    (each,) = nodes.client(port).client_list("pubsub")
    return each["id"]


async def test_a_killed_connection_recovers_the_partitions_of_its_master(cluster):
    url, nodes = cluster
    with connect(url) as client:
        publisher = Publisher(client)
        async with listening(url, SHARDED) as found:
            port = port_of(client, SHARDED[P])
            mine = {c for c in SHARDED if port_of(client, c) == port}
            found.recovered.clear()
            nodes.client(port).client_kill_filter(_type="pubsub")
            await found.until(lambda: set(found.recovered) >= mine)
            assert set(found.recovered) == mine
            sent = [publisher.publish(SHARDED[p], p) for p in range(PARTITIONS)]
            await found.until(lambda: sorted(found.messages) == sorted(sent))


async def test_channels_of_a_dead_master_are_subscribed_at_its_replica():
    with running_cluster(replicas=1) as (url, nodes), connect(url) as client:
        port = port_of(client, SHARDED[P])
        mine = {c for c in SHARDED if port_of(client, c) == port}
        async with listening(url, SHARDED) as found:
            # One that has not copied its master yet does not take its place.
            await found.until(lambda: all(_copied(nodes, each) for each in nodes.running))
            found.recovered.clear()
            nodes.kill(port)
            await found.until(lambda: set(found.recovered) >= mine)
            await found.until(found.subscriptions.complete.is_set)
            with connect(url) as again:
                publisher = Publisher(again)
                sent = [publisher.publish(SHARDED[p], p) for p in range(PARTITIONS)]
            await found.until(lambda: set(sent) <= set(found.messages))


def _copied(nodes, port):
    return nodes.client(port).info("replication").get("master_link_status", "up") == "up"


def test_a_master_is_killed_and_started_again(separate, shared_cluster):
    """What it had accepted is in its file; the others go on meanwhile."""
    _, nodes = shared_cluster
    create_streams(separate, "load", 20)
    load = Load(separate, series(20, 16), 100, retry=True)
    port = next(iter(nodes.running))

    def restart():
        nodes.kill(port)
        time.sleep(3)  # the others see it: without it the whole cluster refuses
        nodes.again(port)

    load.run_with((0.3, restart))
    check_as_uninterrupted(separate, load)


FAIL_OVERS = 5


def test_planned_fail_overs_lose_no_turn_no_lease_and_no_observation(processes):
    """Nothing is posted twice: a command that is answered by a redirection was not run."""
    with running_cluster(replicas=1) as (url, nodes):
        until(lambda: all(_copied(nodes, port) for port in nodes.running))
        api = processes.start_separate(url)
        processes.wait_for("owns 8 partitions", "worker-a", "worker-b")
        create_streams(api, "load", 20)
        load = Load(api, series(20, 150), 100)
        logs = {name: len(processes.log_of(name)) for name in ("worker-a", "worker-b")}

        def fail_over(turn):
            roles = {port: nodes.client(port).execute_command("ROLE") for port in nodes.running}
            replicas = [port for port, role in roles.items() if role[0] == "slave"]
            replica = replicas[turn % len(replicas)]
            answered = len(load.answers)
            nodes.client(replica).execute_command("CLUSTER FAILOVER")
            until(lambda: nodes.client(replica).execute_command("ROLE")[0] == "master")
            until(lambda: len(load.answers) > answered + 200)

        load.run_with((0.05, lambda: [fail_over(turn) for turn in range(FAIL_OVERS)]))
        check_as_uninterrupted(api, load)
        for name, length in logs.items():
            new = processes.log_of(name)[length:]
            for text in ("WARNING", "ERROR", "owns"):  # leases that come or go are logged
                assert text not in new, new
        processes.stop_all()
