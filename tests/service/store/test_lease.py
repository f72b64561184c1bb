"""Offsets, leases, heartbeats, attempts, and repairs made when a lease is taken."""

import itertools
import threading
import time

import pytest
from redis.exceptions import ConnectionError as Unreachable

from service.store import keys
from service.store.connection import connect
from service.store.log import DONE, START, Commit, Log, Offset

pytestmark = pytest.mark.redis
P = 3
HEADS = keys.heads(P)


def test_offset_text_form():
    assert str(Offset("1690000000000-0", 3)) == "1690000000000-0:3"
    for offset in (START, Offset("5-18446744073709551615", DONE), Offset("7-1", 0)):
        assert Offset.parse(str(offset)) == offset
        assert Offset.parse(str(offset).encode()) == offset


def test_acquire_starts_at_the_beginning_and_counts_epochs(log):
    first = log.acquire(P)
    assert first[2:] == (1, START, 0, 0, False)
    assert first.token.startswith("w1/")
    assert log.acquire(P) is None
    assert log.release(first)
    second = log.acquire(P)
    assert second.epoch == 2
    assert second.token != first.token


def test_racing_acquires_have_one_winner(redis_url):
    found, barrier = [], threading.Barrier(8)

    def race(name):
        with connect(redis_url) as client:
            log = Log(client, name, 5000, 4)
            barrier.wait()
            found.append([log.acquire(p) for p in range(4)])

    threads = [threading.Thread(target=race, args=(f"w{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for p in range(4):
        assert sum(leases[p] is not None for leases in found) == 1


def test_a_lease_expires_and_renewing_prolongs_it(redis_client, other):
    log = Log(redis_client, "w1", ttl_ms=150, partitions=4)
    kept, lost = log.acquire(P), log.acquire(0)
    for _ in range(4):
        time.sleep(0.05)
        assert log.renew([kept]) == [True]
    assert other.acquire(P) is None
    taken = other.acquire(0)
    assert taken.epoch == 2
    assert log.renew([kept, lost]) == [True, False]
    assert not log.release(lost)
    assert other.renew([taken]) == [True]


def test_release_worker_drops_only_the_leases_of_that_worker(redis_client, log, other, add):
    like = Log(redis_client, "w11", 5000, 4)
    add()
    log.acquire(P)
    log.acquire(0)
    assert other.acquire(1)
    assert like.acquire(2)
    assert other.release_worker("w1") == 2
    assert other.acquire(P).attempts == 1  # the dead worker's attempt stays counted
    assert like.acquire(1) is None
    assert log.acquire(2) is None


def test_a_worker_id_may_not_look_like_a_token(redis_client):
    with pytest.raises(ValueError, match="'/'"):
        Log(redis_client, "a/b", 5000, 4)


def test_heartbeat_lists_the_living(log, other):
    assert other.heartbeat(60_000) == ["w2"]
    assert log.heartbeat(80) == ["w1", "w2"]
    time.sleep(0.12)
    assert other.heartbeat(60_000) == ["w2"]
    log.heartbeat(60_000)
    other.leave()
    assert log.heartbeat(60_000) == ["w1"]


def test_each_blamed_acquire_of_waiting_work_counts(log, add):
    add()
    seen = []
    for _ in range(4):
        seen.append(log.acquire(P).attempts)
        log.release_worker("w1")
    assert seen == [0, 1, 2, 3]


def test_an_idle_reacquire_never_counts(log, add):
    for _ in range(5):
        assert log.acquire(P).attempts == 0
        log.release_worker("w1")
    add()
    assert log.acquire(P).attempts == 0


def test_an_acquire_without_blame_does_not_count(log, add):
    add()
    log.acquire(P)
    for _ in range(5):
        log.release_worker("w1")
        assert log.acquire(P, blame=False).attempts == 1
    log.release_worker("w1")
    assert log.acquire(P).attempts == 1
    log.release_worker("w1")
    assert log.acquire(P).attempts == 2


def test_a_clean_release_forgets_attempts(log, add):
    add()
    log.acquire(P)
    log.release_worker("w1")
    log.release(log.acquire(P), clean=False)
    lease = log.acquire(P)
    assert lease.attempts == 2
    log.release(lease)
    assert log.acquire(P).attempts == 0


def test_a_moved_offset_forgets_attempts(log, add, make):
    first, _ = add(2)
    log.acquire(P)
    log.release_worker("w1")
    lease = log.acquire(P)
    assert lease.attempts == 1
    assert log.commit([make(lease, Offset(first, DONE))]) == ["OK"]
    log.release_worker("w1")
    assert log.acquire(P).attempts == 0


def test_effects_alone_do_not_forget_attempts(log, add, make):
    add()
    lease = log.acquire(P)
    assert log.commit([make(lease, START, ("HSET", HEADS, "a", b"1"))]) == ["OK"]
    log.release_worker("w1")
    assert log.acquire(P).attempts == 1


@pytest.mark.parametrize("gone", [True, False])
def test_a_rolled_back_log_is_moved_up_to_the_offset(redis_client, log, gone, add, make):
    lease = log.acquire(P)
    far = Offset("99999999999999-5", DONE)
    assert log.commit([make(lease, far)]) == ["OK"]
    log.release(lease)
    if not gone:
        redis_client.xadd(keys.log(P), {"b": "old"})
    assert log.acquire(P).offset == far
    assert log.rollbacks == 1
    (new,) = add()
    assert new == "99999999999999-6"
    assert log.read({P: far}, 10, 0)[P][0].id == new
    log.release_worker("w1")
    log.acquire(P)
    assert log.rollbacks == 1


def test_counters_that_drifted_are_put_right_when_nothing_waits(redis_client, log, add, make):
    first, second = add(2)
    redis_client.hset(keys.meta(P), mapping={"in": 50, "done": 3})
    lease = log.acquire(P)
    assert redis_client.hget(keys.meta(P), "done") == b"3"
    assert log.commit([make(lease, Offset(second, DONE), done=2)]) == ["OK"]
    log.release(lease)
    log.acquire(P)
    assert (redis_client.hget(keys.meta(P), "in"), redis_client.hget(keys.meta(P), "done")) == (
        b"50",
        b"50",
    )


def test_a_lease_that_could_not_be_given_back_is_no_hindrance(log, other, add, monkeypatch):
    """Its worker need not wait for its end once the store is back; another one has to."""
    add()
    lease, second = log.acquire(P), log.acquire(0)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_release_tokens", _away)
        log.give_up([lease, second])
        with pytest.raises(Unreachable):
            log.acquire(P)
    assert other.acquire(P) is None
    again = log.acquire(P, blame=False)
    assert (again.epoch, again.attempts) == (2, 1)  # the first attempt alone counts
    assert log.renew([lease, again]) == [False, True]
    log.give_up([])  # the other one, too
    assert other.acquire(0).epoch == 2
    assert log.acquire(0) is None
    assert log.renew([again]) == [True]


def test_a_lease_that_came_without_an_answer_is_given_back(log, other, add, monkeypatch):
    """A server that was stopped takes it when it comes to it: after the next try, even."""
    add()
    with monkeypatch.context() as patch:
        patch.setattr(log._acquire, "run", _away)
        with pytest.raises(Unreachable):
            log.acquire(P)
    (token,) = log._unsure[P]
    log.client.set(keys.lease(P), token, px=60_000)
    assert other.acquire(P) is None
    lease = log.acquire(P)
    assert lease is not None
    assert lease.token != token
    assert log.renew([lease]) == [True]
    assert not log._unsure[P]


def test_an_acquisition_without_an_answer_may_come_late(log, other, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(log._acquire, "run", _away)
        with pytest.raises(Unreachable):
            log.acquire(P)
    (token,) = log._unsure[P]
    with monkeypatch.context() as patch:  # it is carried out between release and acquisition
        run = log._acquire.run

        def late(client, call):
            client.set(keys.lease(P), token, px=60_000)
            return run(client, call)

        patch.setattr(log._acquire, "run", late)
        assert log.acquire(P) is None
    assert list(log._unsure[P]) == [token]
    assert log.acquire(P) is not None  # the next turn


def test_what_failures_left_is_given_back_without_taking_it_again(log, other, monkeypatch):
    """A worker that has its share elsewhere frees what it lost: others wait for it."""
    lease = log.acquire(P)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_release_tokens", _away)
        log.give_up([lease])
    with monkeypatch.context() as patch:
        patch.setattr(log._acquire, "run", _away)
        with pytest.raises(Unreachable):
            log.acquire(0)
    (token,) = log._unsure[0]
    log.client.set(keys.lease(0), token, px=60_000)
    assert other.acquire(0) is None
    log.give_back()
    assert other.acquire(P) is not None
    assert other.acquire(0) is not None


def test_an_acquisition_that_never_came_is_forgotten(log, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(log._acquire, "run", _away)
        with pytest.raises(Unreachable):
            log.acquire(P)
    log.give_back()
    assert log._unsure[P]
    now = time.monotonic()
    monkeypatch.setattr("service.store.log.time.monotonic", lambda: now + 61)
    log.give_back()
    assert not log._unsure[P]


def _away(*_, **__):
    raise Unreachable("gone")


# --- damaged bookkeeping --------------------------------------------------------------------------


def flips(text):
    for i, bit in itertools.product(range(len(text)), range(8)):
        yield text[:i] + bytes([text[i] ^ 1 << bit]) + text[i + 1 :]


NUMBERS = ["attempts", "attempt_offset", "in", "done", "epoch"]


@pytest.mark.parametrize("field", ["offset", "offset_copy", *NUMBERS])
def test_every_flipped_bit_of_the_bookkeeping(redis_client, log, add, field):
    """The offset is repaired; a number that is none stops nobody."""
    first, _ = add(2)
    lease = log.acquire(P)
    new = Offset(first, DONE)
    assert log.commit([Commit(P, lease.token, START, new, 1, [], [])]) == ["OK"]
    stored = redis_client.hgetall(keys.meta(P))
    log.release(lease)
    for bad in flips(stored[field.encode()]):
        redis_client.hset(keys.meta(P), mapping={**stored, field: bad})
        lease = log.acquire(P)
        assert lease.offset == new
        assert log.commit([Commit(P, lease.token, new, new, 0, [], [])]) == ["OK"]
        log.release(lease)


def test_an_offset_that_is_damaged_while_a_worker_owns_it(redis_client, log, add):
    first = add()
    lease = log.acquire(P)
    new = Offset(first[0], DONE)
    assert log.commit([Commit(P, lease.token, START, new, 1, [], [])]) == ["OK"]
    redis_client.hset(keys.meta(P), "offset", "9" + str(new)[1:])
    assert log.commit([Commit(P, lease.token, new, new, 0, [], [])]) == ["FENCED"]
    log.release(lease)
    assert log.acquire(P).offset == new


def test_an_offset_of_an_earlier_version_has_no_copy(redis_client, log, add, caplog):
    first = add()
    redis_client.hset(keys.meta(P), "offset", f"{first[0]}:-1")
    lease = log.acquire(P)
    assert lease.offset == Offset(first[0], DONE)
    log.release(lease)
    redis_client.hset(keys.meta(P), "offset", "nonsense")
    assert log.acquire(P).offset == Offset(first[0], DONE)
    redis_client.delete(keys.lease(P))
    redis_client.hdel(keys.meta(P), "offset_copy")
    redis_client.hset(keys.meta(P), "offset", "nonsense")
    assert log.acquire(P) is None
    assert "offset is damaged" in caplog.text
