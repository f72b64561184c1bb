"""Subscriptions under test: what they heard and recovered."""

import asyncio
import contextlib

import redis

from service.store.connection import connect_async
from service.store.subscription import Subscriptions
from service.tasks import end
from tests.waiting import until_async


class Heard:
    """Messages in order, and channels as they were recovered; the first `failing` times fail."""

    def __init__(self, client, channels, failing):
        self.messages, self.recovered = [], []
        self.failing, self.failed = failing, 0
        self.subscriptions = Subscriptions(client, channels, self._hear, self._recover)

    def _hear(self, channel, message):
        self.messages.append((channel, message))

    async def _recover(self, channels):
        if self.failed < self.failing:
            self.failed += 1
            raise redis.ConnectionError("on purpose")
        self.recovered += channels

    async def until(self, check):
        await until_async(check, lambda: (self.messages[-9:], self.recovered[-9:]))


@contextlib.asynccontextmanager
async def listening(url, channels, failing=0):
    async with connect_async(url) as client:
        heard = Heard(client, channels, failing)
        task = asyncio.create_task(heard.subscriptions.listen())
        try:
            await heard.until(heard.subscriptions.complete.is_set)
            yield heard
        finally:
            await end(task)
