"""A store, its real log, and workers that are stepped turn by turn in the test's own thread."""

import asyncio
import json
import math
import random
import time
from collections import Counter
from functools import partial
from typing import NamedTuple

import msgspec
import pytest
import redis
import torch

from model_core import compiled
from model_core.upm.conjugate import Gaussian
from service import wire
from service.models.catalogue import Catalogue
from service.schema import rendering
from service.settings import Settings
from service.store import feed, keys
from service.store.connection import connect, connect_async
from service.store.health import fix_partitions
from service.store.log import entry_of
from service.store.reads import AsyncStore
from service.store.shards import script
from service.store.streams import (
    BLOCK,
    blocks_of,
    decoded,
    head_of,
    records_of,
    rows_of,
    stored_head,
    values_of,
)
from service.wire import (
    Import,
    Observation,
    Observe,
    ObserveMany,
    RunLength,
    rows,
    snapshot,
    stored_records,
)
from service.worker import worker as loop
from service.worker.worker import Worker
from tests.answers import close
from tests.packing import pack
from tests.waiting import PATIENCE_S, patient

INCARNATION = "api0"
NOW_MS = int(time.time() * 1000)  # of all benches: records have it
STAGED = "0123"  # token of a snapshot to import


# Details that an answer leaves out where it has none.
DETAILS = ("log_score", "changepoint_probability", "recent_change_probability", "run_length")
NOTHING = dict.fromkeys(DETAILS)


class Queued(NamedTuple):
    """A command that is to be appended, as an API process has it."""

    number: int
    units: int
    payload: bytes
    rows: int = 1


class Rendered(NamedTuple):
    """An outcome as the API answers it: JSON of each answer, and last of a refusal.

    Details that are left out are null.
    """

    number: int
    status: int
    body: list[bytes]
    stored: wire.Outcome


def by_row(outcome):
    """The outcome of each row that an outcome is for."""
    quiet = outcome.quiet
    if quiet is None:
        yield from [outcome] * outcome.rows
        return
    size = quiet.layout.row_bytes(quiet.full)
    for i, first in enumerate(quiet.firsts):
        season = None if quiet.seasons is None else quiet.seasons[i]
        rows = quiet.rows[size * i : size * (i + 1)]
        own = wire.QuietAnswers(first, rows, quiet.layout, season)
        answers = wire.Answers(quiet.model, quiet.full, [own])
        yield wire.Outcome(outcome.number, outcome.status, [], answers)


def rendered(number, command, outcome):
    """An outcome as the API answers it."""
    # What a backup brought with it is of no command here.
    answers = [] if command is None else rendering.answers(command, outcome)
    if command is not None:
        assert rendering.texts(command, outcome) == [*map(msgspec.json.encode, answers)]
    nothing = NOTHING if outcome.answers is not None and outcome.answers.full else {}
    body = [msgspec.json.encode(nothing | msgspec.to_builtins(answer)) for answer in answers]
    body += outcome.body
    return Rendered(number, outcome.status, body, outcome)


class Bench:
    """Appends commands as the API does and steps workers until they are answered."""

    def __init__(self, url, models_dir, **settings):
        exact = {"idempotency_keep_s", "max_results_bytes", "resident_bytes"} & settings.keys()
        loose = {name: settings.pop(name) for name in exact}
        plain = {"partitions": 2, "lease_ttl_ms": 60_000, "request_deadline_s": 180.0, **settings}
        bounded = Settings(redis_url=url, models_dir=models_dir, **plain)
        self.settings = bounded.model_copy(update=loose)  # below their bounds, too
        self.client = connect(url)
        self.numbers, self.batches = 0, Counter()
        self.now_ms = NOW_MS
        self.default_model = "gaussian"
        self.full = True  # answers have their details
        self.quiet_days = None
        self.planned = None  # windows of the calendar that are in force
        self._read, self._answers = {}, {}  # of the results, by partition
        self._commands = {}  # by number
        self._worker: Worker | None = None
        self._workers: list[Worker] = []

    # --- workers ------------------------------------------------------------------------------

    def new_worker(self) -> Worker:
        worker = Worker(self.settings)
        fix_partitions(worker.client, self.settings.partitions)
        self._workers.append(worker)
        return worker

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            self._worker = self.new_worker()
        return self._worker

    def turn(self, worker=None, maintain=True):
        """One turn of a worker's loop; it looks for partitions each time, unless told not to."""
        worker = worker or self.worker
        if maintain:
            worker._maintained = 0.0
        with torch.inference_mode():
            worker._turn()

    def stop(self):
        """Stop the worker cleanly."""
        restore_commit(self.worker.log)  # a test's faults
        with torch.inference_mode():
            self.worker._hand_over()
        self._worker = None

    def crash(self):
        """Lose the worker without a word; its leases end."""
        worker, self._worker = self.worker, None
        worker._committer.close()  # what is under way ends before the leases do
        worker.log.release_worker(worker.id)
        worker.log.leave()

    def close(self):
        for worker in self._workers:
            worker._committer.close()
            worker.client.close()
        self.client.close()

    # --- commands -----------------------------------------------------------------------------

    def partition(self, stream):
        return keys.partition_of(stream, self.settings.partitions)

    def append(self, *commands, deadline_ms=0):
        """Append the commands of one partition as one entry; returns their numbers."""
        for command in commands:
            if isinstance(command, Observe | ObserveMany):
                command.full = self.full
        first = commands[0]
        name = first.streams[0] if isinstance(first, ObserveMany) else first.stream
        partition = self.partition(name)
        numbers = range(self.numbers, self.numbers + len(commands))
        self.numbers += len(commands)
        self._commands.update(zip(numbers, commands, strict=True))
        envelopes = [
            wire.Envelope(
                number=n,
                time_ms=self.now_ms,
                deadline_ms=deadline_ms,
                default_model=self.default_model,
                command=command,
                quiet_days=self.quiet_days,
                planned=self.planned,
            )
            for n, command in zip(numbers, commands, strict=True)
        ]
        queued = [
            Queued(
                each.number,
                wire.units(each.command),
                wire.encode(each),
                rows.rows_of(each.command),
            )
            for each in envelopes
        ]
        payload, sums = entry_of(partition, INCARNATION, queued)
        count = sum(wire.units(command) for command in commands)
        names = [keys.append(partition, INCARNATION), keys.meta(partition), keys.log(partition)]
        no = self.batches[partition]
        self.batches[partition] += 1
        arguments = [10**9, 3_600_000, no, count, payload, sums, 0]
        self.client.execute_command(*script("append", names, arguments))
        return [(partition, n) for n in numbers]

    def outcome(self, partition, number, row=0):
        """The outcome of a command, or of one of its rows, if it has one."""
        self._read_results(partition)
        return self._answers.get((partition, number, row))

    def _read_results(self, partition):
        """Keep what a partition's results have that was not read yet."""
        key = keys.results(partition, INCARNATION)
        for id_, fields in self.client.xrange(key, min=f"({self._read.get(partition, '0-0')}"):
            place = self._read[partition] = id_.decode()
            outcomes = wire.decode_results(
                wire.checked(fields[b"b"], "results", INCARNATION, place)
            )
            for each in outcomes:
                for row, own in enumerate(by_row(each), each.row):
                    answered = rendered(each.number, self._command(each.number, row), own)
                    place = (partition, each.number, row)
                    first = self._answers.setdefault(place, answered)
                    assert first == answered, "answered twice, and not alike"

    def _command(self, number, row):
        """The command of an outcome, or what a row of it stands for."""
        command = self._commands.get(number)
        if not isinstance(command, ObserveMany):
            return command
        return rows.row_of(command, row, rows.observations_of(command)[row])

    def outcomes(self, numbers):
        """Step the worker until every command is answered."""
        places = [(*number, 0)[:3] for number in numbers]  # of a command, or of one of its rows
        partitions = {place[0] for place in places}
        turn = 0
        end = math.inf  # patience begins after the first turn, which may load a kernel
        while True:
            for partition in partitions:
                self._read_results(partition)
            if all(place in self._answers for place in places):
                return [self._answers[place] for place in places]
            assert time.monotonic() < end, f"no answer after {PATIENCE_S:g} s"
            self.turn(maintain=turn % 4 == 0)
            turn += 1
            end = min(end, time.monotonic() + PATIENCE_S)

    def send(self, *commands, **options):
        """Append in one entry, and wait for the outcomes."""
        return self.outcomes(self.append(*commands, **options))

    def append_rows(self, *commands):
        """Append observations of distinct streams as one command; returns a place for each."""
        ((partition, number),) = self.append(pack(commands))
        return [(partition, number, row) for row in range(len(commands))]

    def send_rows(self, *commands):
        """Append as `append_rows`, and wait for the outcomes."""
        return self.outcomes(self.append_rows(*commands))

    def ask(self, command, status=200):
        """One command's JSON answer."""
        (outcome,) = self.send(command)
        assert outcome.status == status, outcome
        return json.loads(outcome.body[-1]) if outcome.body else None

    def observe(self, stream, labels, status=200, part=32, **more):
        """Post labels (or Observations) in lists; returns the answers."""
        seen = [y if isinstance(y, Observation) else Observation(y=y) for y in labels]
        answers = []
        for i in range(0, len(seen), part):
            (outcome,) = self.send(Observe(stream, seen[i : i + part], **more))
            assert outcome.status == status, outcome
            answers += map(json.loads, outcome.body)
        return answers

    def believed(self, stream):
        """Probabilities of run lengths."""
        belief = self.ask(RunLength(stream))["belief"]
        return {hypothesis["run_length"]: hypothesis["probability"] for hypothesis in belief}

    # --- what is stored -----------------------------------------------------------------------

    def stored(self, stream):
        """Every key of a stream: head, tail, checkpoint, events, idempotency."""
        p = self.partition(stream)
        hashes = ("events", "idempotency")
        stored = {name: self.client.hgetall(keys.HASHES[name](p, stream)) for name in hashes}
        stored["checkpoint"] = self.client.hget(keys.checkpoints(p), stream)
        stored["tail"] = self.tail(stream)
        stored["head"] = self._stored_head(stream)
        stored["named"] = self.client.zscore(keys.names(p), stream) is not None
        return stored

    def everything(self, streams):
        """All that is stored of the streams, but for when the log took it.

        Rows one by one: those that are committed together lie in blocks together.
        """
        stored = {name: self.stored(name) for name in streams}
        known = [name for name in streams if stored[name]["head"]]
        for name in known:
            own = stored[name]
            blobs = blocks_of(name, own["head"], own["tail"])
            _, rows = rows_of(name, blobs, self.head(name).oldest)
            own["tail"] = stored_records.singly(rows)
            position, _ = stored_records.split_position(own["head"].position)
            own["head"] = own["head"]._replace(position=position)
        partitions = range(self.settings.partitions)
        return {
            "stored": stored,
            "heads": [self.head(name) for name in known],
            "records": [self.records(name) for name in known],
            "anomalies": [self.anomalies(name) for name in known],
            "feed": [[entry.raised for entry in self.feed(name)] for name in streams],
            "due": [self.client.zrange(keys.due(p), 0, -1, withscores=True) for p in partitions],
        }

    def tail(self, stream):
        """Blocks of the tail, as stored."""
        return self.client.lrange(keys.tail(self.partition(stream), stream), 0, -1)

    def head(self, stream):
        """The stored head, which is the worker's too where nothing waits."""
        head = head_of(stream, self._stored_head(stream))
        place = (self.partition(stream), stream)
        loaded = self._worker.engine.streams.get(place) if self._worker else None
        if loaded is not None and loaded.alive and loaded.idle and not loaded.broken:
            assert loaded.head == head
        return head

    def _stored_head(self, stream):
        fields = keys.head_fields([stream])
        return stored_head(*self.client.hmget(keys.heads(self.partition(stream)), fields))

    def events(self, stream):
        blobs = self.client.hgetall(keys.events(self.partition(stream), stream))
        events = values_of("events", stream, blobs)
        changes = [event for event in events if event.kind == "change"]
        return sorted(changes, key=lambda event: event.id)

    def anomalies(self, stream):
        """Anomaly events as stored."""
        return asyncio.run(self._store(lambda store: store.events(stream, {"anomaly"})))

    def feed(self, stream=None):
        """Entries of the feed: of every stream, or of one."""
        entries = [
            feed.entry_of(p, id_, fields)
            for p in range(self.settings.partitions)
            for id_, fields in self.client.xrange(keys.feed(p))
        ]
        return [each for each in entries if stream in (None, each.raised.stream)]

    def hindsight(self, stream):
        """The stored segmentation in hindsight, if any, after its checksum."""
        blob = self.client.hget(keys.hindsight(self.partition(stream)), stream)
        return blob and decoded(wire.decode_hindsight, blob, "hindsight", stream)

    def export(self, stream):
        """A snapshot, as the API makes it."""
        exported = asyncio.run(self._store(lambda store: store.snapshot(stream)))
        catalogue = Catalogue(self.settings.models_dir)
        model = exported.head.settings.model
        exported.model_digest = exported.model_digest or catalogue.digest(model)
        return snapshot.dump(exported)

    def put(self, stream, blob, status=201):
        """Import a snapshot, as the API does."""
        asyncio.run(self._store(lambda store: store.stage(stream, STAGED, blob)))
        return self.ask(Import(stream, STAGED), status=status)

    def records(self, stream):
        """Retained records as the API reads them; checked."""
        head = self.head(stream)
        blobs = blocks_of(stream, self._stored_head(stream), self.tail(stream))
        records = records_of(stream, blobs)
        first = records[0].seq if records else head.seq
        assert [record.seq for record in records] == [*range(first, head.seq)]
        assert first <= head.oldest < first + BLOCK  # a block goes when all of it may
        kept = records[head.retained_from - first :]
        read = self._store(lambda store: store.records(stream, head, 0, head.seq))
        assert asyncio.run(read) == kept
        return kept

    async def _store(self, call):
        """What the API's store answers a call, made with it."""
        async with connect_async(self.settings.redis_url) as client:
            store = AsyncStore(client, self.settings.partitions)
            return await call(store)

    def quarantine(self, stream):
        return self.client.hgetall(keys.quarantine(self.partition(stream)))


# Faults of a worker's commits: what stands in for them is called when their results are due.


def commit_of(log):
    """What a log does to commit, and to wait for the results."""
    begin = log.begin_commit
    return lambda commits: begin(commits)()


def replace_commit(log, commit):
    log.begin_commit = lambda commits: partial(commit, commits)


def restore_commit(log):
    vars(log).pop("begin_commit", None)


class Trouble:
    """The first round of commits fails in some way; those after it are as they should be."""

    def __init__(self, bench, kind):
        self.bench, self.kind, self.rounds = bench, kind, []
        self.commit = commit_of(bench.worker.log)
        replace_commit(bench.worker.log, self)

    def crash(self):
        """Lose the worker after the round that fails."""
        while not self.rounds:
            self.bench.turn()
        self.bench.crash()

    def __call__(self, commits):
        self.rounds.append({each.partition for each in commits})
        first = len(self.rounds) == 1
        return getattr(self, self.kind)(commits) if first else self.commit(commits)

    def refused(self, commits):
        self.commit([each for each in commits if each.partition])
        return ["OK" if each.partition else "INVALID: why" for each in commits]

    def fenced(self, commits):
        self.bench.client.set(keys.lease(0), "another/worker")
        return self.commit(commits)

    def cut_before(self, commits):
        raise redis.ConnectionError("cut before")

    def cut_after(self, commits):
        self.commit(commits)
        raise redis.ConnectionError("cut after")


def noise(count, level=0.0, seed=4):
    rng = random.Random(seed)
    return [rng.gauss(level, 1) for _ in range(count)]


def shifted(*levels, each=40, seed=2):
    """Labels of regimes of these levels."""
    rng = random.Random(seed)
    return [rng.gauss(level, 1) for level in levels for _ in range(each)]


def confirmed(bench, stream="a", after=-1):
    """Confirmed events of a stream, of which the first label came after a position."""
    return [e for e in bench.events(stream) if e.state == "confirmed" and e.start > after]


def slug(answer):
    """The type of a problem."""
    return answer["type"].rpartition("/")[2]


BAD = 666.0


class Fragile(Gaussian):
    """A Gaussian whose update breaks on BAD."""

    def update(self, stats, phi, y, weight):
        new = super().update(stats, phi, y, weight)
        return new._replace(mean=torch.where((y == BAD).unsqueeze(1), torch.nan, new.mean))


@pytest.fixture(name="close")
def _close():
    return close


@pytest.fixture(autouse=True)
def _torch(monkeypatch):
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(1)
    monkeypatch.setattr(loop, "BACKOFF_S", 0.0)
    # A server looks at its blocked clients 10 times a second.
    monkeypatch.setattr(loop, "IDLE_MS", 0)
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)


@pytest.fixture
def no_kernels(monkeypatch):
    """Step all models by the eager filter."""
    monkeypatch.setattr(compiled, "kernel_of", lambda model: None)


@pytest.fixture
def make_bench(valkey_url, tmp_path):
    """Build benches on one server: `db` keeps them apart. `url` is another server's."""
    benches = []

    def build(db=0, url=None, **settings):
        url = url or patient(f"{valkey_url}?db={db}")
        benches.append(Bench(url, tmp_path / "models", **settings))
        return benches[-1]

    yield build
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make_bench):
    return make_bench()
