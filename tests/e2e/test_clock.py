"""Clocks of real processes, and of their store, stepped by hours in both directions.

libfaketime (of the extra `test-all`) gives each process a wall clock that a file sets; clocks that
are never stepped stay as they are. An API alone, with many more steps: tests/service/worker.
"""

import importlib.util
import json
import os
import random
import time
from pathlib import Path

import httpx
import pytest

from service.store import keys
from service.store.connection import connect
from tests.clusters import running_server, valkey
from tests.e2e.calling import KNOWN, ask
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port
from tests.referees.sequential import Life, Seen
from tests.service.webhooks.conftest import Receiver
from tests.waiting import PATIENCE_S, until

HOUR_S = 3600
STEPS_S = (-30 * HOUR_S, -HOUR_S, -1, 0, 1, HOUR_S, 30 * HOUR_S)
APIS = ("api-a", "api-b")
WORKERS = ("worker-a", "worker-b")
PARTITIONS = 16
AGAIN = (429, 503, 504)
RATE = 5  # requests of a key for each hour

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libfaketime") is None, reason="libfaketime is not installed"
    ),
]


def library():
    """Path of what is loaded into a process before all else."""
    package = Path(importlib.util.find_spec("libfaketime").origin).parent
    return package / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


class Clocks:
    """Wall clocks of processes by name, by how far they are from that of the machine."""

    def __init__(self, folder):
        self._folder = folder

    def environment(self, name):
        """Variables of a process that give it a clock."""
        self.step(name, 0)
        return {
            "LD_PRELOAD": str(library()),
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / name),
        }

    def step(self, name, seconds):
        """Set a clock to so many seconds ahead of the machine's."""
        new = self._folder / f"{name}.new"
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._folder / name)


@pytest.fixture
def clocks(tmp_path):
    folder = tmp_path / "clocks"
    folder.mkdir()
    return Clocks(folder)


@pytest.fixture
def store(clocks):
    """URL of a server with a clock of its own."""
    environment = {**os.environ, **clocks.environment("store")}
    with running_server(valkey(), environment=environment) as url:
        yield url


@pytest.fixture
def deployment(tmp_path, clocks, store):
    """Two APIs and two workers, and clients of the APIs."""
    settings = {
        "MOCA_PARTITIONS": str(PARTITIONS),
        "MOCA_REDIS_URL": store,
    }
    with Processes(tmp_path, settings) as processes:
        processes.own = {name: clocks.environment(name) for name in APIS + WORKERS}
        for name in WORKERS:
            processes.start(name, "worker", "--worker-id", name)
        clients = []
        for name in APIS:
            port = free_port()
            processes.start(name, "api", "--port", str(port))
            clients.append(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S))
        for client in clients:
            wait_ready(str(client.base_url).rstrip("/"))
        processes.wait_for("owns 8 partitions", *WORKERS)
        yield processes, clients
        for client in clients:
            client.close()


class Poster:
    """Posts to streams under keys, and holds each answer against the sequential model."""

    def __init__(self, clients, patient):
        self.clients, self.patient = clients, patient
        self.rng = random.Random(3)
        self.lives = {f"s{i}": Life({**KNOWN, "location": 0.0, "scale": 1.0}) for i in range(6)}
        self.posted = []
        for name in self.lives:
            ask(clients[0], "PUT", name, 201, json=KNOWN)

    def post(self):
        """Post an observation to each stream, and an earlier one again."""
        for name, life in self.lives.items():
            y = self.rng.gauss(3.0 * (life.seq > 12), 1.0)
            body, key = {"y": y}, f"k{life.seq}"
            answer = self._ask(name, key, body)
            life.check(life.observe(Seen(y)), answer)
            assert not answer["duplicate"] or self.patient  # after a try without an answer
            self.posted.append((name, key, body, answer))
        name, key, body, first = self.rng.choice(self.posted)
        again = self._ask(name, key, body)
        assert again == {**first, "duplicate": True}

    def _ask(self, name, key, body):
        path = f"/v1/streams/{name}/observations?detail=full"
        headers = {"Idempotency-Key": key}

        def answered():
            client = self.rng.choice(self.clients)
            answer = client.post(path, json=body, headers=headers)
            assert answer.status_code == 200 or (self.patient and answer.status_code in AGAIN)
            return answer if answer.status_code == 200 else None

        return until(answered).json()

    def check(self):
        """Hold all that can be read against the model."""
        for name, life in self.lives.items():
            life.check_belief(ask(self.clients[0], "GET", f"{name}/run-length"))
            kept = ask(self.clients[1], "GET", f"{name}/history?detail=full")
            life.check_history(kept["observations"])


def tokens(store):
    """Who has each partition, since when."""
    with connect(store) as client:
        return client.mget([keys.lease(partition) for partition in range(PARTITIONS)])


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_a_key_ends_by_the_clock_of_the_api_that_is_asked(deployment, clocks, store):
    """Keys that do not end, and revocations, rest on no clock; rates on that of the store alone."""
    processes, clients = deployment

    def create(name, *more):
        return processes.run("keys", "create", name, "--scope", "read", *more).split()[0]

    def status(client, token):
        return client.get("/v1/streams", headers=bearer(token)).status_code

    lasting = create("lasting")
    ending = create("ending", "--expires", "10h")
    limited = create("limited", "--rate", f"{RATE}/hour")
    for client in clients:
        until(lambda client=client: client.get("/v1/streams").status_code == 401)
        until(lambda client=client: status(client, limited) in (200, 429))
    for seconds in (*STEPS_S, 0):
        clocks.step("api-a", seconds)
        assert [status(client, lasting) for client in clients] == [200, 200]
        assert status(clients[0], ending) == (401 if seconds > 10 * HOUR_S else 200)
        assert status(clients[1], ending) == 200
    clocks.step("api-a", -30 * HOUR_S)
    processes.run("keys", "revoke", "lasting")
    for client in clients:
        until(lambda client=client: status(client, lasting) == 401)
    for seconds in (2 * HOUR_S, -30 * HOUR_S, 30 * HOUR_S, 0):
        clocks.step("store", seconds)
        admitted = 0
        while (answer := clients[admitted % 2].get("/v1/streams", headers=bearer(limited))) and (
            answer.status_code == 200
        ):
            admitted += 1
        assert 1 <= admitted <= RATE  # a window of another hour, which is never exceeded
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= HOUR_S


def changes_of(receiver):
    """Stream and id of each change that was delivered, in the order in which they came."""
    posted = [json.loads(body)["data"] for *_, body, fate in list(receiver.calls) if fate == 200]
    changes = [change for data in posted for change in data.get("changes", [data])]
    return [(change["stream"], change["event"]["id"]) for change in changes]


def test_webhooks_are_delivered_while_clocks_are_stepped(deployment, clocks, store, tmp_path):
    """Each confirmed change comes at least once, those of a stream in order.

    The hook is new while the store's clock is a day ahead, and that is set back thereafter.
    """
    processes, clients = deployment
    processes.environment["PAGER"] = "whsec_" + "A" * 44
    processes.own["webhooks"] = clocks.environment("webhooks")
    hooks = tmp_path / "hooks.toml"
    names = [f"s{i}" for i in range(6)]
    for name in names:
        ask(clients[0], "PUT", name, 201, json=KNOWN)
    with Receiver() as receiver:
        hooks.write_text(
            "collect_s = 2\n"
            f'[[hook]]\nname = "pager"\nurl = "{receiver.url}/h"\nsecret_env = "PAGER"\n'
        )
        clocks.step("store", 24 * HOUR_S)
        options = ["--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1"]
        processes.start("webhooks", "webhooks", *options)
        with connect(store) as client:
            until(lambda: client.hexists(keys.WEBHOOKS, "pager"))
        clocks.step("store", 0)
        rng = random.Random(9)
        for turn in range(12):
            for name in names:
                body = [{"y": rng.gauss(6.0 * (turn % 2), 1.0)} for _ in range(12)]
                posted = {"json": body, "headers": {"Idempotency-Key": f"k{turn}"}}
                path = f"/v1/streams/{name}/observations"
                until(lambda p=path, b=posted: rng.choice(clients).post(p, **b).is_success)
            every = (*APIS, *WORKERS, "webhooks", "webhooks", "store")
            clocks.step(rng.choice(every), rng.choice(STEPS_S))
        expected = {
            name: [
                event["id"] for event in ask(clients[0], "GET", f"{name}/changepoints")["events"]
            ]
            for name in names
        }
        assert sum(map(len, expected.values())) > len(names)
        delivered = lambda: {*changes_of(receiver)}  # noqa: E731
        until(lambda: delivered() == {(name, id_) for name in names for id_ in expected[name]})
        for name in names:
            came = [id_ for stream, id_ in changes_of(receiver) if stream == name]
            assert list(dict.fromkeys(came)) == sorted(expected[name])


def test_clocks_of_apis_and_workers_are_stepped(deployment, clocks, store):
    """No request fails, no lease ends, and nothing expires that is not due."""
    processes, clients = deployment
    poster = Poster(clients, patient=False)
    ask(clients[0], "PUT", "short", 201, json={**KNOWN, "ttl": 300 * HOUR_S})
    held = tokens(store)
    assert None not in held
    rng = random.Random(5)
    for _ in range(30):
        clocks.step(rng.choice(APIS + WORKERS), rng.choice(STEPS_S))
        poster.post()
        ask(clients[0], "GET", "s0/run-length")  # a read has a deadline
    poster.check()
    assert tokens(store) == held
    ask(clients[0], "GET", "short")
    for name in WORKERS:  # their clocks expire nothing
        clocks.step(name, 1000 * HOUR_S)
    time.sleep(3)
    ask(clients[0], "GET", "short")
    clocks.step("api-a", 1000 * HOUR_S)
    until(lambda: clients[1].get("/v1/streams/short").status_code == 404)


def test_the_clock_of_the_store_is_stepped(deployment, clocks, store):
    """Leases end at once, or are kept; each observation is applied once, and in order."""
    processes, clients = deployment
    poster = Poster(clients, patient=True)
    for seconds in (HOUR_S, 0, 30 * HOUR_S, -HOUR_S, -30 * HOUR_S):
        poster.post()
        clocks.step("store", seconds)
        for _ in range(3):
            poster.post()
        until(lambda: None not in tokens(store))
    poster.check()
    time.sleep(3)  # leases are renewed by the clock of now
    processes.kill("worker-a")
    poster.post()
    processes.wait_for("owns 16 partitions", "worker-b")
    poster.check()
    with connect(store) as client:
        assert list(client.scan_iter("moca:*:quarantine")) == []
