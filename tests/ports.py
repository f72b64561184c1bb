"""Ports for servers under test.

They lie below those that the kernel gives to clients, and each is claimed until this process ends:
a port that was merely free a moment ago can be another test's by the time its server starts.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST, HIGHEST = 10_000, 20_000
BUS = 10_000  # a node of a cluster also listens on its port plus this; below client ports, too
_numbers = itertools.count(random.SystemRandom().randrange(HIGHEST - LOWEST))


def free_port() -> int:
    """Claim a port on which nothing listens."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Claim several, whose bus ports are free as well."""
    ports: list[int] = []
    while len(ports) < count:
        port = LOWEST + next(_numbers) % (HIGHEST - LOWEST)
        if _claim(port) and _is_free(port) and _is_free(port + BUS):
            ports.append(port)
    return ports


def _claim(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / f"moca-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    # The lock is the claim, and ends with the process: the file stays open.
    file = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
