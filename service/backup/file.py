"""The file of a backup, a zip of blocks, models and a manifest; and the models put in place.

Entries are `streams/N`, blocks of msgpack with parts of streams and feeds, then the files of models
as `models/NAME@VERSION/FILE`, and at last `manifest`, which names the others. The zip has a CRC-32
for each entry: nothing of a file is used before all of them were found right, so that a damaged or
cut one changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from service import wire
from service.models.catalogue import REFERENCE, Catalogue
from service.store.streams import StoredHead

BLOCK_BYTES = 1 << 20  # of a block before it is packed, about: a larger stream has one alone
READ_BYTES = 1 << 20
STREAMS = "streams/"
MODELS = "models/"
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


class Kept(Struct, array_like=True):
    """All that is kept of a stream as of one commit, as stored. hashes: as in `keys.HASHES`."""

    stream: str
    head: StoredHead
    tail: list[bytes]
    hashes: dict[str, Fields]


class StoredFeed(Struct, array_like=True):
    """Entries of a partition's feed, oldest first: id and fields."""

    partition: int
    entries: list[tuple[bytes, Fields]]


class StreamBlock(Struct, array_like=True):
    """What one block holds."""

    streams: list[Kept] = []
    feeds: list[StoredFeed] = []


class UsedModel(Struct):
    """A model that streams are on. digest: of an artifact's files, None of a built-in one."""

    streams: int
    digest: str | None = None
    packed: bool = False


class Manifest(Struct):
    """What a backup holds."""

    format: int  # of what is stored: `wire.FORMAT`
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
    keys: Fields  # access keys, as stored
    keys_used: Fields
    calendar: Fields  # windows, as stored
    entries: list[str] = []  # names of all entries before the manifest


class _Format(Struct):
    """The part of a manifest that says whether the rest can be read."""

    format: int
    service: str


_encode = msgspec.msgpack.Encoder().encode
_block = msgspec.msgpack.Decoder(StreamBlock).decode
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
            strict_timestamps=False,  # a model's file may be of 1970
        )
        self._blocks = 0

    def add(self, block: StreamBlock) -> None:
        """Append a block."""
        self._zip.writestr(f"{STREAMS}{self._blocks}", _encode(block))
        self._blocks += 1

    def add_model(self, reference: str, file: Path) -> None:
        """Append a file of a model."""
        self._zip.write(file, f"{MODELS}{reference}/{file.name}")

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

    def streams(self) -> Iterator[StreamBlock]:
        """Read the blocks of streams and feeds, one after the other."""
        for entry in self._blocks():
            with _damage():
                block = _block(self._zip.read(entry))
            self.done += entry.compress_size
            yield block

    def models(self) -> Iterator[tuple[str, str, IO[bytes]]]:
        """Open the files of models one after the other: reference, name of the file, content."""
        for name in self.manifest.entries:
            if name.startswith(MODELS):
                reference, _, file = name.removeprefix(MODELS).partition("/")
                with self._zip.open(name) as content:
                    yield reference, file, content

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


# --- artifacts of models: packed, compared, put in place -----------------------------------------

_file_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
_reference = re.compile(REFERENCE).match


def artifact_files(catalogue: Catalogue, reference: str) -> list[Path]:
    """Return the files of an artifact; none of a built-in model, or of one that is not there."""
    if catalogue.digest(reference) is None:
        return []
    folder = catalogue.folder_of(reference)
    return sorted(file for file in folder.iterdir() if file.is_file() and _file_name(file.name))


def unfit(wanted: Mapping[str, UsedModel], catalogue: Catalogue) -> dict[str, str]:
    """Return what is wrong with each model that streams need, if anything is."""
    reasons = {}
    for reference, model in wanted.items():
        if catalogue.resolve(reference) is None:
            if not model.packed:
                reasons[reference] = "is missing"
        elif catalogue.digest(reference) != model.digest:
            reasons[reference] = "differs from the one that the streams were created with"
    return reasons


def install(
    files: Iterable[tuple[str, str, IO[bytes]]],
    wanted: Mapping[str, UsedModel],
    catalogue: Catalogue,
) -> list[str]:
    """Put packed artifacts that are missing in the models folder; returns which.

    files: reference of the model, name of the file, content. Each model is written beside its place
    and moved there whole. Raises BackupError and OSError.
    """
    models_dir = catalogue.models_dir
    models_dir.mkdir(parents=True, exist_ok=True)
    missing = [reference for reference in wanted if catalogue.resolve(reference) is None]
    draft = Path(tempfile.mkdtemp(prefix=".restore-", dir=models_dir))
    try:
        for reference, file, content in files:
            # Names become paths: those of a file that somebody made up could lead elsewhere.
            if not (_file_name(file) and _reference(reference)):
                raise BackupError(f"invalid name of a packed model: {reference!r}, file {file!r}")
            if reference in missing:
                folder = draft / reference
                folder.mkdir(exist_ok=True)
                with (folder / file).open("wb") as target:
                    shutil.copyfileobj(content, target)
        return [
            reference
            for reference in missing
            if _put(draft, reference, wanted[reference], catalogue)
        ]
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put(draft: Path, reference: str, model: UsedModel, catalogue: Catalogue) -> bool:
    folder = draft / reference
    if not folder.is_dir():
        return False
    name, _, version = reference.partition("@")
    target = catalogue.models_dir / name / version
    target.parent.mkdir(exist_ok=True)
    os.replace(folder, target)
    if catalogue.digest(reference) != model.digest:
        shutil.rmtree(target)
        raise BackupError(f"the packed model {reference} is not the one that the streams use")
    return True
