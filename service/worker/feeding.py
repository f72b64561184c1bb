"""From events that streams raise to entries of the partition's feed."""

from __future__ import annotations

from collections.abc import Sequence

from service import feed
from service.redis import keys
from service.redis.script import Argument
from service.worker.stream import Stream
from service.worker.task import Task


def publish(stream: Stream, task: Task) -> None:
    """Make what a stream has raised just now entries of the feed, under the task that did it."""
    for event, time in stream.take_raised():
        head = stream.live()
        id_ = feed.id_of(task.entry, task.index, task.raised)
        task.raised += 1
        raised = feed.Raised(
            stream.name, head.settings.model, head.generation, event, time, task.envelope.time_ms
        )
        number = feed.number_of(stream.partition, id_)
        stream.feed.append((id_, feed.encode(raised, number)))


def effects(partition: int, streams: Sequence[Stream], most: int) -> list[tuple[Argument, ...]]:
    """What the streams raised, in the order of the log; at most about `most` entries stay."""
    entries = sorted(entry for stream in streams for entry in stream.feed)
    for stream in streams:
        stream.feed = []
    if not entries:
        return []
    parts = [part for id_, blob in entries for part in (str(id_), blob)]
    return [("FEED", keys.feed(partition), most, *parts)]
