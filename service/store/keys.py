"""Names of everything kept in Redis; every key of a partition carries its hash tag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, AnyStr
from zlib import crc32

CONFIG = "moca:config"
WORKERS = "moca:workers"
CANARIES = "moca:canaries"  # hash of what is known of each, by the model's name
CALENDAR = "moca:calendar"  # hash of windows, by name
WEBHOOKS = "moca:webhooks"  # hash: by webhook, the newest ids when it was first there
DEAD_LETTERS = "moca:webhooks:dead"  # stream of deliveries given up


def partition_of(stream: str, partitions: int) -> int:
    """Partition of a stream: crc32 of its UTF-8 id modulo the number of partitions."""
    return crc32(stream.encode()) % partitions


def log(p: int) -> str:
    """Return the stream of command batches."""
    return f"moca:{{{p}}}:in"


def meta(p: int) -> str:
    """Return the hash with offset, epoch, in, done, attempts, trying, tries."""
    return f"moca:{{{p}}}:meta"


def lease(p: int) -> str:
    """Return the string that holds the owner's token while its lease lasts."""
    return f"moca:{{{p}}}:lease"


def append(p: int, incarnation: str) -> str:
    """Return the last batch number one API process appended, with its entry id."""
    return f"moca:{{{p}}}:append:{incarnation}"


def results(p: int, incarnation: str) -> str:
    """Return the stream of outcomes for one API process, and the channel they are published in."""
    return f"moca:{{{p}}}:results:{incarnation}"


def heads(p: int) -> str:
    """Return the hash of stream heads: two fields of each stream (tombstones included).

    The settled part under the stream's id, and the position: see `position_field`.
    """
    return f"moca:{{{p}}}:heads"


def position_field(stream: AnyStr) -> AnyStr:
    """Return the field of a stream's position among the heads: no id has a NUL."""
    return stream + ("\0" if isinstance(stream, str) else b"\0")


def head_fields(streams: Iterable[AnyStr]) -> list[AnyStr]:
    """Return both fields of each stream among the heads."""
    return [field for stream in streams for field in (stream, position_field(stream))]


def names_of(fields: Iterable[bytes]) -> list[bytes]:
    """Return the streams that have these fields among the heads, in order, each once."""
    return list(dict.fromkeys(field.removesuffix(b"\0") for field in fields))


def text_of(stored: bytes) -> str:
    """Return a stored name or field for people to read; a damaged one as far as it goes."""
    return stored.decode(errors="backslashreplace")


def names(p: int) -> str:
    """Return the sorted set (all scores 0) of the ids of living streams."""
    return f"moca:{{{p}}}:names"


def tail(p: int, stream: str) -> str:
    """Return the list of blocks of records that are not in a checkpoint and a sealed chunk yet."""
    return f"moca:{{{p}}}:tail:{stream}"


def history(p: int, stream: str) -> str:
    """Return the hash of sealed chunks by chunk number."""
    return f"moca:{{{p}}}:history:{stream}"


def checkpoint(p: int, stream: str) -> str:
    """Return the hash of immutable states by `state_field`."""
    return f"moca:{{{p}}}:checkpoint:{stream}"


def state_field(generation: int, seq: int) -> str:
    """Return the field of the state at a position among the checkpoints of a stream."""
    return f"{generation}:{seq}"


def events(p: int, stream: str) -> str:
    """Return the hash of changepoint events by event id."""
    return f"moca:{{{p}}}:events:{stream}"


def anomalies(p: int, stream: str) -> str:
    """Return the hash of anomaly events by event id."""
    return f"moca:{{{p}}}:anomalies:{stream}"


def changes(p: int, stream: str) -> str:
    """Return the hash of changed settings by `seq:milliseconds:number`."""
    return f"moca:{{{p}}}:changes:{stream}"


def due(p: int) -> str:
    """Return the sorted set of streams that expire, by when, in milliseconds."""
    return f"moca:{{{p}}}:due"


def feed(p: int) -> str:
    """Return the stream of events of all streams, in the order of the log."""
    return f"moca:{{{p}}}:feed"


def hindsight(p: int) -> str:
    """Return the hash of segmentations in hindsight by stream id."""
    return f"moca:{{{p}}}:hindsight"


def idempotency(p: int, stream: str) -> str:
    """Return the hash of idempotency records by `key`, NUL, position of the part in its list."""
    return f"moca:{{{p}}}:idempotency:{stream}"


def staged(p: int, token: str) -> str:
    """Return the string that holds a snapshot on its way in; it expires."""
    return f"moca:{{{p}}}:staged:{token}"


def quarantine(p: int) -> str:
    """Return the hash of commands set aside, by where they came from."""
    return f"moca:{{{p}}}:quarantine"


def webhook_again(hook: str) -> str:
    """Return the stream of dead letters that one webhook is to try again."""
    return f"moca:webhooks:again:{hook}"


def webhook_lock(hook: str) -> str:
    """Return the lock of the process that delivers for one webhook."""
    return f"moca:webhooks:lock:{hook}"


# Hashes of a stream beside its head, each under its name in backups.
HASHES = {
    "checkpoint": checkpoint,
    "history": history,
    "events": events,
    "idempotency": idempotency,
    "changes": changes,
    "anomalies": anomalies,
}
PARTS = (tail, *HASHES.values())  # every key of a stream


def read_all(pipe: Any, p: int, stream: str) -> None:
    """Queue the reads of all that is kept of a stream: its head's fields, its tail, its hashes."""
    pipe.hmget(heads(p), head_fields([stream]))
    pipe.lrange(tail(p, stream), 0, -1)
    for key in HASHES.values():
        pipe.hgetall(key(p, stream))
