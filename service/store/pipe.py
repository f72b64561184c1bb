"""One connection on which a worker reads its logs and commits, kept over many calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from service.store.exchange import reply_of, send

LENT_S = 1.0  # then the pool has a look at the connection, which it does for each call otherwise


class Pipe:
    """Commands that go out together and are carried out in order. For one thread.

    A lost connection raises, and the replies of all these commands are lost.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool: Any = client.connection_pool
        self._connection: Any = None
        self._lent_s = 0.0
        self._unsent: list[tuple[Any, ...]] = []
        self._due: list[tuple[list[Any], int]] = []  # replies to be, and their number
        self._sent = 0  # how many of those due are of commands that went out
        self._untaken = 0  # see `exchange.send`

    def put(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Have commands go out with the next exchange, which fills the list that is returned.

        An error of the server is a reply as well.
        """
        replies: list[Any] = []
        self._unsent += commands
        self._due.append((replies, len(commands)))
        return replies

    def exchange(self) -> None:
        """Send what waits and read every reply."""
        self._go(len(self._due))

    def call(self, command: tuple[Any, ...]) -> Any:
        """Send a command, after what waits, and return its reply."""
        replies = self.put([command])
        self.exchange()
        return replies[0]

    def ask(self, command: tuple[Any, ...]) -> Any:
        """Send a command ahead of what waits, then that, and return the reply to the command.

        The others are read later: the server can be at work on what waited meanwhile.
        """
        replies: list[Any] = []
        self._due.insert(self._sent, (replies, 1))
        self._go(self._sent + 1, command)
        return replies[0]

    def close(self) -> None:
        """Close the connection: replies that nobody waits for may be on their way."""
        connection = self._connection
        self._connection = None
        self._unsent, self._due, self._sent = [], [], 0
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)

    def _go(self, count: int, *first: tuple[Any, ...]) -> None:
        """Send a command, and what waits; read the first replies that are due."""
        if not count:
            return
        try:
            connection = self._borrow()
            # Alone: the server replies once it has carried out all that it got at a time.
            for commands in (first, self._unsent):
                if commands:
                    self._untaken = send(connection, commands)
            self._unsent, self._sent = [], len(self._due)
            for replies, number in self._due[:count]:
                replies += [reply_of(connection, self._untaken) for _ in range(number)]
        except BaseException:
            self.close()
            raise
        self._due, self._sent = self._due[count:], self._sent - count

    def _borrow(self) -> Any:
        now = time.monotonic()
        if self._connection is not None and not self._sent and now - self._lent_s > LENT_S:
            self._pool.release(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = self._pool.get_connection()
            self._lent_s = now
        return self._connection
