"""Entries of the feed: what streams have raised."""

from __future__ import annotations

from collections.abc import Sequence

from service.store import keys
from service.store.shards import Argument
from service.wire import event_entries
from service.worker.streams.stream import Stream
from service.worker.streams.task import CommandTask


def publish(stream: Stream, task: CommandTask) -> None:
    """Make what a stream has raised just now entries of the feed, under the task that did it."""
    for event, time in stream.take_raised():
        head = stream.live()
        id_ = event_entries.id_of(task.entry, task.index, task.raised)
        task.raised += 1
        raised = event_entries.Raised(
            stream.name,
            head.settings.model,
            head.generation,
            event,
            time,
            task.envelope.time_ms,
            head.settings.tags,
        )
        number = event_entries.number_of(stream.partition, id_)
        stream.feed += ((id_, event_entries.encode(raised, number)),)


def effects(partition: int, streams: Sequence[Stream], most: int) -> list[tuple[Argument, ...]]:
    """What the streams raised, in the order of the log; at most about `most` entries stay."""
    entries = sorted(entry for stream in streams for entry in stream.feed)
    for stream in streams:
        stream.feed = ()
    if not entries:
        return []
    parts = [part for id_, blob in entries for part in (str(id_), blob)]
    return [("FEED", keys.feed(partition), most, *parts)]
