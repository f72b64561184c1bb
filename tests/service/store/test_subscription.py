"""Subscribed channels: heard once, and subscribed again whatever is lost."""

import asyncio

import pytest

from service.store import keys
from service.store.cluster import subscription
from service.store.log import START
from tests.listening import listening

pytestmark = pytest.mark.redis
P = 3
SHARDED = [keys.reply_channel(p, "i") for p in range(4)]
PLAIN = keys.plain_reply_channel("i")
CHANNELS = [*SHARDED, PLAIN]


@pytest.fixture
def publish(log, make):
    lease = log.acquire(P)

    def publish(*messages):
        assert log.commit([make(lease, START, publish=messages)]) == ["OK"]

    return publish


async def test_messages_of_a_commit_are_heard_once(redis_url, redis_client, publish):
    async with listening(redis_url, CHANNELS) as found:
        assert sorted(found.recovered) == sorted(CHANNELS)
        publish((SHARDED[P], b"\x00a"), (PLAIN, b"b"), (SHARDED[P], b"c"))
        publish((keys.reply_channel(P, "another"), b"x"), (SHARDED[P], b"d"))
        await found.until(lambda: len(found.messages) >= 4)
        assert found.messages == [b"\x00a", b"b", b"c", b"d"]
        assert sorted(found.recovered) == sorted(CHANNELS)
        assert len(redis_client.client_list("pubsub")) == 1


async def test_a_killed_connection_is_replaced_and_what_it_missed_recovered(
    redis_url, redis_client, publish, caplog
):
    async with listening(redis_url, CHANNELS) as found:
        for message in (b"a", b"b"):
            found.recovered.clear()
            assert redis_client.client_kill_filter(_type="pubsub") == 1
            await found.until(lambda: len(found.recovered) == len(CHANNELS))
            await found.until(found.subscriptions.complete.is_set)
            publish((SHARDED[P], message))
            await found.until(lambda m=message: m in found.messages)
        assert found.messages == [b"a", b"b"]
        assert caplog.text.count("connection lost") == 2


async def test_a_silent_connection_is_given_up(redis_url, redis_client, publish, monkeypatch):
    monkeypatch.setattr(subscription, "IDLE_S", 0.2)
    async with listening(redis_url, CHANNELS) as found:
        before = {each["id"] for each in redis_client.client_list("pubsub")}
        redis_client.client_pause(1500, all=True)
        await found.until(lambda: not found.subscriptions.complete.is_set())
        await found.until(found.subscriptions.complete.is_set)
        publish((SHARDED[P], b"a"))
        await found.until(lambda: found.messages == [b"a"])
        assert before.isdisjoint(each["id"] for each in redis_client.client_list("pubsub"))


async def test_a_quiet_connection_is_kept(redis_url, redis_client, publish, monkeypatch):
    monkeypatch.setattr(subscription, "IDLE_S", 0.1)
    async with listening(redis_url, CHANNELS) as found:
        (before,) = redis_client.client_list("pubsub")
        await asyncio.sleep(1.0)  # several PINGs, all answered
        publish((SHARDED[P], b"a"))
        await found.until(lambda: found.messages == [b"a"])
        assert [each["id"] for each in redis_client.client_list("pubsub")] == [before["id"]]


async def test_what_cannot_be_recovered_is_subscribed_again(redis_url, publish, monkeypatch):
    async with listening(redis_url, CHANNELS, failing=2) as found:
        assert found.failed == 2
        publish((SHARDED[P], b"a"))
        await found.until(lambda: found.messages == [b"a"])


async def test_many_partitions_share_one_connection(redis_url, redis_client):
    channels = [keys.reply_channel(p, "i") for p in range(1024)]
    async with listening(redis_url, channels) as found:
        assert sorted(found.recovered) == sorted(channels)
        (client,) = redis_client.client_list("pubsub")
        assert client["ssub"] == "1024"
