"""Answers made up for one test, for both clients."""

import asyncio
import contextlib
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from service.client import AsyncClient, Client
from tests.serving import ThreadServer


class Scripted:
    """Answers requests one after the other, as a test says: a response, or an exception."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def __call__(self, request):
        self.requests.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, type) and issubclass(found, Exception):
            raise found("cut", request=request)
        return found(request) if callable(found) else found

    def headers(self, name):
        return [request.headers.get(name) for request in self.requests]


@pytest.fixture(params=["sync", "async"])
def ask(request, monkeypatch):
    """Make one call of either client on scripted answers; nobody really waits."""
    pauses = []

    async def no_pause(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("service.client.driver.time.sleep", pauses.append)
    monkeypatch.setattr("service.client.driver.asyncio.sleep", no_pause)

    def asked(script, use, **options):
        transport = httpx.MockTransport(script)
        if request.param == "sync":
            with Client(transport=transport, **options) as client:
                return use(client)

        async def run():
            async with AsyncClient(transport=transport, **options) as client:
                return await use(client)

        return asyncio.run(run())

    asked.pauses = pauses
    return asked


@contextlib.contextmanager
def running(handler: type[BaseHTTPRequestHandler]):
    """Run a small HTTP server in a thread; yields it."""
    with ThreadServer(handler) as server:
        yield server
