"""Delivery for one hook: its letters in lanes, each in order, until they are settled.

One process at a time delivers for a hook: the one that holds its lock. What it has read and not
acknowledged when it dies is claimed by the next, so that every event is delivered at least once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import redis
from redis.asyncio.lock import Lock

from service.observability import metrics
from service.runtime.process import STOP_WAIT_S, limit_stop
from service.schema import rendering
from service.settings import Settings
from service.store import keys
from service.store.connection import START_TIMEOUT_S, connect, connect_async
from service.store.feed import ChangeFeed, Feeds, IncidentFeed
from service.store.health import check_server, fix_partitions
from service.store.reads import AsyncStore
from service.store.shards import UNREACHABLE, AsyncStoreClient
from service.tasks import end, forget, is_cancelled
from service.webhooks.allowlist import Allowed
from service.webhooks.config import Delivery, Webhooks
from service.webhooks.dead_letters import Letter, Letters
from service.webhooks.sender import (
    Failure,
    Hook,
    IncidentNotice,
    Notice,
    incident_notice,
    notice_of,
    sender_of,
)
from service.wire import Id
from service.wire.event_entries import START
from service.wire.incidents import Fleet, FoundIncident, FoundIncidents, shared

log = logging.getLogger(__name__)

POLL_S = 0.2
PAUSE_S = 1.0  # after trouble with the store
ROOM = 16  # a lane that holds fewer deliveries is filled up
MOST_COLLECTED = 1000  # changes that wait for others
# Times `collect_s` that changes wait which join an incident that was delivered: who is concerned
# knows of it. Alertmanager waits 30 s and then 5 minutes likewise.
JOINING = 10
T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class Parcel:
    """Letters that are delivered as one: one letter, or those of an incident.

    It is in the lane of every letter, so that later events of their streams wait for it until it is
    settled. lane: the one that delivers it.
    """

    letters: list[Letter]
    lane: asyncio.Queue[Parcel]
    notice: Notice | IncidentNotice
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def number(self) -> str:
        """The number of its first letter, for logs."""
        more = len(self.letters) - 1
        return f"{self.letters[0].number} and {more} more" if more else self.letters[0].number


class Waiting(NamedTuple):
    """A letter that waits for others of its incident.

    due_s: until when, in monotonic s; -inf: no more. joins: an incident that was delivered.
    """

    due_s: float
    letter: Letter
    joins: bool = False

    @property
    def stream(self) -> str:
        """Whose events stay in order."""
        return self.letter.event.stream


class Runner:
    """Delivers the events of one hook until it is cancelled.

    Confirmed changes wait for others of their incident, for `collect_s`, and JOINING times as long
    where that was delivered before.
    """

    def __init__(
        self,
        hook: Hook,
        client: AsyncStoreClient,
        settings: Settings,
        delivery: Delivery,
        incidents: IncidentFeed,
    ) -> None:
        self._hook = hook
        self._client = client
        self._settings = settings
        self._delivery = delivery
        allowed = Allowed.parse(settings.webhook_hosts)
        self._sender = sender_of(hook, allowed, delivery.timeout_s)
        consumer = f"webhooks-{secrets.token_hex(6)}"
        self._letters = Letters(client, hook.name, consumer, settings.partitions)
        self._incidents = incidents
        self._lanes: list[asyncio.Queue[Parcel]] = []
        self._collected: list[Waiting] = []  # as they arrived
        self._read_to: dict[str, Id] = {}
        self._held: dict[tuple[str, str], int] = {}  # letters in hand, and when they were accepted
        self._attempts: set[asyncio.Task[Any]] = set()
        metrics.know_hook(hook.name)

    async def run(self) -> None:
        """Deliver whenever the lock can be had; ends by cancellation, attempts under way first."""
        try:
            while not is_cancelled():
                try:
                    await self._turn()
                except UNREACHABLE as error:
                    log.warning("webhook %s: restarting: %r", self._hook.name, error)
                await asyncio.sleep(PAUSE_S)
        finally:
            await self._sender.close()

    async def _turn(self) -> None:
        ttl_s = self._settings.lease_ttl_ms / 1000
        name = keys.webhook_lock(self._hook.name)
        lock = Lock(self._client, name, timeout=ttl_s, thread_local=False)
        if not await lock.acquire(blocking=False):
            return
        log.info("webhook %s: delivering", self._hook.name)
        self._lanes = [asyncio.Queue() for _ in range(self._delivery.in_flight)]
        self._held = {}
        self._collected = []
        works = (self._renew(lock, ttl_s), self._read(), *map(self._work, self._lanes))
        tasks = [asyncio.create_task(work) for work in works]
        try:  # no TaskGroup: it cancels only once
            if is_cancelled():
                return
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end(*tasks)
            await self._finish(lock)

    async def _finish(self, lock: Lock) -> None:
        """Let attempts under way end, then let the next one begin."""
        if self._attempts:
            await asyncio.wait(self._attempts, timeout=self._delivery.timeout_s + PAUSE_S)
        try:
            await lock.release()
        except redis.RedisError as error:
            log.info(
                "webhook %s: could not release its lock, which will expire: %s",
                self._hook.name,
                error,
            )

    async def _renew(self, lock: Lock, ttl_s: float) -> None:
        while True:
            await asyncio.sleep(ttl_s / 4)
            await lock.reacquire()
            now_ms = time.time() * 1000
            lag_s = (now_ms - min(self._held.values(), default=now_ms)) / 1000
            metrics.WEBHOOK_LAG.labels(self._hook.name).set(max(0.0, lag_s))

    async def _read(self) -> None:
        """Fill the lanes: first with what another process left, then with what is new."""
        letters = self._letters
        self._read_to = await letters.open()
        async for arrived, gone in letters.claim():
            if gone:
                self._miss(f"{gone} events were trimmed before they were delivered")
            await self._take(arrived)
        while True:
            room = [s for s in letters.sources if self._lane(s).qsize() < ROOM]
            arrived = await letters.read(room, ROOM) if room else []
            for letter in arrived:
                if letter.before > self._read_to.get(letter.source, START):
                    self._miss("events were trimmed before they were read")
                self._read_to[letter.source] = Id.parse(letter.id)
            await self._take(arrived)
            await self._send_due(time.monotonic())
            if not arrived:
                await asyncio.sleep(POLL_S)

    async def _take(self, letters: Iterable[Letter]) -> None:
        unwanted = []
        for letter in letters:
            again = letter.source == self._letters.again
            raised = letter.raised
            if raised is None:
                await self._give_up(letter, "cannot read its entry", 0)
                continue
            if not (again or self._hook.wants(raised)):
                unwanted.append(letter)
                continue
            self._held[letter.source, letter.id] = raised.at_ms
            change = raised.event.kind == "change" and raised.event.state == "confirmed"
            if change and not again and self._delivery.collect_s:
                # Clocks that are set may shorten the wait, and never make it longer.
                age_s = max(0.0, time.time() - raised.at_ms / 1000)
                wait_s = max(0.0, self._delivery.collect_s - age_s)
                self._collected.append(Waiting(time.monotonic() + wait_s, letter))
                continue
            if not again and any(other.stream == raised.stream for other in self._collected):
                # It stays behind them, and ends their wait.
                self._collected = [
                    other._replace(due_s=-inf) if other.stream == raised.stream else other
                    for other in [*self._collected, Waiting(-inf, letter)]
                ]
                continue
            self._send([letter], self._notice(letter))
        if unwanted:
            await self._letters.done(unwanted)

    async def _send_due(self, now_s: float) -> None:
        """Send the changes that have waited long enough, with all that wait of their incidents."""
        while self._collected:
            heads: dict[str, Waiting] = {}
            for waiting in self._collected:
                heads.setdefault(waiting.stream, waiting)
            first = min(heads.values(), key=attrgetter("due_s"))
            full = len(self._collected) > MOST_COLLECTED
            if first.due_s > now_s and not full:
                return
            found = await self._found()
            incident = None if found is None else found.of(first.letter.event.change_id)
            together = self._together(first, set() if incident is None else incident.change_ids)
            letters = [waiting.letter for waiting in together]
            left = [waiting for waiting in self._collected if waiting not in together]
            known = incident is not None and self._grew(incident, letters)
            if known and first.due_s > -inf and not (first.joins or full):
                by_s = (JOINING - 1) * self._delivery.collect_s
                self._collected = [
                    Waiting(waiting.due_s + by_s, waiting.letter, joins=True)
                    if waiting in together and not waiting.joins
                    else waiting
                    for waiting in self._collected
                ]
                continue
            self._collected = left
            if found is None or incident is None:
                self._send(letters, self._notice(first.letter))
            else:
                self._send(letters, self._incident_notice(incident, letters, found.fleet))

    def _together(self, first: Waiting, members: set[str]) -> list[Waiting]:
        """Choose what is delivered with one: changes of these ids that wait behind no others."""
        chosen = []
        behind = set()
        for waiting in self._collected:
            member = waiting.letter.event.change_id in members
            if (waiting is first or member) and waiting.stream not in behind:
                chosen.append(waiting)
            else:
                behind.add(waiting.stream)
        return chosen

    async def _found(self) -> FoundIncidents | None:
        """Return all incidents; None where they cannot be read: changes do not wait for that.

        Without a connection to the store nothing is delivered, as before.
        """
        try:
            return await self._incidents.found(self._hook.wanted.kinds)
        except (TimeoutError, redis.ResponseError) as error:
            hook = self._hook.name
            log.warning("webhook %s: cannot read incidents, sending each change: %s", hook, error)
            return None

    def _send(self, letters: list[Letter], notice: Notice | IncidentNotice) -> None:
        lanes = {id(lane): lane for lane in (self._lane(letter.source) for letter in letters)}
        parcel = Parcel(letters, self._lane(letters[0].source), notice)
        for lane in lanes.values():
            lane.put_nowait(parcel)

    def _miss(self, what: str) -> None:
        metrics.WEBHOOK_GAPS.labels(self._hook.name).inc()
        log.error("webhook %s: %s", self._hook.name, what)

    def _lane(self, source: str) -> asyncio.Queue[Parcel]:
        return self._lanes[self._letters.sources.index(source) % len(self._lanes)]

    async def _work(self, lane: asyncio.Queue[Parcel]) -> None:
        while True:
            parcel = await lane.get()
            if parcel.lane is not lane:  # lanes have parcels in one order: none waits for ever
                await parcel.settled.wait()
                continue
            await self._deliver(parcel)
            parcel.settled.set()
            for letter in parcel.letters:
                self._held.pop((letter.source, letter.id), None)

    async def _deliver(self, parcel: Parcel) -> None:
        delivery = self._delivery
        hook = self._hook.name
        attempt = 0
        while True:
            attempt += 1
            failure = await self._unhurt(self._attempt(parcel))
            if failure is None:
                return
            if failure.final or attempt >= delivery.attempts:
                break
            reason = failure.reason
            log.info("webhook %s: attempt %d at %s: %s", hook, attempt, parcel.number, reason)
            await asyncio.sleep(self._pause_s(attempt, failure))
        for letter in parcel.letters:
            await self._unhurt(self._give_up(letter, failure.reason, attempt))

    def _notice(self, letter: Letter) -> Notice:
        return notice_of(letter.number, letter.event, self._hook.console_url)

    def _incident_notice(
        self, incident: FoundIncident, letters: Sequence[Letter], fleet: Fleet
    ) -> IncidentNotice:
        # Of a change that was confirmed anew while it waited, the last state.
        last = {letter.event.change_id: letter for letter in letters}
        raised = {letter.number: letter.event for letter in last.values()}
        movers = shared(incident.changes, fleet.members, fleet.tagged)
        shown = rendering.incident(incident, movers, fleet.streams)
        grew = self._grew(incident, letters)
        return incident_notice(raised, shown, grew, self._hook.console_url)

    def _grew(self, incident: FoundIncident, letters: Sequence[Letter]) -> bool:
        """Whether others than these of an incident came before."""
        new = {letter.event.change_id: letter.event.at_ms for letter in letters}
        first_ms = min(new.values())
        return any(
            change.confirmed is not None
            and change.confirmed.at_ms < first_ms
            and change.raised.change_id not in new
            and self._hook.wanted.lets(change.raised)
            for change in incident.changes
        )

    def _pause_s(self, attempt: int, failure: Failure) -> float:
        most_s = self._delivery.backoff_max_s
        if failure.retry_after_s is not None:
            return min(failure.retry_after_s, most_s)
        pause_s = min(self._delivery.backoff_s * 2.0 ** min(attempt - 1, 60), most_s)
        # Receivers that fail together should not be called together again.
        return pause_s * random.uniform(0.5, 1.0)

    async def _unhurt(self, attempt: Awaitable[T]) -> T:
        """Have an attempt end even when we are cancelled: it may have reached the receiver."""
        task = asyncio.ensure_future(attempt)
        self._attempts.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._attempts.discard(task)
        forget(task)  # nobody else may be there to look at its exception

    async def _attempt(self, parcel: Parcel) -> Failure | None:
        """Try once, and settle the letters if it was accepted; returns why it was not."""
        hook = self._hook.name
        failure = await self._sender.attempt(parcel.notice)
        if failure is not None:
            metrics.WEBHOOK_FAILED.labels(hook).inc()
            return failure
        await self._letters.done(parcel.letters)
        metrics.WEBHOOK_DELIVERED.labels(hook).inc(len(parcel.letters))
        return None

    async def _give_up(self, letter: Letter, error: str, attempts: int) -> None:
        hook = self._hook.name
        log.warning("webhook %s: moved %s to the dead letters: %s", hook, letter.number, error)
        most = self._delivery.dead_letters
        evicted = await self._letters.bury(letter, error, attempts, most)
        metrics.WEBHOOK_DEAD.labels(hook).inc()
        for of, lost in evicted:
            metrics.WEBHOOK_EVICTED.labels(of).inc()
            log.error("webhook %s: %s left the full dead-letter queue", of, lost)


def deliver(settings: Settings, webhooks: Webhooks) -> None:
    """Deliver until SIGTERM or SIGINT; a RedisError when the store is not there at the start."""
    url = settings.redis_url or ""
    with connect(url, START_TIMEOUT_S) as client:
        check_server(client)
        fix_partitions(client, settings.partitions)
    asyncio.run(_deliver(settings, url, webhooks))


async def _deliver(settings: Settings, url: str, webhooks: Webhooks) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hooks, delivery = webhooks

    def begin_to_stop() -> None:
        limit_stop(delivery.timeout_s + STOP_WAIT_S)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_to_stop)
    async with connect_async(url) as client:
        incidents = incident_feed(client, settings)
        tasks = [
            loop.create_task(Runner(hook, client, settings, delivery, incidents).run())
            for hook in hooks
        ]
        stopped = loop.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        # Time for each to end its attempts before it is cancelled again.
        await end(stopped, *tasks, again_s=delivery.timeout_s + STOP_WAIT_S / 2)
        for task in done - {stopped}:
            task.result()  # a runner never ends by itself: a defect ends the process


def incident_feed(client: AsyncStoreClient, settings: Settings) -> IncidentFeed:
    """Return the incidents of the store, for the runners of a process."""
    partitions = settings.partitions
    changes = ChangeFeed(Feeds(client, partitions))
    thread = ThreadPoolExecutor(1, "incidents")
    return IncidentFeed(AsyncStore(client, partitions), changes, thread)
