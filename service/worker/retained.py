"""What is retained of a stream's observations, as its worker reads it."""

from __future__ import annotations

from service.redis.store import CHUNK, Store, unseal
from service.wire import Record
from service.worker.stream import Stream


def retained(stream: Stream, store: Store, most: int) -> list[Record]:
    """The last `most` records, and those before them in the same chunk; ascending."""
    head, phase = stream.live(), stream.phase
    recent, sealing = stream.recent()
    first = max(0, head.seq - min(head.settings.history, most))
    wanted = range((first + phase) // CHUNK, (head.sealed - 1 + phase) // CHUNK + 1)
    missing = [number for number in wanted if number not in sealing]
    stored = dict(zip(missing, store.chunks(stream.partition, stream.name, missing), strict=True))
    blobs = [blob for blob in (stored | sealing).values() if blob is not None]
    records = {record.seq: record for blob in blobs for record in unseal(blob)} | recent
    found: list[Record] = []
    for seq in range(head.seq - 1, -1, -1):
        if seq not in records or seq < wanted.start * CHUNK - phase:
            break
        found.append(records[seq])
    return found[::-1]
