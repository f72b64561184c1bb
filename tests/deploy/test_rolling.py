"""Every API and every worker is restarted under load, one after the other: no request fails.

As behind a load balancer: an API gets no new requests once it is told to stop, and has to answer
those that it has.
"""

import asyncio
import functools
import signal

import httpx
import numpy as np
import pytest

from tests.e2e.deployment import (
    Load,
    check_as_uninterrupted,
    create_streams,
    series,
    wait_ready,
)
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until_async

pytestmark = pytest.mark.slow
STREAMS, PER_SECOND = 40, 80
MOST = 3_000  # observations of a stream, more than any machine needs to restart everything


class Sending(httpx.AsyncHTTPTransport):
    """Knows which of its requests are not sent yet."""

    def __init__(self):
        super().__init__(limits=httpx.Limits(max_connections=None))
        self.unsent = set()

    async def handle_async_request(self, request):
        async def trace(event, _):
            if event == "http11.send_request_body.complete":
                self.unsent.discard(request)

        self.unsent.add(request)
        request.extensions["trace"] = trace
        try:
            return await super().handle_async_request(request)
        finally:
            self.unsent.discard(request)


class Balanced(Load):
    """Posts to the APIs in rotation, one after the other, until `end`; nothing twice."""

    def __init__(self, urls, labels, per_second):
        super().__init__(urls[0], labels, per_second)
        self.rotation = list(urls)
        self.turn = 0
        self.latest = 0
        self.sending = {url: Sending() for url in urls}
        self.clients = {
            url: httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, transport=transport)
            for url, transport in self.sending.items()
        }

    def end(self):
        """Have each stream get as many observations as the one that has most by now."""
        self.length = 1 + self.latest
        self.labels = self.labels[:, : self.length]

    async def _one(self, client, i, at, y):
        self.latest = max(self.latest, at)
        self.turn += 1
        url = self.rotation[self.turn % len(self.rotation)]
        await super()._one(self.clients[url], i, at, y)

    async def run(self):
        try:
            await super().run()
        finally:
            for client in self.clients.values():
                await client.aclose()

    async def take_out(self, url):
        """Send no more requests to an API; it still answers those it has."""
        self.rotation.remove(url)
        await until_async(lambda: not self.sending[url].unsent)


def restart(processes, name, *command):
    process = processes.running[name]
    process.send_signal(signal.SIGTERM)
    # The server raises the signal again once everything is answered.
    assert process.wait(PATIENCE_S) in (0, -signal.SIGTERM), processes.log_of(name)
    processes.start(name, *command)


def log_since(processes, name, length):
    """What a process has logged since its log had a length."""
    return processes.log_of(name)[length:]


async def roll(processes, urls, load):
    """Restart everything, one after the other."""
    await until_async(lambda: load.answers)
    for name, url in urls.items():
        await load.take_out(url)
        await asyncio.to_thread(restart, processes, name, "api", "--port", url.rpartition(":")[2])
        await asyncio.to_thread(wait_ready, url)
        load.rotation.append(url)
    any_url = next(iter(urls.values()))
    for name in ("worker-a", "worker-b"):
        before = len(processes.log_of(name))
        await asyncio.to_thread(restart, processes, name, "worker", "--worker-id", name)
        since = functools.partial(log_since, processes, name, before)
        await until_async(lambda since=since: "owns 8 partitions" in since(), since)
        await asyncio.to_thread(wait_ready, any_url)


async def test_a_rolling_restart_fails_no_request(disk_store, processes):
    first, port = processes.start_separate(disk_store), free_port()
    urls = {"api": first, "api-b": f"http://127.0.0.1:{port}"}
    processes.start("api-b", "api", "--port", str(port))
    wait_ready(urls["api-b"])
    create_streams(first, "load", STREAMS)
    labels = np.tile(series(STREAMS, 60), MOST // 60)
    load = Balanced(list(urls.values()), labels, PER_SECOND)
    running = asyncio.ensure_future(load.run())
    await roll(processes, urls, load)
    assert not running.done(), "the load ended before the last restart: nothing was shown"
    load.end()
    await running
    check_as_uninterrupted(first, load)
