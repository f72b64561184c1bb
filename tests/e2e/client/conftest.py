"""Both clients behind one face, and programs that talk to the service of the run."""

import asyncio
import inspect

import pytest

from moca_client import AsyncClient, Client

ITERATED = ("streams", "changes", "history", "events", "follow")


class Awaitable:
    """The synchronous client with the face of the asynchronous one."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def called(*args, **kwargs):
            if name in ITERATED:
                return self._iterated(method(*args, **kwargs))
            return asyncio.to_thread(method, *args, **kwargs)

        return called

    @staticmethod
    async def _iterated(iterator):
        end = object()
        try:
            while (found := await asyncio.to_thread(next, iterator, end)) is not end:
                yield found
        finally:
            iterator.close()


@pytest.fixture(params=["sync", "async"])
async def connect(request):
    """Make a client of either kind; all are closed at the end."""
    made = []

    def client(url, **options):
        kind = Client if request.param == "sync" else AsyncClient
        made.append(kind(url, **options))
        return Awaitable(made[-1]) if kind is Client else made[-1]

    yield client
    for each in made:
        closed = each.close()
        if inspect.isawaitable(closed):
            await closed


@pytest.fixture
def client(connect, url):
    """A client of the shared service, of either kind."""
    return connect(url)


@pytest.fixture
def stream(prefix):
    return f"{prefix}s"
