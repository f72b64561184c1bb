"""What is retained of a stream's observations, as its worker reads it."""

from __future__ import annotations

from service.redis.store import CHUNK, CorruptState, Store, unseal
from service.wire import Record
from service.worker.stream import Stream


def retained(stream: Stream, store: Store, most: int) -> list[Record]:
    """The last `most` records, and those before them in the same chunk; ascending.

    Raises CorruptState where one of them cannot be read, or is gone.
    """
    head, phase = stream.live(), stream.phase
    recent, sealing = stream.recent()
    first = max(0, head.seq - min(head.settings.history, most))
    wanted = range((first + phase) // CHUNK, (head.sealed - 1 + phase) // CHUNK + 1)
    missing = [number for number in wanted if number not in sealing]
    stored = dict(zip(missing, store.chunks(stream.partition, stream.name, missing), strict=True))
    for number, blob in stored.items():
        if blob is None and head.oldest <= number < (head.sealed + phase) // CHUNK:
            raise CorruptState(f"chunk {number} of {stream.name!r} is not there any more")
    blobs = {number: blob for number, blob in (stored | sealing).items() if blob is not None}
    chunks = [unseal(stream.name, number, blob) for number, blob in blobs.items()]
    records = {record.seq: record for chunk in chunks for record in chunk} | recent
    found: list[Record] = []
    for seq in range(head.seq - 1, max(0, wanted.start * CHUNK - phase) - 1, -1):
        if seq not in records:
            # Of the oldest chunk the first may never have been here: those of an imported stream.
            if (seq + phase) // CHUNK > head.oldest or min(records, default=seq) < seq:
                raise CorruptState(f"observation {seq} of {stream.name!r} is not there any more")
            break
        found.append(records[seq])
    return found[::-1]
