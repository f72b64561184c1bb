"""What one partition commits: outcomes, what its streams changed, and how far the log is done."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from service import metrics, wire
from service.errors import Quarantined
from service.redis import keys
from service.redis.log import Commit, Lease, Offset
from service.redis.script import Argument
from service.redis.store import CorruptState, Store
from service.wire import IdempotencyRecord, Observe, Outcome
from service.worker import answers, feeding
from service.worker.effects import Effect
from service.worker.stream import Stream
from service.worker.task import Item, Task, key_field

logger = logging.getLogger(__name__)


def commit_of(
    lease: Lease,
    expected: Offset,
    items: Sequence[Item],
    streams: Sequence[Stream],
    keep_ms: int,
    feed_events: int,
) -> Commit:
    """Commit of a partition's items, applied, and of the streams they touched.

    Outcomes are kept for `keep_ms`, the newest `feed_events` in the feed. What has a payload is
    set aside.
    """
    tasks = [item.task for item in items if item.task]
    effects, messages = _outcomes(tasks, lease.partition, keep_ms)
    for item in items:
        if item.payload is not None:
            metrics.QUARANTINED_COMMANDS.inc()
            whose = f"a command for {item.task.command.stream!r}" if item.task else "an entry"
            logger.error("set aside: %s, %s of partition %d", whose, item.offset, lease.partition)
            aside = ("HSET", keys.quarantine(lease.partition), str(item.offset), item.payload)
            effects.append(aside)
    for stream in streams:
        effects += stream.effects()
    effects += feeding.effects(lease.partition, streams, feed_events)
    done = sum(wire.units(task.command) for task in tasks)
    new = items[-1].offset
    return Commit(lease.partition, lease.token, expected, new, done, effects, messages)


def refused(store: Store, item: Item) -> tuple[Item, list[Effect]]:
    """A command that stopped its worker, answered so, and to be set aside.

    Also the effect that has repeats with its key answered alike, instead of stopping workers
    again. A command that is itself a repeat gets the answer of the first.
    """
    task = item.task
    assert task is not None
    aside = item._replace(payload=wire.encode(task.envelope))
    task.refusal = Quarantined("it stopped its worker each time; it was not applied")
    task.finish()
    command = task.command
    if not isinstance(command, Observe) or command.key is None:
        return aside, []
    try:
        earlier = store.keyed(task.partition, command.stream, key_field(command))
    except (CorruptState, ResponseError) as error:
        logger.warning("the keys of %r cannot be read: %s", command.stream, error)
        return aside, []
    if earlier is not None and earlier.digest == command.digest:
        task.status, task.body = earlier.status, answers.repeat(earlier.body)
    if earlier is not None:
        return aside, []
    record = IdempotencyRecord(command.digest or "", task.envelope.time_ms, task.status, task.body)
    key = keys.idempotency(task.partition, command.stream)
    return aside, [("HSET", key, key_field(command), wire.encode(record))]


def _outcomes(
    tasks: Iterable[Task], partition: int, keep_ms: int
) -> tuple[list[tuple[Argument, ...]], list[tuple[str, bytes]]]:
    """Effects that store what the tasks came to, and messages that hint at them."""
    stored: dict[str, list[Any]] = {}
    told: dict[str, list[Outcome]] = {}
    for task in tasks:
        outcome = task.outcome()
        key = keys.outcomes(partition, task.incarnation, outcome.number)
        stored.setdefault(key, []).extend((str(outcome.number), wire.encode(outcome)))
        told.setdefault(task.incarnation, []).append(outcome)
    effects: list[tuple[Argument, ...]] = []
    for key, pairs in stored.items():
        effects += [("HSET", key, *pairs), ("PEXPIRE", key, keep_ms)]
    return effects, [(keys.reply_channel(i), wire.encode(found)) for i, found in told.items()]
