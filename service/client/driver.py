"""How calls are carried out, over a socket: once blocking, once not. No decision is made here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, closing
from types import TracebackType
from typing import Self, TypeVar

import httpx
from httpx_sse import EventSource

from service.client import retry
from service.client.base import DEFAULT_URL, Calls, Core, Pages
from service.client.errors import ClientError
from service.client.retry import Call, Policy
from service.client.subscriptions import ENDS, Feed

T = TypeVar("T")
P = TypeVar("P")


class Driver:
    """Blocking connections to one service."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 65.0,
        retries: int = 20,
        retry_for_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ):
        """Connect lazily."""
        self._core = Core(url, api_key, timeout_s, retries, retry_for_s)
        self._http = httpx.Client(transport=transport, **self._core.options())
        self.url = self._core.url

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, call: Call[T], policy: Policy | None = None) -> T:
        """Carry out one described call, with retries."""
        plan = retry.plan(call, policy or self._core.policy)
        try:
            step = next(plan)
            while True:
                if isinstance(step, retry.Pause):
                    time.sleep(step.seconds)
                    step = next(plan)
                    continue
                try:
                    response = self._http.request(**self._core.arguments(step))
                except httpx.TransportError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(response)
        except StopIteration as done:
            result: T = done.value
            return result

    def run(self, plan: Calls[T]) -> T:
        """Carry out several calls that depend on each other."""
        try:
            step = next(plan)
            while True:
                if isinstance(step, retry.Pause):
                    time.sleep(step.seconds)
                    step = next(plan)
                    continue
                try:
                    result = self.call(step)
                except ClientError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    def _pages(self, pages: Pages[P, T]) -> Iterator[T]:
        while pages.call is not None:
            yield from pages.take(self.call(pages.call))

    def _messages(self, feed: Feed[T]) -> Generator[T, None, None]:
        while not feed.over:
            ended: Exception | None = None
            try:
                with closing(self._connection(feed)) as messages:
                    yield from messages
            except ENDS as error:
                ended = error
            if not feed.over:
                time.sleep(feed.ended(ended))

    def _connection(self, feed: Feed[T]) -> Generator[T, None, None]:
        with self._http.stream(**feed.request()) as response:
            if not response.is_success:
                response.read()
            item = feed.opened(response)
            if item is not None:
                yield item
                return
            for message in EventSource(response).iter_sse():
                item = feed.message(message)
                if item is not None:
                    yield item


class AsyncDriver:
    """Connections to one service that do not block."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = 65.0,
        retries: int = 20,
        retry_for_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        """Connect lazily."""
        self._core = Core(url, api_key, timeout_s, retries, retry_for_s)
        self._http = httpx.AsyncClient(transport=transport, **self._core.options())
        self.url = self._core.url

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, call: Call[T], policy: Policy | None = None) -> T:
        """Carry out one described call, with retries."""
        plan = retry.plan(call, policy or self._core.policy)
        try:
            step = next(plan)
            while True:
                if isinstance(step, retry.Pause):
                    await asyncio.sleep(step.seconds)
                    step = next(plan)
                    continue
                try:
                    response = await self._http.request(**self._core.arguments(step))
                except httpx.TransportError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(response)
        except StopIteration as done:
            result: T = done.value
            return result

    async def run(self, plan: Calls[T]) -> T:
        """Carry out several calls that depend on each other."""
        try:
            step = next(plan)
            while True:
                if isinstance(step, retry.Pause):
                    await asyncio.sleep(step.seconds)
                    step = next(plan)
                    continue
                try:
                    result = await self.call(step)
                except ClientError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    async def _pages(self, pages: Pages[P, T]) -> AsyncIterator[T]:
        while pages.call is not None:
            for item in pages.take(await self.call(pages.call)):
                yield item

    async def _messages(self, feed: Feed[T]) -> AsyncGenerator[T, None]:
        while not feed.over:
            ended: Exception | None = None
            try:
                async with aclosing(self._connection(feed)) as messages:
                    async for message in messages:
                        yield message
            except ENDS as error:
                ended = error
            if not feed.over:
                await asyncio.sleep(feed.ended(ended))

    async def _connection(self, feed: Feed[T]) -> AsyncGenerator[T, None]:
        async with self._http.stream(**feed.request()) as response:
            if not response.is_success:
                await response.aread()
            item = feed.opened(response)
            if item is not None:
                yield item
                return
            async with aclosing(EventSource(response).aiter_sse()) as messages:
                async for message in messages:
                    item = feed.message(message)
                    if item is not None:
                        yield item
