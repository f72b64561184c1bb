"""Commands applied alone and named meanwhile: any order of events is as in a plain model."""

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


@pytest.fixture
def redis_url(valkey_url):
    return valkey_url


def named(client):
    """What the store holds of trials."""
    place, tries = client.hmget(keys.meta(P), ["trying", "tries"])
    assert (place is None) == (tries is None)
    return None if place is None else (place.decode(), json.loads(tries))


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
        (result,) = self.logs[0].commit([Commit(P, lease.token, expected, new, 0, [])])
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
        for token in list(self.trials):
            if token.startswith(f"{worker}/"):
                self._concluded(token, verdict)
        if held:
            self.holder = None

    def check(self, *_):
        trial = named(self.client)
        if not self.trials:
            assert trial is None
            return
        entry, index = self.place()
        assert trial[0] == f"{entry}:{index}"
        assert {token: began == 0 for token, began in trial[1].items()} == self.trials


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
KILLED = (*LIFE[:2], ("bury", 0, "failed"))
BURIED_LATE = (*LIFE, ("bury", 0, "failed"))
UNNAMED = (("acquire", 0, True), LIFE[2])


# All examples share the store, which each of them empties first.
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=20, suppress_health_check=SHARED)
@given(lives=STEPS)
@example(lives=[LIFE, LIFE, LIFE, LIFE])
@example(lives=[LIFE, LIFE, LIFE, LONG])
@example(lives=[FAILED, FAILED, FAILED, LIFE])
@example(lives=[FAILED, LIFE, (("end", 1, "innocent"),), LIFE])
@example(lives=[LONG, (("end", 0, "innocent"),), LONG, (("end", 1, "innocent"),), LONG, LONG])
@example(lives=[FAILED, (("end", 0, "innocent"),), FAILED, KILLED, LIFE])
@example(lives=[BURIED_LATE, BURIED_LATE, BURIED_LATE, LIFE])
@example(lives=[UNNAMED, UNNAMED, UNNAMED, UNNAMED, LONG])
def test_any_order_of_events_is_as_in_the_model(redis_client, lives):
    _follow(Model(redis_client), lives)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=SHARED)
@given(lives=STEPS)
def test_many_more_orders_of_events_are_as_in_the_model(redis_client, lives):
    _follow(Model(redis_client), lives)


def _follow(model, lives):
    """Workers count from the newest: 0 is the last one, the others come too late."""
    before = log_module.UNCERTAIN_MS
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
        for log in model.logs:
            log.close()
