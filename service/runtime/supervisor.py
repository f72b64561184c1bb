"""`moca serve`: the store, the API, the workers and webhooks as supervised child processes.

A child that dies is started again, after a pause that doubles while it keeps dying. A dead
worker's leases are released at once, so that another takes its partitions over. On SIGTERM or
SIGINT the API drains first, then the workers hand over, then the store stops; a second signal
kills the children.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.multiprocess import mark_process_dead

from service.problems import StartupError
from service.runtime.process import (
    EXIT_REFUSED,
    STOP_WAIT_S,
    WORKER_STOP_S,
    RestartBackoff,
    listen,
    url_of,
)
from service.runtime.store_process import StoreKeeper
from service.settings import Settings

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "service.commands.main")
TICK_S = 0.1
KILL_AFTER_S = 2.0  # a child ends a stop that takes too long by itself, and says what it waits for
READY_TIMEOUT_S = 2.0
# Signals for what a process did itself; SIGKILL may come from anyone, and where memory is short.
FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS)


@dataclass
class Child:
    """One supervised process and its history of failures."""

    name: str
    command: str
    process: subprocess.Popen[bytes] | None = None
    worker_id: str = ""
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    due: float = 0.0  # when to start it; meaningful while `process` is None


class Exited(NamedTuple):
    """A child's process ended."""

    child: Child
    process: subprocess.Popen[bytes]


class Stop(NamedTuple):
    """Somebody asked for the end."""

    why: str
    refused: bool = False


class Supervisor:
    """Runs everything of one machine until it is told to stop.

    `environ` is what the children's environment starts from. `on_ready` is called once, in a thread
    of its own and with the service's URL, when `/readyz` first says yes. `webhook_timeout_s` is the
    longest attempt of a webhook: a stop waits for it.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        on_ready: Callable[[str], None] | None = None,
        *,
        webhook_timeout_s: float,
    ) -> None:
        self.settings = settings
        self._webhook_timeout_s = webhook_timeout_s
        self._environ = environ
        self._on_ready = on_ready
        self._store = StoreKeeper(settings)
        self._events: queue.SimpleQueue[Exited | Stop] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._hurry = False  # a second signal came
        self._api = Child("api", "api")
        self._workers = [Child(f"worker {n}", "worker") for n in range(1, settings.workers + 1)]
        self._readers = [Child("webhooks", "webhooks")] if settings.webhooks_file else []

    def stop(self, why: str = "stop requested") -> None:
        """Make `run` stop everything and return; may be called from any thread or handler."""
        self._events.put(Stop(why))

    def run(self) -> int:
        """Run until stopped; return the exit status."""
        with _signals_to(self.stop), contextlib.ExitStack() as cleanup:
            try:
                cleanup.callback(self._store.close)
                self.settings = self._store.open()
                self._socket = cleanup.enter_context(listen(self.settings.host, self.settings.port))
            except StartupError as error:
                log.error("%s", error)
                return EXIT_REFUSED
            self._life = cleanup.enter_context(_pipe())
            self._metrics_dir = str(self._store.make_scratch())
            cleanup.callback(shutil.rmtree, self._metrics_dir, ignore_errors=True)
            self.url = url_of(self.settings.host, self._socket.getsockname()[1])
            cleanup.callback(self._stop_children)
            threading.Thread(target=self._announce, name="announce", daemon=True).start()
            return self._supervise()

    def _supervise(self) -> int:
        while True:
            for child in (self._api, *self._workers, *self._readers):
                if child.process is None and child.due <= time.monotonic():
                    self._start(child)
            self._store.mind()
            try:
                event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                continue
            stop = self._mind(event) if isinstance(event, Exited) else event
            if stop is not None:
                log.info("stopping: %s", stop.why)
                return EXIT_REFUSED if stop.refused else 0

    def _start(self, child: Child) -> None:
        descriptors = [self._life]
        command = [*PROGRAM, child.command, "--parent-fd", str(self._life)]
        if child.command == "api":
            descriptors.append(self._socket.fileno())
            command += ["--listen-fd", str(self._socket.fileno())]
        elif child.command == "worker":
            # A new id with each start: a stopped predecessor must not be taken for this one.
            child.worker_id = f"{child.name.replace(' ', '')}-{secrets.token_hex(4)}"
            command += ["--worker-id", child.worker_id, "--sharing", str(len(self._workers))]
        child.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=self._environment(),
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in order
        )
        threading.Thread(target=self._wait, args=(child, child.process), daemon=True).start()

    def _wait(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(Exited(child, process))

    def _environment(self) -> dict[str, str]:
        names = {f"MOCA_{name.upper()}" for name in Settings.model_fields}
        kept = {name: value for name, value in self._environ.items() if name not in names}
        values = self.settings.model_dump(mode="json")
        # Several workers cannot share a port; their metrics are on the API's page.
        values |= {"redis_url": self._store.url, "metrics_port": 0}
        settings = {f"MOCA_{n.upper()}": str(v) for n, v in values.items() if v is not None}
        return {**kept, **settings, "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir}

    def _mind(self, event: Exited) -> Stop | None:
        """Clean up after a dead child and plan its next start."""
        child = event.child
        status = event.process.returncode
        self._clean_up(child)
        if status == EXIT_REFUSED:
            return Stop(f"{child.name} cannot run with this configuration, see above", refused=True)
        pause_s = child.backoff.next_s(now := time.monotonic())
        child.due = now + pause_s
        how = f"exited with {status}"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        log.warning("%s %s; restarting in %.1f s", child.name, how, pause_s)
        return None

    def _clean_up(self, child: Child) -> None:
        assert child.process is not None
        mark_process_dead(child.process.pid, self._metrics_dir)  # type: ignore[no-untyped-call]
        itself = _by_itself(child.process.returncode)
        child.process = None
        if child.command == "worker":
            self._store.bury(child.worker_id, "failed" if itself else "unknown")

    def _announce(self) -> None:
        while not self._stopping.wait(TICK_S):
            if _is_ready(self.url):
                log.info("ready: %s (API reference at %s/docs)", self.url, self.url)
                if self._on_ready is not None:
                    self._on_ready(self.url)
                return

    def _stop_children(self) -> None:
        self._stopping.set()
        self._socket.close()  # new connections are refused while the API drains
        self._end([self._api], self.settings.request_deadline_s + STOP_WAIT_S)
        self._end(self._workers, WORKER_STOP_S)
        self._end(self._readers, self._webhook_timeout_s + STOP_WAIT_S)

    def _end(self, children: Sequence[Child], wait_s: float) -> None:
        """Ask for a clean stop and wait; kill when it takes too long or on a second signal."""
        give_up = time.monotonic() + wait_s + KILL_AFTER_S
        for child in children:
            if child.process is not None:
                child.process.terminate()
        while any(child.process is not None for child in children):
            event: Exited | Stop | None = None
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=TICK_S)
            if isinstance(event, Exited):
                self._clean_up(event.child)
            self._hurry = self._hurry or isinstance(event, Stop)  # those that come later as well
            if self._hurry or time.monotonic() > give_up:
                for child in children:
                    if child.process is not None:
                        log.warning("%s did not exit: killed", child.name)
                        child.process.kill()


@contextlib.contextmanager
def _signals_to(stop: Callable[[str], None]) -> Iterator[None]:
    caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {
        number: signal.signal(number, lambda got, _: stop(signal.Signals(got).name))
        for number in caught
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _pipe() -> Iterator[int]:
    """Read end of a pipe that ends when this process does."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def _by_itself(status: int) -> bool:
    """Whether a process died of what it did, not of a signal that others send.

    1 may be its watchdog's, which also ends one that was stopped for long and goes on.
    """
    return status > 1 or -status in FATAL


def _is_ready(url: str) -> bool:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port, timeout=READY_TIMEOUT_S
    )
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
