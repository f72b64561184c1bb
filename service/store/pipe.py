"""One connection on which a worker reads its logs and commits, kept over many calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from service.store.exchange import reply_of, send

LENT_S = 1.0  # then the pool has a look at the connection, which it does for each call otherwise


class Pipe:
    """Sends commands and reads their replies in order; a reply may wait for later calls.

    A lost connection raises, and loses every reply that is not read yet. For one thread.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool: Any = client.connection_pool
        self._connection: Any = None
        self._lent_s = 0.0
        self._due: list[tuple[list[Any], int]] = []  # replies to be, and their number
        self._untaken = 0  # see `send`

    def begin(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands; a later call appends each one's reply to the list that is returned.

        An error of the server is a reply as well.
        """
        replies: list[Any] = []
        connection = self._borrow()
        try:
            self._untaken = max(self._untaken, send(connection, commands))
        except BaseException:
            self.close()
            raise
        self._due.append((replies, len(commands)))
        return replies

    def drain(self) -> None:
        """Wait for every reply."""
        try:
            for replies, count in self._due:
                while len(replies) < count:
                    replies.append(reply_of(self._connection, self._untaken))
        except BaseException:
            self.close()
            raise
        self._due = []
        self._untaken = 0

    def call(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply; those of earlier commands come first."""
        replies = self.begin([command])
        self.drain()
        return replies[0]

    def close(self) -> None:
        """Close the connection: replies that nobody waits for may be on their way."""
        connection = self._connection
        self._connection = None
        self._due = []
        self._untaken = 0
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)

    def _borrow(self) -> Any:
        now = time.monotonic()
        if self._connection is not None and not self._due and now - self._lent_s > LENT_S:
            self._pool.release(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = self._pool.get_connection()
            self._lent_s = now
        return self._connection
