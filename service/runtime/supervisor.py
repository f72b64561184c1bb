"""`moca serve`: the store, the API, the workers and webhooks as supervised child processes.

The store is checked before use, and an embedded one that dies is started again. So is a child that
dies, after a pause that doubles while it keeps dying. A dead worker's leases are released at once,
so that another takes its partitions over. On SIGTERM or SIGINT the API drains first, then the
workers hand over, then the store stops; a second signal kills the children.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis
from prometheus_client.multiprocess import mark_process_dead

from model_core.stream_settings import DEFAULTS
from service.problems import StartupError
from service.runtime.access_policy import keys_required
from service.runtime.embedded import Embedded
from service.runtime.process import (
    EXIT_REFUSED,
    STOP_WAIT_S,
    WORKER_STOP_S,
    RestartBackoff,
    answers,
    listen,
    url_of,
)
from service.settings import Settings
from service.store import keys
from service.store.api_keys import Keyring
from service.store.connection import START_TIMEOUT_S, connect, shown
from service.store.health import (
    check_formats,
    check_server,
    fix_partitions,
    stored_partitions,
)
from service.store.log import Log, Verdict
from service.store.shards import StoreClient

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "service.commands.main")
# Of a new store: few, so that what arrives together is appended and committed together.
PARTITIONS_OF_A_WORKER = 4
BURY_TIMEOUT_S = 1.0  # meanwhile the supervisor does nothing else
TICK_S = 0.1
KILL_AFTER_S = 2.0  # a child ends a stop that takes too long by itself, and says what it waits for
# Signals for what a process did itself; SIGKILL may come from anyone, and where memory is short.
FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS)


class StoreKeeper:
    """Opens, watches and closes the store that `settings` ask for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._embedded = None if settings.redis_url else Embedded(settings.data_dir)
        self._backoff = RestartBackoff()
        self._due = 0.0  # no start of the embedded server before this

    @property
    def url(self) -> str:
        """Address of the store, configured or embedded."""
        return self._embedded.url if self._embedded is not None else str(self._settings.redis_url)

    def open(self) -> Settings:
        """Start the embedded server, or reach the configured one; StartupError when it is unfit.

        Returns the settings with the store's number of partitions where none is stated.
        """
        try:
            if self._embedded is not None:
                self._embedded.start()
                folder = self._embedded.data_dir
                pid = self._embedded.pid
                log.info("embedded store in %s, process %d", folder, pid)
            with connect(self.url, START_TIMEOUT_S) as client:
                check_server(client)
                if "partitions" not in self._settings.model_fields_set:
                    stored = stored_partitions(client)
                    fresh = PARTITIONS_OF_A_WORKER * self._settings.workers
                    partitions = fresh if stored is None else stored
                    self._settings = self._settings.model_copy(update={"partitions": partitions})
                fix_partitions(client, self._settings.partitions)
                keys_required(self._settings, Keyring(client).any())  # StartupError before the rest
                if self._embedded is not None:
                    check_formats(client, self._settings.partitions)  # beside no other version
                    _check_disk(client, self._embedded.data_dir)
                    # It has no workers but ours: those it knows died with their supervisor.
                    for worker_id in cast(list[bytes], client.zrange(keys.WORKERS, 0, -1)):
                        self._bury(client, worker_id.decode(), "unknown")
        except (redis.RedisError, ValueError) as error:
            raise StartupError(f"cannot use the store at {shown(self.url)}: {error}") from error
        return self._settings

    def close(self) -> None:
        """Shut the embedded server down; a configured one stays as it is."""
        if self._embedded is not None:
            self._embedded.stop()

    def make_scratch(self) -> Path:
        """Make an empty folder for this run's temporary files."""
        if self._embedded is None:
            return Path(tempfile.mkdtemp(prefix="moca-"))
        # Beside the socket and under the same lock: what a killed run left is swept away.
        folder = self._embedded.socket.parent / "scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def mind(self) -> None:
        """Start the embedded server again if it died."""
        store = self._embedded
        now = time.monotonic()
        if store is None or store.alive() or now < self._due:
            return
        pause_s = self._backoff.next_s(now)
        self._due = now + pause_s
        log.warning("the embedded store, process %d, died: restarting it", store.pid)
        try:
            store.start()
        except StartupError as error:
            log.error("%s; retrying in %.1f s", error, pause_s)
        else:
            log.info("the embedded store runs again, process %d", store.pid)

    def bury(self, worker_id: str, verdict: Verdict) -> None:
        """Release a dead worker's leases and stop counting it among the living."""
        try:
            with connect(self.url, BURY_TIMEOUT_S) as client:
                self._bury(client, worker_id, verdict)
        except redis.RedisError as error:
            log.warning("leases of %s are kept until they expire: %s", worker_id, error)

    def _bury(self, client: StoreClient, worker_id: str, verdict: Verdict) -> None:
        settings = self._settings
        dead = Log(client, worker_id, settings.lease_ttl_ms, settings.partitions)
        dead.leave()
        if released := dead.release_worker(worker_id, verdict):
            log.info("released %d partitions of dead %s", released, worker_id)


def _check_disk(client: redis.Redis, data_dir: Path) -> None:
    """Raise StartupError where the server cannot append to its file: every write would fail."""
    try:
        client.hset(keys.CONFIG, "started_ms", time.time_ns() // 1_000_000)
        written = cast(Any, client.info("persistence"))["aof_last_write_status"] == "ok"
    except redis.ResponseError as error:
        if "MISCONF" not in str(error):
            raise
        written = False
    if not written:
        raise StartupError(
            f"data folder {data_dir}: the store cannot append to its file, disk full: make room "
            "and start again"
        )


@dataclass
class Child:
    """One supervised process and its history of failures."""

    name: str
    command: str
    process: subprocess.Popen[bytes] | None = None
    worker_id: str = ""
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    due: float = 0.0  # when to start it; meaningful while `process` is None


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
        self._status = 0
        self._stops: list[str] = []  # why it is to stop; with a second reason at once
        self._stopping = threading.Event()
        self._api = Child("api", "api")
        self._workers = [Child(f"worker {n}", "worker") for n in range(1, settings.workers + 1)]
        self._readers = [Child("webhooks", "webhooks")] if settings.webhooks_file else []

    def stop(self, why: str = "stop requested") -> None:
        """Make `run` stop everything and return; may be called from any thread or handler."""
        self._stops.append(why)  # a lock could be held by what a signal interrupts

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
        while not self._stops:
            for child in (self._api, *self._workers, *self._readers):
                if child.process is None and child.due <= time.monotonic():
                    self._start(child)
                elif child.process is not None and child.process.poll() is not None:
                    self._mind(child)
            self._store.mind()
            time.sleep(TICK_S)
        log.info("stopping: %s", self._stops[0])
        return self._status

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

    def _environment(self) -> dict[str, str]:
        names = {f"MOCA_{name.upper()}" for name in Settings.model_fields}
        kept = {name: value for name, value in self._environ.items() if name not in names}
        values = self.settings.model_dump(mode="json")
        # Several workers cannot share a port; their metrics are on the API's page.
        values |= {"redis_url": self._store.url, "metrics_port": 0}
        settings = {f"MOCA_{n.upper()}": str(v) for n, v in values.items() if v is not None}
        return {**kept, **settings, "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir}

    def _mind(self, child: Child) -> None:
        """Clean up after a dead child and plan its next start."""
        status = self._clean_up(child)
        if status == EXIT_REFUSED:
            self._status = EXIT_REFUSED
            self.stop(f"{child.name} cannot run with this configuration, see above")
            return
        pause_s = child.backoff.next_s(now := time.monotonic())
        child.due = now + pause_s
        how = f"exited with {status}"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        log.warning("%s %s; restarting in %.1f s", child.name, how, pause_s)

    def _clean_up(self, child: Child) -> int:
        """Let go of a dead child; returns its exit status."""
        assert child.process is not None
        status = child.process.returncode
        mark_process_dead(child.process.pid, self._metrics_dir)  # type: ignore[no-untyped-call]
        child.process = None
        if child.command == "worker":
            self._store.bury(child.worker_id, "failed" if _by_itself(status) else "unknown")
        return status

    def _announce(self) -> None:
        while not self._stopping.wait(TICK_S):
            if answers(f"{self.url}/readyz"):
                log.info("ready: %s (API reference at %s/docs)", self.url, self.url)
                log.info("false alarms to expect: %s", _alarm_rule(self.settings))
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
            time.sleep(TICK_S)
            for child in children:
                if child.process is None:
                    continue
                if child.process.poll() is not None:
                    self._clean_up(child)
                elif len(self._stops) > 1 or time.monotonic() > give_up:
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


def _alarm_rule(settings: Settings) -> str:
    """Describe the false alarms of streams that state no rule of confirmation."""
    per_day = settings.false_alarms_per_day
    if per_day is None:
        return (
            f"1 in {DEFAULTS.threshold:,.0f} observations of a stream, unless it states another "
            "false_alarm_every; for a rate of all streams use --false-alarms-per-day"
        )
    return (
        f"{per_day:g} a day over all streams that state no rule of their own "
        "(--false-alarms-per-day), as soon as their pace is known"
    )
