"""Commands applied alone and named meanwhile: what stays of failures, and what follows of it."""

import json
from itertools import chain

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.store import keys
from service.store import log as log_module
from service.store.log import DONE, FAILURES, START, Commit, Log, Offset

pytestmark = pytest.mark.redis
P = 3
SIZE = 2  # commands of an entry
NEVER, AT_ONCE = 10**12, 0  # for UNCERTAIN_MS


def named(client):
    """What the store holds of trials."""
    place, tries = client.hmget(keys.meta(P), ["trying", "tries"])
    assert (place is None) == (tries is None)
    return None if place is None else (place.decode(), json.loads(tries))


def lose(log, client):
    """Let a worker vanish: its lease ends, and nobody knows why."""
    client.delete(keys.lease(P))
    return log.acquire(P)


def test_a_trial_is_named_until_its_commit(redis_client, log, add, make):
    first, _ = add(2)
    lease = log.acquire(P)
    assert named(redis_client) is None
    assert log.begin_trial(lease, first, 0)
    place, tries = named(redis_client)
    assert (place, list(tries)) == (f"{first}:0", [lease.token])
    assert log.commit([make(lease, Offset(first, 0))]) == ["OK"]
    assert named(redis_client) is None
    assert log.begin_trial(lease, first, 1)
    assert log.commit([make(lease, Offset(first, DONE), expected=Offset(first, 0))]) == ["OK"]
    assert named(redis_client) is None


def test_deaths_before_the_name_never_count(redis_client, log, add, monkeypatch):
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", AT_ONCE)
    add()
    for life in range(12):
        lease = lose(log, redis_client)
        assert (lease.attempts, lease.trials, lease.guilty) == (life, 0, False)


def test_workers_that_vanish_count_once_that_goes_on_for_long(redis_client, log, add, monkeypatch):
    (first,) = add()
    lease = log.acquire(P)
    for life in range(3 * FAILURES):
        assert (lease.trials, lease.guilty) == (life, False)
        assert log.begin_trial(lease, first, 0)
        lease = lose(log, redis_client)
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", AT_ONCE)
    assert lose(log, redis_client).guilty


def test_certain_failures_count_at_once(redis_client, log, other, add):
    (first,) = add()
    for failures in range(FAILURES):
        worker = (log, other)[failures % 2]
        lease = worker.acquire(P)
        assert (lease.trials, lease.guilty) == (failures, False)
        assert worker.begin_trial(lease, first, 0)
        assert worker.release(lease, clean=False, verdict="failed")
    assert log.acquire(P).guilty


def test_what_a_dead_worker_died_of_decides(redis_client, log, other, add):
    (first,) = add()
    for verdict in ["unknown"] * 4 + ["failed"] * FAILURES:
        lease = log.acquire(P)
        assert not lease.guilty
        log.begin_trial(lease, first, 0)
        assert other.release_worker("w1", verdict) == 1
    lease = other.acquire(P)
    assert (lease.trials, lease.guilty) == (4 + FAILURES, True)


def test_one_that_comes_back_too_late_takes_its_trial_back(
    redis_client, log, other, add, monkeypatch
):
    """Two workers are stopped past their leases in turn, in the middle of a trial."""
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", AT_ONCE)
    (first,) = add()
    lease, stopped = log.acquire(P), None
    for turn in range(10):
        me, they = (log, other)[turn % 2], (other, log)[turn % 2]
        assert not lease.guilty
        assert me.begin_trial(lease, first, 0)
        redis_client.delete(keys.lease(P))
        taken = they.acquire(P)
        if stopped is not None:
            assert not they.release(stopped, clean=False)  # its commit was FENCED
            assert stopped.token not in named(redis_client)[1]
        lease, stopped = taken, lease
    assert other.release(stopped, clean=False) is False
    assert named(redis_client) is None


def test_a_hang_that_was_reported_is_not_taken_back(redis_client, log, other, add):
    (first,) = add()
    lease = log.acquire(P)
    log.begin_trial(lease, first, 0)
    assert log.release(lease, clean=False, verdict="failed")  # the thread that renews
    assert not log.release(lease, clean=False)  # its loop, later
    assert named(redis_client)[1] == {lease.token: 0}
    assert other.acquire(P).trials == 1


def test_a_worker_without_the_lease_names_nothing(redis_client, log, other, add):
    (first,) = add()
    lease = log.acquire(P)
    redis_client.delete(keys.lease(P))
    assert not log.begin_trial(lease, first, 0)
    other.acquire(P)
    assert not log.begin_trial(lease, first, 0)
    assert named(redis_client) is None


def test_a_name_of_another_command_is_void(redis_client, log, add, make):
    """An earlier version's commit leaves the name."""
    first, second = add(2)
    lease = log.acquire(P)
    log.begin_trial(lease, first, 0)
    kept = redis_client.hmget(keys.meta(P), ["trying", "tries"])
    log.commit([make(lease, Offset(first, DONE))])
    redis_client.hset(keys.meta(P), mapping=dict(zip(["trying", "tries"], kept, strict=True)))
    lease = lose(log, redis_client)
    assert lease.trials == 0
    log.begin_trial(lease, second, 0)
    assert list(named(redis_client)[1]) == [lease.token]


def test_a_full_store_is_worked_off_with_trials(redis_client, log, add, make):
    (first,) = add()
    redis_client.config_set("maxmemory", 1)
    try:
        lease = log.acquire(P)
        assert log.begin_trial(lease, first, 0)
        assert log.commit([make(lease, Offset(first, DONE))]) == ["OK"]
        assert log.release(lease)
    finally:
        redis_client.config_set("maxmemory", 0)


class Model:
    """What the scripts should do, in the plainest terms; checks each answer against it."""

    def __init__(self, client):
        self.client = client
        client.flushall()
        self.logs = [Log(client, f"w{i}", 60_000, 4) for i in range(3)]
        self.entries, self.done = [], 0  # commands applied
        self.holder = None  # token
        self.leases = []  # all that ever were
        self.trials = {}  # of the next command: whether it failed for certain, by token

    def place(self):
        return self.entries[self.done // SIZE], self.done % SIZE

    def offset(self):
        if not self.done:
            return START
        index = (self.done - 1) % SIZE
        entry = self.entries[(self.done - 1) // SIZE]
        return Offset(entry, DONE if index == SIZE - 1 else index)

    def waits(self):
        return self.done < SIZE * len(self.entries)

    def add(self, *_):
        self.entries.append(self.client.xadd(keys.log(P), {"b": ""}).decode())

    def acquire(self, number, long):
        log_module.UNCERTAIN_MS = AT_ONCE if long else NEVER
        lease = self.logs[number % 3].acquire(P)
        assert (lease is None) == (self.holder is not None)
        if lease is None:
            return
        certain = sum(self.trials.values())
        enough = certain >= FAILURES or (long and len(self.trials) >= FAILURES)
        assert lease.offset == self.offset()
        assert (lease.trials, lease.guilty) == (len(self.trials), enough)
        self.holder = lease.token
        self.leases.append(lease)

    def begin(self, lease, _):
        if not self.waits():
            return
        ours = self.holder == lease.token
        assert self.logs[0].begin_trial(lease, *self.place()) == ours
        if ours:
            self.trials[lease.token] = False

    def commit(self, lease, _):
        if not self.waits():
            return
        expected = self.offset()
        self.done += 1
        new = self.offset()
        (result,) = self.logs[0].commit([Commit(P, lease.token, expected, new, 0, [], [])])
        ours = self.holder == lease.token
        assert result == ("OK" if ours else "FENCED")
        if ours:
            self.trials = {}
        else:
            self.done -= 1

    def end(self, lease, verdict):
        assert self.logs[0].release(lease, False, verdict) == (self.holder == lease.token)
        self._concluded(lease.token, verdict)
        if self.holder == lease.token:
            self.holder = None

    def _concluded(self, token, verdict):
        if verdict == "failed" and token in self.trials:
            self.trials[token] = True
        if verdict == "innocent" and self.trials.get(token) is False:
            del self.trials[token]

    def expire(self, *_):
        self.client.delete(keys.lease(P))
        self.holder = None

    def bury(self, number, verdict):
        worker = f"w{number % 3}"
        held = self.holder is not None and self.holder.startswith(f"{worker}/")
        assert self.logs[0].release_worker(worker, verdict) == held
        if held:
            self._concluded(self.holder, verdict)
            self.holder = None

    def check(self, *_):
        found = named(self.client)
        if not self.trials:
            assert found is None
            return
        entry, index = self.place()
        assert found[0] == f"{entry}:{index}"
        assert {token: began == 0 for token, began in found[1].items()} == self.trials


ENDS = st.one_of(
    st.just(("expire", 0, None)),
    st.tuples(st.just("end"), st.just(0), st.sampled_from(["innocent", "failed", "unknown"])),
    st.tuples(st.just("bury"), st.integers(0, 2), st.sampled_from(["failed", "unknown"])),
    st.tuples(st.just("commit"), st.just(0), st.none()),
)
LIVES = st.tuples(
    st.tuples(st.just("acquire"), st.integers(0, 2), st.booleans()),
    st.sampled_from([("begin", 0, None), ("begin", 0, None), ("check", 0, None)]),
    ENDS,
)
# By a worker that comes back too late, or does not know that another one is there.
LATE = st.tuples(
    st.sampled_from(["begin", "commit", "end"]),
    st.integers(1, 4),
    st.sampled_from(["innocent", "failed"]),
)
STEPS = st.lists(st.one_of(LIVES, LIVES, LIVES, st.tuples(LATE), st.just((("add", 0, None),))))
LIFE = (("acquire", 0, False), ("begin", 0, None), ("expire", 0, None))
FAILED = (*LIFE[:2], ("end", 0, "failed"))
LONG = (("acquire", 0, True), *LIFE[1:])


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(lives=STEPS)
@example(lives=[LIFE, LIFE, LIFE, LIFE])
@example(lives=[LIFE, LIFE, LIFE, LONG])
@example(lives=[FAILED, FAILED, FAILED, LIFE])
@example(lives=[FAILED, LIFE, (("end", 1, "innocent"),), LIFE])
def test_any_order_of_events_is_as_in_the_model(redis_client, lives):
    """Workers count from the newest: 0 is the last one, the others come too late."""
    before = log_module.UNCERTAIN_MS
    model = Model(redis_client)
    try:
        model.add()
        model.add()
        for name, number, more in chain(*lives):
            if name not in ("begin", "commit", "end"):
                getattr(model, name)(number, more)
            elif number < len(model.leases):
                getattr(model, name)(model.leases[-1 - number], more)
            model.check()
    finally:
        log_module.UNCERTAIN_MS = before
