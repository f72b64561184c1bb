"""The access log: one line of JSON for each request."""

from __future__ import annotations

import contextlib
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any

import msgspec
from starlette.types import Scope

from service.problems import StartupError

log = logging.getLogger(__name__)

OFF = "off"
STDERR = "stderr"
_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Writes to standard error or to a file, which may be moved away while it is written."""

    def __init__(self, target: str) -> None:
        try:
            self._handler: logging.Handler = (
                logging.StreamHandler(sys.stderr)
                if target == STDERR
                else WatchedFileHandler(target, encoding="utf-8")
            )
        except OSError as error:
            raise StartupError(f"--access-log: cannot write {target}: {error}") from error

        # A full disk must not fill standard error with tracebacks instead.
        self._handler.handleError = self._lost  # type: ignore[method-assign]
        self._broken = False

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what a full disk did not take
            self._handler.close()

    def write(self, scope: Scope, status: int, seconds: float, received: int, sent: int) -> None:
        """Write one request's line. No query and no header is in it, so no secret either."""
        client = scope.get("client")
        state = scope["state"]
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": state["request_id"],
            "method": scope["method"],
            "route": getattr(scope.get("route"), "path", None),
            "path": scope["path"],
            "status": status,
            "duration_ms": round(seconds * 1000, 3),
            "bytes_in": received,
            "bytes_out": sent,
            "key": state.get("key"),
            "client": client[0] if client else None,
        }
        message = _encode(line).decode()
        self._handler.handle(logging.LogRecord("access", logging.INFO, "", 0, message, None, None))

    def _lost(self, record: logging.LogRecord) -> None:
        if not self._broken:
            log.warning("cannot write the access log, lines are lost: %s", sys.exc_info()[1])
        self._broken = True
