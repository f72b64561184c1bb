"""Taking a backup: every stream as of one of its commits, whether the service runs or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from service import wire
from service.backup.file import (
    BLOCK_BYTES,
    BackupError,
    Kept,
    Manifest,
    StoredFeed,
    StreamBlock,
    UsedModel,
    Writer,
    artifact_files,
)
from service.models.catalogue import Catalogue
from service.store import health, keys
from service.store.api_keys import KEYS, USED
from service.store.health import RESTORING, check_formats, stored_partitions
from service.store.shards import StoreClient
from service.store.streams import (
    UnreadablePart,
    all_decoded,
    decoded,
    head_of,
    idempotency_of,
    state,
    stored_head,
)

FEED_PAGE = 500
# Hashes, what each of their values is, and its decoder; idempotency records have their own.
PARTS = (
    ("checkpoint", "checkpoint", state),
    ("history", "history", wire.decode_columns),
    ("events", "event", wire.decode_event),
    ("changes", "change", wire.decode_change),
    ("anomalies", "anomaly", wire.decode_event),
)


class Backup:
    """One backup on its way into its file.

    service: version that makes it. progress: takes the number of streams done, and of all.
    """

    def __init__(
        self,
        client: StoreClient,
        writer: Writer,
        service: str,
        catalogue: Catalogue,
        with_models: bool,
        progress: Callable[[int, int], object],
    ) -> None:
        self._client = client
        self._writer = writer
        self._service = service
        self._catalogue = catalogue
        self._with_models = with_models
        self._progress = progress
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
        for reference, model in self._models.items() if self._with_models else ():
            for file in artifact_files(self._catalogue, reference):
                self._writer.add_model(reference, file)
                model.packed = True
        manifest = Manifest(
            made_ms=time.time_ns() // 1_000_000,
            service=self._service,
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
                self._progress(done, max(total, done))

    def _take_stream(self, partition: int, stored_name: bytes) -> None:
        """Read a stream as of one commit; that it cannot be read is noted."""
        name = keys.text_of(stored_name)
        if name.encode() != stored_name:
            self._skipped[name] = "its name is damaged"
            return
        reads = keys.read_all(partition, name)
        heads, tail, *parts = self._client.atomic(reads, errors=True)
        wrong = [str(part) for part in (heads, tail, *parts) if isinstance(part, Exception)]
        stored = None if wrong else stored_head(*heads)
        if stored is None:
            self._skipped[name] = wrong[0] if wrong else "its head is missing"
            return
        kept = Kept(name, stored, tail, dict(zip(keys.HASHES, parts, strict=True)))
        try:
            head = _checked(kept)
        except UnreadablePart as error:
            self._skipped[name] = str(error)
            return
        self._count(head)
        self._block.streams.append(kept)
        hashes = sum(len(k) + len(v) for own in kept.hashes.values() for k, v in own.items())
        self._grow(hashes + len(stored.settled) + len(stored.position or b"") + sum(map(len, tail)))

    def _count(self, head: wire.Head) -> None:
        if head.deleted:
            self._tombstones += 1
            return
        self._streams += 1
        self._observations += head.seq
        reference = head.settings.model
        if reference not in self._models:
            digest = self._catalogue.digest(reference)
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


def _checked(kept: Kept) -> wire.Head:
    """Keep of a stream's states the one that its head names, and return the head.

    Raises UnreadablePart for a damaged part.
    """
    name = kept.stream
    head = head_of(name, kept.head)
    named = keys.state_field(head.generation, head.checkpoint).encode()
    states = kept.hashes["checkpoint"]
    kept.hashes["checkpoint"] = {field: blob for field, blob in states.items() if field == named}
    for blob in kept.tail:
        decoded(wire.decode_block, blob, "tail", name)
    for of, part, decode in PARTS:
        all_decoded(decode, kept.hashes[of], part, name)
    idempotency_of(name, kept.hashes["idempotency"])
    return head
