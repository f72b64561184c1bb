"""What every process of the service does at its start: log lines, parent's death, the port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time

from service.problems import StartupError
from service.tasks import described

EXIT_REFUSED = 78  # sysexits.h EX_CONFIG: starting again cannot help
ORPHAN_GRACE_S = 3.0
ANSWER_S = 2.0
PORT_WAIT_S = 3.0  # an API process whose supervisor was killed gives the port up within this
BACKLOG = 2048
# Longest stops: of a process that answers requests or delivers, beside what is under way; of a
# worker, which writes states. Both are within what docker-compose.yml and deploy/ leave them.
STOP_WAIT_S = 8.0
WORKER_STOP_S = 20.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0

log = logging.getLogger(__name__)


class RestartBackoff:
    """Pauses before the next try: doubling, and short again after a while without failures."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._last = float("-inf")

    def next_s(self, now: float) -> float:
        """Return the pause after a failure at `now`."""
        calm = now - self._last > self._pause_s + LONGEST_PAUSE_S
        self._pause_s = FIRST_PAUSE_S if calm else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._last = now
        return self._pause_s


def log_to_stderr(role: str, level_name: str = "info") -> None:
    """Log one plain line per record of that level or above, with the process's role."""
    level = logging.getLevelNamesMapping()[level_name.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {role:<9} %(levelname)-7s %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("apprise", "uvicorn.error", "httpx", "matplotlib", "numba"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def follow_parent(life: int) -> None:
    """End this process soon after its parent, even one killed with SIGKILL.

    `life` is the read end of a pipe whose write end only the parent has, so that the system
    itself reports its death. A clean stop is tried first: the worker hands its partitions over.
    """

    def watch() -> None:
        while os.read(life, 1):
            pass
        log.warning("supervisor exited: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


def limit_stop(wait_s: float) -> None:
    """End this process, from now on stopping, if it still runs after `wait_s`.

    What it waits for is then on standard error. Called by a handler of the signal to stop, in
    the thread of the event loop, if there is a loop.
    """
    loop: asyncio.AbstractEventLoop | None = None
    with contextlib.suppress(RuntimeError):
        loop = asyncio.get_running_loop()

    def watch() -> None:
        time.sleep(wait_s)
        log.error("still stopping after %g s: exiting; tasks and threads still running", wait_s)
        for task in asyncio.all_tasks(loop) if loop is not None else ():
            sys.stderr.write(f"{described(task)}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    threading.Thread(target=watch, name="limit-stop", daemon=True).start()


def import_plugins(names: str) -> None:
    """Import modules, which register what they add; StartupError where one cannot be imported."""
    for name in filter(None, map(str.strip, names.split(","))):
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise StartupError(f"cannot import plugin {name!r}: {error!r}") from error


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; StartupError when the address cannot be had."""
    listener = bind(host, port)
    listener.listen(BACKLOG)
    return listener


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that refuses connections until it listens; StartupError as by `listen`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    give_up = time.monotonic() + PORT_WAIT_S
    while True:
        bound = socket.socket(family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((host, port))
            return bound
        except OSError as error:
            bound.close()
            if error.errno != errno.EADDRINUSE:
                raise StartupError(f"cannot listen on {host} port {port}: {error}") from error
            if time.monotonic() > give_up:
                raise StartupError(
                    f"port {port} on {host} is in use by another process: choose another "
                    "with --port or MOCA_PORT"
                ) from error
            time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether what listens on this machine answers a request with success by now."""
    import httpx  # which not every process needs

    try:
        return httpx.get(url, timeout=ANSWER_S, trust_env=False).is_success
    except httpx.TransportError:
        return False


def url_of(host: str, port: int) -> str:
    """Return the address at which a service listening on `host` is reached from this machine."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # nosec B104
    reached = everywhere.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
