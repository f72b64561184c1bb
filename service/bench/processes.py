"""Processes under measurement: started on free ports, waited for, their CPU read, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from service.bench.report import BenchError

START_S = 60.0
STOP_S = 60.0  # many streams are handed over
STORES = ("valkey-server", "redis-server")
PROC = Path("/proc")  # without it, CPU time is not reported


class BenchServer(NamedTuple):
    """A server under load; `pid` is None when somebody else started it."""

    url: str
    pid: int | None


def _free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def echo_server() -> Iterator[BenchServer]:
    """Run the bare echo endpoint."""
    port = _free_port()
    start = [sys.executable, "-c", "from service.bench.echo import main; main()", str(port)]
    with _running("the echo", start, port, "/openapi.json") as server:
        yield server


@contextmanager
def moca_server(workers: int) -> Iterator[BenchServer]:
    """Run `moca serve` with its embedded store in a folder that is removed afterwards."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="moca-bench-") as folder:
        command = [sys.executable, "-c", "from service.commands.main import main; main()", "serve"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)]
        command += ["--data-dir", str(Path(folder) / "data")]
        with _running("moca serve", command, port, "/readyz") as server:
            yield server


@contextmanager
def _running(name: str, command: list[str], port: int, probe: str) -> Iterator[BenchServer]:
    # Output goes to a file: a pipe that nobody reads would stop a talkative server.
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
        )
        try:
            server = BenchServer(f"http://127.0.0.1:{port}", child.pid)
            _wait(child, server.url + probe, log.fileno(), name)
            yield server
        finally:
            _stop(child)


def _environment() -> dict[str, str]:
    """Environment without settings: a MOCA_REDIS_URL must not lead the load to a real store."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MOCA_")}


def _wait(child: subprocess.Popen[bytes], url: str, log: int, name: str) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and child.poll() is None:
        try:
            if httpx.get(url, timeout=2.0, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    text = os.pread(log, 1 << 20, 0).decode(errors="replace")[-2000:]
    state = "not ready" if child.poll() is None else f"ended with {child.returncode}"
    raise BenchError(f"{name} {state} after {START_S:g} s at most; it said:\n{text}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a server, by force where it takes too long; its store would then go on without it."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        for pid in {child.pid, *_family(BenchServer("", child.pid))}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()


def cpu_seconds(server: BenchServer) -> dict[str, float]:
    """CPU time of a server and all its descendants so far, by role; empty where unknown."""
    total: dict[str, float] = {}
    for pid, used in _family(server).items():
        role = _role(pid)
        total[role] = total.get(role, 0.0) + used / os.sysconf("SC_CLK_TCK")
    return total


def _family(server: BenchServer) -> dict[int, int]:
    """Processes of a server, itself among them, with the clock ticks they used."""
    if server.pid is None or not PROC.joinpath("self/stat").exists():
        return {}
    parent: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parent[int(folder.name)] = int(fields[1])
            # With that of children that ended: what was used never shrinks.
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    family = {server.pid}
    while more := {pid for pid, of in parent.items() if of in family} - family:
        family |= more
    return {pid: ticks[pid] for pid in family & ticks.keys()}


def _role(pid: int) -> str:
    """What a process is: the subcommand of `moca`, otherwise its program's name."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        name = (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "ended"
    if "service.commands.main" in words[:-1]:
        return words[words.index("service.commands.main") + 1]
    if name in STORES:
        return "store"
    if len(words) > 3 and words[1] == "-c":
        return "serve" if words[3] == "serve" else "echo"
    return name


def machine_busy_s() -> float | None:
    """CPU time that all processes of the machine have used; None where it cannot be read."""
    try:
        words = PROC.joinpath("stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
