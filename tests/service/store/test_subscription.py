"""Subscribed channels: heard once, and subscribed again whatever is lost."""

import asyncio
import itertools

import pytest

from service.store import keys, subscription
from service.store.log import START
from tests.listening import listening
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.redis
P = 3
SHARDED = [keys.results(p, "i") for p in range(4)]


@pytest.fixture
def publish(log, make):
    lease = log.acquire(P)
    numbers = itertools.count(1)

    def publish(*messages):
        answers = [("ANSWER", key, 60_000, "1-1", f"1-{next(numbers)}", m) for key, m in messages]
        assert log.commit([make(lease, START, *answers)]) == ["OK"]

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
        publish((keys.results(P, "another"), b"x"), (SHARDED[P], b"d"))
        await found.until(lambda: len(found.messages) >= 2)
        # What one commit has for a process is one message.
        of_commits = (b"3 1-1 2 3 1-2 1\n\x00ac", b"3 1-4 1\nd")
        assert found.messages == [(SHARDED[P], message) for message in of_commits]
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
            await found.until(lambda m=message: any(m in heard for _, heard in found.messages))
        expected = (b"3 1-1 1\na", b"3 1-2 1\nb")
        assert found.messages == [(SHARDED[P], message) for message in expected]


@pytest.mark.usefixtures("one_server")
async def test_a_silent_connection_is_given_up_and_a_quiet_one_kept(
    redis_url, redis_client, publish, monkeypatch
):
    monkeypatch.setattr(subscription, "IDLE_S", 0.2)
    # A busy machine may answer late; a server that hangs does not.
    monkeypatch.setattr(subscription, "ANSWER_S", PATIENCE_S)
    many = [keys.results(p, "i") for p in range(1024)]
    async with listening(redis_url, many) as found:
        (before,) = redis_client.client_list("pubsub")  # all on one connection
        assert before["ssub"] == "1024"
        # Not given up within the time of some PINGs: they are answered.
        pings = _pings(redis_client)
        await found.until(lambda: _pings(redis_client) >= pings + 3)
        assert [each["id"] for each in redis_client.client_list("pubsub")] == [before["id"]]
        monkeypatch.setattr(subscription, "ANSWER_S", 0.2)
        redis_client.client_pause(1500, all=True)
        await found.until(lambda: not found.subscriptions.complete.is_set())
        monkeypatch.setattr(subscription, "ANSWER_S", PATIENCE_S)
        await found.until(found.subscriptions.complete.is_set)
        publish((SHARDED[P], b"a"))
        await found.until(lambda: found.messages == [(SHARDED[P], b"3 1-1 1\na")])
        assert before["id"] not in {each["id"] for each in redis_client.client_list("pubsub")}


def _pings(client):
    return client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]


async def test_nothing_is_left_when_it_ends(redis_url):
    async with listening(redis_url, SHARDED) as found:
        assert found.subscriptions.complete.is_set()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
