"""Taking a backup: every stream as of one of its commits, whether the service runs or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from service import wire
from service.backup.artifacts import artifact_files
from service.backup.file import (
    BLOCK_BYTES,
    BackupError,
    Kept,
    Manifest,
    StoredFeed,
    StreamBlock,
    UsedModel,
    Writer,
)
from service.models import catalogue
from service.store import health, keys
from service.store.api_keys import KEYS, USED
from service.store.health import RESTORING, check_formats, stored_partitions
from service.store.shards import StoreClient
from service.store.streams import (
    StoredHead,
    UnreadablePart,
    decoded,
    head_of,
    idempotency_of,
    state,
    stored_head,
)

FEED_PAGE = 500


class BackupRequest(NamedTuple):
    """What a backup is made of and with. `progress` is told streams that are done, and of all."""

    client: StoreClient
    models_dir: Path
    service: str
    with_models: bool
    progress: Callable[[int, int], object]


class Backup:
    """One backup on its way into its file."""

    def __init__(self, request: BackupRequest, writer: Writer) -> None:
        self._asked = request
        self._client = request.client
        self._writer = writer
        self._block = StreamBlock()
        self._size = 0
        self._stored = 0
        self._models: dict[str, UsedModel] = {}
        self._skipped: dict[str, str] = {}
        self._streams = 0
        self._tombstones = 0
        self._observations = 0

    def run(self) -> Manifest:
        """Write all there is; raises BackupError, RedisError and OSError."""
        partitions = stored_partitions(self._client)
        if partitions is None:
            raise BackupError("no deployment in this store")
        if self._client.hexists(keys.CONFIG, RESTORING):
            raise BackupError(
                "a restore into this store was interrupted: there is no complete deployment to "
                "back up"
            )
        check_formats(self._client, partitions)
        waiting = health.waiting(self._client, partitions)
        self._take_streams(partitions)
        for partition in range(partitions):
            self._take_feed(partition)
        self._flush()
        # An artifact that is gone is not packed, which the manifest says.
        for reference, model in self._models.items() if self._asked.with_models else ():
            for file in artifact_files(self._asked.models_dir, reference):
                self._writer.add_model(reference, file)
                model.packed = True
        manifest = Manifest(
            made_ms=time.time_ns() // 1_000_000,
            service=self._asked.service,
            partitions=partitions,
            streams=self._streams,
            tombstones=self._tombstones,
            observations=self._observations,
            stored_bytes=self._stored,
            models=self._models,
            skipped=self._skipped,
            waiting=waiting,
            keys=cast(Any, self._client.hgetall(KEYS)),
            keys_used=cast(Any, self._client.hgetall(USED)),
            calendar=cast(Any, self._client.hgetall(keys.CALENDAR)),
            format=wire.FORMAT,
        )
        self._writer.finish(manifest)
        return manifest

    def _take_streams(self, partitions: int) -> None:
        total = health.stored_streams(self._client, partitions)
        done = 0
        for partition in range(partitions):
            # Of one partition at a time: a stream made after this look is not in the backup.
            fields = cast(list[bytes], self._client.hkeys(keys.heads(partition)))
            for name in keys.names_of(fields):
                self._take_stream(partition, name)
                done += 1
                self._asked.progress(done, max(total, done))

    def _take_stream(self, partition: int, stored_name: bytes) -> None:
        """Read a stream as of one commit; that it cannot be read is noted."""
        name = keys.text_of(stored_name)
        if name.encode() != stored_name:
            self._skipped[name] = "its name is damaged"
            return
        with self._client.pipeline(transaction=True) as pipe:
            keys.read_all(pipe, partition, name)
            heads, tail, *parts = pipe.execute(raise_on_error=False)
        wrong = [str(part) for part in (heads, tail, *parts) if isinstance(part, Exception)]
        head = None if wrong else stored_head(*heads)
        if head is None:
            self._skipped[name] = wrong[0] if wrong else "its head is missing"
            return
        try:
            kept = _checked(name, head, tail, parts)
        except UnreadablePart as error:
            self._skipped[name] = str(error)
            return
        self._count(kept)
        hashes = (getattr(kept, part) for part in keys.HASHES)
        size = sum(len(k) + len(v) for fields in hashes for k, v in fields.items())
        self._block.streams.append(kept)
        self._grow(size + len(kept.head) + len(kept.position) + sum(map(len, kept.tail)))

    def _count(self, kept: Kept) -> None:
        head = head_of(kept.stream, StoredHead(kept.head, kept.position))
        if head.deleted:
            self._tombstones += 1
            return
        self._streams += 1
        self._observations += head.seq
        reference = head.settings.model
        if reference not in self._models:
            digest = catalogue.digest(self._asked.models_dir, reference)
            self._models[reference] = UsedModel(0, digest)
        self._models[reference].streams += 1

    def _take_feed(self, partition: int) -> None:
        after = "-"
        while True:
            rows = cast(Any, self._client.xrange(keys.feed(partition), after, "+", FEED_PAGE))
            if not rows:
                return
            entries = [(id_, dict(fields)) for id_, fields in rows]
            self._block.feeds.append(StoredFeed(partition, entries))
            self._grow(sum(len(v) for _, fields in entries for v in fields.values()))
            after = f"({rows[-1][0].decode()}"

    def _grow(self, size: int) -> None:
        self._size += size
        self._stored += size
        if self._size >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._block.streams or self._block.feeds:
            self._writer.add(self._block)
        self._block = StreamBlock()
        self._size = 0


def _checked(
    name: str, stored: StoredHead, tail: list[bytes], parts: list[dict[bytes, bytes]]
) -> Kept:
    """A stream with the one state that its head names; raises UnreadablePart for a damaged part."""
    head = head_of(name, stored)
    assert stored.position is not None
    named = keys.state_field(head.generation, head.checkpoint).encode()
    states = {field: blob for field, blob in parts[0].items() if field == named}
    _, history, events, idempotency, changes, anomalies = parts
    kept = Kept(
        name,
        stored.settled,
        stored.position,
        tail,
        states,
        history,
        events,
        idempotency,
        changes,
        anomalies,
    )
    for part, field, decode, blob in _parts(kept):
        decoded(decode, blob, part, name, field)
    idempotency_of(name, idempotency)
    return kept


def _parts(kept: Kept) -> Iterator[tuple[str, str, Any, bytes]]:
    """Yield kind, field, decoder and bytes of each part but idempotency records."""
    for blob in kept.tail:
        yield "tail", "", wire.decode_block, blob
    for part, decode, stored in (
        ("checkpoint", state, kept.checkpoint),
        ("history", wire.decode_columns, kept.history),
        ("event", wire.decode_event, kept.events),
        ("change", wire.decode_change, kept.changes),
        ("anomaly", wire.decode_event, kept.anomalies),
    ):
        for field, blob in stored.items():
            yield part, keys.text_of(field), decode, blob
