"""An outbox whose sender is a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moca_client.errors import ClientError
from moca_client.outbox.box import Bounds, Box, Done, advance
from moca_client.outbox.sending import Delivered, Failed, Notice
from moca_client.retry import ONCE, Call
from moca_client.sync import Client

STOP_S = 0.5


class Outbox(Box):
    """Takes observations at once, and sends them in the background, in order for each stream.

    client: must stay open as long as the outbox. path: a file that keeps them across restarts of
    this process; None: in memory. exclusive: no one else writes to these streams, so that the
    position decides what was applied however long ago it was sent; otherwise what has an
    unknown outcome after nine minutes is set aside. on_answer, on_failed: called in the
    sender's thread, at least once for each. bounds: see Bounds.
    """

    def __init__(
        self,
        client: Client,
        path: str | Path | None = None,
        *,
        exclusive: bool = True,
        on_answer: Callable[[Delivered], object] | None = None,
        on_failed: Callable[[Failed], object] | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 (immutable)
    ) -> None:
        """Open the outbox, and go on with what its file holds."""
        self._client = client
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._wake = threading.Event()
        self._round_over = threading.Condition()
        self._closing = self._stop = False
        super().__init__(path, exclusive, bounds, self._wake.set)
        self._thread = threading.Thread(target=self._run, name="moca-outbox", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return the outbox itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send what waits and close; OutboxError when some of it is lost."""
        self.close()
        if error is None:
            self._left()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until nothing waits any more; False when it took too long."""
        self._check_open()
        end = time.monotonic() + timeout_s
        with self._round_over:
            while self.pending and self._broken is None:
                left_s = end - time.monotonic()
                if left_s <= 0 or not self._round_over.wait(left_s):
                    break
        self._check_open()
        return not self.pending

    def close(self, timeout_s: float = 30.0) -> int:
        """Send what waits for at most `timeout_s`, and stop; returns how many are left."""
        self._closed = self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._stop = True
        self._wake.set()
        self._thread.join(STOP_S)  # a request under way ends by itself; its items stay
        return self.pending

    def _run(self) -> None:
        with self._contained("the outbox stopped", fatal=True):
            self._send()
        self._store.close()
        with self._round_over:
            self._round_over.notify_all()

    def _send(self) -> None:
        while not self._stop:
            self._wake.clear()
            wait_s = self._round()
            with self._round_over:
                self._round_over.notify_all()
            if self._closing and not self.pending:
                return
            if wait_s != 0:
                self._wake.wait(wait_s)

    def _round(self) -> float | None:
        plan = self._sender.round()
        value = None
        error = None
        while True:
            step = advance(plan, value, error)
            value = None
            error = None
            if isinstance(step, Done):
                return step.wait_s
            if isinstance(step, Call):
                try:
                    value = self._client.call(step, ONCE)
                except ClientError as caught:
                    error = caught
            else:
                self._tell(step)

    def _tell(self, notice: Notice) -> None:
        self._kept(notice)
        callback: Any = self._on_answer if isinstance(notice, Delivered) else self._on_failed
        if callback is not None:
            with self._contained("a callback of the outbox failed"):
                callback(notice)
