"""Subscribed channels: heard once, and subscribed again whatever is lost."""

import asyncio

import pytest

from service.store import keys, subscription
from service.store.log import START
from tests.listening import listening

pytestmark = pytest.mark.redis
P = 3
SHARDED = [keys.reply_channel(p, "i") for p in range(4)]


@pytest.fixture
def publish(log, make):
    lease = log.acquire(P)

    def publish(*messages):
        assert log.commit([make(lease, START, publish=messages)]) == ["OK"]

    return publish


@pytest.fixture
def one_server(topology):
    if topology[0].startswith("redis+cluster"):
        pytest.skip("tests/deploy has the same of each node of a cluster")


async def test_messages_of_a_commit_are_heard_once(redis_url, publish):
    async with listening(redis_url, SHARDED, failing=2) as found:
        assert found.failed == 2  # what cannot be recovered is subscribed again
        assert sorted(found.recovered) == sorted(SHARDED)
        publish((SHARDED[P], b"\x00a"), (SHARDED[P], b"c"))
        publish((keys.reply_channel(P, "another"), b"x"), (SHARDED[P], b"d"))
        await found.until(lambda: len(found.messages) >= 3)
        assert found.messages == [b"\x00a", b"c", b"d"]
        assert sorted(found.recovered) == sorted(SHARDED)


@pytest.mark.usefixtures("one_server")
async def test_a_killed_connection_is_replaced_and_what_it_missed_recovered(
    redis_url, redis_client, publish
):
    async with listening(redis_url, SHARDED) as found:
        for message in (b"a", b"b"):
            found.recovered.clear()
            assert redis_client.client_kill_filter(_type="pubsub") == 1
            await found.until(lambda: len(found.recovered) == len(SHARDED))
            await found.until(found.subscriptions.complete.is_set)
            publish((SHARDED[P], message))
            await found.until(lambda m=message: m in found.messages)
        assert found.messages == [b"a", b"b"]


@pytest.mark.usefixtures("one_server")
async def test_a_silent_connection_is_given_up_and_a_quiet_one_kept(
    redis_url, redis_client, publish, monkeypatch
):
    monkeypatch.setattr(subscription, "IDLE_S", 0.2)
    many = [keys.reply_channel(p, "i") for p in range(1024)]
    async with listening(redis_url, many) as found:
        (before,) = redis_client.client_list("pubsub")  # all on one connection
        assert before["ssub"] == "1024"
        # Not given up within the time of some PINGs: they are answered.
        await found.until(lambda: _pings(redis_client) >= 3)
        assert [each["id"] for each in redis_client.client_list("pubsub")] == [before["id"]]
        redis_client.client_pause(1500, all=True)
        await found.until(lambda: not found.subscriptions.complete.is_set())
        await found.until(found.subscriptions.complete.is_set)
        publish((SHARDED[P], b"a"))
        await found.until(lambda: found.messages == [b"a"])
        assert before["id"] not in {each["id"] for each in redis_client.client_list("pubsub")}


def _pings(client):
    return client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]


async def test_nothing_is_left_when_it_ends(redis_url):
    async with listening(redis_url, SHARDED) as found:
        assert found.subscriptions.complete.is_set()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
