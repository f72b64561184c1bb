"""Connections that a worker keeps: one to each shard, and one for each read that waits."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import redis

from service.store.shards import (
    LOST,
    Sending,
    StoreClient,
    Words,
    exchange,
    read_of,
    reply_of,
    send,
)

LENT_S = 1.0  # then the pool has a look at the connection, which it does for each call otherwise
WAIT_MS = 1000  # longest blocking read
LATE_S = 1.0  # after that its connection is lost


class Pipe:
    """Commands that go out together, and are carried out in order at each shard. Not thread-safe.

    A lost connection raises, and the replies of all these commands are lost.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._lent: dict[Any, Any] = {}  # connection by pool
        self._lent_s = 0.0
        self._unsent: list[Words] = []
        self._due: list[tuple[list[Any], int]] = []  # replies to be, and their number

    def put(self, commands: Sequence[Words]) -> list[Any]:
        """Have commands go out with the next exchange, which fills the list that is returned.

        An error of the server is a reply as well.
        """
        replies: list[Any] = []
        self._unsent += commands
        self._due.append((replies, len(commands)))
        return replies

    def exchange(self) -> None:
        """Send what waits and read every reply."""
        if not self._due:
            return
        commands = self._unsent
        replies: list[Any] = [None] * len(commands)
        try:
            pool_of = self._client.shards.pool_of
            parts: dict[Any, list[Sending]] = {}
            for i, words in enumerate(commands):
                pool = pool_of(words)
                parts.setdefault(pool, []).append(Sending(i, words, pool))
            self._give_back_old()
            for pool in parts:
                if pool not in self._lent:
                    self._lent[pool] = pool.get_connection()
            exchange([self._lent[pool] for pool in parts], list(parts.values()), replies)
            self._client.follow(commands, replies)
        except BaseException as error:
            self.close()
            if isinstance(error, LOST):
                self._client.look_again()
            raise
        at = 0
        for wanted, count in self._due:
            wanted += replies[at : at + count]
            at += count
        self._unsent = []
        self._due = []

    def call(self, commands: Sequence[Words]) -> list[Any]:
        """Send commands, after what waits, and return their replies."""
        replies = self.put(commands)
        self.exchange()
        return replies

    def close(self) -> None:
        """Close the connections: replies that nobody waits for may be on their way."""
        lent = self._lent
        self._lent = {}
        self._unsent = []
        self._due = []
        for pool, connection in lent.items():
            connection.disconnect()
            pool.release(connection)

    def _give_back_old(self) -> None:
        now = time.monotonic()
        if now - self._lent_s > LENT_S:
            for pool, connection in self._lent.items():
                pool.release(connection)
            self._lent = {}
            self._lent_s = now


class Wait(NamedTuple):
    """A blocking read under way on a connection of its own."""

    after: Mapping[str, str]
    pool: Any
    connection: Any
    began: float


class Waits:
    """Blocking reads, one for each group of keys, that outlast the calls that wait for the first.

    An answer says that there may be entries to read, not which ones. Not thread-safe.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._open: dict[tuple[str, ...], Wait] = {}

    def wait(self, after: Mapping[str, str], timeout_ms: int) -> bool:
        """Wait until one of the keys has an entry after its id; whether one has."""
        groups = {tuple(names): names for names in self._client.shards.groups(after)}
        try:
            for group in [group for group in self._open if group not in groups]:
                self._drop(group)
            for group, names in groups.items():
                self._begin(group, {name: after[name] for name in names})
            poller = select.poll()
            by_descriptor = {}
            for group, wait in self._open.items():
                descriptor = wait.connection._sock.fileno()
                by_descriptor[descriptor] = group
                poller.register(descriptor, select.POLLIN)
            replies = [self._end(by_descriptor[ready]) for ready, _ in poller.poll(timeout_ms)]
            late = time.monotonic() - WAIT_MS / 1000 - LATE_S
            if any(wait.began < late for wait in self._open.values()):
                raise redis.TimeoutError("no answer to a blocking read")
        except LOST:
            self.close()
            self._client.look_again()
            raise
        if any(isinstance(reply, Exception) for reply in replies):
            self._client.look_again()  # moved, or not a master any more: the read is sent there
        return any(reply is not None for reply in replies)

    def close(self) -> None:
        """Give every read up."""
        for group in list(self._open):
            self._drop(group)

    def _begin(self, group: tuple[str, ...], after: Mapping[str, str]) -> None:
        wait = self._open.get(group)
        if wait is not None and wait.after != after:
            # Its entry came and was read otherwise; or the log is another one.
            if wait.connection.can_read(0):
                self._end(group)
            else:
                self._drop(group)
        if group in self._open:
            return
        words = read_of(after, 1, WAIT_MS)
        pool = self._client.shards.pool_of(words)
        self._open[group] = wait = Wait(after, pool, pool.get_connection(), time.monotonic())
        send(wait.connection, [words])

    def _end(self, group: tuple[str, ...]) -> Any:
        """Take an answer, which is a hint of something to read; None: its time was over."""
        reply = reply_of(self._open[group].connection)
        wait = self._open.pop(group)
        wait.pool.release(wait.connection)
        return reply

    def _drop(self, group: tuple[str, ...]) -> None:
        wait = self._open.pop(group)
        wait.connection.disconnect()
        wait.pool.release(wait.connection)
