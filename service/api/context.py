"""The shared objects of one API process, what they are made of, and its background tasks."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from model_core.upm.builtin import BUILTIN
from service.api.auth import Authenticator
from service.api.gateway.gateway import Gateway, Replies
from service.api.gateway.load_shedding import Overload
from service.api.gateway.own_commands import HindsightRequests, expire_streams
from service.api.gateway.pages import ChangePages, IncidentPages, Ranking
from service.api.gateway.store_monitor import StoreMonitor
from service.api.parsing.bodies import CommandParser
from service.api.parsing.observations import ObservationParser
from service.api.parsing.series import SeriesRules
from service.api.sse import EventHub, ObservationHub
from service.models.catalogue import Catalogue
from service.observability.metrics import Gathered
from service.runtime.access_policy import describe, keys_required
from service.settings import Settings
from service.store.api_keys import AsyncKeyring, Keyring
from service.store.connection import (
    START_TIMEOUT_S,
    START_WAIT_S,
    connect,
    connect_async,
    patiently,
)
from service.store.feed import ChangeFeed, Feeds, IncidentFeed
from service.store.health import check_server, fix_partitions
from service.store.log import Appender
from service.store.reads import AsyncStore
from service.tasks import bounded, happened

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 2.0


class Context:
    """Shared objects of one API process, for its routes; `stack` closes them.

    required: a key is needed even while none exists.
    """

    def __init__(
        self,
        settings: Settings,
        overload: Overload,
        gathered: Gathered,
        required: bool,
        stack: AsyncExitStack,
    ) -> None:
        url = settings.redis_url or ""
        partitions = settings.partitions
        self._clients = [connect_async(url) for _ in range(4)]
        stack.push_async_callback(self._disconnect)
        appends, reads, listening, counting = self._clients
        incarnation = secrets.token_hex(8)
        self.settings = settings
        self.overload = overload
        self.store = AsyncStore(reads, partitions)
        self.replies = Replies(listening, self.store, incarnation, partitions, overload, gathered)
        self.monitor = StoreMonitor(self.store, settings)
        self.catalogue = Catalogue(settings.models_dir)
        appender = Appender(appends, incarnation, settings.max_pending)
        self.gateway = Gateway(
            settings, appender, self.replies, self.monitor, self.catalogue, overload, gathered
        )
        stack.push_async_callback(self.gateway.close)
        self.hindsight = HindsightRequests(self.gateway)
        stack.push_async_callback(self.hindsight.close)
        self.authenticator = Authenticator(AsyncKeyring(reads), counting, settings, required)
        self.event_hub = EventHub(Feeds(reads, partitions), settings)
        self.observation_hub = ObservationHub(self.store, settings)
        self.observation_parser = ObservationParser(settings)
        self.command_parser = CommandParser(settings)
        self.series_rules = SeriesRules(settings.prometheus_rules, self.command_parser)
        self.thread = ThreadPoolExecutor(1, "bodies")  # for bodies that are not light
        ranker = ThreadPoolExecutor(1, "changes")
        for thread in (self.thread, ranker):
            stack.callback(thread.shutdown, wait=False, cancel_futures=True)
        feed = ChangeFeed(self.event_hub.feeds)
        incidents = IncidentFeed(self.store, feed, ranker)
        self.changes = ChangePages(feed, self.store, incidents, not settings.no_console, ranker)
        self.incidents = IncidentPages(incidents, self.changes)
        self.ranking = Ranking(self.store, self.changes, ranker)

    async def start(self) -> None:
        """Start the background tasks."""
        self._check_default_model()
        await self.monitor.look_for_windows()  # in force from the first observation on
        self.gateway.start(
            self.authenticator.watch(),
            expire_streams(self.store, self.gateway),
            self.event_hub.watch(),
            self.observation_hub.watch(),
            self.overload.watch(),
        )
        if not await happened(self.replies.subscribed, START_WAIT_S):
            # Not fatal: outcomes are also read from the store.
            log.warning("replies: no subscription within %g s; starting without it", START_WAIT_S)

    def _check_default_model(self) -> None:
        """Warn if the default model is not usable; it may still be published."""
        name, _, version = self.settings.default_model.partition("@")
        usable = self.catalogue.usable(name)
        there = version in usable if version else bool(usable) or name in BUILTIN
        if not there:
            log.warning(
                "--default-model: model %r is not usable; until it is, creating a stream "
                "requires an explicit `model`",
                self.settings.default_model,
            )

    async def _disconnect(self) -> None:
        """Close connections to the store, for at most CLOSE_WAIT_S."""
        each = (client.aclose() for client in self._clients)
        closing = asyncio.gather(*each, return_exceptions=True)
        try:
            failed = [error for error in await bounded(closing, CLOSE_WAIT_S) if error is not None]
        except TimeoutError as timeout:
            failed = [timeout]
        for error in failed:
            log.warning("could not close a connection to the store: %s", error)


async def begin(
    settings: Settings, overload: Overload, gathered: Gathered, stack: AsyncExitStack
) -> Context:
    """Check the store, connect, and start the background tasks."""
    stopped = threading.Event()
    try:  # in a thread, which a stop that comes meanwhile does not wait for long
        keys_exist = await asyncio.to_thread(check_store, settings, stopped)
    finally:
        stopped.set()
    required = keys_required(settings, keys_exist)
    log.info("%s", describe(settings, required))
    context = Context(settings, overload, gathered, required, stack)
    await context.start()
    return context


def check_store(settings: Settings, stopped: threading.Event | None = None) -> bool:
    """Check the store, waiting a while for one that is still starting; whether it has keys.

    Raises StartupError, and RedisError when it cannot be reached.
    """

    def ask() -> bool:
        with connect(settings.redis_url or "", START_TIMEOUT_S) as client:
            check_server(client)
            fix_partitions(client, settings.partitions)
            return Keyring(client).any()

    return patiently(ask, START_WAIT_S, stopped)
