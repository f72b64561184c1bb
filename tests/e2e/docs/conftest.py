"""A running service for each module that tests what the documentation says."""

import contextlib

import pytest

from tests.e2e.asking import publish
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port


@contextlib.contextmanager
def running(folder):
    """Processes and the address of a `moca serve` among them."""
    port = free_port()
    processes = Processes(
        folder,
        {
            "MOCA_PARTITIONS": "8",
            "MOCA_DATA_DIR": str(folder / "data"),
            "MOCA_PORT": str(port),
            "MOCA_URL": f"http://127.0.0.1:{port}",
        },
    )
    publish(folder / "models")
    processes.start("serve", "serve")
    try:
        wait_ready(f"http://127.0.0.1:{port}")
        yield processes, f"http://127.0.0.1:{port}"
    finally:
        processes.stop_all()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Processes and address of a service that the tests of a module share."""
    with running(tmp_path_factory.mktemp("docs")) as found:
        yield found


@pytest.fixture(scope="module")
def service_url(service):
    """Address of that service."""
    return service[1]
