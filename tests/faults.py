"""Faults of the path between processes and their store.

A `Proxy` stands between one process and the store; faults of several compose.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit

REQUESTS, REPLIES = "requests", "replies"  # directions: to the store, from the store
BOTH = (REQUESTS, REPLIES)
CHUNK = 4096
QUEUED = 4  # chunks on their way: beyond, the sender feels that the link is slow
STEP_S = 0.02


class _Connection:
    """Both directions of one connection through a proxy."""

    def __init__(self, proxy: Proxy, *writers: asyncio.StreamWriter) -> None:
        self.proxy, self.writers = proxy, writers
        self.deaf: set[str] = set()  # directions in which bytes were lost: the rest is, too

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def run(self, direction: str, reader, writer) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(direction, reader, queue))
            group.create_task(self._write(direction, queue, writer))

    async def _read(self, direction: str, reader, queue) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if direction in self.proxy.lost:
                    self.deaf.add(direction)
                if direction not in self.deaf:
                    await queue.put((self.proxy.due(direction, len(data)), data))
        await queue.put((0.0, b""))

    async def _write(self, direction: str, queue, writer) -> None:
        while True:
            due, data = await queue.get()
            while self.proxy.withholds(direction, due):  # noqa: ASYNC110  # set by another thread
                await asyncio.sleep(STEP_S)
            if not data:
                return self.abort()
            if self.proxy.cutting and direction == REPLIES:
                writer.write(data[: len(data) // 2])
                await asyncio.sleep(0)  # what is written goes out before the end
                return self.abort()
            writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()


class Proxy:
    """Passes bytes between a free port of loopback and a store, until it is given a fault.

    The fields may be set at any time; `heal` clears them. Directions in `held` pass nothing until
    then. Of those in `lost` every byte is lost, and all that follows on the same connection.
    """

    def __init__(self, store_url: str) -> None:
        self._target = urlsplit(store_url)
        self.heal()
        self._free_at = dict.fromkeys(BOTH, 0.0)
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)  # or the kernel hides much
        listener.bind(("127.0.0.1", 0))
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=listener, limit=CHUNK)
        )
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def heal(self) -> None:
        self.held: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self.cutting = False  # each reply ends in its middle, and with it the connection
        self.refusing = False  # new connections are closed at once
        self.latency_s = 0.0
        self.bytes_per_s = float("inf")

    def hold(self, *directions: str) -> None:
        self.held = frozenset(directions)

    def lose(self, *directions: str) -> None:
        self.lost = frozenset(directions)

    def slow(self, latency_s: float, bytes_per_s: float) -> None:
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s

    def cut(self) -> None:
        self.cutting = True

    def refuse(self) -> None:
        """Close every connection, and each new one."""
        self.refusing = True
        self._loop.call_soon_threadsafe(self._abort_all)

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            self._abort_all()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def limited(self) -> bool:
        return self.latency_s > 0 or self.bytes_per_s < float("inf")

    def withholds(self, direction: str, due: float) -> bool:
        """Whether bytes of a direction, due at a time, are not passed on now."""
        return direction in self.held or (self.limited and time.monotonic() < due)

    def due(self, direction: str, size: int) -> float:
        """When so many bytes that come now are to be passed on."""
        begin = max(time.monotonic(), self._free_at[direction] if self.limited else 0.0)
        self._free_at[direction] = begin + size / self.bytes_per_s
        return self._free_at[direction] + self.latency_s

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _open(self):
        at = self._target
        if at.scheme == "unix":
            return await asyncio.open_unix_connection(at.path)
        return await asyncio.open_connection(at.hostname, at.port)

    async def _serve(self, reader, writer) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await self._open()
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, writer, up_writer)
        self._connections.add(connection)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # by `close`: nobody waits for it
                await asyncio.gather(
                    connection.run(REQUESTS, reader, up_writer),
                    connection.run(REPLIES, up_reader, writer),
                )
        finally:
            connection.abort()
            self._connections.discard(connection)
