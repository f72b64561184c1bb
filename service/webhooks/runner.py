"""Delivery for one hook: its letters in lanes, each in order, until they are settled.

One process at a time delivers for a hook: the one that holds its lock. What it has read and not
acknowledged when it dies is claimed by the next, so that every event is delivered at least once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.lock import Lock

from service.observability import subscriber_metrics as metrics
from service.runtime.process import STOP_WAIT_S, limit_stop
from service.settings import Settings
from service.store import keys
from service.store.connection import (
    START_TIMEOUT_S,
    check_server,
    connect,
    connect_async,
    fix_partitions,
)
from service.tasks import end, is_cancelled
from service.webhooks.allowlist import Allowed
from service.webhooks.config import Delivery, Hook, Webhooks
from service.webhooks.dead_letters import Bounds, Letter, Letters
from service.webhooks.formats import STATEFUL, alarm_of, body_of
from service.webhooks.groups import Groups
from service.webhooks.sender import Failure, Sender
from service.wire.event_entries import START, Id

log = logging.getLogger(__name__)

POLL_S = 0.2
PAUSE_S = 1.0  # after trouble with the store
ROOM = 16  # a lane that holds fewer deliveries is filled up
HELD = 5000  # letters in hand, from which on a hook with groups reads no more
END = "0-0"
T = TypeVar("T")


class Runner:
    """Delivers the events of one hook until it is cancelled."""

    def __init__(
        self, hook: Hook, client: redis.asyncio.Redis, settings: Settings, delivery: Delivery
    ) -> None:
        self._hook, self._client, self._settings = hook, client, settings
        self._delivery = delivery
        self._sender = Sender(hook, Allowed.parse(settings.webhook_hosts), delivery.timeout_s)
        consumer = f"webhooks-{secrets.token_hex(6)}"
        self._letters = Letters(client, hook.name, consumer, settings.partitions)
        self._lanes: list[asyncio.Queue[Sequence[Letter]]] = []
        self._groups: Groups | None = None
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
                except (redis.RedisError, OSError) as error:
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
        self._groups = None if self._hook.grouping is None else Groups(self._hook.grouping)
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
            metrics.WEBHOOK_LAG.labels(self._hook.name).set(self._lag_s())

    def _lag_s(self) -> float:
        """Age of the oldest letter in hand, less the time that it had to wait for its group."""
        if not self._held:
            return 0.0
        grouping = self._hook.grouping
        waited_s = 0.0 if grouping is None else grouping.seconds
        return max(0.0, time.time() - min(self._held.values()) / 1000 - waited_s)

    async def _read(self) -> None:
        """Fill the lanes: first with what another process left, then with what is new."""
        letters = self._letters
        self._read_to = await letters.open()
        for source in letters.sources:
            cursor, first = END, True
            while first or cursor != END:
                cursor, found, gone = await letters.claim(source, cursor)
                if gone:
                    self._miss(f"{gone} events were trimmed before they were delivered")
                await self._take(found, claimed=True)
                first = False
        await letters.forget_others()
        while True:
            room = [s for s in letters.sources if self._has_room(s)]
            found = await letters.read(room, ROOM) if room else []
            await self._take(found, claimed=False)
            if self._groups is not None:
                for key, group in self._groups.due(time.monotonic()):
                    self._lanes[hash(key) % len(self._lanes)].put_nowait(group)
            if not found:
                await asyncio.sleep(POLL_S)

    async def _take(self, letters: Iterable[Letter], claimed: bool) -> None:
        unwanted = []
        for letter in letters:
            if not claimed:
                self._look_for_gap(letter)
            again = letter.source == self._letters.again
            raised = letter.raised
            if raised is None:
                await self._give_up([letter], "cannot read its entry", 0)
                continue
            if not (again or self._hook.wants(raised)):
                unwanted.append(letter)
                continue
            self._held[letter.source, letter.id] = raised.at_ms
            if self._groups is None:
                self._lane(letter.source).put_nowait([letter])
            else:
                self._groups.add(letter, time.monotonic())
        if unwanted:
            await self._letters.done(unwanted)

    def _look_for_gap(self, letter: Letter) -> None:
        if letter.before > self._read_to.get(letter.source, START):
            self._miss("events were trimmed before they were read")
        self._read_to[letter.source] = Id.parse(letter.id)

    def _miss(self, what: str) -> None:
        metrics.WEBHOOK_GAPS.labels(self._hook.name).inc()
        log.error("webhook %s: %s", self._hook.name, what)

    def _has_room(self, source: str) -> bool:
        if self._groups is not None:
            return len(self._held) < HELD
        return self._lane(source).qsize() < ROOM

    def _lane(self, source: str) -> asyncio.Queue[Sequence[Letter]]:
        return self._lanes[self._letters.sources.index(source) % len(self._lanes)]

    async def _work(self, lane: asyncio.Queue[Sequence[Letter]]) -> None:
        while True:
            letters = await lane.get()
            await self._deliver(letters)
            for letter in letters:
                self._held.pop((letter.source, letter.id), None)
            if self._groups is not None:
                self._groups.settle(letters)

    async def _deliver(self, letters: Sequence[Letter]) -> None:
        delivery, hook = self._delivery, self._hook.name
        attempt = 0
        while True:
            attempt += 1
            letters = await self._without_ended(letters)
            failure = await self._unhurt(self._attempt(letters)) if letters else None
            if failure is None:
                return
            if attempt >= delivery.attempts:
                break
            number = _number(letters)
            log.info("webhook %s: attempt %d at %s: %s", hook, attempt, number, failure.reason)
            pause_s = delivery.backoff_s * 2.0 ** min(attempt - 1, 60)
            pause_s = min(pause_s, delivery.backoff_max_s)
            # Receivers that fail together should not be called together again.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        if failure.refused and len(letters) > 1:
            letters, failure = await self._one_by_one(letters, failure)
        if letters:
            await self._unhurt(self._give_up(letters, failure.reason, attempt))

    async def _one_by_one(
        self, letters: Sequence[Letter], failure: Failure
    ) -> tuple[Sequence[Letter], Failure]:
        """Send the letters of a group that was refused, of which one may be to blame, singly.

        Returns those that failed, and why the last did. Ends where the receiver fails otherwise.
        """
        failed: list[Letter] = []
        for i, letter in enumerate(letters):
            found = await self._unhurt(self._attempt([letter]))
            if found is None:
                continue
            failure = found
            if not found.refused:
                return [*failed, *letters[i:]], failure
            failed.append(letter)
        return failed, failure

    async def _without_ended(self, letters: Sequence[Letter]) -> Sequence[Letter]:
        """Settle redelivered letters whose alarm has ended since: nothing would end it again."""
        if self._hook.format not in STATEFUL:
            return letters
        source, here = self._letters.again, _ends(letters)
        again = [(each, each.raised) for each in letters if each.source == source and each.raised]
        alarms = [alarm_of(raised) for _, raised in again]
        ended = await self._letters.ended(alarms)
        late = [
            letter
            for (letter, raised), alarm, end_ms in zip(again, alarms, ended, strict=True)
            if raised.event.state != "withdrawn"
            and raised.at_ms <= max(end_ms, here.get(alarm, -1))
        ]
        if not late:
            return letters
        for letter in late:
            log.info("webhook %s: %s is over, not sent", self._hook.name, letter.number)
        await self._letters.done(late)
        return [letter for letter in letters if letter not in late]

    async def _unhurt(self, attempt: Awaitable[T]) -> T:
        """Have an attempt end even when we are cancelled: it may have reached the receiver."""
        task = asyncio.ensure_future(attempt)
        self._attempts.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._attempts.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody else may be there to do so

    async def _attempt(self, letters: Sequence[Letter]) -> Failure | None:
        """Try once, and settle the letters if they were accepted; returns why they were not."""
        hook = self._hook.name
        events = [(each.number, each.raised) for each in letters if each.raised is not None]
        body = body_of(self._hook, events, round(time.time() * 1000))
        failure = await self._sender.attempt(_number(letters), body)
        if failure is not None:
            metrics.WEBHOOK_FAILED.labels(hook).inc()
            return failure
        if self._hook.format in STATEFUL:
            await self._letters.end_alarms(_ends(letters))
        await self._letters.done(letters)
        metrics.WEBHOOK_DELIVERED.labels(hook).inc(len(letters))
        return None

    async def _give_up(self, letters: Sequence[Letter], error: str, attempts: int) -> None:
        hook, number = self._hook.name, _number(letters)
        bounds = Bounds(self._delivery.dead_letters, self._delivery.dead_letter_bytes)
        log.warning("webhook %s: moved %s to the dead-letter queue: %s", hook, number, error)
        evicted = await self._letters.bury(letters, number, error, attempts, bounds)
        metrics.WEBHOOK_DEAD.labels(hook).inc(len(letters))
        for of, lost, count in evicted:
            metrics.WEBHOOK_EVICTED.labels(of).inc(count)
            log.error("webhook %s: %s (%d events) left the full dead-letter queue", of, lost, count)


def _ends(letters: Sequence[Letter]) -> dict[str, int]:
    """Alarms that these letters end, with the times of their withdrawals, in ms."""
    every = [each.raised for each in letters if each.raised is not None]
    return {alarm_of(each): each.at_ms for each in every if each.event.state == "withdrawn"}


def _number(letters: Sequence[Letter]) -> str:
    """Return what receivers know a delivery by. Of a group it changes with its letters: a receiver
    that drops repeats must not drop a letter that came to the group after a restart.
    """
    if len(letters) == 1:
        return letters[0].number
    numbers = "\n".join(sorted(letter.number for letter in letters))
    return f"grp_{hashlib.sha256(numbers.encode()).hexdigest()[:32]}"


def deliver(settings: Settings, webhooks: Webhooks) -> None:
    """Deliver until SIGTERM or SIGINT; a RedisError when the store is not there at the start."""
    url = settings.redis_url or ""
    with connect(url, START_TIMEOUT_S) as client:
        check_server(client)
        fix_partitions(client, settings.partitions)
    asyncio.run(_deliver(settings, url, webhooks))


async def _deliver(settings: Settings, url: str, webhooks: Webhooks) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    hooks, delivery = webhooks
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _begin_to_stop, stop, delivery.timeout_s)
    async with connect_async(url) as client:
        tasks = [loop.create_task(Runner(hook, client, settings, delivery).run()) for hook in hooks]
        stopped = loop.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        # Time for each to end its attempts before it is cancelled again.
        await end(stopped, *tasks, again_s=delivery.timeout_s + STOP_WAIT_S / 2)
        for task in done - {stopped}:
            task.result()  # a runner never ends by itself: a defect ends the process


def _begin_to_stop(stop: asyncio.Event, timeout_s: float) -> None:
    limit_stop(timeout_s + STOP_WAIT_S)
    stop.set()
