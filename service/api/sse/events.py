"""Changepoints and anomalies of all streams, as they are raised.

One reader of the event feeds wakes all connections of a process, each of which reads in the store
what it has not sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from operator import itemgetter
from typing import Any

from moca_client.responses import MESSAGES
from service.api.gateway.changes import IncidentPages
from service.api.gateway.reads import from_store
from service.api.sse.connections import RETRY_MS, Connections, Growing, message
from service.observability import metrics
from service.problems import RedisUnavailable
from service.schema.rendering import event_state, instant
from service.settings import Settings
from service.store.feed import Feeds
from service.store.shards import UNREACHABLE
from service.tasks import end, happened, is_cancelled
from service.wire import Id
from service.wire.event_entries import START, FeedEntry, Filter, Positions

log = logging.getLogger(__name__)

READ_AT_ONCE = 64  # entries per partition
POLL_S = 0.1
PAUSE_S = 0.2
READY_WAIT_S = 5.0
PARTITIONS_AT_ONCE = 16  # of a consumer's read
PAGE = 32  # entries of each of them


class EventHub:
    """How far the feeds of all partitions have come."""

    def __init__(self, feeds: Feeds, settings: Settings) -> None:
        self.feeds = feeds
        self.positions: dict[int, Id] = {}  # of the last entries
        self.entries = Growing()  # steps in which they came, since the start
        self.failure: BaseException | None = None
        self._ready = asyncio.Event()
        self.connections = Connections(
            metrics.SUBSCRIBERS.labels("events"), settings.max_event_streams, "event-stream"
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the reader."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._report)

    async def ready(self) -> None:
        """Wait until the ends of the feeds are known."""
        if not await happened(self._ready, READY_WAIT_S):
            raise RedisUnavailable("the store cannot be reached: no events to subscribe to")

    @property
    def closing(self) -> bool:
        """Whether every connection is to end."""
        return self.connections.closing

    async def drain(self) -> None:
        """End every connection; returns when they have ended, or after a while."""
        self.connections.closing = True
        self.entries.grow(0)
        await self.connections.ended()

    async def close(self) -> None:
        """Stop reading."""
        await self.drain()
        await end(self._task)

    async def _run(self) -> None:
        reached = True
        while not self.closing and not is_cancelled():
            try:
                await self._read()
                reached = True
            except UNREACHABLE as error:
                if reached and not self.closing:
                    log.warning("events: connection lost: %s", error)
                reached = False
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        if not self._ready.is_set():
            self.positions = await self.feeds.newest()
            self._ready.set()
        grown = await self.feeds.grown(self.positions, READ_AT_ONCE)
        self.positions |= grown
        if grown:
            self.entries.grow(len(grown))
        else:
            await asyncio.sleep(POLL_S)

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = task.exception()
            log.error("the event reader ended", exc_info=self.failure)


class Subscription:
    """Filter and positions of one consumer.

    `whole`: it requested everything retained, so entries trimmed before are no gap. incidents:
    where those of confirmed changes are found; None: it has not asked for them.
    """

    def __init__(
        self,
        hub: EventHub,
        filter_: Filter,
        positions: Positions,
        whole: bool,
        incidents: IncidentPages | None = None,
    ) -> None:
        self._hub = hub
        self._incidents = incidents
        self._confirmed: set[str] = set()  # ids of changes whose incidents are to be sent
        self._filter = filter_
        self._positions = positions
        self._whole = whole
        self._sent_cursor = ""  # last cursor sent
        self._sent_s = 0.0  # time of the last chunk

    async def chunks(self, heartbeat_s: float) -> AsyncGenerator[bytes]:
        """Yield messages until the service stops."""
        yield self._mark_sent(f"retry: {RETRY_MS}\n{self._beat()}".encode())
        if gap := await self._first_gap():
            yield self._mark_sent(gap)
        while not self._hub.closing:
            count = self._hub.entries.count
            behind = self._positions.behind(self._hub.positions)
            chunk = b""
            if behind:
                try:
                    chunk = self._messages(await self._page(behind))
                except RedisUnavailable:  # the hub waits as well
                    await asyncio.sleep(PAUSE_S)
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk:
                # Incidents come first: a consumer that is cut off between resumes before both.
                yield self._mark_sent(await self._incident_messages() + chunk)
            elif left_s <= 0:
                yield self._mark_sent(self._beat().encode())
            elif not behind:
                await self._hub.entries.beyond(count, left_s)

    async def _page(self, behind: Mapping[int, Id]) -> list[FeedEntry]:
        # What is furthest behind comes first: partitions in which much happens keep none back.
        some = dict(sorted(behind.items(), key=itemgetter(1))[:PARTITIONS_AT_ONCE])
        entries: list[FeedEntry] = await from_store(self._hub.feeds.page(some, PAGE))
        for partition in some.keys() - {entry.partition for entry in entries}:
            # Its entries are gone from the store: there is nothing to catch up with.
            self._positions.move(partition, self._hub.positions[partition])
        return sorted(entries, key=lambda entry: entry.id)

    async def _first_gap(self) -> bytes:
        """Return one message with all entries trimmed since the consumer's cursor."""
        behind = self._positions.behind(self._hub.positions)
        if not behind or self._whole:
            return b""
        firsts: list[FeedEntry] = await from_store(self._hub.feeds.page(behind, 1))
        return self._gap([entry for entry in firsts if entry.before > behind[entry.partition]])

    def _messages(self, entries: Iterable[FeedEntry]) -> bytes:
        """Move past these entries; return the messages to send."""
        messages = []
        for entry in entries:
            at = self._positions[entry.partition]
            if entry.before > at and not (self._whole and at == START):
                messages.append(self._gap([entry]))
            self._positions.move(entry.partition, entry.id)
            if entry.raised is not None and self._filter.lets(entry.raised):
                kind = MESSAGES[entry.raised.event.kind]
                messages.append(self._message(kind, event_state(entry.raised)))
                event = entry.raised.event
                if event.kind == "change" and event.state == "confirmed" and event.news:
                    self._confirmed.add(entry.raised.change_id)
        return b"".join(messages)

    async def _incident_messages(self) -> bytes:
        """Return a message without a cursor for each incident of the changes that are sent next."""
        confirmed = self._confirmed
        self._confirmed = set()
        if self._incidents is None or not confirmed:
            return b""
        incidents = await self._incidents.of_changes(confirmed, self._filter.kinds)
        return b"".join(message("incident", incident) for incident in incidents)

    def _gap(self, firsts: list[FeedEntry]) -> bytes:
        """Return a gap message for the entries lost before these; moves the cursor past them."""
        if not firsts:
            return b""
        lost = []
        for entry in firsts:
            at = self._positions[entry.partition]
            after = instant(at.ms) if at > START else None
            until = instant(entry.before.ms)
            lost.append({"partition": entry.partition, "after": after, "until": until})
            self._positions.move(entry.partition, entry.before)
        return self._message("gap", {"partitions": lost})

    def _message(self, kind: str, data: Any) -> bytes:
        self._sent_cursor = self._positions.text()
        return message(kind, data, self._sent_cursor)

    def _beat(self) -> str:
        """A comment; with the cursor if it moved past events that the filter excludes."""
        cursor = self._positions.text()
        before = self._sent_cursor
        self._sent_cursor = cursor
        return ":\n\n" if cursor == before else f":\nid: {cursor}\n\n"

    def _mark_sent(self, chunk: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return chunk
