"""Imports: a stream made what a snapshot says, in one commit."""

from __future__ import annotations

import msgspec

from model_core.errors import BadState
from model_core.transfer import out_of_memory
from service import wire
from service.models import catalogue
from service.problems import StreamExists, UnfitSnapshot
from service.store.streams import CHUNK, Stored
from service.wire import Import
from service.wire import snapshot as snapshots
from service.wire.snapshot import BadSnapshot, StreamSnapshot
from service.worker.commands import snapshot_validation
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream


def take(engine: Engine, stream: Stream, command: Import, now_ms: int) -> None:
    """Begin another life of a stream with all that a snapshot has; or change nothing."""
    if stream.alive and not command.replace:
        detail = f"stream {stream.name!r} already exists; add ?replace=true to replace it"
        raise StreamExists(detail)
    snapshot = _read(engine, stream, command)
    made = _restored(engine, stream, snapshot)
    if stream.alive:
        stream.delete(now_ms)
    head = made.live()
    head.generation = stream.head.generation + 1 if stream.head is not None else 1
    stream.create(head)
    stream.slab = made.slab
    stream.row = made.row
    stream.buffer = made.buffer
    stream.season_state = made.season_state
    for record in snapshot.records:
        stream.put(record)
    stream.keep_events(snapshot.events)
    stream.keep_anomalies(snapshot.anomalies)
    stream.keep_changes(snapshot.changes)
    stream.recall(
        {
            field: wire.checksummed(record, "idempotency", stream.name)
            for field, record in snapshot.idempotency.items()
        }
    )
    stream.keep_remembered()
    stream.touch(now_ms)
    if stream.slab is not None and head.seq:
        engine.commit_state(stream)


def _read(engine: Engine, stream: Stream, command: Import) -> StreamSnapshot:
    blob = engine.store.staged(stream.partition, command.token)
    if blob is None:
        raise UnfitSnapshot("staged snapshot expired; upload it again")
    try:
        snapshot = snapshots.load(blob)
    except BadSnapshot as error:
        raise UnfitSnapshot(str(error)) from error
    settings = snapshot.head.settings
    name = engine.catalogue.resolve(settings.model)
    if name != settings.model:
        raise UnfitSnapshot(f"invalid snapshot: model {settings.model!r} has no version")
    if catalogue.digest(engine.settings.models_dir, name) != snapshot.model_digest:
        raise UnfitSnapshot(
            f"the model {name} of this deployment differs from the one that the stream was "
            "created with"
        )
    snapshot.head.digest = engine.catalogue.digest(name)
    return snapshot


def _restored(engine: Engine, stream: Stream, snapshot: StreamSnapshot) -> Stream:
    """The stream beside the one there is, its state on the device."""
    head = snapshot.head
    try:
        snapshot_validation.check(engine, snapshot)
    except BadSnapshot as error:
        raise UnfitSnapshot(f"invalid snapshot: {error}") from error
    first = snapshot.records[0].seq if snapshot.records else head.seq
    made = Stream(stream.partition, stream.name, Stored(None, None, [], {}))
    # Chunks are cut anew: where they end depends on the stream's name.
    head.sealed = first
    head.oldest = (first + made.phase) // CHUNK
    head.pace = None  # counted anew: another service has other streams
    made.head = head
    made.keep_tail(first, [wire.encode_row(record) for record in snapshot.records])
    try:
        engine.restore(made, snapshot.checkpoint)
    except (BadState, msgspec.MsgspecError, ValueError, RuntimeError) as error:
        if out_of_memory(error):
            raise  # no fault of the snapshot
        made.leave()
        raise UnfitSnapshot(f"invalid snapshot: unusable state: {error}") from error
    return made
