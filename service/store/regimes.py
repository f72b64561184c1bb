"""Labels on both sides of changes of many streams, in two rounds for all of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from itertools import count as count_from
from typing import Any, NamedTuple

import msgspec
import redis.asyncio

from model_core.segmentation import NEAR
from service import wire
from service.store import keys
from service.store.worker_reads import UnreadablePart, chunk_of, decoded, unseal, unseal_labels

STEP = 10
Label = list[float]  # NaN: a missing output


class Place(NamedTuple):
    """A change to look around at.

    previous, following: starts of the changes before and after it, where they are known.
    """

    partition: int
    stream: str
    head: wire.Head
    start: int
    previous: int | None
    following: int | None


class Around(NamedTuple):
    """What is retained around a start.

    before, after: labels of the regimes that end and begin there, in order, without missing ones.
    first: the record at the start, if it is retained. whole: whether every record was there; a
    commit may move one between two reads, as where a node of a cluster sends one of them on.
    """

    before: list[Label]
    after: list[Label]
    first: wire.Record | None
    whole: bool


_decode_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
Stored = tuple[list[Any], list[Any]]


async def fetch(
    client: redis.asyncio.Redis, places: Sequence[Place], before: int, after: int
) -> list[Stored]:
    """Return records of the tails and chunks, as stored, with so many labels around each place."""
    async with client.pipeline(transaction=False) as pipe:
        for place in places:
            # What a commit seals after the head was read is missing from the tail, and then there.
            wanted = _range(place, before, after)
            seqs = [str(seq) for seq in range(max(wanted.start, place.head.sealed), wanted.stop)]
            pipe.hmget(keys.tail(place.partition, place.stream), seqs or [""])
            numbers = [str(number) for number in _chunks(place, wanted)]
            pipe.hmget(keys.history(place.partition, place.stream), numbers or [""])
        found = await pipe.execute()
    return list(zip(found[::2], found[1::2], strict=True))


def decode(place: Place, stored: Stored, before: int, after: int) -> Around:
    """Decode what `fetch` returned of one place; raises UnreadablePart.

    But for the first record labels alone, which takes a fifth of the time; where there is a season
    records, which have it as well.
    """
    wanted = _range(place, before, after)
    stream, start, seasonal = place.stream, place.start, place.head.season is not None
    rows: dict[int, wire.Record | wire.Labelled] = {}
    for number, blob in zip(_chunks(place, wanted), stored[1], strict=False):
        if blob:
            found = unseal(stream, number, blob) if seasonal else _lean(place, number, blob)
            rows |= {row.seq: row for row in found}
    for seq, blob in zip(count_from(max(wanted.start, place.head.sealed)), stored[0], strict=False):
        if blob:
            whole = seasonal or seq == start
            read: Any = wire.decode_record if whole else wire.decode_labelled
            rows[seq] = decoded(read, blob, "tail", stream, seq)
    first = rows.get(start)
    record = first if isinstance(first, wire.Record) else None
    begin = wanted.start
    if record is not None and record.previous_start < start - NEAR:
        begin = max(begin, record.previous_start)
    around = Around(
        _labels([rows[seq] for seq in range(begin, start) if seq in rows], seasonal),
        _labels([rows[seq] for seq in range(start, wanted.stop) if seq in rows], seasonal),
        record,
        all(seq in rows for seq in wanted),
    )
    outputs = place.head.y_dim or 1
    for label in (*around.before, *around.after):
        if len(label) != outputs:
            raise UnreadablePart(
                f"expected labels of {outputs} outputs in the history of {stream!r}, got one of "
                f"{len(label)}"
            )
    return around


def _lean(place: Place, number: int, blob: bytes) -> list[wire.Record | wire.Labelled]:
    """Labels of a chunk, and the record at the start if it is there."""
    found: list[wire.Record | wire.Labelled] = [*unseal_labels(place.stream, number, blob)]
    for i, row in enumerate(found):
        if row.seq == place.start:
            found[i] = decoded(partial(_record, i), blob, "history", place.stream, number)
    return found


def _record(i: int, body: bytes) -> wire.Record:
    return wire.decode_record(_decode_raws(zlib.decompress(body))[i])


def until(place: Place, after: int) -> int:
    """Position after the last label that is looked at after a start.

    Where the regime goes on it moves by STEP labels: what was made of them holds until then.
    """
    if place.following is not None:
        return min(place.start + after, place.following, place.head.seq)
    count = min(after, place.head.seq - place.start)
    return place.start + (count if count < 2 * STEP else count - count % STEP)


def since(place: Place, before: int) -> int:
    """Position of the first label that is looked at before a start: it is still retained."""
    retained = place.head.seq - place.head.settings.history
    return max(place.start - before, place.previous or 0, retained, 0)


def _range(place: Place, before: int, after: int) -> range:
    first = since(place, before)
    return range(first, max(first, until(place, after)))


def _chunks(place: Place, wanted: range) -> range:
    if not wanted:
        return range(0)
    return range(chunk_of(place.stream, wanted.start), chunk_of(place.stream, wanted.stop - 1) + 1)


def _labels(rows: Sequence[wire.Record | wire.Labelled], seasonal: bool) -> list[Label]:
    """Labels, less their season where there is one: as the filter sees them."""
    found = []
    for row in rows:
        if row.y is not None:
            offset = row.offset if seasonal and isinstance(row, wire.Record) else 0.0
            found.append([each - offset for each in wire.numbers(row.y)])
    return found
