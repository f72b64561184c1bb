"""The connection that a worker keeps for its reads and commits."""

import pytest
import redis

from service.store import keys, pipe
from service.store.connection import connect
from service.store.log import DONE, START, Log, Offset
from service.store.pipe import Pipe
from tests.faults import REPLIES, REQUESTS, Proxy

pytestmark = pytest.mark.redis
P = 3


@pytest.fixture
def proxy(valkey_url):
    found = Proxy(valkey_url)
    yield found
    found.close()


def test_commands_are_carried_out_in_order_and_together(redis_client):
    found = Pipe(redis_client)
    first = found.put([("INCR", "a"), ("INCR", "a")])
    second = found.put([("INCR", "a")])
    assert redis_client.get("a") is None
    assert found.call(("GET", "a")) == b"3"
    assert (first, second) == ([1, 2], [3])
    found.close()


def test_an_error_of_the_server_is_a_reply(redis_client):
    found = Pipe(redis_client)
    replies = found.put([("SET", "a", "x"), ("INCR", "a"), ("SET", "b", "y")])
    assert found.call(("GET", "b")) == b"y"
    assert isinstance(replies[1], redis.ResponseError)
    assert replies[::2] == [b"OK", b"OK"]
    found.close()


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
def test_a_commit_whose_connection_is_lost_raises_and_the_next_call_gets_its_own_reply(
    proxy, make, direction
):
    """What the lost connection owed is nobody's: not even the reply of a later call."""
    with connect(proxy.url) as client:
        log = Log(client, "w1", 60_000, 4)
        lease = log.acquire(P)
        assert log.commit([make(lease, START)]) == ["OK"]  # the server knows the script now
        results = log.begin_commit([make(lease, Offset("1-0", DONE))])
        proxy.lose(direction)
        with pytest.raises(redis.TimeoutError):
            log.read({P: START}, 1, 0)
        proxy.heal()
        client.xadd(keys.log(P), {"b": b"x"}, id="5-0")
        assert [entry.id for entry in log.read({P: Offset("1-0", DONE)}, 5, 0)[P]] == ["5-0"]
        with pytest.raises(redis.ConnectionError, match="lost before"):
            results()
        again = log.commit([make(lease, Offset("1-0", DONE))])
        assert again == (["OK"] if direction == REQUESTS else ["ALREADY"])
        log.close()


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew(
    redis_client, make, monkeypatch
):
    monkeypatch.setattr(pipe, "LENT_S", 0.0)
    log = Log(redis_client, "w1", 60_000, 4)
    lease = log.acquire(P)
    assert log.commit([make(lease, Offset("1-0", DONE))]) == ["OK"]
    redis_client.client_kill_filter(_type="normal", skipme=True)
    late = make(lease, Offset("2-0", DONE), expected=Offset("1-0", DONE))
    assert log.commit([late]) == ["OK"]
    log.close()


def test_a_read_finds_what_the_commit_before_it_left(log, add, make):
    first, second, third = (Offset(entry, DONE) for entry in add(3))
    lease = log.acquire(P)
    assert log.commit([make(lease, first)]) == ["OK"]  # the server knows the script now
    results = log.begin_commit([make(lease, second, expected=first)])
    assert [entry.id for entry in log.read({P: START}, 5, 0)[P]] == [third.entry]
    assert results() == ["OK"]


def test_scripts_that_the_server_forgot_while_a_read_waits(redis_client, log, add, make):
    (first,) = add()
    lease = log.acquire(P)
    redis_client.script_flush()
    results = log.begin_commit([make(lease, Offset(first, DONE), done=1)])
    assert len(log.read({P: START}, 5, 0)[P]) == 1
    assert results() == ["OK"]
    assert log.read({P: START}, 5, 0) == {}
