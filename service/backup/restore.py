"""Restoring a backup: the streams' own bytes put where they belong, while no worker runs.

Not through the import of snapshots: that would rebuild each stream as another life of it, without
tombstones, and needs every model loaded. Bytes are written by the commit that workers use, under
leases held here, so that a worker that comes up meanwhile gets no partition, and a restore that
lost its leases writes nothing. What is written depends on the file alone: a restore that was
interrupted is repeated from its beginning, and until one has ended no service starts here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import redis

from model_core.stream_settings import DEFAULTS
from service.backup.file import BackupError, Kept, Manifest, Reader, StoredFeed
from service.store import health, keys
from service.store.api_keys import KEYS, USED, VERSION
from service.store.health import PARTITIONS, RESTORING, stored_partitions
from service.store.log import Commit, Effect, Lease, Log, index_effects
from service.store.shards import Argument, StoreClient, Words
from service.store.streams import head_of
from service.worker.worker import Leases

ROUND_BYTES = 4 << 20  # of one commit, about
PAUSE_S = 0.1
_LISTS = (
    keys.heads,
    keys.names,
    keys.due,
    keys.feed,
    keys.hindsight,
)


def partitions_for(client: redis.Redis, requested: int | None, manifest: Manifest) -> int:
    """Return the number of partitions: the store's, or the one asked for, or the backup's."""
    stored = stored_partitions(client)
    if stored is None:
        return requested or manifest.partitions
    if requested not in (None, stored):
        raise BackupError(f"this store was created with {stored} partitions, got {requested}")
    return stored


class Restore:
    """One restore into one store. progress: takes the bytes of the file that are done."""

    def __init__(
        self,
        client: StoreClient,
        reader: Reader,
        partitions: int,
        lease_ttl_ms: int,
        replace: bool,
        progress: Callable[[int], object],
    ) -> None:
        self._client = client
        self._reader = reader
        self._partitions = partitions
        self._lease_ttl_ms = lease_ttl_ms
        self._replace = replace
        self._progress = progress
        self._held: dict[int, Lease] = {}

    def check(self) -> None:
        """Raise BackupError where nothing may be written, before anything is."""
        self._nobody_works()
        waiting = health.waiting(self._client, self._partitions)
        if waiting:
            raise BackupError(
                f"{waiting} accepted observations are still pending in this store's log and "
                "would be applied to the restored streams: run the service until they are "
                "processed"
            )
        unended = self._client.hexists(keys.CONFIG, RESTORING)
        streams = health.stored_streams(self._client, self._partitions)
        if streams and not (unended or self._replace):
            raise BackupError(
                f"this store has {streams} streams, including deleted ones; use --replace to "
                "replace them with the backup"
            )
        # It takes no less than its bytes.
        limit = cast(Any, self._client.info("memory"))["maxmemory"]
        needed = self._reader.manifest.stored_bytes
        if limit and needed > limit:
            raise BackupError(
                f"the backup needs at least {needed} bytes, but the store's maxmemory is {limit}"
            )

    def run(self) -> None:
        """Write everything; raises BackupError, and RedisError, after which to start again."""
        number = str(self._partitions)
        config = {RESTORING: "1", **dict.fromkeys(PARTITIONS, number)}
        with self._leases() as leases:
            self._client.hset(keys.CONFIG, mapping=cast(Any, config))
            self._nobody_works()
            self._empty(leases)
            for block in self._reader.streams():
                leases.tick()
                # What workers commit is written even to a full store, and so is this: end in time.
                memory = cast(Any, self._client.info("memory"))
                if memory["maxmemory"] and memory["used_memory"] > memory["maxmemory"]:
                    raise BackupError(
                        "the store's memory is full: raise maxmemory and restore again"
                    )
                self._write(block.streams)
                for feed in block.feeds:
                    self._write_feed(feed)
                self._progress(self._reader.done)
            self._write_keys()
            self._client.hdel(keys.CONFIG, RESTORING)

    def _nobody_works(self) -> None:
        seconds, _ = cast(Any, self._client.time())
        living = cast(Any, self._client.zrangebyscore(keys.WORKERS, seconds * 1000, "+inf"))
        if living:
            names = ", ".join(worker.decode() for worker in living)
            raise BackupError(f"the service is running here (workers {names}): stop it first")

    @contextmanager
    def _leases(self) -> Iterator[Leases]:
        """Own every partition: no worker can."""
        me = f"restore-{secrets.token_hex(4)}"
        log = Log(self._client, me, self._lease_ttl_ms, self._partitions)
        leases = Leases(lambda: log, self._lease_ttl_ms)
        leases.tick()
        leases.start()
        self._log = log
        try:
            # As long as a lease of somebody killed can last.
            give_up = time.monotonic() + log.ttl_ms / 1000 + 1
            for partition in range(self._partitions):
                while (lease := log.acquire(partition, blame=False)) is None:
                    leases.tick()
                    if log.declined:
                        raise BackupError(f"partition {partition} is of another format or damaged")
                    if time.monotonic() > give_up:
                        raise BackupError(f"partition {partition} has an owner: stop the service")
                    time.sleep(PAUSE_S)
                self._held[partition] = lease
                leases.hold(lease)
            yield leases
        finally:
            leases.stop()
            for lease in self._held.values():
                log.release(lease, clean=False)

    def _empty(self, leases: Leases) -> None:
        """Remove what an unended restore left, or what is to be replaced."""
        self._client.unlink(keys.WEBHOOKS)  # hooks begin with events that are still to come
        for partition in range(self._partitions):
            fields = cast(list[bytes], self._client.hkeys(keys.heads(partition)))
            every = [name.decode() for name in keys.names_of(fields)]
            for i in range(0, len(every), 1000):
                leases.tick()
                group = every[i : i + 1000]
                gone: list[Effect] = [
                    ("UNLINK", key(partition, name)) for name in group for key in keys.PARTS
                ]
                self._commit(partition, gone)
            self._commit(partition, [("UNLINK", key(partition)) for key in _LISTS])

    def _write(self, streams: Iterable[Kept]) -> None:
        waiting: dict[int, list[Effect]] = {}
        size = 0
        for kept in streams:
            partition = keys.partition_of(kept.stream, self._partitions)
            effects = _effects(partition, kept)
            waiting.setdefault(partition, []).extend(effects)
            size += sum(len(part) for e in effects for part in e if isinstance(part, bytes))
            if size > ROUND_BYTES:
                self._commit_all(waiting)
                waiting = {}
                size = 0
        self._commit_all(waiting)

    def _commit_all(self, waiting: dict[int, list[Effect]]) -> None:
        for partition, effects in waiting.items():
            self._commit(partition, effects)

    def _commit(self, partition: int, effects: list[Effect]) -> None:
        """Write effects, if the partition is still ours."""
        lease = self._held[partition]
        commit = Commit(partition, lease.token, lease.offset, lease.offset, 0, effects)
        (result,) = self._log.commit([commit])
        if result not in ("OK", "ALREADY"):
            raise BackupError(f"partition {partition} was taken over ({result}): restore again")

    def _write_feed(self, feed: StoredFeed) -> None:
        """Put a feed in its place where that is the same: its ids are those of its partition."""
        if self._reader.manifest.partitions != self._partitions:
            return
        seconds, micros = cast(Any, self._client.time())
        if int(feed.entries[-1][0].partition(b"-")[0]) >= seconds * 1000 + micros // 1000:
            return  # of a clock ahead of this one's: events to come would be taken for old ones
        self._client.all(
            ("XADD", keys.feed(feed.partition), id_, *chain.from_iterable(fields.items()))
            for id_, fields in feed.entries
        )

    def _write_keys(self) -> None:
        """Add access keys and windows that are not there; keys there may have been revoked."""
        manifest = self._reader.manifest
        kept = {KEYS: manifest.keys, USED: manifest.keys_used, keys.CALENDAR: manifest.calendar}
        commands: list[Words] = [
            ("HSETNX", name, *pair) for name, fields in kept.items() for pair in fields.items()
        ]
        if manifest.keys:
            commands.append(("INCR", VERSION))
        self._client.all(commands)


def _effects(partition: int, kept: Kept) -> list[Effect]:
    """Everything of a stream in its new place."""
    name = kept.stream
    effects = list[Effect]()
    if kept.tail:
        effects.append(("RPUSH", keys.tail(partition, name), *kept.tail))
    for part, key in keys.HASHES.items():
        if fields := kept.hashes.get(part):
            pairs: list[Argument] = [value for pair in fields.items() for value in pair]
            effects.append(("HSET", key(partition, name), *pairs))
    head = head_of(name, kept.head)
    settled, position = cast(tuple[bytes, bytes], kept.head)
    at = keys.position_field(name)
    effects.append(("HSET", keys.heads(partition), name, settled, at, position))
    if not head.deleted:
        effects.append(("ZADD", keys.names(partition), 0, name))
        effects += index_effects(partition, name, head, DEFAULTS)
    return effects
