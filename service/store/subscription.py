"""Subscriptions of one process: each channel at the server that has it now.

A channel with a hash tag is sharded: a message stays with the master of its slot and its replicas,
where a plain one goes to every node of a cluster. The library's own sharded subscription asks one
connection after the other for messages; here each connection has a task that waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis
from redis.exceptions import MovedError, ResponseError

from service.store.shards import UNREACHABLE, AsyncStoreClient, reply_of_async, send_async
from service.tasks import end, happened, is_cancelled

log = logging.getLogger(__name__)

IDLE_S = 1.0  # a silent connection gets a PING, and is given up after as long again
PAUSE_S = 0.1  # before channels are placed again
LOOK_S = 5.0  # servers are asked for their slots so often, for one that is out of its cluster
_SUBSCRIBED = (b"ssubscribe", b"subscribe")
_MESSAGE = (b"smessage", b"message")
_PING = ""  # stands for a PING among the channels whose answers are to come


class Subscriptions:
    """Channels that stay subscribed, one connection for each server that has some of them.

    hear: gets each message and its channel. recover: gets channels after each (re)subscription, as
    messages may have been missed before it. complete: all channels are subscribed, and were
    recovered.
    """

    def __init__(
        self,
        client: AsyncStoreClient,
        channels: Sequence[str],
        hear: Callable[[str, bytes], None],
        recover: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._channels = channels
        self._links: dict[Any, _Link] = {}  # by the pool of the server
        self.hear = hear
        self.recover = recover
        self.changed = asyncio.Event()  # a connection or a channel was lost
        self.complete = asyncio.Event()

    async def listen(self) -> None:
        """Listen until cancelled, subscribing again whatever is lost."""
        try:
            while not is_cancelled():
                try:
                    await self._place()
                except UNREACHABLE as error:
                    self._lose(error)
                    await asyncio.sleep(PAUSE_S)
                    continue
                await self._wait()
        finally:
            await end(*(link.task for link in self._links.values()))

    def confirmed(self) -> None:
        """Note that a connection has subscribed and recovered all its channels."""
        live = set().union(*(link.live for link in self._links.values()))
        if len(live) == len(self._channels):
            self.complete.set()

    async def _place(self) -> None:
        """Subscribe every channel that is not subscribed where it is."""
        await self._client.refresh()
        for pool, channels in self._misplaced().items():
            if pool not in self._links:
                self._links[pool] = _Link(self, pool)
            await self._links[pool].add(channels)
        for link in self._links.values():
            if not link.channels:
                link.task.cancel()
        self.confirmed()

    def _misplaced(self) -> dict[Any, list[str]]:
        """Channels that are to be subscribed, by the pool of the server that has them now."""
        held = {channel: link for link in self._links.values() for channel in link.channels}
        misplaced: dict[Any, list[str]] = {}
        for channel in self._channels:
            try:
                pool = self._client.shards.pool_of(("SSUBSCRIBE", channel))
            except redis.ConnectionError:  # no server has it now
                self.changed.set()
                pool = None
            link = held.get(channel)
            if link is not None and link.pool is pool:
                continue
            if link is not None:
                link.drop(channel)  # a master that does not know yet that it is none any more
            if pool is not None:
                misplaced.setdefault(pool, []).append(channel)
        return misplaced

    async def _wait(self) -> None:
        """Wait until something is lost, or it is time to look where the slots are."""
        if not await happened(self.changed, LOOK_S):
            return
        self.changed.clear()
        for link in [link for link in self._links.values() if link.task.done()]:
            del self._links[link.pool]
            if link.error is not None:
                self._lose(link.error)
            elif not link.task.cancelled():
                link.task.result()  # raises what is a defect
        await asyncio.sleep(PAUSE_S)

    def _lose(self, error: Exception) -> None:
        if self.complete.is_set():
            log.warning("replies: connection lost: %s", error)
        self.complete.clear()


class _Link:
    """One connection to one server, and the channels that are subscribed over it."""

    def __init__(self, owner: Subscriptions, pool: Any) -> None:
        self._owner = owner
        self.pool = pool
        self.channels: set[str] = set()
        self.live: set[str] = set()
        self.error: Exception | None = None  # what ended it
        self._unsent: list[str] = []
        self._asked: deque[str] = deque()  # unanswered requests, in order
        self._fresh: list[str] = []  # subscribed, and not recovered yet
        self._connection: Any = None
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(lambda _: owner.changed.set())

    async def add(self, channels: Sequence[str]) -> None:
        """Subscribe more channels, now or as soon as there is a connection."""
        self.channels.update(channels)
        self._unsent += channels
        with contextlib.suppress(*UNREACHABLE):  # its own task sees that as well
            await self._send()

    def drop(self, channel: str) -> None:
        """Leave a channel to another connection; what still comes does no harm."""
        self.channels.discard(channel)
        self.live.discard(channel)

    async def _run(self) -> None:
        try:
            self._connection = await self.pool.get_connection()
            await self._send()
            while not self.task.cancelling():  # the library may drop a cancellation
                await self._take(await self._next())
        except UNREACHABLE as error:
            self.error = error
        finally:
            await self._close()

    async def _close(self) -> None:
        self.live.clear()
        self.channels.clear()
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self.pool.release(connection)

    async def _send(self, *others: str) -> None:
        """Subscribe what is not sent yet, one command a channel: their slots differ."""
        connection = self._connection
        # Looked at here: one that is lost would connect again by itself.
        if connection is None or not connection.is_connected:
            return
        sent = [*self._unsent, *others]
        self._unsent = []
        self._asked.extend(sent)
        if not sent:
            return
        commands = [
            ("PING",) if asked == _PING else ("SSUBSCRIBE" if "{" in asked else "SUBSCRIBE", asked)
            for asked in sent
        ]
        await send_async(connection, commands)

    async def _next(self) -> Any:
        """What comes next; after silence the answer to a PING."""
        for _ in range(2):
            with contextlib.suppress(redis.TimeoutError):
                return await reply_of_async(self._connection, IDLE_S)
            if _PING not in self._asked:
                await self._send(_PING)
        raise redis.ConnectionError(f"no message within {IDLE_S:g} s")

    async def _take(self, reply: Any) -> None:
        if isinstance(reply, ResponseError):
            self._refused(reply)
        elif reply[0] in _MESSAGE:
            self._owner.hear(reply[1].decode(), reply[2])
            return
        elif reply[0] in _SUBSCRIBED:
            self._fresh.append(self._asked.popleft())
        elif reply[0] == b"sunsubscribe":  # its slot went elsewhere
            self._lost(reply[1].decode())
        else:
            self._asked.popleft()  # the answer to a PING
        if self._fresh and not any(self._asked):
            fresh = self._fresh
            self._fresh = []
            await self._owner.recover(fresh)
            self.live.update(self.channels.intersection(fresh))
            self._owner.confirmed()

    def _refused(self, error: ResponseError) -> None:
        """Give back a channel whose slot is elsewhere; any other error ends the connection."""
        channel = self._asked.popleft() if self._asked else _PING
        if channel == _PING or not isinstance(error, MovedError):
            raise error
        self._lost(channel)

    def _lost(self, channel: str) -> None:
        if channel in self.channels:
            self.drop(channel)
            self._owner.changed.set()
