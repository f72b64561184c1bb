"""What both outboxes have in common: taking observations, and what was set aside."""

from __future__ import annotations

import logging
import operator
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from moca_client import bodies
from moca_client.bodies import Observed
from moca_client.errors import InvalidRequest, problem_of
from moca_client.outbox.sending import Delivered, Failed, Notice, Sender, Step
from moca_client.outbox.store import OutboxError, OutboxStore

log = logging.getLogger("moca_client.outbox")
RESERVED = ("stream", "key", "seq")


class Bounds(NamedTuple):
    """Bounds of an outbox.

    max_items: observations that wait or were set aside. batch: in one request. keep_answers:
    kept for `answers()`; the oldest go first.
    """

    max_items: int = 100_000
    batch: int = 256
    keep_answers: int = 0


class Done(NamedTuple):
    """A round ended; seconds to wait before the next, None: until something is added."""

    wait_s: float | None


class Box:
    """An outbox without its sender's thread or task."""

    def __init__(
        self, path: str | Path | None, exclusive: bool, bounds: Bounds, notify: Callable[[], None]
    ) -> None:
        if min(bounds.max_items, bounds.batch) < 1 or bounds.keep_answers < 0:
            raise InvalidRequest(
                f"expected max_items >= 1, batch >= 1 and keep_answers >= 0; got {bounds}"
            )
        self._in_memory = path is None
        self._store = OutboxStore(path, bounds.max_items)
        self._sender = Sender(self._store, bounds.batch, exclusive)
        self._answers: deque[Delivered] = deque(maxlen=bounds.keep_answers)
        self._notify = notify
        self._closed = False
        self._broken: BaseException | None = None

    def add(self, stream: str, observation: Observed) -> int:
        """Take an observation, to be sent soon; returns its ticket at once.

        With a file it is kept from now on, whatever happens to this process. Raises OutboxFull,
        and InvalidRequest for what can never be sent.
        """
        self._check_open()
        ticket = self._store.add(stream, _encoded(stream, observation))
        self._notify()
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
            self._notify()
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
        return [
            Failed(
                item.id,
                item.stream,
                msgspec.json.decode(item.body),
                problem_of(
                    item.problem["status"],
                    item.problem["document"],
                    {"x-request-id": item.problem["request_id"]},
                ),
            )
            for item in self._store.aside()
        ]

    def retry_failed(self, tickets: Collection[int]) -> list[int]:
        """Send what was set aside again, as new observations; returns their new tickets."""
        self._check_open()
        made = self._store.put_back(tickets)
        self._notify()
        return made

    def discard_failed(self, tickets: Collection[int]) -> int:
        """Forget what was set aside; returns how many were."""
        self._check_open()
        return self._store.discard(tickets)

    def answers(self) -> list[Delivered]:
        """Take the answers that came since the last time; `keep_answers` bounds them."""
        taken: list[Delivered] = []
        while self._answers:
            taken.append(self._answers.popleft())
        return taken

    @contextmanager
    def _contained(self, what: str, fatal: bool = False) -> Iterator[None]:
        """Log what goes wrong in a callback, or in the sender; a fatal one is raised by `add`."""
        try:
            yield
        except Exception as error:
            log.exception("%s", what)
            if fatal:
                self._broken = error

    def _check_open(self) -> None:
        if self._broken is not None:
            raise OutboxError(f"the outbox stopped sending: {self._broken}") from self._broken
        if self._closed:
            raise OutboxError("the outbox is closed")

    def _kept(self, notice: Notice) -> None:
        if isinstance(notice, Delivered):
            self._answers.append(notice)
        else:
            log.warning("set aside an observation of %s: %s", notice.stream, notice.problem)

    def _left(self) -> None:
        """Say what is lost, or waits for another time."""
        if not self.pending:
            return
        if self._in_memory:
            raise OutboxError(f"{self.pending} unsent observations are lost")
        log.warning("%d observations stay in the file until the next start", self.pending)


def advance(
    plan: Generator[Step, Any, float | None], value: Any, error: Exception | None
) -> Step | Done:
    """Go on to a round's next step. An end is a value: StopIteration does not cross threads."""
    try:
        return plan.send(value) if error is None else plan.throw(error)
    except StopIteration as end:
        return Done(end.value)


def _encoded(stream: str, observation: Observed) -> bytes:
    _check_text("stream", stream)
    body = bodies.observation(observation)
    if taken := [name for name in RESERVED if name in body]:
        raise InvalidRequest(f"{taken[0]}: not allowed in an observation; the outbox sets its own")
    return bodies.encode(body)


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
