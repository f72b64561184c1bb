"""Ends what a run of the tests leaves behind, however that run ends: python reaper.py ID PID.

A process beside the run, started by `conftest.py`. It ends once its standard input does, which the
run holds open: at its end, by Ctrl-C, or by SIGKILL. Then it kills every process that descends from
the run, also where its parents have ended: those whose environment has the run's ID, and those seen
below PID meanwhile (servers overwrite their environment by a title).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import NamedTuple

VARIABLE = "MOCA_TEST_RUN"
LOOK_S = 2.0


class Process(NamedTuple):
    """A process, of which another may have the number later. parent: number of its parent."""

    pid: int
    started: str
    parent: int


def start() -> subprocess.Popen[bytes]:
    """Start a reaper for this process; its `stdin` is to be closed, or ends with this process."""
    name = os.environ[VARIABLE] = f"{os.getpid()}-{os.urandom(8).hex()}"
    command = [sys.executable, __file__, name, str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main(name: str, root: int) -> None:
    """Look after the processes of a run until it ends; then end them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    seen: set[tuple[int, str]] = set()
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        seen |= {each[:2] for each in _below({root}, _running())}
    while left := _left(name, seen):
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        seen |= {each[:2] for each in left}
        time.sleep(0.05)


def _left(name: str, seen: set[tuple[int, str]]) -> set[Process]:
    """Processes of the run that are there, and what they have started."""
    marked = f"{VARIABLE}={name}".encode()
    running = _running()
    left = {each for each in running if each[:2] in seen or marked in _environment(each.pid)}
    return left | _below({each.pid for each in left}, running)


def _below(roots: set[int], running: list[Process]) -> set[Process]:
    """Descendants of processes."""
    below: set[Process] = set()
    parents = set(roots)
    while more := {process for process in running if process.parent in parents} - below:
        below |= more
        parents |= {process.pid for process in more}
    return below


def _running() -> list[Process]:
    """All other processes that are no zombies."""
    processes = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            # The name of a program, in brackets, may have spaces and brackets.
            state, parent, *fields = file.read().rpartition(") ")[2].split()
            if state != "Z":
                processes.append(Process(int(name), fields[17], int(parent)))
    return processes


def _environment(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
    return b""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
