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
