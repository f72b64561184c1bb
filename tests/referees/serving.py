"""The service as a user starts it, for referees that ask it over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[Processes, str]]:
    """Run `moca serve` on a store of its own; yields its processes and its URL."""
    processes = Processes(folder, {"MOCA_PARTITIONS": "16"})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        processes.start("serve", "serve", "--data-dir", str(folder / "data"), "--port", str(port))
        wait_ready(url)
        yield processes, url
    finally:
        processes.stop_all()
