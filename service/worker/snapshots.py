"""Imports: a stream made what a snapshot says, in one commit."""

from __future__ import annotations

import msgspec
import torch

from model_core.errors import CorruptState
from service import models, snapshot, wire
from service.redis.store import CHUNK, Stored
from service.snapshot import BadSnapshot, Snapshot
from service.unfit import StreamExists, UnfitSnapshot
from service.wire import Import
from service.worker import vetting
from service.worker.engine import Engine
from service.worker.stream import Stream


def take(engine: Engine, stream: Stream, command: Import, now_ms: int) -> None:
    """Begin another life of a stream with all that a snapshot has; or change nothing."""
    if stream.alive and not command.replace:
        detail = f"there is a stream {stream.name!r} already; ?replace=true puts this in its place"
        raise StreamExists(detail)
    found = _read(engine, stream, command)
    made = _restored(engine, stream, found)
    if stream.alive:
        stream.delete(now_ms)
    head = made.live()
    head.generation = stream.head.generation + 1 if stream.head is not None else 1
    stream.create(head)
    stream.slab, stream.row, stream.buffer = made.slab, made.row, made.buffer
    for record in found.records:
        stream.put(record)
    stream.keep_events(found.events)
    stream.keep_changes(found.changes)
    stream.recall(found.idempotency)
    stream.keep_remembered()
    stream.touch(now_ms)
    if stream.slab is not None and head.seq:
        engine.replace(stream, stream.slab.state(stream.row))


def _read(engine: Engine, stream: Stream, command: Import) -> Snapshot:
    blob = engine.store.staged(stream.partition, command.token)
    if blob is None:
        raise UnfitSnapshot("the snapshot was kept for too short a time: send it again")
    try:
        found = snapshot.load(blob)
    except BadSnapshot as error:
        raise UnfitSnapshot(str(error)) from error
    settings = found.head.settings
    name = engine.catalogue.resolve(settings.model)
    if name != settings.model:
        raise UnfitSnapshot(f"the snapshot names no version of its model {settings.model!r}")
    if not models.same(engine.settings.models_dir, name, found.model_digest):
        raise UnfitSnapshot(f"the model {name} here is not the one that the stream was made with")
    found.head.digest = engine.catalogue.digest(name)
    return found


def _restored(engine: Engine, stream: Stream, found: Snapshot) -> Stream:
    """The stream beside the one there is, its state on the device."""
    head = found.head
    try:
        vetting.check(engine, found)
    except BadSnapshot as error:
        raise UnfitSnapshot(f"the snapshot's stream cannot be: {error}") from error
    first = found.records[0].seq if found.records else head.seq
    made = Stream(stream.partition, stream.name, Stored(None, None, {}, {}))
    # Chunks are cut anew: where they end depends on the stream's name.
    head.sealed, head.oldest = first, (first + made.phase) // CHUNK
    made.head = head
    made.tail = {record.seq: wire.encode(record) for record in found.records}
    try:
        engine.restore(made, found.checkpoint)
    except torch.OutOfMemoryError:
        raise  # no fault of the snapshot
    except (CorruptState, msgspec.MsgspecError, ValueError, RuntimeError) as error:
        made.leave()
        raise UnfitSnapshot(f"the snapshot's state cannot be used: {error}") from error
    return made
