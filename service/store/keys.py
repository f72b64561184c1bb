"""Names of everything kept in Redis; every key of a partition carries its hash tag."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, AnyStr
from zlib import crc32

CONFIG = "moca:config"
WORKERS = "moca:workers"
CANARIES = "moca:canaries"  # hash of what is known of each, by the model's name
CALENDAR = "moca:calendar"  # hash of windows, by name
WEBHOOKS = "moca:webhooks"  # hash: by webhook, the newest ids when it was first there
DEAD_LETTERS = "moca:webhooks:dead"  # stream of deliveries given up


def partition_of(stream: str | bytes, partitions: int) -> int:
    """Partition of a stream: crc32 of its UTF-8 id modulo the number of partitions."""
    return crc32(stream.encode() if isinstance(stream, str) else stream) % partitions


def partitions_of(streams: Iterable[str], partitions: int) -> list[int]:
    """Partition of each of many streams."""
    return [check % partitions for check in map(crc32, map(str.encode, streams))]


def _of_partition(kind: str) -> Callable[[int], str]:
    return lambda p: f"moca:{{{p}}}:{kind}"


def _of_each(kind: str) -> Callable[[int, str], str]:
    """Keys of a kind in a partition: one for each stream, API process or token."""
    return lambda p, name: f"moca:{{{p}}}:{kind}:{name}"


log = _of_partition("in")  # stream of command batches
meta = _of_partition("meta")  # hash with offset, epoch, in, done, attempts, trying, tries
lease = _of_partition("lease")  # string: the owner's token, while its lease lasts
append = _of_each("append")  # last batch number that one API process appended, with its entry id
results = _of_each("results")  # stream of outcomes for one API process, and the channel they go to
# Hash of stream heads, tombstones included, of two fields each: the position under the stream's id,
# with the last rows that are not in its tail yet, and the settled part under `settled_field`.
heads = _of_partition("heads")
names = _of_partition("names")  # sorted set (all scores 0) of the ids of living streams
due = _of_partition("due")  # sorted set of streams that expire, by when, in milliseconds
feed = _of_partition("feed")  # stream of events of all streams, in the order of the log
checkpoints = _of_partition("checkpoints")  # hash of streams' states by stream id
hindsight = _of_partition("hindsight")  # hash of segmentations in hindsight by stream id
staged = _of_each("staged")  # string: a snapshot on its way in, by its token; it expires
quarantine = _of_partition("quarantine")  # hash of commands set aside, by where they came from
tail = _of_each("tail")  # list of blocks of records: all others that are retained, oldest first
events = _of_each("events")  # hash of events by `kind:id`
idempotency = _of_each(
    "idempotency"
)  # hash of records by `key`, NUL, place of the part in its list
changes = _of_each("changes")  # hash of changed settings by `seq:milliseconds:number`

# Hashes of a stream alone, each under its name in backups.
HASHES = {
    "events": events,
    "idempotency": idempotency,
    "changes": changes,
}
PARTS = (tail, *HASHES.values())  # every key of a stream alone


def settled_field(stream: AnyStr) -> AnyStr:
    """Return the field of a stream's settled part among the heads: no id has a NUL."""
    return stream + ("\0" if isinstance(stream, str) else b"\0")


def head_fields(streams: Iterable[AnyStr]) -> list[AnyStr]:
    """Return both fields of each stream among the heads."""
    return [field for stream in streams for field in (settled_field(stream), stream)]


def names_of(fields: Iterable[bytes]) -> list[bytes]:
    """Return the streams that have these fields among the heads, in order, each once."""
    return list(dict.fromkeys(field.removesuffix(b"\0") for field in fields))


def text_of(stored: bytes) -> str:
    """Return a stored name or field for people to read; a damaged one as far as it goes."""
    return stored.decode(errors="backslashreplace")


def webhook_again(hook: str) -> str:
    """Return the stream of dead letters that one webhook is to try again."""
    return f"moca:webhooks:again:{hook}"


def webhook_lock(hook: str) -> str:
    """Return the lock of the process that delivers for one webhook."""
    return f"moca:webhooks:lock:{hook}"


def read_all(p: int, stream: str) -> list[tuple[Any, ...]]:
    """Return the reads of all that is kept of a stream.

    These are its head's fields, its checkpoint, its tail, its hashes.
    """
    return [
        ("HMGET", heads(p), *head_fields([stream])),
        ("HGET", checkpoints(p), stream),
        ("LRANGE", tail(p, stream), 0, -1),
        *(("HGETALL", key(p, stream)) for key in HASHES.values()),
    ]
