"""A worker that cannot reach the store any more, while everybody else can: a network that drops."""

import contextlib
import socket
import threading
import time

import httpx
import pytest

from service.store import keys
from service.store.connection import connect
from tests.conftest import _binary, running_server
from tests.e2e.deployment import wait_ready
from tests.ports import free_port

STREAMS = 32


class Wire:
    """Passes bytes on between a port and a store; cut, it passes none on and closes nothing."""

    def __init__(self, target):
        self.target, self.whole = target, threading.Event()
        self.whole.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets, self.closed = [], False
        self._start(self._accept)

    def close(self):
        self.closed = True
        self.whole.set()
        for each in (self.listener, *self.sockets):
            # Wakes a thread that waits on it; a plain close does not.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _start(self, run, *arguments):
        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self):
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            there = socket.create_connection(self.target)
            self.sockets += [here, there]
            self._start(self._pass, here, there)
            self._start(self._pass, there, here)

    def _pass(self, source, sink):
        try:
            while part := source.recv(65536):
                self.whole.wait()
                sink.sendall(part)
        except OSError:
            pass


@pytest.fixture
def cut(processes):
    """URL of an API and a worker beside the store, and the wire to it of another worker."""
    port, api = free_port(), free_port()
    options = ["--port", str(port), "--appendonly", "yes"]
    with running_server(str(_binary("valkey")), *options) as redis_url:
        wire = Wire(("127.0.0.1", port))
        processes.environment |= {"MOCA_REDIS_URL": redis_url, "MOCA_LEASE_TTL_MS": "1000"}
        processes.start("near", "worker", "--worker-id", "near")
        far = f"redis://127.0.0.1:{wire.port}/0"
        processes.start("far", "worker", "--worker-id", "far", "--redis-url", far)
        processes.start("api", "api", "--port", str(api))
        wait_ready(f"http://127.0.0.1:{api}")
        yield f"http://127.0.0.1:{api}", wire, redis_url
        wire.whole.set()
        processes.stop_all()
        wire.close()


def owned(client, worker):
    leases = [client.get(keys.lease(p)) or b"" for p in range(16)]
    return sum(each.startswith(f"{worker}/".encode()) for each in leases)


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def test_another_worker_takes_over_and_what_comes_late_is_refused(cut, capsys):
    url, wire, redis_url = cut

    def post(client, y):
        items = [{"stream": f"s{i}", "y": y} for i in range(STREAMS)]
        return [each.get("seq") for each in client.post("/v1/observations", json=items).json()]

    with httpx.Client(base_url=url, timeout=60) as client, connect(redis_url) as store:
        until(lambda: owned(store, "far") == owned(store, "near") == 8)
        assert post(client, 0.0) == [0] * STREAMS
        wire.whole.clear()
        began = time.monotonic()
        assert post(client, 1.0) == [1] * STREAMS
        waited = time.monotonic() - began
        assert owned(store, "near") == 16
        assert post(client, 2.0) == [2] * STREAMS
        wire.whole.set()  # what it sent meanwhile arrives now
        until(lambda: owned(store, "far") == owned(store, "near") == 8)
        assert post(client, 3.0) == [3] * STREAMS
        for i in range(STREAMS):
            found = client.get(f"/v1/streams/s{i}/history").json()["observations"]
            assert [each["y"] for each in found] == [0.0, 1.0, 2.0, 3.0]
        assert list(store.scan_iter("moca:*:quarantine")) == []
    with capsys.disabled():
        print(f"\na worker was cut off, lease 1 s: longest wait {waited:.1f} s", flush=True)
    assert waited > 0.3, "it owned nothing"
