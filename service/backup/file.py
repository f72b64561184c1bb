"""The file of a backup: blocks, a manifest, and a checksum of it all.

Layout: `MOCABACK`, version (u16), blocks, the manifest as the last block, where it begins (u64),
SHA-256 of everything before. A block is its packed length (u32) and zlib-compressed msgpack: parts
of streams first, then pieces of models. Nothing of a file is used before its checksum was found
right, so that a damaged or cut one changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from msgspec import Struct

from service import wire

MAGIC, VERSION = b"MOCABACK", 1
BLOCK_BYTES = 1 << 20  # of a block before it is packed, about: a larger stream has one alone
READ_BYTES = 1 << 20
_PREFIX, _LENGTH, _TRAILER = struct.Struct("<8sH"), struct.Struct("<I"), struct.Struct("<Q32s")
_LEVEL = 1  # most of it is packed already

Fields = dict[bytes, bytes]
T = TypeVar("T")


class BadBackup(ValueError):
    """A file that is no backup, or one that was damaged or cut; the message says which."""


class Kept(Struct, array_like=True):
    """All that is kept of a stream as of one commit, as stored: hashes by field."""

    stream: str
    head: bytes
    checkpoint: Fields
    tail: Fields
    history: Fields
    events: Fields
    idempotency: Fields
    changes: Fields
    anomalies: Fields = {}


class Feed(Struct, array_like=True):
    """Entries of a partition's feed, oldest first: id and fields."""

    partition: int
    entries: list[tuple[bytes, Fields]]


class Piece(Struct, array_like=True):
    """A piece of a model's file; pieces of a file follow one another."""

    model: str  # NAME@VERSION
    file: str
    content: bytes


class Block(Struct, array_like=True):
    """What one block holds."""

    streams: list[Kept] = []
    feeds: list[Feed] = []
    pieces: list[Piece] = []


class UsedModel(Struct):
    """A model that streams are on. digest: of an artifact's files, None of a built-in one."""

    streams: int
    digest: str | None = None
    packed: bool = False


class Manifest(Struct):
    """What a backup holds. `models_at`: where the blocks with models begin in the file."""

    made_ms: int
    service: str  # version that made it
    partitions: int
    streams: int  # living ones
    tombstones: int
    observations: int
    stored_bytes: int  # of streams and feeds, as they take up in the store
    models: dict[str, UsedModel]
    skipped: dict[str, str]  # streams that could not be read, and why
    waiting: int  # observations accepted and not yet applied when it was begun: not in it
    models_at: int
    keys: Fields  # access keys, as stored
    keys_used: Fields
    format: int  # of what is stored: `wire.FORMAT`


_encode = msgspec.msgpack.Encoder().encode
_block = msgspec.msgpack.Decoder(Block).decode
_manifest = msgspec.msgpack.Decoder(Manifest).decode


class Writer:
    """Writes a backup under another name, and gives it its own when it is whole and on disk."""

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, path.with_name(f".{path.name}.{os.getpid()}.part")
        # The file holds every stream: readable by its owner only.
        self._file: IO[bytes] = os.fdopen(os.open(self._draft, _NEW, 0o600), "wb")
        self._hash = hashlib.sha256()
        self.position = 0
        self._write(_PREFIX.pack(MAGIC, VERSION))

    def add(self, block: Block) -> None:
        """Append a block."""
        self._pack(_encode(block))

    def finish(self, manifest: Manifest) -> None:
        """Append the manifest, and put the file in its place; OSError leaves none there."""
        at = self.position
        self._pack(_encode(manifest))
        self._write(at.to_bytes(8, "little"))
        self._file.write(self._hash.digest())
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
        self._file.close()
        self._draft.unlink(missing_ok=True)

    def _pack(self, body: bytes) -> None:
        packed = zlib.compress(body, _LEVEL)
        self._write(_LENGTH.pack(len(packed)))
        self._write(packed)

    def _write(self, part: bytes) -> None:
        self._file.write(part)
        self._hash.update(part)
        self.position += len(part)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Reader:
    """Reads a backup, once `verify` has found it whole."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size
        self._end = 0  # of the blocks with content
        self.done = 0  # bytes of blocks read
        self.manifest: Manifest

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def verify(self, progress: Callable[[int], object] = lambda _: None) -> Manifest:
        """Read it all and return the manifest; raises BadBackup. `progress` is told bytes."""
        prefix = self._file.read(_PREFIX.size)
        if not prefix.startswith(MAGIC):
            raise BadBackup("not a file written by `moca backup`")
        if len(prefix) < _PREFIX.size or self.size < _PREFIX.size + _TRAILER.size:
            raise BadBackup("the backup is truncated")
        _, version = _PREFIX.unpack(prefix)
        if version != VERSION:
            raise BadBackup(f"the backup has format {version}, expected {VERSION}")
        self._file.seek(self.size - _TRAILER.size)
        at, digest = _TRAILER.unpack(self._file.read(_TRAILER.size))
        if self._digest(progress) != digest:
            raise BadBackup("the backup is damaged or truncated: checksum mismatch")
        self._end = at
        self.manifest = found = self._decoded(_manifest, self._read(at)[0])
        if found.format != wire.FORMAT:
            raise BadBackup(
                f"the backup was written by version {found.service} in store format "
                f"{found.format}, expected {wire.FORMAT}"
            )
        return self.manifest

    def streams(self) -> Iterator[Block]:
        """Read the blocks of streams and feeds, one after the other."""
        return self._blocks(_PREFIX.size, self.manifest.models_at)

    def models(self) -> Iterator[Block]:
        """Read the blocks of models."""
        return self._blocks(self.manifest.models_at, self._end)

    @property
    def streams_bytes(self) -> int:
        """Bytes of the file that `streams` reads."""
        return self.manifest.models_at - _PREFIX.size

    def _blocks(self, at: int, end: int) -> Iterator[Block]:
        while at < end:
            body, after = self._read(at)
            self.done = after - _PREFIX.size
            yield self._decoded(_block, body)
            at = after

    def _digest(self, progress: Callable[[int], object]) -> bytes:
        found, left = hashlib.sha256(), self.size - hashlib.sha256().digest_size
        self._file.seek(0)
        while left > 0:
            part = self._file.read(min(READ_BYTES, left))
            if not part:
                break
            found.update(part)
            left -= len(part)
            progress(len(part))
        return found.digest()

    def _read(self, at: int) -> tuple[bytes, int]:
        self._file.seek(at)
        prefix = self._file.read(_LENGTH.size)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else self.size
        after = at + _LENGTH.size + length
        if after > self.size - _TRAILER.size:
            raise BadBackup("the backup's blocks are truncated")
        return self._file.read(length), after

    def _decoded(self, decode: Callable[[bytes], T], body: bytes) -> T:
        try:
            return decode(zlib.decompress(body))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise BadBackup(f"cannot read a block of the backup: {error}") from error
