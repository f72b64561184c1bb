"""An outbox whose sender is a task."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moca_client.asynchronous import AsyncClient
from moca_client.errors import ClientError
from moca_client.outbox.box import Bounds, Box, Done, advance
from moca_client.outbox.sending import Delivered, Failed, Notice
from moca_client.retry import ONCE, Call

AGAIN_S = 0.1


class AsyncOutbox(Box):
    """Takes observations at once, and sends them in a task, in order for each stream.

    To be used as an asynchronous context manager. The arguments are those of Outbox; callbacks
    may be coroutine functions.
    """

    def __init__(
        self,
        client: AsyncClient,
        path: str | Path | None = None,
        *,
        exclusive: bool = True,
        on_answer: Callable[[Delivered], object] | None = None,
        on_failed: Callable[[Failed], object] | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 (immutable)
    ) -> None:
        """Open the outbox; it sends from `async with` on."""
        self._client = client
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._wake = asyncio.Event()
        self._round_over = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        super().__init__(path, exclusive, bounds, self._wake.set)

    async def __aenter__(self) -> Self:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="moca-outbox")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send what waits and close; OutboxError when some of it is lost."""
        await self.close()
        if error is None:
            self._left()

    async def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until nothing waits any more; False when it took too long."""
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                while self.pending and self._broken is None:
                    self._round_over.clear()
                    await self._round_over.wait()
        except TimeoutError:
            pass
        self._check_open()
        return not self.pending

    async def close(self, timeout_s: float = 30.0) -> int:
        """Send what waits for at most `timeout_s`, and stop; returns how many are left."""
        self._closed = self._closing = True
        self._wake.set()
        if self._task is None:
            self._store.close()
            return self.pending
        await asyncio.wait([self._task], timeout=timeout_s)
        while not self._task.done():  # in Python 3.11 a cancellation may be dropped
            self._task.cancel()  # what is under way stays, and is sent again the next time
            await asyncio.wait([self._task], timeout=AGAIN_S)
        return self.pending

    async def _run(self) -> None:
        try:
            with self._contained("the outbox stopped", fatal=True):
                await self._send()
        finally:  # also when cancelled
            self._store.close()
            self._round_over.set()

    async def _send(self) -> None:
        while True:
            self._wake.clear()
            wait_s = await self._round()
            self._round_over.set()
            if self._closing and not self.pending:
                return
            if wait_s != 0:
                await self._rest(wait_s)

    async def _rest(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _round(self) -> float | None:
        plan = self._sender.round()
        value = None
        error = None
        while True:
            # In a thread: what is marked must reach the disk before it is sent.
            step = await asyncio.to_thread(advance, plan, value, error)
            value = None
            error = None
            if isinstance(step, Done):
                return step.wait_s
            if isinstance(step, Call):
                try:
                    value = await self._client.call(step, ONCE)
                except ClientError as caught:
                    error = caught
            else:
                await self._tell(step)

    async def _tell(self, notice: Notice) -> None:
        self._kept(notice)
        callback: Any = self._on_answer if isinstance(notice, Delivered) else self._on_failed
        if callback is not None:
            with self._contained("a callback of the outbox failed"):
                result = callback(notice)
                if inspect.isawaitable(result):
                    await result
