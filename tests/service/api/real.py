"""A real API process with a real store beside it, and keys made as the command line makes them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import httpx

from service import api_keys
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.e2e.deployment import Processes
from tests.ports import free_port
from tests.waiting import until


class RealApi:
    """One `moca api` process."""

    def __init__(self, processes: Processes, settings, **chosen):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.redis_url = settings.redis_url
        self._processes = processes
        given = {"redis_url": settings.redis_url, "partitions": settings.partitions, **chosen}
        processes.environment |= {f"MOCA_{name.upper()}": str(v) for name, v in given.items()}
        processes.start("api", "api", "--port", str(self.port))
        self.process = processes.running["api"]
        self._wait()

    def _wait(self) -> None:
        def lives() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/livez", timeout=5).is_success
            assert self.process.poll() is None, self.log()
            return False

        until(lives, self.log)

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, timeout=30, headers=headers, trust_env=False)

    def log(self) -> str:
        return self._processes.log_of("api")

    def peak_bytes(self) -> int:
        """Largest resident memory that the process ever had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (line,) = (each for each in lines if each.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


def make_key(redis_url: str, name: str, *scopes: str, **extra) -> str:
    key, token = api_keys.create(name, scopes, **extra)
    with connect(redis_url) as client:
        Keyring(client).add(key)
    return token


def moca(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run the command line to its end."""
    command = [sys.executable, "-m", "service.commands.main", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
