"""What a worker stores of a stream, written without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from service import wire
from service.store import keys
from service.store.streams import blocks, head_fields


def record(seq: int, y: Any = 0.0, **fields: Any) -> wire.Record:
    """A record of an observation at the place `seq`."""
    return wire.Record(seq, y, None, None, 1.0, None, 0.01, 0.0, **fields)


def as_kept(
    record: wire.Record,
    answer: dict[str, Any],
    predicted: Iterable[str] = ("mean", "variance", "quantiles", "probabilities"),
) -> wire.Record:
    """A record with what was answered, as it is read from its row: with digits of float32."""
    scores = ("log_score", "changed_probability", "changepoint_probability", "time")
    predictive = answer["predictive"] or {}
    answered = {name: answer.get(name) for name in scores}
    answered |= {name: predictive.get(name) for name in predicted}
    row = wire.encode_row(msgspec.structs.replace(record, **answered))
    return wire.decode_row(record.seq, row)


def blob(value: Any, *place: object) -> bytes:
    """A value as it is stored, with the checksum of its place."""
    return wire.checksummed(wire.encode(value), *place)


def block_of(stream: str, record: wire.Record) -> bytes:
    """The block of a tail that has one record."""
    place = wire.place_of("tail", stream)
    (block,) = blocks(place, record.seq, [wire.encode_row(record)])
    return block


def put_event(client, partition: int, stream: str, event: wire.Event) -> None:
    at = f"{event.kind}:{event.id}"
    client.hset(keys.events(partition, stream), at, blob(event, "events", stream, at))


def put_head(client, partition: int, stream: str, head: wire.Head) -> None:
    client.zadd(keys.names(partition), {stream: 0})
    client.hset(keys.heads(partition), items=head_fields(stream, head))


def put_records(client, partition: int, stream: str, records: Iterable[wire.Record]) -> None:
    """Store a tail of these records, in place of the one that is there."""
    key = keys.tail(partition, stream)
    client.unlink(key)
    for each in records:
        client.rpush(key, block_of(stream, each))
