"""How one API process hears of its outcomes: a subscription, and the store behind it.

A message is only a hint: a subscriber that is cut off loses messages without an error. So after
every subscription the outcomes that are missing are read from the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable
from typing import Any

import msgspec
import redis
import redis.asyncio

from service import metrics, wire
from service.api.lane import Pending
from service.errors import CorruptState
from service.redis import keys, store
from service.redis.committed import AsyncStore
from service.tasks import is_cancelled

log = logging.getLogger(__name__)

IDLE_S = 1.0  # a silent connection is asked whether it lives, and given up after as long again
PAUSE_S = 0.1
READ_AT_ONCE = 500
AT_ONCE = 250  # outcomes handed on before the event loop does something else
_reply = metrics.STAGE_DURATION.labels("reply")


class Replies:
    """Commands that wait for an outcome, by number."""

    def __init__(self, client: redis.asyncio.Redis, store: AsyncStore, incarnation: str) -> None:
        self._client, self._store, self._incarnation = client, store, incarnation
        self.pending: dict[int, Pending] = {}
        self.subscribed = asyncio.Event()

    def resolve(self, outcome: wire.Outcome) -> bool:
        """Hand an outcome to whoever waits for it."""
        pending = self.pending.get(outcome.number)
        if pending is None or pending.future.done():
            return False
        if pending.acknowledged:
            _reply.observe(time.monotonic() - pending.acknowledged)
        pending.future.set_result(outcome)
        return True

    async def recover(self, wanted: Iterable[Pending]) -> None:
        """Read the outcomes of these commands from the store."""
        by_partition: dict[int, list[int]] = {}
        for pending in wanted:
            if pending.sent and not pending.future.done():
                by_partition.setdefault(pending.partition, []).append(pending.number)
        for partition, numbers in by_partition.items():
            for at in range(0, len(numbers), READ_AT_ONCE):
                await self._read(partition, numbers[at : at + READ_AT_ONCE])

    async def _read(self, partition: int, numbers: list[int]) -> None:
        outcomes = await self._store.outcomes(partition, self._incarnation, numbers)
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, store.CorruptState):
                self._lose(number, outcome)
            elif outcome is not None and self.resolve(outcome):
                metrics.RECOVERED_REPLIES.inc()

    def _lose(self, number: int, error: store.CorruptState) -> None:
        """Answer a command whose outcome is committed and cannot be read."""
        log.error("replies: %s", error)
        metrics.CORRUPT_STATES.inc()
        if (pending := self.pending.get(number)) is not None:
            text = "it was decided, and sent again with the same Idempotency-Key returns its answer"
            pending.fail(CorruptState(f"{error}; {text}"))

    async def listen(self) -> None:
        """Listen until cancelled, subscribing again whenever the connection is lost."""
        while not is_cancelled():
            try:
                await self._listen()
            except (redis.RedisError, OSError) as error:
                if self.subscribed.is_set():
                    log.warning("replies: connection lost: %s", error)
                self.subscribed.clear()
                await asyncio.sleep(PAUSE_S)

    async def _listen(self) -> None:
        pubsub: Any = self._client.pubsub()
        try:
            await pubsub.subscribe(keys.reply_channel(self._incarnation))
            asked = True  # that there is a subscription is to be said as soon
            while not is_cancelled():
                message = await pubsub.get_message(timeout=IDLE_S)
                if message is not None:
                    asked = False
                    await self._hear(message)
                elif asked:
                    raise redis.ConnectionError(f"no sign of life within {IDLE_S:g} s")
                else:
                    asked = True
                    await pubsub.ping()
        finally:
            await pubsub.aclose()

    async def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            try:
                outcomes = wire.decode_outcomes(message["data"])
            except msgspec.MsgspecError:
                log.exception("replies: a message that is not a list of outcomes")
                return
            for i, outcome in enumerate(outcomes, start=1):
                self.resolve(outcome)
                if i % AT_ONCE == 0:  # each wakes a request
                    await asyncio.sleep(0)
        elif message["type"] == "subscribe":
            # Also seen when the library subscribes again by itself after a lost connection.
            await self.recover(list(self.pending.values()))
            self.subscribed.set()


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
    """Look at how a task ended that nobody waits for, so that asyncio does not report it lost."""
    if not task.cancelled():
        task.exception()
