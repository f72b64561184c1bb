"""The outbox: observations are taken at once, and a thread sends them."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Collection
from contextvars import copy_context
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moca_client import calls
from moca_client.calls import Observed, path_of
from moca_client.errors import InvalidRequest
from moca_client.outbox.sending import Delivered, Notice, Sender
from moca_client.outbox.store import Failed, OutboxError, OutboxStore
from moca_client.sync import Client

log = logging.getLogger("moca_client.outbox")
RESERVED = ("stream", "key", "seq")
STOP_S = 0.5  # for which a closed outbox waits for a request under way


class Outbox:
    """Takes observations at once, and sends them in the background, in order for each stream.

    No one else is to write to these streams, so that the position decides what was applied, however
    long ago it was sent. client: must stay open as long as the outbox. path: a file that keeps
    observations across restarts of this process; None: in memory. on_answer, on_failed: called at
    least once for each, in the sender's thread. max_items: observations that wait or were set
    aside. batch: in one request.
    """

    def __init__(
        self,
        client: Client,
        path: str | Path | None = None,
        *,
        on_answer: Callable[[Delivered], object] | None = None,
        on_failed: Callable[[Failed], object] | None = None,
        max_items: int = 100_000,
        batch: int = 256,
    ) -> None:
        """Open the outbox, and go on with what its file holds."""
        if min(max_items, batch) < 1:
            raise InvalidRequest(
                f"expected max_items >= 1 and batch >= 1; got {max_items} and {batch}"
            )
        self._in_memory = path is None
        self._store = OutboxStore(path, max_items)
        self._sender = Sender(self._store, batch, client, self._handle)
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._wake = threading.Event()
        self._change = threading.Condition()
        self._closed = False  # takes nothing more; the thread ends when nothing waits
        self._stop = False  # the thread ends even so
        self._ended = False  # the thread has ended
        self._broken: Exception | None = None
        # In the context of its owner, for callbacks that look at it.
        run = copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._run,), name="moca-outbox", daemon=True
        )
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
        if error is not None or not self.pending:
            return
        if self._in_memory:
            raise OutboxError(f"{self.pending} unsent observations are lost")
        log.warning("%d observations stay in the file until the next start", self.pending)

    def add(self, stream: str, observation: Observed) -> int:
        """Take an observation, to be sent soon; returns its ticket at once.

        With a file it is kept from now on, whatever happens to this process. Raises OutboxFull,
        and InvalidRequest for what can never be sent.
        """
        self._check_open()
        ticket = self._store.add(stream, _encoded(stream, observation))
        self._wake.set()
        return ticket

    def add_once(self, stream: str, observation: Observed, *, source: str, offset: int) -> bool:
        """Take an observation of a numbered source, such as a partition of a Kafka topic, once.

        Its offset reaches the file with it, and both the disk, before this returns: then the source
        may forget it. False: skipped, as the file has this offset of the source, or a later one.
        Raises what `add` raises, and InvalidRequest for another source than a text with
        characters, or another offset than a whole number of 64 bits; the offset counts as not
        taken then.
        """
        self._check_open()
        _check_text("source", source)
        body = _encoded(stream, observation)
        position = _whole(offset)
        added = self._store.add_once(stream, body, source, position)
        if added:
            self._wake.set()
        return added

    @property
    def pending(self) -> int:
        """Return how many observations wait to be sent or answered."""
        count: int = self._store.waiting_count
        return count

    @property
    def error(self) -> str | None:
        """Return why the service takes nothing at the moment; None: nothing is wrong."""
        return str(self._broken) if self._broken is not None else self._sender.error

    def failed(self) -> list[Failed]:
        """Return what was refused and set aside, oldest first; it stays until it is dealt with."""
        self._check_open()
        return self._store.aside()

    def retry_failed(self, tickets: Collection[int]) -> list[int]:
        """Send what was set aside again, as new observations; returns their new tickets."""
        self._check_open()
        made = self._store.put_back(tickets)
        self._wake.set()
        return made

    def discard_failed(self, tickets: Collection[int]) -> int:
        """Forget what was set aside; returns how many were."""
        self._check_open()
        return self._store.discard(tickets)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until nothing waits any more; False when it took too long."""
        self._check_open()
        with self._change:
            self._change.wait_for(lambda: not self.pending or self._ended, timeout_s)
        self._check_open()
        return not self.pending

    def close(self, timeout_s: float = 30.0) -> int:
        """Send what waits for at most `timeout_s`, and stop; returns how many are left."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._stop = True
        self._wake.set()
        self._thread.join(STOP_S)  # a request under way ends by itself; its items stay
        return self.pending

    def _check_open(self) -> None:
        if self._broken is not None:
            raise OutboxError(f"the outbox stopped sending: {self._broken}") from self._broken
        if self._closed:
            raise OutboxError("the outbox is closed")

    # --- the sender's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._send()
        except Exception as error:
            log.exception("the outbox stopped")
            self._broken = error
        finally:
            try:
                self._store.close()
            finally:  # whatever that raises: its owner waits for this
                self._ended = True
                self._changed()

    def _send(self) -> None:
        while True:
            self._wake.clear()
            if self._stop:
                return
            wait_s = self._sender.round()
            self._changed()
            if self._closed and not self.pending:
                return
            if wait_s != 0:
                self._wake.wait(wait_s)

    def _changed(self) -> None:
        with self._change:
            self._change.notify_all()

    def _handle(self, notice: Notice) -> None:
        """Note what became of an observation, and call the owner back."""
        try:
            if isinstance(notice, Delivered):
                if self._on_answer is not None:
                    self._on_answer(notice)
            else:
                log.warning("set aside an observation of %s: %s", notice.stream, notice.problem)
                if self._on_failed is not None:
                    self._on_failed(notice)
        except Exception:  # it holds up nothing
            log.exception("a callback of the outbox failed")


def _encoded(stream: str, observation: Observed) -> bytes:
    _check_text("stream", stream)
    path_of(stream)  # what can never be sent would block all that follows
    body = calls.observation(observation)
    if taken := [name for name in RESERVED if name in body]:
        raise InvalidRequest(f"{taken[0]}: not allowed in an observation; the outbox sets its own")
    return calls.encode(body)


def _check_text(name: str, value: Any) -> None:
    """Refuse what no file or request can hold, before it is in the way of all others."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name}: expected a str that is not empty, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: expected a str without surrogates, got {value!r}") from None


def _whole(offset: Any) -> int:
    try:
        value = operator.index(offset)
    except TypeError:
        raise InvalidRequest(f"offset: expected an int, got {offset!r}") from None
    if not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"offset: expected an int of 64 bits, got one of {value.bit_length()}")
    return value
