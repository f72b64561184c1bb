"""The protocol keeps its promises in every interleaving, and the scripts do what its model does."""

import contextlib
import random
from typing import NamedTuple

import pytest
import redis

from service.store import keys
from service.store import log as real
from service.store.connection import connect_async
from service.store.log import Appender, Log
from tests.service.store.conftest import TTL_MS, P
from tests.service.store.protocol import (
    Acquire,
    Append,
    Broken,
    Commit,
    Offset,
    Release,
    Row,
    Store,
    explore,
    offset_after,
    start,
)

BOUND = 10


class Case(NamedTuple):
    """What is explored: commands, faults, those without a key, and the bound on what waits."""

    commands: int
    faults: int
    keyless: int = 0
    bound: int = 9


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 1),
        Case(2, 1, keyless=1, bound=1),
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (Case(3, 1), Case(3, 1, 1, 2), Case(2, 2), Case(2, 2, 1, 1))
        ),
    ],
)
def test_every_interleaving_keeps_the_promises(case):
    explored = explore(start(**case._asdict()))
    print(f"{case}: {explored}")
    assert explored.states > 5000


@pytest.mark.parametrize(
    ("defect", "promise"),
    [
        ("token", "committed while"),
        ("offset", "applied in the order"),
        ("number", "appended were"),
        ("reuse", "appended were|appended in the order|never ends"),
        ("trim", "lost"),
        ("key", "applied twice"),
    ],
)
def test_a_planted_defect_is_found(defect, promise):
    with pytest.raises(Broken, match=promise) as found:
        explore(start(2, 1, planted=defect))
    assert "sends" in str(found.value)  # the message has the steps that lead there


@pytest.mark.slow
def test_a_refusal_that_is_not_noted_is_found():
    """The first try was late, was refused when it was repeated, and was carried out after that."""
    with pytest.raises(Broken, match="command 1 was refused and appended"):
        explore(start(2, 2, bound=1, planted="refusal"))


# --- the scripts ----------------------------------------------------------------------------------


class Scripts:
    """The scripts in a store, behind the requests of the model."""

    def __init__(self, client, appenders):
        self.client = client
        self.logs = {name: Log(client, name, TTL_MS, 4) for name in "ab"}
        self.appenders = appenders
        self.tokens = {}  # of the model's, the real lease
        self.ids = ["0-0"]  # of the model's entries

    async def run(self, request):
        """Carry a request out; returns the reply in the model's terms."""
        if isinstance(request, Append):
            return await self.append(request)
        if isinstance(request, Acquire):
            lease = self.logs[request.token[0]].acquire(P)
            if lease is None:
                return None
            self.tokens[request.token] = lease
            return lease.epoch, self.model_offset(lease.offset)
        lease = self.tokens[request.token]
        log = self.logs[request.token[0]]
        if isinstance(request, Release):
            return log.release(lease)
        effects = [("HSET", keys.heads(P), str(row), b"") for row in request.rows]
        expected, new = self.offset(request.expected), self.offset(request.new)
        commit = real.Commit(P, lease.token, expected, new, len(request.rows), effects)
        (result,) = log.commit([commit])
        return result

    async def append(self, request):
        appender = self.appenders[request.incarnation]
        count, payload = len(request.commands), repr(request.commands).encode()
        try:
            appended = await appender.append(
                P, request.number, count, payload, repeated=request.repeated
            )
        except redis.ResponseError:
            return "late"
        if appended.entry is None:
            return "full"
        if appended.entry not in self.ids:
            self.ids.append(appended.entry)
        return self.ids.index(appended.entry)

    def renew(self, token):
        return self.logs[token[0]].renew([self.tokens[token]]) == [True]

    def offset(self, offset):
        return real.Offset(self.ids[offset.entry], offset.index)

    def model_offset(self, offset):
        return Offset(self.ids.index(offset.entry), offset.index)

    def state(self):
        """The same members as `seen` gives of the model."""
        lease = self.client.get(keys.lease(P))
        names = {held.token.encode(): token for token, held in self.tokens.items()}
        meta = self.client.hmget(keys.meta(P), ["epoch", "offset", "in", "done"])
        epoch, offset, appended, done = meta
        return {
            "lease": None if lease is None else names[lease],
            "epoch": int(epoch or 0),
            "offset": self.model_offset(real.Offset.parse(offset or "0-0:-1")),
            "waiting": int(appended or 0) - int(done or 0),
            "log": [
                (self.ids.index(id_.decode()), fields[b"b"].decode())
                for id_, fields in self.client.xrange(keys.log(P))
            ],
            "rows": {name.decode() for name in self.client.hkeys(keys.heads(P))},
        }


def seen(store):
    return {
        "lease": store.lease,
        "epoch": store.epoch,
        "offset": store.offset,
        "waiting": store.appended - store.done,
        "log": [(entry.id, repr(entry.commands)) for entry in store.log],
        "rows": {str(row) for row in store.rows},
    }


class Requests:
    """Random requests: of owners and of those that were, with right and wrong numbers."""

    def __init__(self, rng):
        self.rng = rng
        self.numbers = [0, 0]
        self.sent = []  # appends, to be sent again
        self.granted = []  # tokens
        self.offsets = [Offset()]  # those that there ever were
        self.command = 0

    def next(self, store):
        pick = self.rng.random()
        if pick < 0.35:
            return self.append()
        if pick < 0.5:
            return Acquire(f"{self.rng.choice('ab')}{len(self.granted)}")
        if not self.granted:
            return None
        # Mostly the newest token: an older one has nothing to say any more.
        token = self.granted[-1] if self.rng.random() < 0.8 else self.rng.choice(self.granted)
        if pick < 0.6:
            return Release(token)
        return self.commit(store, token)

    def append(self):
        if self.sent and self.rng.random() < 0.3:
            again = self.rng.choice(self.sent[-4:])  # or an earlier try that is late
            return again._replace(repeated=self.rng.random() < 0.5)
        incarnation = self.rng.randrange(2)
        self.numbers[incarnation] += 1
        commands = tuple(range(self.command, self.command + self.rng.randint(1, 3)))
        self.command += len(commands)
        request = Append(incarnation, self.numbers[incarnation], commands)
        self.sent.append(request)
        return request

    def commit(self, store, token):
        right = self.rng.random() < 0.75
        expected = store.offset if right else self.rng.choice(self.offsets)
        waiting = store.waiting(expected)
        if not waiting:
            return Commit(token, expected, store.offset, ())
        count = self.rng.randint(1, len(waiting))
        rows = tuple(Row(e.id, i, e.commands[i], False) for e, i in waiting[:count])
        return Commit(token, expected, offset_after(*waiting[count - 1]), rows)

    def note(self, request, reply, store):
        if isinstance(request, Acquire) and reply is not None:
            self.granted.append(request.token)
        if store.offset not in self.offsets:
            self.offsets.append(store.offset)


async def compare(scripts, seed, steps, planted=""):
    """Hold the scripts against the model on one random trace; returns what was replied."""
    rng = random.Random(seed)
    requests, store, replies = Requests(rng), Store(BOUND, frozenset(planted.split())), []
    for step in range(steps):
        if rng.random() < 0.03:
            scripts.client.delete(keys.lease(P))  # as its time ends it
            store = store._replace(lease=None)
        request = requests.next(store)
        if request is None:
            continue
        store, expected = store.run(request)
        reply = await scripts.run(request)
        requests.note(request, reply, store)
        where = f"seed {seed}, step {step}: {request}"
        assert reply == expected, where
        assert scripts.state() == seen(store), where
        if requests.granted:
            token = rng.choice(requests.granted)
            assert scripts.renew(token) == store.renew(token), where
        replies.append(reply if isinstance(reply, str | bool | None) else type(reply).__name__)
    return replies


@contextlib.asynccontextmanager
async def scripts_of(client, url):
    """The scripts, and two processes that append."""
    async with connect_async(url) as asynchronous:
        appenders = [Appender(asynchronous, f"i{i}", BOUND) for i in range(2)]
        scripts = Scripts(client, appenders)
        yield scripts
        for log in scripts.logs.values():
            log.close()


@pytest.mark.redis
@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.slow)], ids=["few", "many"]
)
async def test_the_scripts_do_what_the_model_does(redis_client, redis_url, seeds):
    replies = []
    for seed in seeds:
        redis_client.flushall()
        async with scripts_of(redis_client, redis_url) as scripts:
            replies += await compare(scripts, seed, 250)
    assert {"OK", "FENCED", "ALREADY", "late", "full", "tuple", "int", None} <= set(replies)


@pytest.mark.redis
@pytest.mark.parametrize("defect", ["token", "offset", "number", "trim", "refusal"])
async def test_scripts_that_lack_a_check_would_be_found(redis_client, redis_url, defect):
    async with scripts_of(redis_client, redis_url) as scripts:
        with pytest.raises(AssertionError, match="seed 0, step"):
            await compare(scripts, 0, 500, planted=defect)
