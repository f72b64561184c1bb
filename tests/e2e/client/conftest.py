"""One running service for all tests of the clients, and both clients behind one face."""

import asyncio
import inspect

import pytest

from service.client import AsyncClient, Client
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port


@pytest.fixture(scope="session")
def service_url(tmp_path_factory):
    """Address of a `moca serve` that the tests here share; each names its own streams."""
    folder = tmp_path_factory.mktemp("client")
    processes = Processes(folder, {"MOCA_PARTITIONS": "8"})
    port = free_port()
    processes.start("serve", "serve", "--data-dir", str(folder / "data"), "--port", str(port))
    try:
        wait_ready(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        processes.stop_all()


class Awaitable:
    """The synchronous client with the face of the asynchronous one."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def called(*args, **kwargs):
            if inspect.isgeneratorfunction(method) or name in (
                "streams",
                "history",
                "events",
                "follow",
            ):
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
        made.append(
            Client(url, **options) if request.param == "sync" else AsyncClient(url, **options)
        )
        return Awaitable(made[-1]) if request.param == "sync" else made[-1]

    yield client
    for each in made:
        closed = each.close()
        if inspect.isawaitable(closed):
            await closed


@pytest.fixture
def client(connect, service_url):
    """A client of the shared service, of either kind."""
    return connect(service_url)
