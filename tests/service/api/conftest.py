"""A small real worker for the API's tests: reads the log, commits outcomes, computes nothing."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from types import SimpleNamespace

import httpx
import msgspec
import numpy as np
import pytest
import pytest_asyncio
import redis
from fastapi import FastAPI
from msgspec.structs import replace

from service import api_keys, wire
from service.api import app as app_module
from service.api import auth
from service.api import server as server_module
from service.api.app import create_app
from service.api.gateway import gateway, own_commands, store_monitor
from service.api.parsing.bodies import JSON
from service.api.routes import add_routes
from service.problems import (
    DimensionMismatch,
    KeyReused,
    LabelOutOfRange,
    SeqConflict,
    ServiceError,
    UnknownStream,
)
from service.runtime.process import listen
from service.schema import rendering
from service.settings import Settings
from service.store import feed, keys, reads
from service.store.api_keys import Keyring
from service.store.connection import connect
from service.store.log import DONE, Commit, Log, Offset
from service.store.streams import head_fields
from service.wire import rows
from service.worker.commit import PartitionCommits
from tests.clusters import running_valkey
from tests.stored import blob, block_of, record
from tests.waiting import PATIENCE_S, Clock, patient, until

PARTITIONS = 4
DEADLINE_S = 60.0  # of requests: longer than a busy machine stalls
ROUTES = {}  # by what of the settings they depend on
BAD_LABEL = 666.0  # refused when its turn comes
MISFIT = 777.0  # its whole command is refused


def add_routes_once(app, settings):
    """Routes: most of the time that an application takes to make, and the same in each."""
    chosen = settings.no_console, settings.metrics_key_required
    if chosen not in ROUTES:
        first = FastAPI(openapi_url=None)
        add_routes(first, settings)
        ROUTES[chosen] = first.router.routes
    app.router.routes.extend(ROUTES[chosen])


app_module.add_routes = add_routes_once


class FakeWorker:
    """Owns every partition and answers like the real one, with a running mean as model."""

    def __init__(self, url, partitions=PARTITIONS):
        self._client = connect(url)
        self._log = Log(self._client, "fake", 60_000, partitions)
        self._leases = {p: self._log.acquire(p) for p in range(partitions)}
        self._offsets = {p: lease.offset for p, lease in self._leases.items()}
        self._heads, self._remembered = {}, {}
        self._stop, self._turn = threading.Event(), threading.Lock()
        self.running = threading.Event()
        self.running.set()
        self.publish = True
        self.whole = True  # else only the ids of results are published
        self._results = {
            p: PartitionCommits(lease, 60.0, 1 << 30, 1000) for p, lease in self._leases.items()
        }
        self.hindsight = {}  # by stream, what a segmentation in hindsight finds
        self.commands, self.envelopes = [], []
        self.batches = []  # commands in each entry of the log
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self.running.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the fake worker waits for its store"
        with contextlib.suppress(redis.RedisError):
            for lease in self._leases.values():
                self._log.release(lease)
        self._client.close()

    def pause(self):
        """Apply nothing from now on, until `running` is set."""
        self.running.clear()
        with self._turn:  # what it may just be applying
            pass

    def _run(self):
        while not self._stop.is_set():
            self.running.wait()
            with self._turn:
                self._take()

    def _take(self):
        try:
            entries = self._log.read(self._offsets, 16, 20)
            if entries and self.running.is_set():
                self._log.commit([self._commit(p, entries[p]) for p in entries])
        except redis.RedisError:  # the test took the store away
            time.sleep(0.02)

    def _commit(self, partition, entries):
        effects, outcomes, done = [], {}, 0
        for entry in entries:
            batch = wire.decode_batch(entry.payload)
            self.batches.append(sum(rows.rows_of(each.command) for each in batch.envelopes))
            for envelope in batch.envelopes:
                for row, single in enumerate(singles(envelope)):
                    self.envelopes.append(single)
                    self.commands.append(single.command)
                    outcome, changes = self._apply(partition, single)
                    outcome.row = row
                    outcomes.setdefault(batch.incarnation, []).append(outcome)
                    effects += changes
                done += wire.units(envelope.command)
        results = self._results[partition].effects(outcomes)
        if self.publish and self.whole:
            effects += results
        else:
            self._store(results)
        lease, old = self._leases[partition], self._offsets[partition]
        new = self._offsets[partition] = Offset(entries[-1].id, DONE)
        return Commit(partition, lease.token, old, new, done, effects)

    def _store(self, results):
        """Store results without a message, or with one that has the id alone."""
        for _, key, _, _, *pieces in results:
            partition = re.search(r"{(\d+)}", key)[1]
            for place, piece in zip(pieces[::2], pieces[1::2], strict=True):
                self._client.xadd(key, {"b": piece}, id=place)
                if self.publish:
                    self._client.spublish(key, f"{partition} {place} 0\n")

    def _apply(self, partition, envelope):
        """The outcome of a command, and its effects."""
        command, effects = envelope.command, []
        try:
            if isinstance(command, wire.Observe):
                outcome, effects = self._observe(partition, command)
            else:
                status, body, effects = self._other(partition, command)
                outcome = wire.Outcome(0, status, body)
        except ServiceError as refusal:
            outcome = wire.Outcome(0, refusal.status, [refusal.render()])
        outcome.number = envelope.number
        return outcome, effects

    def _observe(self, partition, command):
        stream, remembered = command.stream, (command.stream, command.key, command.first)
        if command.key is not None and remembered in self._remembered:
            return self._repeat(command, *self._remembered[remembered])
        head, effects = self._heads.get(stream), []
        seq = head.seq if head else 0
        if command.seq not in (None, seq):
            raise SeqConflict("elsewhere", seq=seq)
        if any(observation.y == MISFIT for observation in command.observations):
            raise DimensionMismatch("y: does not fit", applied=0)
        if head is None:
            head, effects = self._create(partition, stream, {})
        outcome = wire.Outcome(0, 200, [], wire.Answers(head.settings.model, command.full, []))
        parts = outcome.answers.parts
        for observation in command.observations:
            if observation.y == BAD_LABEL:
                refusal = LabelOutOfRange("y: not this one", applied=len(parts))
                outcome.status = refusal.status
                outcome.body.append(refusal.render())
                break
            parts.append(answer(command, head.seq, observation))
            kept = record(head.seq, observation.y)
            kept.x, kept.time = observation.x, observation.time
            effects.append(("RPUSH", keys.tail(partition, stream), block_of(stream, kept)))
            head.seq += 1
        effects.append(("HSET", keys.heads(partition), *head_fields(stream, head)))
        if command.key is not None and outcome.status == 200:
            self._remembered[remembered] = (command.digest, outcome.answers)
        return outcome, effects

    def _repeat(self, command, digest, answers):
        if digest != command.digest:
            raise KeyReused("used with another body")
        return wire.Outcome(0, 200, [], answers, duplicate=True), []

    def _other(self, partition, command):
        stream = command.stream
        head, effects = self._heads.get(stream), []
        if isinstance(command, wire.SegmentHistory) and stream in self.hindsight:
            segments = blob(self.hindsight[stream], "hindsight", stream)
            return 204, [], [("HSET", keys.hindsight(partition), stream, segments)]
        if isinstance(command, wire.Configure):
            status = 200 if head else 201
            if head is None:
                head, effects = self._create(partition, stream, command.settings)
            else:
                head.settings = head.settings._replace(**command.settings)
                effects = [("HSET", keys.heads(partition), *head_fields(stream, head))]
            return status, [msgspec.json.encode(rendering.summary(stream, head))], effects
        if head is None:
            raise UnknownStream(f"there is no stream {stream!r}")
        if isinstance(command, wire.Delete):
            del self._heads[stream]
            effects = [
                ("HDEL", keys.heads(partition), *keys.head_fields([stream])),
                ("ZREM", keys.names(partition), stream),
                ("UNLINK", keys.tail(partition, stream)),
            ]
            return 204, [], effects
        return 200, [msgspec.json.encode({"stream": stream, "asked": type(command).__name__})], []

    def _create(self, partition, stream, settings):
        head = wire.Head(1, wire.StreamSettings(**{"model": "gaussian", **settings}))
        self._heads[stream] = head
        return head, [
            ("HSET", keys.heads(partition), *head_fields(stream, head)),
            ("ZADD", keys.names(partition), 0, stream),
        ]


def singles(envelope):
    """An envelope for each row of a command of many, or the envelope itself."""
    command = envelope.command
    if not isinstance(command, wire.ObserveMany):
        return [envelope]
    return [
        replace(envelope, command=rows.row_of(command, row, seen))
        for row, seen in enumerate(rows.observations_of(command))
    ]


def answer(command, seq, observation):
    """The answer to an observation, whose forecast is its own label."""
    if command.belief or not isinstance(observation.y, float):
        found = wire.StoredAnswer(seq, observation.time, mean=wire.numbers(observation.y))
        found.quantiles = {}
        if command.belief:
            found.run_length = wire.BeliefSummary(seq, float(seq), 1, 0.0)
            found.belief = ([seq], [1.0])
        return found
    numbers = np.zeros((1, wire.ONE_NUMBER.full))
    numbers[0, 0] = observation.y
    return wire.QuietAnswers(seq, wire.ONE_NUMBER.encoded(numbers, command.full))


def make_key(redis_url, name, *scopes, **extra):
    """Make a key as the command line does; returns its token."""
    key, token = api_keys.create(name, scopes, **extra)
    with connect(redis_url) as client:
        Keyring(client).add(key)
    return token


def slug(response):
    """Last part of the type of a problem document."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.json()["type"].rpartition("/")[2]


def located(response):
    """Places that a refusal of fields names."""
    assert (response.status_code, slug(response)) == (422, "invalid-field"), response.text
    return [error["loc"] for error in response.json()["errors"]]


async def post_raw(api, path, content, **headers):
    """Post bytes as JSON, whatever they are."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.post(path, content=content, headers={"Content-Type": JSON, **named})


@pytest.fixture
def settings(valkey_url, tmp_path, monkeypatch):
    # What a busy machine cannot do in time is not to be given up.
    for module in (auth, feed, reads, store_monitor):
        monkeypatch.setattr(module, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(own_commands, "HINDSIGHT_WAIT_S", PATIENCE_S)
    return Settings(
        redis_url=patient(valkey_url),
        models_dir=tmp_path / "models",
        partitions=PARTITIONS,
        request_deadline_s=DEADLINE_S,
        lease_ttl_ms=1000,
        key_cache_s=600.0,  # the table of keys is not read again while a test runs
        max_wait_s=0,  # what a busy machine cannot do in time is not to be shed
    )


@pytest.fixture
def worker(settings):
    """Run a fake worker on every partition."""
    with FakeWorker(settings.redis_url, settings.partitions) as worker:
        yield worker


@contextlib.asynccontextmanager
async def running(settings, **chosen):
    """Run the application in this event loop; yields a client, with the app as `client.app`."""
    app = create_app(settings.model_copy(update=chosen))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            client.app = app
            yield client


@pytest.fixture
def start():
    """Start an application with other settings than the usual ones."""
    return running


@pytest_asyncio.fixture
async def api(settings, worker):
    """Client of a running application with a worker."""
    async with running(settings) as client:
        yield client


@pytest.fixture
def store(settings):
    """Client of the store itself."""
    with connect(settings.redis_url) as client:
        yield client


@pytest.fixture
def clock(monkeypatch):
    """The clock of deadlines, grace and outages, which stands still until it is told to move."""
    clock = Clock()
    moved = SimpleNamespace(monotonic=clock, time=time.time, time_ns=time.time_ns)
    for module in (gateway, store_monitor):
        monkeypatch.setattr(module, "time", moved)
    monkeypatch.setattr(gateway, "SWEEP_S", 0.01)
    return clock


class Served:
    """The application behind its real server, in a thread of this process."""

    def __init__(self, settings):
        self.app = create_app(settings)
        self.server = server_module.Server(self.app, settings)
        self.server.config.timeout_graceful_shutdown = 600  # what waits for it fails
        self._listener = listen("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.server.started or not self._thread.is_alive())
        assert self.server.started

    def _run(self):
        self.server.run(sockets=[self._listener])

    def client(self, token=None):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, headers=headers, trust_env=False)

    def metric(self, name):
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.rpartition(" ")[0] == name)

    def stop(self):
        """Stop as on a signal."""
        self.server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server does not stop"
        self._listener.close()


@pytest.fixture
def served(settings, worker, monkeypatch):
    """Serve the application over HTTP with the given settings; may be called several times."""
    # It would freeze what other tests made.
    quiet = SimpleNamespace(
        collect=int, freeze=int, set_threshold=min, get_threshold=lambda: (1, 1)
    )
    monkeypatch.setattr(server_module, "gc", quiet)
    with contextlib.ExitStack() as stack:

        def serve(**chosen):
            service = Served(settings.model_copy(update=chosen))
            stack.callback(service.stop)
            return service

        yield serve


@pytest.fixture
def lonely_store():
    """A store of its own that can be killed and started again; it keeps what it had."""
    with running_valkey() as store:
        yield store


@contextlib.contextmanager
def worker_of(store):
    """Run a fake worker on a store that was killed with its last one."""
    with connect(store.url) as client:
        for partition in range(PARTITIONS):
            client.delete(keys.lease(partition))
    with FakeWorker(store.url) as worker:
        yield worker
