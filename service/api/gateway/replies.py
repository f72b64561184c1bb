"""Outcomes of the commands of one API process: published messages, backed by the store.

A message is only a hint: a disconnected subscriber loses messages without an error. So after every
subscription the missing outcomes are read from the store. A message has small outcomes whole, as
reading each from the store would cost more, and the numbers of the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import msgspec
import redis

from service import wire
from service.api.gateway.partition_queue import Pending
from service.observability import metrics
from service.problems import CorruptState
from service.store import keys, streams
from service.store.reads import AsyncStore
from service.store.shards import AsyncStoreClient
from service.store.subscription import Subscriptions
from service.tasks import is_cancelled

log = logging.getLogger(__name__)

PAUSE_S = 0.1  # after a failed read
READ_AT_ONCE = 500
_reply = metrics.STAGE_DURATION.labels("reply")


class Replies:
    """Commands that wait for an outcome, by number."""

    def __init__(
        self, client: AsyncStoreClient, store: AsyncStore, incarnation: str, partitions: int
    ) -> None:
        self._store, self._incarnation = store, incarnation
        self.pending: dict[int, Pending] = {}
        self._unread: dict[int, Pending] = {}  # their outcomes are in the store
        self._some_unread = asyncio.Event()
        self._partitions = {keys.reply_channel(p, incarnation): p for p in range(partitions)}
        channels = [*self._partitions]
        self._subscriptions = Subscriptions(client, channels, self._receive, self._resume)
        self.subscribed = self._subscriptions.complete

    def resolve(self, outcome: wire.Outcome) -> bool:
        """Deliver an outcome to its pending request."""
        pending = self.pending.get(outcome.number)
        if pending is None or pending.future.done():
            return False
        now = time.monotonic()
        pending.acknowledged = pending.acknowledged or now  # this may overtake the append's answer
        _reply.observe(now - pending.acknowledged)
        pending.future.set_result(outcome)
        return True

    async def recover(self, wanted: Iterable[Pending]) -> None:
        """Read the outcomes of these commands from the store, as their messages may be lost."""
        metrics.RECOVERED_REPLIES.inc(await self._read(wanted))

    async def _read(self, wanted: Iterable[Pending]) -> int:
        """Resolve commands that have an outcome in the store; return their number."""
        resolved = 0
        missing = [pending for pending in wanted if pending.sent and not pending.future.done()]
        for at in range(0, len(missing), READ_AT_ONCE):
            batch = [
                (pending.partition, pending.number) for pending in missing[at : at + READ_AT_ONCE]
            ]
            outcomes = await self._store.outcomes(self._incarnation, batch)
            for number, outcome in outcomes.items():
                if isinstance(outcome, streams.UnreadablePart):
                    self._fail_corrupt(number, outcome)
                else:
                    resolved += self.resolve(outcome)
        return resolved

    def _fail_corrupt(self, number: int, error: streams.UnreadablePart) -> None:
        """Fail a command whose committed outcome cannot be read."""
        log.error("replies: %s", error)
        metrics.CORRUPT_STATES.inc()
        if (pending := self.pending.get(number)) is not None:
            text = (
                "the outcome is decided: send the request again with the same Idempotency-Key "
                "to get its answer"
            )
            pending.fail(CorruptState(f"{error}; {text}"))

    async def listen(self) -> None:
        """Listen until cancelled, subscribing again whenever a connection is lost."""
        await self._subscriptions.listen()

    async def fetch(self) -> None:
        """Read outcomes of which only the numbers were published, until cancelled."""
        while not is_cancelled():
            await self._some_unread.wait()
            self._some_unread.clear()
            wanted, self._unread = self._unread, {}
            try:
                await self._read(wanted.values())
            except (redis.RedisError, OSError) as error:
                log.warning("replies: cannot read outcomes: %s", error)
                await asyncio.sleep(PAUSE_S)
                self._unread.update(wanted)
                self._some_unread.set()

    def _receive(self, message: bytes) -> None:
        try:
            hints = wire.decode_hints(message)
        except msgspec.MsgspecError:
            log.exception("replies: ignored a malformed message")
            return
        for hint in hints:
            if not isinstance(hint, int):
                self.resolve(hint)
            elif (pending := self.pending.get(hint)) is not None:
                self._unread[hint] = pending
                self._some_unread.set()

    async def _resume(self, channels: Sequence[str]) -> None:
        """Recover outcomes published before these channels were subscribed."""
        partitions = {self._partitions[channel] for channel in channels}
        await self.recover(
            [pending for pending in self.pending.values() if pending.partition in partitions]
        )


async def bounded(read: Awaitable[Any], timeout_s: float) -> Any:
    """Wait for a read; on TimeoutError it goes on by itself.

    It is not cancelled: a cancelled call can leave its answer to the connection's next user.
    """
    task = asyncio.ensure_future(read)
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    if not done:
        task.add_done_callback(forget)
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return task.result()


def forget(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
