"""A small real worker for the API's tests: reads the log, commits outcomes, computes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time

import httpx
import msgspec
import pytest
import pytest_asyncio

from service import views, wire
from service.api.app import create_app
from service.errors import KeyReused, LabelOutOfRange, SeqConflict, ServiceError, UnknownStream
from service.redis import keys
from service.redis.connection import connect
from service.redis.log import DONE, Commit, Log, Offset
from service.settings import Settings

PARTITIONS = 4
BAD_LABEL = 666.0  # what this worker refuses


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
        self.commands = []
        self.batches = []  # commands in each entry of the log
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._stop.set()
        self.running.set()
        self._thread.join()
        with contextlib.suppress(Exception):
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
            except Exception:
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
                self.commands.append(envelope.command)
                outcome, changes = self._apply(partition, envelope)
                outcomes.append(outcome)
                effects += changes
                key = keys.outcomes(partition, batch.incarnation, outcome.number)
                effects.append(("HSET", key, str(outcome.number), wire.encode(outcome)))
                done += len(getattr(envelope.command, "observations", []))
            if self.publish:
                publish.append((keys.reply_channel(batch.incarnation), wire.encode(outcomes)))
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
        except ServiceError as refusal:
            status = refusal.status
            answers = [*refusal.extra.pop("answers", []), refusal.render()]
            effects = refusal.extra.pop("effects", [])
        return wire.Outcome(envelope.number, status, answers), effects

    def _observe(self, partition, command):
        stream, remembered = command.stream, (command.stream, command.key, command.first)
        if command.key is not None and remembered in self._remembered:
            digest, answers = self._remembered[remembered]
            if digest != command.digest:
                raise KeyReused("used with another body")
            return [a.replace(b'"duplicate":false', b'"duplicate":true') for a in answers], []
        head = self._heads.get(stream)
        if command.seq is not None and command.seq != (head.seq if head else 0):
            raise SeqConflict("elsewhere", seq=head.seq if head else 0)
        effects = []
        if head is None:
            head, effects = self._create(partition, stream, {})
        answers = []
        for observation in command.observations:
            if observation.y == BAD_LABEL:
                refusal = LabelOutOfRange("y: not this one", applied=len(answers))
                refusal.document = _without_private(refusal)
                refusal.extra |= {"answers": answers, "effects": effects}
                raise refusal
            answers.append(self._answer(head, observation, command.belief))
            record = wire.Record(
                head.seq, observation.y, observation.x, observation.time, 1.0, None, 0.01, 0.0
            )
            effects.append(("HSET", keys.tail(partition, stream), str(head.seq), wire.encode(record)))
            head.seq += 1
        effects.append(("HSET", keys.heads(partition), stream, wire.encode(head)))
        if command.key is not None:
            self._remembered[remembered] = (command.digest, answers)
        return answers, effects

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
        if isinstance(command, wire.Configure):
            status = 200 if head else 201
            if head is None:
                head, effects = self._create(partition, stream, command.settings)
            else:
                head.settings = msgspec.structs.replace(head.settings, **command.settings)
                effects = [("HSET", keys.heads(partition), stream, wire.encode(head))]
            return status, [msgspec.json.encode(views.summary(stream, head))], effects
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


def _without_private(refusal):
    document = type(refusal).document(refusal)
    return lambda: document


@pytest.fixture
def settings(valkey_url, tmp_path):
    return Settings(
        redis_url=valkey_url,
        models_dir=tmp_path / "models",
        partitions=PARTITIONS,
        request_deadline_s=5.0,
    )


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


@pytest.fixture
def until():
    """Wait until something holds."""

    async def until(holds, within_s=5.0):
        give_up = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < give_up, "it did not come to hold"
            await asyncio.sleep(0.01)

    return until


@pytest.fixture
def infinity():
    return math.inf
