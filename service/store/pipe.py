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
        if not self._due:
            return
        try:
            connection = self._borrow()
            send(connection, self._unsent)
            for replies, count in self._due:
                replies += [reply_of(connection) for _ in range(count)]
        except BaseException:
            self.close()
            raise
        self._unsent = []
        self._due = []

    def call(self, command: tuple[Any, ...]) -> Any:
        """Send a command, after what waits, and return its reply."""
        replies = self.put([command])
        self.exchange()
        return replies[0]

    def close(self) -> None:
        """Close the connection: replies that nobody waits for may be on their way."""
        connection = self._connection
        self._connection = None
        self._unsent = []
        self._due = []
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)

    def _borrow(self) -> Any:
        now = time.monotonic()
        if self._connection is not None and now - self._lent_s > LENT_S:
            self._pool.release(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = self._pool.get_connection()
            self._lent_s = now
        return self._connection
