"""The client, and programs that talk to the service of the run."""

import pytest

from moca_client import Client


@pytest.fixture
def client(url):
    """A client of the shared service."""
    with Client(url) as client:
        yield client


@pytest.fixture
def stream(prefix):
    return f"{prefix}s"


def records(client, stream):
    """All observations of a stream that are retained."""
    return [record for page in client.history(stream) for record in page.observations]


def labels(client, stream):
    return [record.y for record in records(client, stream)]
