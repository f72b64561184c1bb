"""The whole deployment in one file: its form, taking it, and restoring it.

The file is a zip of blocks and a manifest. Entries are `streams/N`, blocks of msgpack with streams
and parts of feeds, and at last `manifest`, which names the others. The zip has a CRC-32 for each
entry: nothing of a file is used before all of them were found right, so that a damaged or cut one
changes nothing.

Every stream is taken as of one of its commits, whether the service runs or not.

What is restored are the streams' own bytes, put where they belong while no worker runs. Not through
the import of snapshots: that would rebuild each stream as another life of it, without tombstones,
and needs every model loaded. Bytes are written by the commit that workers use, under leases held
here, so that a worker that comes up meanwhile gets no partition, and a restore that lost its leases
writes nothing. What is written depends on the file alone: a restore that was interrupted is
repeated from its beginning, and until one has ended no service starts here.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec
import redis
from msgspec import Struct

from service import wire
from service.models.catalogue import Catalogue
from service.store import health, keys
from service.store.api_keys import KEYS, USED, VERSION
from service.store.feed import entry_of
from service.store.health import PARTITIONS, RESTORING, check_formats, stored_partitions
from service.store.log import Commit, Effect, Lease, Log, due_effect
from service.store.shards import Argument, StoreClient, Words
from service.store.streams import (
    StoredHead,
    UnreadablePart,
    blocks_of,
    head_of,
    rows_of,
    state_of,
    stored_head,
    values_of,
)
from service.wire import Id, event_entries
from service.wire.event_entries import START, Raised
from service.worker.worker import Leases

BLOCK_BYTES = 1 << 20  # of a block before it is packed, about: a larger stream has one alone
READ_BYTES = 1 << 20
STREAMS = "streams/"
MANIFEST = "manifest"
_LEVEL = 1  # most of it is packed already
_END = struct.Struct("<4s18x")  # record at the end of a zip file without a comment
# What `zipfile` raises where bytes are not what they should be; RuntimeError and OSError of an
# entry that seems to be encrypted, or to lie outside the file.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    OSError,
    ValueError,
)

Fields = dict[bytes, bytes]


class BackupError(ValueError):
    """A backup cannot be taken or restored; the message says why and what to do."""


class Kept(Struct, array_like=True, tag=0):
    """All that is kept of a stream as of one commit, as stored. hashes: as in `keys.HASHES`."""

    stream: str
    head: StoredHead
    checkpoint: bytes | None
    tail: list[bytes]
    hashes: dict[str, Fields]


class StoredFeed(Struct, array_like=True, tag=1):
    """Entries of a partition's feed, oldest first: id and fields."""

    partition: int
    entries: list[tuple[bytes, Fields]]


class MovedEntry(NamedTuple):
    """An entry of a feed on its way to another partition, or to an earlier time."""

    partition: int  # where it goes
    id: Id  # that it had
    raised: Raised


class UsedModel(Struct):
    """A model that streams are on. digest: of an artifact's files, None of a built-in one."""

    streams: int
    digest: str | None = None


class Manifest(Struct, kw_only=True):
    """What a backup holds."""

    format: int  # of what is stored: `wire.FORMAT`
    made_ms: int = 0
    service: str  # version that made it
    partitions: int
    streams: int = 0  # living ones
    tombstones: int = 0
    observations: int = 0
    stored_bytes: int = 0  # of streams and feeds, as they take up in the store
    models: dict[str, UsedModel] = {}
    skipped: dict[str, str] = {}  # streams that could not be read, and why
    waiting: int  # observations accepted and not yet applied when it was begun: not in it
    keys: Fields = {}  # access keys, as stored
    keys_used: Fields = {}
    calendar: Fields = {}  # windows, as stored
    entries: list[str] = []  # names of all entries before the manifest


class _Format(Struct):
    """The part of a manifest that says whether the rest can be read."""

    format: int
    service: str


_encode = msgspec.msgpack.Encoder().encode
_block = msgspec.msgpack.Decoder(list[Kept | StoredFeed]).decode
_manifest = msgspec.msgpack.Decoder(Manifest).decode
_format = msgspec.msgpack.Decoder(_Format).decode


class Writer:
    """Writes a backup under another name, and gives it its own when it is whole and on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        # The file holds every stream: readable by its owner only.
        new = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._file: IO[bytes] = os.fdopen(os.open(self._draft, new, 0o600), "w+b")
        self._zip = zipfile.ZipFile(
            self._file,
            "w",
            zipfile.ZIP_DEFLATED,
            compresslevel=_LEVEL,
        )
        self._blocks = 0
        self._block: list[msgspec.Raw] = []  # encoded parts
        self._size = 0  # of the block
        self.stored_bytes = 0

    def add(self, part: Kept | StoredFeed) -> None:
        """Append a stream, or entries of a feed."""
        encoded = _encode(part)
        self._block.append(msgspec.Raw(encoded))
        self._size += len(encoded)
        self.stored_bytes += len(encoded)
        if self._size >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the block that is being filled, if anything is in it."""
        if self._block:
            self._zip.writestr(f"{STREAMS}{self._blocks}", _encode(self._block))
            self._blocks += 1
        self._block = []
        self._size = 0

    def finish(self, manifest: Manifest) -> None:
        """Append the manifest, and put the file in its place; OSError leaves none there."""
        manifest.entries = self._zip.namelist()
        self._zip.writestr(MANIFEST, _encode(manifest))
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def abandon(self) -> None:
        """Remove what was written; after `finish` there is nothing to remove."""
        self._zip.fp = None  # closing it would write the directory of what is removed
        self._draft.unlink(missing_ok=True)
        with suppress(OSError):  # of what is still in its buffer, as on a full disk
            self._file.close()


class Reader:
    """Reads a backup, once `verify` has found it whole."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size
        self.done = 0  # bytes of blocks read
        self.manifest: Manifest
        self._zip: zipfile.ZipFile

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def verify(self, progress: Callable[[int], object] = lambda _: None) -> Manifest:
        """Read it all and return the manifest; raises BackupError.

        progress: takes the bytes of each entry.
        """
        if self._file.read(4) != b"PK\3\4":
            raise BackupError("not a backup, expected a zip file written by `moca backup`")
        self._file.seek(max(0, self.size - _END.size))
        if _END.unpack(self._file.read(_END.size).ljust(_END.size))[0] != b"PK\5\6":
            raise BackupError("the backup is truncated, or has something after its end")
        with _damage():
            self._zip = zipfile.ZipFile(self._file)
        names = self._zip.namelist()
        for entry in self._zip.infolist():
            with _damage(), self._zip.open(entry) as source:
                while source.read(READ_BYTES):
                    pass
            progress(entry.compress_size)
        if not names or names[-1] != MANIFEST:
            raise BackupError("not a backup, or damaged: the zip file has no manifest at its end")
        with _damage():
            body = self._zip.read(MANIFEST)
            manifest = _format(body)
        if manifest.format != wire.FORMAT:
            raise BackupError(
                f"the backup was written by version {manifest.service} in store format "
                f"{manifest.format}, expected {wire.FORMAT}"
            )
        with _damage():
            self.manifest = _manifest(body)
        if self.manifest.entries != names[:-1]:
            raise BackupError("the backup is damaged: its entries are not those of its manifest")
        return self.manifest

    def streams(self) -> Iterator[list[Kept | StoredFeed]]:
        """Read the blocks of streams and feeds, one after the other."""
        for entry in self._blocks():
            with _damage():
                block = _block(self._zip.read(entry))
            self.done += entry.compress_size
            yield block

    @property
    def streams_bytes(self) -> int:
        """Bytes of the file that `streams` reads."""
        return sum(entry.compress_size for entry in self._blocks())

    def _blocks(self) -> list[zipfile.ZipInfo]:
        return [entry for entry in self._zip.infolist() if entry.filename.startswith(STREAMS)]


@contextmanager
def _damage() -> Iterator[None]:
    """Raise BackupError for what a damaged or truncated file raises."""
    try:
        yield
    except (*_BROKEN, msgspec.MsgspecError) as error:
        raise BackupError(f"the backup is damaged or truncated: {error}") from error


# --- taking one ----------------------------------------------------------------------------------

FEED_PAGE = 500


def take(
    client: StoreClient,
    writer: Writer,
    service: str,
    catalogue: Catalogue,
    progress: Callable[[int, int], object],
) -> Manifest:
    """Write all there is; raises BackupError, RedisError and OSError.

    service: version that makes it. progress: takes the number of streams done, and of all.
    """
    partitions = stored_partitions(client)
    if partitions is None:
        raise BackupError("no deployment in this store")
    if client.hexists(keys.CONFIG, RESTORING):
        raise BackupError(
            "a restore into this store was interrupted: there is no complete deployment to back up"
        )
    check_formats(client, partitions)
    manifest = Manifest(
        format=wire.FORMAT,
        service=service,
        partitions=partitions,
        waiting=health.waiting(client, partitions),
    )
    _take_streams(client, writer, manifest, catalogue, progress)
    for partition in range(partitions):
        after = "-"
        while rows := cast(Any, client.xrange(keys.feed(partition), after, "+", FEED_PAGE)):
            writer.add(StoredFeed(partition, [(id_, dict(fields)) for id_, fields in rows]))
            after = f"({rows[-1][0].decode()}"
    writer.flush()
    manifest.made_ms = time.time_ns() // 1_000_000
    manifest.stored_bytes = writer.stored_bytes
    manifest.keys = cast(Any, client.hgetall(KEYS))
    manifest.keys_used = cast(Any, client.hgetall(USED))
    manifest.calendar = cast(Any, client.hgetall(keys.CALENDAR))
    writer.finish(manifest)
    return manifest


def _take_streams(
    client: StoreClient,
    writer: Writer,
    manifest: Manifest,
    catalogue: Catalogue,
    progress: Callable[[int, int], object],
) -> None:
    total = health.stored_streams(client, manifest.partitions)
    done = 0
    for partition in range(manifest.partitions):
        # Of one partition at a time: a stream made after this look is not in the backup.
        fields = cast(list[bytes], client.hkeys(keys.heads(partition)))
        for name in keys.names_of(fields):
            try:
                kept, head = _taken(client, partition, name)
            except UnreadablePart as error:
                manifest.skipped[keys.text_of(name)] = str(error)
            else:
                _count(manifest, head, catalogue)
                writer.add(kept)
            done += 1
            progress(done, max(total, done))


def _taken(client: StoreClient, partition: int, stored_name: bytes) -> tuple[Kept, wire.Head]:
    """Read a stream as of one commit; raises UnreadablePart where a part of it is damaged."""
    name = keys.text_of(stored_name)
    if name.encode() != stored_name:
        raise UnreadablePart("its name is damaged")
    heads, checkpoint, tail, *parts = client.atomic(keys.read_all(partition, name), errors=True)
    for part in (heads, checkpoint, tail, *parts):
        if isinstance(part, Exception):
            raise UnreadablePart(str(part))
    stored = stored_head(*heads)
    if stored is None:
        raise UnreadablePart("its head is missing")
    head = head_of(name, stored)
    kept = Kept(name, stored, checkpoint, tail, dict(zip(keys.HASHES, parts, strict=True)))
    state_of(name, head, checkpoint)
    rows_of(name, blocks_of(name, stored, tail))
    for of, stored_hash in kept.hashes.items():
        values_of(of, name, stored_hash)
    return kept, head


def _count(manifest: Manifest, head: wire.Head, catalogue: Catalogue) -> None:
    if head.deleted:
        manifest.tombstones += 1
        return
    manifest.streams += 1
    manifest.observations += head.seq
    reference = head.settings.model
    if reference not in manifest.models:
        manifest.models[reference] = UsedModel(0, catalogue.digest(reference))
    manifest.models[reference].streams += 1


# --- restoring one -------------------------------------------------------------------------------

ROUND_BYTES = 4 << 20  # of one commit, about
PAUSE_S = 0.1
_LISTS = (
    keys.heads,
    keys.names,
    keys.due,
    keys.feed,
    keys.checkpoints,
    keys.hindsight,
)


def unfit(wanted: Mapping[str, UsedModel], catalogue: Catalogue) -> dict[str, str]:
    """Return what is wrong with each model that streams need, if anything is."""
    reasons = {}
    for reference, model in wanted.items():
        if catalogue.resolve(reference) is None:
            reasons[reference] = "is missing"
        elif catalogue.digest(reference) != model.digest:
            reasons[reference] = "differs from the one that the streams were created with"
    return reasons


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
        self._now_ms = 0  # by the store's clock, when the last feed was read

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
            moved: list[MovedEntry] = []
            for block in self._reader.streams():
                leases.tick()
                # What workers commit is written even to a full store, and so is this: end in time.
                memory = cast(Any, self._client.info("memory"))
                if memory["maxmemory"] and memory["used_memory"] > memory["maxmemory"]:
                    raise BackupError(
                        "the store's memory is full: raise maxmemory and restore again"
                    )
                self._write(part for part in block if isinstance(part, Kept))
                for part in block:
                    if isinstance(part, StoredFeed):
                        self._write_feed(part, moved)
                self._progress(self._reader.done)
            self._write_moved(moved, leases)
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
                self._commit({partition: gone})
            self._commit({partition: [("UNLINK", key(partition)) for key in _LISTS]})

    def _write(self, streams: Iterable[Kept]) -> None:
        waiting: dict[int, list[Effect]] = {}
        size = 0
        for kept in streams:
            partition = keys.partition_of(kept.stream, self._partitions)
            effects = _effects(partition, kept)
            waiting.setdefault(partition, []).extend(effects)
            size += sum(len(part) for e in effects for part in e if isinstance(part, bytes))
            if size > ROUND_BYTES:
                self._commit(waiting)
                waiting = {}
                size = 0
        self._commit(waiting)

    def _commit(self, waiting: Mapping[int, list[Effect]]) -> None:
        """Write effects by their partitions, if these are still ours."""
        commits = []
        for partition, effects in waiting.items():
            lease = self._held[partition]
            at = lease.offset
            commits.append(Commit(partition, lease.token, at, at, 0, effects))
        for partition, result in zip(waiting, self._log.commit(commits), strict=True):
            if result not in ("OK", "ALREADY"):
                raise BackupError(f"partition {partition} was taken over ({result}): restore again")

    def _write_feed(self, feed: StoredFeed, moved: list[MovedEntry]) -> None:
        """Put a feed in its place, or append its entries to those that need new ids."""
        seconds, micros = cast(Any, self._client.time())
        self._now_ms = seconds * 1000 + micros // 1000
        newest_ms = int(feed.entries[-1][0].partition(b"-")[0])
        if self._reader.manifest.partitions == self._partitions and newest_ms < self._now_ms:
            self._client.all(
                ("XADD", keys.feed(feed.partition), id_, *chain.from_iterable(fields.items()))
                for id_, fields in feed.entries
            )
            return
        for id_, fields in feed.entries:
            entry = entry_of(feed.partition, id_, fields)
            if entry.raised is not None:  # a damaged one counts as trimmed away, as for readers
                partition = keys.partition_of(entry.raised.stream, self._partitions)
                moved.append(MovedEntry(partition, entry.id, entry.raised))

    def _write_moved(self, moved: list[MovedEntry], leases: Leases) -> None:
        """Write entries under new ids: in their order, before those of events to come.

        The ids of the backup are those of its partitions, and perhaps of a clock ahead of this one.
        """
        newest = dict.fromkeys(range(self._partitions), START)
        feeds: dict[int, list[Argument]] = {}
        for partition, id_, raised in sorted(moved, key=attrgetter("id")):
            follows = Id(newest[partition].ms, newest[partition].number + 1)
            id_ = max(follows, Id(min(id_.ms, self._now_ms - 1), id_.number))
            newest[partition] = id_
            number = event_entries.number_of(partition, id_)
            parts = feeds.setdefault(partition, [])
            parts += str(id_), event_entries.encode(raised, number)
        for partition, parts in feeds.items():
            for i in range(0, len(parts), 2 * FEED_PAGE):
                leases.tick()
                page = parts[i : i + 2 * FEED_PAGE]
                # All of them: the next event trims a feed to its length.
                feed: Effect = ("FEED", keys.feed(partition), len(parts), *page)
                self._commit({partition: [feed]})

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
    if kept.checkpoint is not None:
        effects.append(("HSET", keys.checkpoints(partition), name, kept.checkpoint))
    if kept.tail:
        effects.append(("RPUSH", keys.tail(partition, name), *kept.tail))
    for part, key in keys.HASHES.items():
        if fields := kept.hashes.get(part):
            pairs: list[Argument] = [value for pair in fields.items() for value in pair]
            effects.append(("HSET", key(partition, name), *pairs))
    head = head_of(name, kept.head)
    settled, position = cast(tuple[bytes, bytes], kept.head)
    at = keys.settled_field(name)
    effects.append(("HSET", keys.heads(partition), at, settled, name, position))
    if not head.deleted:
        effects.append(("ZADD", keys.names(partition), 0, name))
        if head.settings.ttl is not None:
            effects.append(due_effect(partition, name, head))
    return effects
