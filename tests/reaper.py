"""Ends what a run of the tests leaves behind, however that run ends: python reaper.py ID PID.

A process beside the run, started by `conftest.py`. It ends once its standard input does, which the
run holds open: at its end, by Ctrl-C, or by SIGKILL. Then it kills every process that descends from
the run, also where its parents have ended: those whose environment has the run's ID, and those seen
below PID meanwhile (servers overwrite their environment by a title).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "MOCA_TEST_RUN"
LOOK_S = 1.0


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
        seen |= _below({root}) - {_process(os.getpid())}
    while left := _left(name, seen) - {_process(os.getpid())}:
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        seen |= left
        time.sleep(0.05)


def _left(name: str, seen: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Processes of the run that are there, and what they have started."""
    marked = f"{VARIABLE}={name}".encode()
    there = _running()
    left = {each for each in there if each in seen or marked in _environment(each[0])}
    return left | _below({pid for pid, _ in left})


def _below(roots: set[int]) -> set[tuple[int, str]]:
    """Descendants of processes."""
    found: set[tuple[int, str]] = set()
    parents = {pid: _parent(pid) for pid, _ in _running()}
    known = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in known and pid not in known}:
        known |= more
        found |= {_process(pid) for pid in more}
    return found


def _running() -> set[tuple[int, str]]:
    """All processes that are no zombies: number and time of their start."""
    every = {_process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {each for each in every if each[1]}


def _process(pid: int) -> tuple[int, str]:
    fields = _stat(pid)
    return pid, "" if not fields or fields[0] == "Z" else fields[19]


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Fields from the state on; a name before may have spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
