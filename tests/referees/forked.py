"""Processes of the service, each forked from one that has loaded what they run.

A fork starts in a tenth of the time that a command takes, so that a run can kill thousands.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from service.api.app import create_app
from service.api.server import Server
from service.commands.main import app as moca
from service.runtime.process import bind
from service.settings import Settings
from service.worker import worker as worker_module
from tests.waiting import PATIENCE_S

Context = multiprocessing.get_context("forkserver")
Hook = Callable[[str], None]  # called in a process before it begins, with its name
IDLE_MS = 20  # of a worker: it sees sooner that it is to end


def nothing(name: str) -> None:
    """The hook of processes that need none."""


def run_worker(settings: Settings, name: str, log: Path, hook: Hook, worker_id: str) -> None:
    """The main function of a worker process."""
    _log_to(log)
    worker_module.IDLE_MS = IDLE_MS
    worker = worker_module.Worker(settings, worker_id)
    signal.signal(signal.SIGTERM, worker.stop)
    hook(name)
    worker.run()
    os._exit(0)


def run_api(settings: Settings, name: str, log: Path, hook: Hook) -> None:
    """The main function of an API process."""
    _log_to(log)
    app = create_app(settings)
    hook(name)
    with bind(settings.host, settings.port) as listener:
        Server(app, settings).run(sockets=[listener])
    os._exit(0)


def run_command(arguments: list[str], name: str, hook: Hook) -> None:
    """The main function of a command."""
    hook(name)
    moca(arguments, standalone_mode=True)


def _log_to(log: Path) -> None:
    """Have a process write all that it says to a file."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


class ForkedProcesses:
    """Processes by name: of an API if it begins with `api`, else of a worker."""

    def __init__(self, folder: Path, hook: Hook = nothing) -> None:
        Context.set_forkserver_preload(["tests.referees.loaded"])
        self._folder, self._hook = folder, hook
        self.running: dict[str, BaseProcess] = {}

    def start(self, name: str, settings: Settings, worker_id: str = "") -> None:
        """Start a process; worker_id: of a worker whose id is not its name."""
        common = (settings, name, self._folder / f"{name}.log", self._hook)
        if name.startswith("api"):
            process = Context.Process(target=run_api, args=common, daemon=True)
        else:
            own = (*common, worker_id or name)
            process = Context.Process(target=run_worker, args=own, daemon=True)
        process.start()
        self.running[name] = process

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal."""
        pid = self.running[name].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self, name: str) -> None:
        """SIGKILL a process; returns once it has ended."""
        process = self.running.pop(name)
        process.kill()
        process.join(PATIENCE_S)

    def stop(self, name: str) -> None:
        """SIGTERM a process; returns once it has ended."""
        process = self.running.pop(name)
        process.terminate()
        process.join(PATIENCE_S)
        assert process.exitcode is not None, f"{name} was asked to end, and did not"

    def command(self, name: str, arguments: list[str]) -> int | None:
        """Run a command of `moca` to its end; returns its status."""
        process = Context.Process(target=run_command, args=(arguments, name, self._hook))
        process.start()
        process.join(PATIENCE_S)
        return process.exitcode

    def close(self) -> None:
        """SIGKILL them all."""
        for name in list(self.running):
            self.kill(name)
