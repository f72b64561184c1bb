"""Deliveries by a real process to a real HTTP server that misbehaves."""

import base64
import hashlib
import hmac
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from service.runtime.embedded import running_url
from service.runtime.process import EXIT_REFUSED
from service.store import keys
from service.store.connection import connect
from tests.e2e.deployment import Processes
from tests.feeding import Writer
from tests.ports import free_port
from tests.serving import ThreadServer

PARTITIONS = 4
KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver(ThreadServer):
    """Keeps what it gets. `fate` says what happens to a call by its path: a status or a wait."""

    request_queue_size = 64

    def __init__(self, port=0):
        self.calls = []  # path, headers, body
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Stay quiet."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = json.loads(body)
        data = said.get("data") if isinstance(said, dict) else None
        fate = self.server.fate(self.path, data)
        self.server.calls.append((self.path, dict(self.headers), body, fate))
        if isinstance(fate, float):
            time.sleep(fate)
            self.close_connection = True
            return
        self.send_response(fate)
        if fate == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.stop()


@pytest.fixture
def writer(valkey_url):
    found = Writer(valkey_url, PARTITIONS)
    found.clock = lambda: int(time.time() * 1000)  # events of before a hook are not for it
    yield found
    found.close()


class Webhooks:
    """`moca webhooks` on a file of hooks."""

    def __init__(self, processes, client):
        self.processes, self.client = processes, client
        self.file = processes.folder / "hooks.toml"
        self.port = free_port()

    def hook(self, name, url, **more):
        fields = {"name": name, "url": url, "secret": SECRET, **more}
        lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value]
        with self.file.open("a") as file:
            file.write("\n".join(["[[hook]]", *lines, ""]))

    def start(self, name="webhooks", **delivery):
        bounds = {"backoff_s": 0.1, "backoff_max_s": 0.3, "timeout_s": 1, **delivery}
        top = "".join(f"{key} = {value}\n" for key, value in bounds.items())
        file = self.processes.folder / f"{name}.toml"
        file.write_text(top + self.file.read_text())
        given = {
            "redis_url": self.processes.environment["MOCA_REDIS_URL"],
            "webhooks_file": file,
            "webhook_hosts": "http://127.0.0.1",
            "metrics_port": self.port,
        }
        options = [x for k, v in given.items() for x in (f"--{k.replace('_', '-')}", str(v))]
        self.processes.start(name, "webhooks", *options)
        hooks = self.file.read_text().count("[[hook]]")
        groups = hooks * (PARTITIONS + 1)
        until(lambda: self.groups() >= groups, lambda: self.processes.log_of(name))

    def groups(self):
        found = 0
        for key in self.client.scan_iter("moca:*"):
            if self.client.type(key) == b"stream" and key != keys.DEAD_LETTERS.encode():
                found += len(self.client.xinfo_groups(key))
        return found

    def pending(self, hook):
        every = [keys.feed(p) for p in range(PARTITIONS)]
        return sum(self.client.xpending(key, f"webhook:{hook}")["pending"] for key in every)

    def metric(self, name, hook):
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        found = re.search(rf'^moca_webhook_{name}{{hook="{hook}"}} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def command(self, *options):
        url = self.processes.environment["MOCA_REDIS_URL"]
        command = [
            sys.executable,
            "-m",
            "service.commands.main",
            "webhooks",
            "--redis-url",
            url,
            *options,
        ]
        environ = {**self.processes.environment, "COLUMNS": "250"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def webhooks(valkey_url, tmp_path):
    environment = {"MOCA_REDIS_URL": valkey_url, "MOCA_PARTITIONS": str(PARTITIONS)}
    processes = Processes(tmp_path, {**environment, "MOCA_LEASE_TTL_MS": "1000"})
    with connect(valkey_url) as client:
        yield Webhooks(processes, client)
        processes.stop_all()


def until(holds, why=lambda: "", seconds=20.0):
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, why()
        time.sleep(0.02)


def verify(headers, body):
    """Check a signature as a receiver does that knows only the specification."""
    head = {name.lower(): value for name, value in headers.items()}
    content = b".".join([head["webhook-id"].encode(), head["webhook-timestamp"].encode(), body])
    version, _, signature = head["webhook-signature"].partition(",")
    digest = hmac.new(KEY, content, hashlib.sha256).digest()
    assert version == "v1"
    assert base64.b64decode(signature) == digest
    assert abs(int(head["webhook-timestamp"]) - time.time()) < 30
    return head["webhook-id"]


def test_wanted_events_are_posted_signed_and_in_order(webhooks, receiver, writer):
    writer.raise_("a1", 99)  # before the hook was there
    webhooks.hook("all", f"{receiver.url}/all?x=1", states=["suspected", "confirmed"])
    webhooks.hook("some", f"{receiver.url}/some", prefix=["a"], model=["gaussian"])
    webhooks.start()
    for i in range(1, 6):
        for stream in ("a1", "a2", "b1"):
            writer.raise_(stream, i, "suspected")
            writer.raise_(stream, i)
            writer.raise_(stream, i, "withdrawn")
    writer.raise_("a1", 7, model="poisson@2")
    until(lambda: len(receiver.calls) >= 31 + 10, lambda: webhooks.processes.log_of("webhooks"))
    time.sleep(0.5)
    assert len(receiver.calls) == 31 + 10
    for stream in ("a1", "a2", "b1"):
        ids = [i for at, i in receiver.got("/all?x=1") if at == stream]
        assert ids == sorted(ids)
    assert Counter(receiver.got("/some")) == Counter(
        {(stream, i): 1 for stream in ("a1", "a2") for i in range(1, 6)}
    )
    numbers = [verify(headers, body) for _, headers, body, _ in receiver.calls]
    assert max(Counter(numbers).values()) == 2  # once for each hook
    body = json.loads(receiver.calls[0][2])
    assert body["type"] == f"changepoint.{body['data']['event']['state']}"
    assert set(body["data"]) == {"stream", "model", "event", "time", "at"}
    assert webhooks.metric("delivered_total", "some") == 10
    until(lambda: webhooks.pending("all") == webhooks.pending("some") == 0)


def test_credentials_are_sent_beside_the_signature(webhooks, receiver, writer):
    webhooks.hook("token", f"{receiver.url}/token", bearer_token="t0ken")
    webhooks.hook("user", f"{receiver.url}/user", username="moca", password="pa55")
    webhooks.hook("none", f"{receiver.url}/none")
    webhooks.start()
    writer.raise_("a", 1)
    until(lambda: len(receiver.calls) == 3)
    headers = {path: found for path, found, *_ in receiver.calls}
    assert {path: found.get("Authorization") for path, found in headers.items()} == {
        "/token": "Bearer t0ken",
        "/user": "Basic bW9jYTpwYTU1",
        "/none": None,
    }
    assert all("webhook-signature" in found for found in headers.values())


def test_anomalies_are_posted_to_hooks_that_name_them(webhooks, receiver, writer):
    webhooks.hook("before", f"{receiver.url}/before", states=["suspected", "confirmed"])
    webhooks.hook("points", f"{receiver.url}/points", kinds=["anomaly"])
    webhooks.hook("both", f"{receiver.url}/both", kinds=["change", "anomaly"])
    webhooks.start()
    for i in range(1, 4):
        writer.raise_("a1", i)
        writer.raise_("a1", 100 * i, kind="anomaly")
    until(lambda: len(receiver.calls) >= 12, lambda: webhooks.processes.log_of("webhooks"))
    until(lambda: webhooks.pending("before") == webhooks.pending("points") == 0)
    assert receiver.got("/before") == [("a1", i) for i in (1, 2, 3)]
    assert receiver.got("/points") == [("a1", i) for i in (100, 200, 300)]
    assert receiver.got("/both") == [("a1", i) for i in (1, 100, 2, 200, 3, 300)]
    for path, _, body, _ in receiver.calls:
        said = json.loads(body)
        kind = said["data"]["event"]["kind"]
        name = {"change": "changepoint", "anomaly": "anomaly"}[kind]
        assert said["type"] == f"{name}.confirmed"
        assert path != "/before" or kind == "change"


def test_a_receiver_that_fails_first_and_hangs_gets_each_event(webhooks, receiver, writer):
    fates = iter([500, 2.0, 429, 302])
    receiver.fate = lambda path, data: next(fates, 200)
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start(in_flight=1)
    for i in range(1, 4):
        writer.raise_("a", i)
    until(lambda: len(receiver.got("/h")) == 3, lambda: webhooks.processes.log_of("webhooks"))
    assert receiver.got("/h") == [("a", 1), ("a", 2), ("a", 3)]
    assert [fate for *_, fate in receiver.calls[:5]] == [500, 2.0, 429, 302, 200]
    ids = [verify(headers, body) for _, headers, body, _ in receiver.calls[:5]]
    assert len(set(ids)) == 1  # every attempt at an event has the same id
    assert not any(path == "/elsewhere" for path, *_ in receiver.calls)
    assert webhooks.metric("failed_attempts_total", "h") == 4
    assert SECRET not in webhooks.processes.log_of("webhooks")


def test_a_receiver_that_is_down_gets_the_events_when_it_is_back(webhooks, writer):
    port = free_port()
    webhooks.hook("h", f"http://127.0.0.1:{port}/h")
    webhooks.start(attempts=100)
    for i in range(1, 6):
        writer.raise_("a", i)
    until(lambda: webhooks.metric("lag_seconds", "h") > 0.5)
    receiver = Receiver(port)
    try:
        until(lambda: receiver.got("/h") == [("a", i) for i in range(1, 6)])
    finally:
        receiver.stop()


def test_one_dead_receiver_does_not_hold_up_the_others(webhooks, receiver, writer):
    receiver.fate = lambda path, data: 200 if path == "/good" else 30.0
    webhooks.hook("hangs", f"{receiver.url}/hangs")
    webhooks.hook("good", f"{receiver.url}/good")
    webhooks.start(timeout_s=5)
    for i in range(1, 101):
        writer.raise_(f"s{i % 7}", i)
    until(lambda: len(receiver.got("/good")) == 100)
    assert webhooks.metric("delivered_total", "hangs") == 0


def test_what_fails_for_good_is_dead_and_can_be_sent_again(webhooks, receiver, writer):
    receiver.fate = lambda path, data: 500 if data["event"]["id"] in (2, 3, 4) else 200
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start(attempts=3, dead_letters=2)
    for i in range(1, 6):
        writer.raise_("a", i)
    until(lambda: ("a", 5) in receiver.got("/h"))
    assert receiver.got("/h") == [("a", 1), ("a", 5)]
    assert webhooks.metric("dead_total", "h") == 3
    assert webhooks.metric("dead_evicted_total", "h") == 1
    shown = webhooks.command("--dead").stdout
    assert "response status 500" in shown
    assert [line.split()[3] for line in shown.splitlines() if "evt_" in line] == ["3", "4"]
    receiver.fate = lambda path, data: 200
    assert "redelivering 0 events" in webhooks.command("--redeliver", "--hook", "x").stdout
    assert "redelivering 2 events" in webhooks.command("--redeliver").stdout
    until(lambda: set(receiver.got("/h")) == {("a", i) for i in (1, 3, 4, 5)})
    ids = {verify(h, body) for _, h, body, _ in receiver.calls if b'"id":3,' in body}
    assert len(ids) == 1
    assert "evt_" not in webhooks.command("--dead").stdout
    until(lambda: webhooks.client.xlen(keys.webhook_again("h")) == 0)


def test_a_kill_between_delivery_and_acknowledgement_delivers_again(webhooks, receiver, writer):
    """The receiver has the event and has not answered yet when the process dies."""
    arrived = threading.Event()

    def slow(path, data):
        arrived.set()
        return 3.0

    receiver.fate = slow
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start(timeout_s=20)
    for i in range(1, 4):
        writer.raise_("a", i)
    assert arrived.wait(10)
    webhooks.processes.kill("webhooks")
    assert webhooks.pending("h") >= 1
    receiver.fate = lambda path, data: 200
    webhooks.start("second")
    until(lambda: receiver.got("/h") == [("a", 1), ("a", 2), ("a", 3)])
    until(lambda: webhooks.pending("h") == 0)
    assert receiver.got("/h", 3.0) == [("a", 1)]  # the first, once more
    consumers = webhooks.client.xinfo_consumers(keys.feed(keys.partition_of("a", 4)), "webhook:h")
    assert len(consumers) == 1


def test_a_second_process_waits_and_takes_over(webhooks, receiver, writer):
    webhooks.hook("h", f"{receiver.url}/h")
    webhooks.start()
    webhooks.port = free_port()
    webhooks.start("second")
    for i in range(1, 50):
        writer.raise_("a", i)
    webhooks.processes.signal("webhooks", signal.SIGTERM)
    for i in range(50, 100):
        writer.raise_("a", i)
    assert webhooks.processes.running["webhooks"].wait(40) == 0
    until(lambda: len(receiver.got("/h")) >= 99)
    assert receiver.got("/h") == [("a", i) for i in range(1, 100)]


def test_a_host_outside_the_list_is_refused_at_the_start(webhooks):
    webhooks.hook("h", "https://hooks.example.org/h")
    file = ["--webhooks-file", str(webhooks.file)]
    found = webhooks.command(*file, "--webhook-hosts", "https://other.example.org")
    assert found.returncode == EXIT_REFUSED
    assert "hook 'h': https://hooks.example.org:443 is not on the allowlist" in found.stderr
    assert "Traceback" not in found.stderr
    serve = [sys.executable, "-m", "service.commands.main", "serve", *file]
    folder = ["--data-dir", str(webhooks.processes.folder / "data"), "--port", str(free_port())]
    environ = {k: v for k, v in webhooks.processes.environment.items() if k != "MOCA_REDIS_URL"}
    found = subprocess.run(
        [*serve, *folder], env=environ, capture_output=True, text=True, check=False
    )
    assert found.returncode == EXIT_REFUSED
    assert "is not on the allowlist" in found.stderr
    assert running_url(webhooks.processes.folder / "data") is None
