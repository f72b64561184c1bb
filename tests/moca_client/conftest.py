"""Both clients on made-up answers and a clock that moves; and a feed of events over real HTTP."""

import asyncio
import contextlib
import json
import time
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from moca_client import AsyncClient, Client, errors
from tests.serving import ThreadServer
from tests.waiting import Clock

LOST = {"partitions": [{"partition": 1, "after": None, "until": "t"}]}
TIMED = ("retry", "plans", "sync", "subscriptions")


class Scripted:
    """Answers requests one after the other, the last for ever: a response, or an exception."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def __call__(self, request):
        self.requests.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, type) and issubclass(found, Exception):
            raise found("cut", request=request)
        if callable(found):
            return found(request)
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)

    def headers(self, name):
        return [request.headers.get(name) for request in self.requests]


class Outcome:
    """What one client made of a script: a value or an error, its requests, pauses and jitter."""

    def __init__(self, script, pauses, jitter):
        self.script, self.pauses, self.jitter = script, pauses, jitter
        self.value = self.error = None

    @property
    def requests(self):
        return self.script.requests

    def headers(self, name):
        return self.script.headers(name)

    def alike(self):
        """What must not depend on the client: keys are random."""
        sent = [(request.method, request.url) for request in self.requests]
        error = (type(self.error), str(self.error))
        return sent, self.pauses, self.jitter, repr(self.value), error


@pytest.fixture
def ask(monkeypatch):
    """Make one call by each client on scripted answers; both must do the same, and nobody waits.

    Raises what they raise, else returns the outcome. The middle of each jitter is 1.
    """

    def asked(answers, use, **options):
        found = [_outcome(monkeypatch, kind, answers, use, options) for kind in (Client, None)]
        assert found[0].alike() == found[1].alike()
        if found[0].error is not None:
            found[0].error.outcome = found[0]
            raise found[0].error
        return found[0]

    return asked


def _outcome(monkeypatch, kind, answers, use, options):
    clock, found = Clock(), Outcome(Scripted(*answers), [], [])

    def pause(seconds):
        found.pauses.append(seconds)
        clock.advance(seconds)

    async def pause_async(seconds):
        pause(seconds)

    def uniform(low, high):
        found.jitter.append((low, high))
        return 1.0

    with monkeypatch.context() as patch:
        for module in TIMED:
            patch.setattr(
                f"moca_client.{module}.time", SimpleNamespace(monotonic=clock, sleep=pause)
            )
        patch.setattr("moca_client.asynchronous.asyncio", SimpleNamespace(sleep=pause_async))
        for module in ("retry", "plans", "subscriptions"):
            patch.setattr(f"moca_client.{module}.random", SimpleNamespace(uniform=uniform))
        transport = httpx.MockTransport(found.script)
        try:
            if kind is Client:
                with Client(transport=transport, **options) as client:
                    value = use(client)
                    found.value = list(value) if hasattr(value, "__next__") else value
            else:
                found.value = asyncio.run(_use(transport, use, options))
        except (errors.ClientError, httpx.HTTPError) as error:
            found.error = error
    return found


async def _use(transport, use, options):
    async with AsyncClient(transport=transport, **options) as client:
        value = use(client)
        if hasattr(value, "__anext__"):
            return [item async for item in value]
        return await value


@contextlib.contextmanager
def running(handler: type[BaseHTTPRequestHandler]):
    """Run a small HTTP server in a thread; yields it."""
    with ThreadServer(handler) as server:
        yield server


class Feed(BaseHTTPRequestHandler):
    """Server-sent events by cursor: after `cut` of them the connection ends, in a message."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.seen.append((parse_qs(urlsplit(self.path).query), self.headers))
        if server.refusals:
            status, headers = server.refusals.pop(0)
            self._head(status, {**headers, "Content-Length": "0"})
            return
        self.close_connection = True
        self._head(200, {"Content-Type": server.kind, "Connection": "close"})
        after = self.headers.get("Last-Event-ID")
        first = server.total if after is None else int(after) + 1
        with contextlib.suppress(OSError):  # the client left
            self._write("retry: 50\n: hello\n\n")
            if server.gap and after == "0":
                self._write(f"id: 0\nevent: gap\ndata: {json.dumps(LOST)}\n\n")
            for i in range(first, min(first + server.cut, server.total)):
                event = {"id": i, "state": "confirmed", "start": i, "suspected_at": i + 5}
                data = {"stream": "s", "model": "m@1", "event": event, "time": None, "at": "t"}
                self._write(f"id: {i}\nevent: changepoint\ndata: {json.dumps(data)}\n\n")
                self._write(": heartbeat\n\n")
            self._write("id: 99\nevent: changepoint\ndata: {")  # cut off in the middle
            if server.hang_s and first + server.cut >= server.total:
                server.total += server.cut  # more to come, on the next connection
                time.sleep(server.hang_s)

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()
