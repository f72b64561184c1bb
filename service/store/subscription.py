"""Subscriptions of one process: each channel at the server that has it now.

A channel is sharded, by its hash tag: a message stays with the master of its slot and its replicas,
where a plain one goes to every node of a cluster. The library's own sharded subscription asks one
connection after the other for messages; here each connection has a task that waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import redis
from redis.exceptions import MovedError, ResponseError

from service.store.shards import UNREACHABLE, AsyncStoreClient, reply_of_async, send_async
from service.tasks import end, happened, is_cancelled

log = logging.getLogger(__name__)

IDLE_S = 1.0  # a silent connection gets a PING
ANSWER_S = 1.0  # and is given up where that gets no answer
PAUSE_S = 0.1  # before channels are placed again
LOOK_S = 5.0  # servers are asked for their slots so often, for one that is out of its cluster


class Link(NamedTuple):
    """What listens to the channels that one server has."""

    channels: list[str]
    task: asyncio.Task[None]


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
        self._hear = hear
        self._recover = recover
        self._links: dict[Any, Link] = {}  # by the pool of the server
        self._live: set[str] = set()
        self._changed = asyncio.Event()  # channels have to be placed again
        self.complete = asyncio.Event()

    async def listen(self) -> None:
        """Listen until cancelled, subscribing again whatever is lost."""
        try:
            while not is_cancelled():
                try:
                    await self._place()
                except UNREACHABLE as error:
                    self._lose(error)
                if await happened(self._changed, LOOK_S):
                    self._changed.clear()
                    await asyncio.sleep(PAUSE_S)
        finally:
            await end(*(link.task for link in self._links.values()))

    async def _place(self) -> None:
        """Listen at each server to the channels that it has now; where these are others, anew."""
        await self._client.refresh()
        placed: dict[Any, list[str]] = {}
        for channel in self._channels:
            try:
                pool = self._client.shards.pool_of(("SSUBSCRIBE", channel))
            except redis.ConnectionError:  # no server has it now
                self._changed.set()
            else:
                placed.setdefault(pool, []).append(channel)
        for pool, link in list(self._links.items()):
            if link.task.done() and not link.task.cancelled():
                link.task.result()  # raises what is a defect
            if link.task.done() or link.channels != placed.get(pool):
                await end(link.task)
                del self._links[pool]
        for pool in placed.keys() - self._links.keys():
            task = asyncio.create_task(self._listen_at(pool, placed[pool]))
            self._links[pool] = Link(placed[pool], task)

    async def _listen_at(self, pool: Any, channels: Sequence[str]) -> None:
        """Listen to channels at one server, until one of them or the connection is lost."""
        connection: Any = None
        try:
            connection = await pool.get_connection()
            await self._follow(connection, channels)
        except MovedError:  # the slot of one of them went elsewhere
            return
        except UNREACHABLE as error:
            self._lose(error)
        finally:
            self._live.difference_update(channels)
            self.complete.clear()
            self._changed.set()
            if connection is not None:
                await connection.disconnect(nowait=True)
                await pool.release(connection)

    async def _follow(self, connection: Any, channels: Sequence[str]) -> None:
        # One command a channel: their slots differ.
        await send_async(connection, [("SSUBSCRIBE", channel) for channel in channels])
        missing = set(channels)
        while not is_cancelled():  # the library may drop a cancellation
            kind, *reply = await self._next(connection)
            if kind == b"smessage":
                self._hear(reply[0].decode(), reply[1])
            elif kind == b"sunsubscribe":  # its slot went elsewhere
                return
            elif kind == b"ssubscribe":
                missing.discard(reply[0].decode())
                if not missing:
                    await self._recover(channels)
                    self._live.update(channels)
                if len(self._live) == len(self._channels):
                    self.complete.set()

    async def _next(self, connection: Any) -> Sequence[Any]:
        """What comes next; after silence the answer to a PING."""
        try:
            reply = await reply_of_async(connection, IDLE_S)
        except redis.TimeoutError:
            await send_async(connection, [("PING",)])
            reply = await reply_of_async(connection, ANSWER_S)
        if isinstance(reply, ResponseError):
            raise reply
        return list(reply)

    def _lose(self, error: Exception) -> None:
        if self.complete.is_set():
            log.warning("replies: connection lost: %s", error)
        self.complete.clear()
        self._changed.set()
