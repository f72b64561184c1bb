"""Supervision with stand-in children: order of the stop, deaths, take-over, refusals."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from service.errors.base import StartupError
from service.runtime.embedded import Embedded
from service.runtime.process import EXIT_REFUSED, WORKER_STOP_S, Backoff, listen, url_of
from service.store import keys
from service.store.connection import connect, fix_partitions
from service.store.log import Log
from tests.ports import free_port

SUPERVISOR = """
import os, sys
from pathlib import Path
from service.runtime.process import log_to_stderr
from service.settings import Settings
from service.runtime.supervisor import Supervisor
log_to_stderr("serve")
folder = Path(sys.argv[1])
settings = Settings(
    data_dir=folder / "data", port=int(sys.argv[2]), workers=1, partitions=4, lease_ttl_ms=60_000,
    request_deadline_s=300,
)
ready = lambda url: print("ready", flush=True)
program = [sys.executable, str(folder / "child.py"), str(folder)]
sys.exit(Supervisor(settings, os.environ, ready, program).run())
"""

CHILD = """
import os, signal, socket, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from service.runtime.process import follow_parent
from service.store.connection import connect
from service.store.log import Log

folder, command, *rest = sys.argv[1:]
options = dict(zip(rest[::2], rest[1::2]))
follow_parent(int(options["--parent-fd"]))

def say(what):
    with open(Path(folder) / "events", "a") as events:
        events.write(f"{command} {os.getpid()} {what}\\n")

def stop(*_):
    say("stopped")
    os._exit(0)

refusal = Path(folder) / f"refuse-{command}"
if refusal.exists():
    say("refused")
    sys.exit(int(refusal.read_text()))
if (Path(folder) / f"deaf-{command}").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, stop)

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["MOCA_PARTITIONS"].encode())
    def log_message(self, *_): pass

if command == "worker":
    with connect(os.environ["MOCA_REDIS_URL"]) as client:
        log = Log(client, options["--worker-id"], 60_000, 4)
        log.heartbeat(60_000)
        for partition in range(4):
            log.acquire(partition)
    assert os.path.isdir(os.environ["PROMETHEUS_MULTIPROC_DIR"])
    say("started")
    time.sleep(60)
else:
    server = HTTPServer(("", 0), Ready, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(options["--listen-fd"]))
    say("started")
    server.serve_forever()
"""


def wait_for(condition, seconds=15.0):
    give_up = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.02)
    return found


def gone(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return Path("/proc").exists()
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"  # ended, and nobody has asked how


class Running:
    """A supervisor in its own process, over stand-in children."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        (folder / "child.py").write_text(CHILD)
        self.store = Embedded(folder / "data")  # to know its address, never started here
        self.supervisors = []

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(self.folder), str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.supervisors.append(self.process)
        return self.process

    def start_ready(self):
        process = self.start()
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        wait_for(lambda: len(self.started("worker")) > self.stopped_or_killed("worker"))
        return process

    def events(self):
        path = self.folder / "events"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def started(self, command):
        return [
            int(pid) for name, pid, what in self.events() if (name, what) == (command, "started")
        ]

    def stopped_or_killed(self, command):
        return sum(gone(pid) for pid in self.started(command))

    def holders(self):
        with connect(self.store.url) as client:
            tokens = client.mget([keys.lease(partition) for partition in range(4)])
        return {token.decode().partition("/")[0] for token in tokens if token}

    def close(self):
        for process in self.supervisors:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=30)
        # A killed supervisor leaves its server behind; taking it over ends it.
        self.store.start()
        self.store.stop()


@pytest.fixture
def running(tmp_path):
    running = Running(tmp_path)
    yield running
    running.close()


def test_a_stop_ends_the_api_then_the_workers_then_the_store(running):
    process = running.start_ready()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert [name for name, _, what in running.events() if what == "stopped"] == ["api", "worker"]
    assert f"ready: http://127.0.0.1:{running.port}" in said
    assert not running.store.socket.exists()


def test_children_get_the_settings_in_their_environment(running):
    running.start_ready()
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/readyz") as answer:
        assert answer.read() == b"4"


def test_a_killed_worker_loses_its_leases_and_starts_again_under_another_id(running):
    running.start_ready()
    (before,) = running.holders()
    os.kill(running.started("worker")[0], signal.SIGKILL)
    # The lease lives for a minute: only a release lets the next worker have it.
    wait_for(lambda: running.holders() not in (set(), {before}))
    with connect(running.store.url) as client:
        assert {
            member.decode() for member in client.zrange(keys.WORKERS, 0, -1)
        } == running.holders()


def test_a_killed_api_starts_again_while_its_callers_wait(running):
    running.start_ready()
    os.kill(running.started("api")[0], signal.SIGKILL)
    wait_for(lambda: gone(running.started("api")[0]))
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/readyz", timeout=10) as answer:
        assert answer.status == 200
    assert len(running.started("api")) == 2


def test_a_killed_store_starts_again_with_its_data(running):
    running.start_ready()
    with connect(running.store.url) as client:
        client.set("kept", "yes")
        os.kill(client.info("server")["process_id"], signal.SIGKILL)

    def kept():
        with contextlib.suppress(Exception), connect(running.store.url) as client:
            return client.get("kept")

    wait_for(lambda: kept() == b"yes")


def test_children_follow_a_killed_supervisor_and_the_next_takes_over(running):
    process = running.start_ready()
    (before,) = running.holders()
    server = server_pid(running)
    process.kill()
    process.wait()
    children = running.started("api") + running.started("worker")
    wait_for(lambda: all(gone(pid) for pid in children), seconds=6)
    assert running.holders() == {before}
    running.start_ready()
    assert server_pid(running) == server
    wait_for(lambda: running.holders() not in (set(), {before}))


def server_pid(running):
    with connect(running.store.url) as client:
        return client.info("server")["process_id"]


def test_the_whole_of_it_killed_and_started_again(running):
    process = running.start_ready()
    with connect(running.store.url) as client:
        client.set("kept", "yes")
        # On a busy disk the file is written only once the last sync has ended.
        assert client.execute_command("WAITAOF", 1, 0, 10_000)[0] == 1
    every = [server_pid(running), *running.started("api"), *running.started("worker")]
    for pid in (process.pid, *every):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    running.start_ready()
    with connect(running.store.url) as client:
        assert client.get("kept") == b"yes"


def test_a_second_signal_while_the_api_ends_kills_the_workers_too(running):
    for deaf in ("deaf-api", "deaf-worker"):
        (running.folder / deaf).write_text("")
    process = running.start_ready()
    process.terminate()
    time.sleep(0.5)
    began = time.monotonic()
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < WORKER_STOP_S
    for name in ("api", "worker 1"):
        assert f"{name} did not exit: killed" in said


def test_a_second_signal_kills_what_does_not_end(running):
    (running.folder / "deaf-worker").write_text("")
    process = running.start_ready()
    process.terminate()
    wait_for(lambda: any(what == "stopped" for _, _, what in running.events()))
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "worker 1 did not exit: killed" in said


def test_a_child_that_refuses_to_run_ends_the_service(running):
    (running.folder / "refuse-worker").write_text(str(EXIT_REFUSED))
    process = running.start()
    _, said = process.communicate(timeout=20)
    assert process.returncode == EXIT_REFUSED
    assert "worker 1 cannot run with this configuration" in said


def test_a_child_that_keeps_dying_is_started_again_ever_more_slowly(running):
    (running.folder / "refuse-worker").write_text("3")
    process = running.start()
    wait_for(lambda: sum(what == "refused" for _, _, what in running.events()) >= 2)
    (running.folder / "refuse-worker").unlink()
    wait_for(lambda: running.started("worker"))
    process.terminate()
    _, said = process.communicate(timeout=20)
    assert "worker 1 exited with 3; restarting in 0.1 s" in said
    assert "worker 1 exited with 3; restarting in 0.2 s" in said


def test_a_taken_port_is_refused_clearly(running):
    with socket.create_server(("127.0.0.1", running.port)):
        process = running.start()
        _, said = process.communicate(timeout=20)
    assert process.returncode == EXIT_REFUSED
    assert f"port {running.port} on 127.0.0.1 is in use" in said
    assert "Traceback" not in said


def test_a_second_service_on_the_same_folder_is_refused_clearly(running):
    first = running.start_ready()
    second = running.start()
    _, said = second.communicate(timeout=20)
    assert second.returncode == EXIT_REFUSED
    assert f"already in use by process {first.pid}" in said
    assert first.poll() is None


def test_another_number_of_partitions_is_refused_clearly(running):
    running.store.start()
    with connect(running.store.url) as client:
        fix_partitions(client, 8)
    running.store.stop()
    process = running.start()
    _, said = process.communicate(timeout=20)
    assert process.returncode == EXIT_REFUSED
    assert "8 partitions, got 4" in said


def test_backoff_doubles_up_to_its_limit_and_forgets():
    backoff = Backoff()
    assert [backoff.next_s(float(n)) for n in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert [backoff.next_s(10.0) for _ in range(10)][-1] == 30.0
    assert backoff.next_s(100.0) == 0.1


def test_listen_names_an_address_that_is_not_ours():
    with pytest.raises(StartupError, match=r"192\.0\.2\.1 port 0"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("example.org", "http://example.org:8000"),
    ],
)
def test_url_of(host, url):
    assert url_of(host, 8000) == url


def test_leases_of_others_stay(valkey_url):
    """Burying goes by the whole worker id, not by a prefix of it."""
    with connect(valkey_url) as client:
        for worker, partition in (("worker1-a", 0), ("worker1-ab", 1)):
            assert Log(client, worker, 60_000, 2).acquire(partition)
        assert Log(client, "supervisor", 60_000, 2).release_worker("worker1-a") == 1
        assert client.get(keys.lease(1)).startswith(b"worker1-ab/")
