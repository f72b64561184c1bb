"""Receivers that misbehave, and deliveries to them by this process or by a real one."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import time
from types import SimpleNamespace

import pytest

from service.observability import metrics
from service.settings import Settings
from service.store import keys
from service.store.connection import connect, connect_async
from service.webhooks import runner
from service.webhooks.config import webhooks_of
from service.webhooks.sender import Notice
from service.wire import Event
from service.wire.event_entries import Raised
from tests.feeding import Writer
from tests.serving import Quiet, ThreadServer
from tests.waiting import PATIENCE_S, patient, until_async

PARTITIONS = 4
COLLECT_S = 600.0
KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def raised(stream="pump-7", state="confirmed", tags=None, at_ms=0, **more):
    event = Event(3, state, 39, 41, **{"confirmed_at": 41, **more})
    return Raised(stream, "gaussian", 2, event, None, at_ms, tags or {})


def notice(number="evt_1", event=None, link=""):
    return Notice(number, event or raised(), link)


class Receiver(ThreadServer):
    """Keeps what it gets. `fate` says what happens to a call by its path: a status or a wait."""

    request_queue_size = 64

    def __init__(self, port=0):
        self.calls = []  # path, headers, body, fate
        self.fate = lambda path, data: 200
        super().__init__(Handler, port)

    def got(self, path, status=200):
        """Events (stream, id) that were posted to a path and answered so."""
        return [
            (d["data"]["stream"], d["data"]["event"]["id"])
            for at, _, body, answered in list(self.calls)
            for d in [json.loads(body)]
            if (at, answered) == (path, status)
        ]


class Handler(Quiet):
    def do_POST(self):
        body = self.body()
        posted = json.loads(body)  # alerts are a list
        fate = self.server.fate(self.path, posted.get("data") if isinstance(posted, dict) else None)
        self.server.calls.append((self.path, dict(self.headers), body, fate))
        if isinstance(fate, float):
            time.sleep(fate)
            self.close_connection = True
            return
        place = {"Location": f"{self.server.url}/elsewhere"}
        self.answer(fate, headers={302: place, 429: {"Retry-After": "1"}}.get(fate, {}))


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def writer(valkey_url):
    with contextlib.closing(Writer(valkey_url, PARTITIONS)) as writer:
        # Changes that are old do not wait for others.
        writer.clock = lambda: int(time.time() * 1000)
        yield writer


class Delivering:
    """A file of hooks, delivered to by this process, and what the store holds of deliveries."""

    def __init__(self, url, folder, client):
        self.url, self.folder, self.client = url, folder, client
        self.file = folder / "hooks.toml"
        self._before = {}
        self.runners = []
        self.clock = SimpleNamespace(time=time.time, monotonic=self._monotonic)
        self._ahead_s = 0.0

    def _monotonic(self):
        return time.monotonic() + self._ahead_s

    @property
    def waiting(self):
        """The changes that wait for others."""
        return [waiting for each in self.runners for waiting in each._collected]

    async def collects(self, count, joining=0):
        """Wait until so many changes wait for others, some as their incident was delivered."""
        await until_async(lambda: [each.joins for each in self.waiting].count(True) == joining)
        await until_async(lambda: len(self.waiting) == count)

    def pass_time(self, times=1):
        """Let what waits for others have waited long enough."""
        self._ahead_s += times * COLLECT_S

    def hook(self, name, url, **more):
        fields = {"name": name, "url": url, "secret": SECRET, **more}
        lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value]
        with self.file.open("a") as file:
            file.write("\n".join(["[[hook]]", *lines, ""]))

    def written(self, name, **delivery):
        """Return a file with bounds of delivery at its top."""
        bounds = {
            "collect_s": 0,
            "backoff_s": 0.1,
            "backoff_max_s": 0.3,
            "timeout_s": PATIENCE_S,
            **delivery,
        }
        file = self.folder / f"{name}.toml"
        top = "".join(f"{key} = {value}\n" for key, value in bounds.items())
        file.write_text(top + self.file.read_text())
        return file

    @property
    def ready(self):
        """Whether each hook has a group on every feed."""
        groups = 0
        for key in itertools.chain.from_iterable(self.client.everywhere("KEYS", "moca:*")):
            if self.client.type(key) == b"stream" and key != keys.DEAD_LETTERS.encode():
                groups += len(self.client.xinfo_groups(key))
        return groups >= self.file.read_text().count("[[hook]]") * (PARTITIONS + 1)

    def pending(self, hook):
        every = [keys.feed(p) for p in range(PARTITIONS)]
        return sum(self.client.xpending(key, f"webhook:{hook}")["pending"] for key in every)

    @contextlib.asynccontextmanager
    async def running(self, **delivery):
        """Deliver meanwhile; at the end attempts under way end first."""
        settings = Settings(
            webhooks_file=self.written("running", **delivery),
            webhook_hosts="http://127.0.0.1",
            partitions=PARTITIONS,
        )
        hooks, bounds = webhooks_of(settings, {})
        self._before = {hook.name: self._counts(hook.name) for hook in hooks}
        async with connect_async(self.url) as client:
            incidents = runner.incident_feed(client, settings)
            self.runners = [
                runner.Runner(hook, client, settings, bounds, incidents) for hook in hooks
            ]
            tasks = [asyncio.create_task(each.run()) for each in self.runners]
            try:
                await until_async(lambda: self.ready)
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def counted(self, hook):
        """What was counted since: failed, delivered, dead, evicted."""
        before = self._before[hook]
        return [now - then for now, then in zip(self._counts(hook), before, strict=True)]

    @staticmethod
    def _counts(hook):
        names = ("FAILED", "DELIVERED", "DEAD", "EVICTED")
        counters = [getattr(metrics, f"WEBHOOK_{name}") for name in names]
        return [counter.labels(hook)._value.get() for counter in counters]


@pytest.fixture
def delivering(valkey_url, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "POLL_S", 0.01)
    monkeypatch.setattr(runner, "PAUSE_S", 0.05)
    with connect(valkey_url) as client:
        delivering = Delivering(patient(valkey_url), tmp_path, client)
        monkeypatch.setattr(runner, "time", delivering.clock)
        yield delivering


def verify(headers, body):
    """Check a signature as a receiver does that knows only the specification; returns the id."""
    head = {name.lower(): value for name, value in headers.items()}
    content = b".".join([head["webhook-id"].encode(), head["webhook-timestamp"].encode(), body])
    version, _, signature = head["webhook-signature"].partition(",")
    digest = hmac.new(KEY, content, hashlib.sha256).digest()
    assert version == "v1"
    assert base64.b64decode(signature) == digest
    assert abs(int(head["webhook-timestamp"]) - time.time()) < 600
    return head["webhook-id"]
