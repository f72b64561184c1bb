"""Events of a stream: alarms on `anomaly`, and entries of the feed."""

from __future__ import annotations

from collections.abc import Sequence

from model_core.stream.events import Event
from model_core.stream.predictives import PredictiveRow, moments
from model_core.stream.step import raise_alarm
from service.store import keys
from service.store.shards import Argument
from service.wire import Head, Record, event_entries, numbers
from service.worker.streams.stream import Stream
from service.worker.streams.task import CommandTask


def alarm(head: Head, record: Record, place: PredictiveRow) -> Event | None:
    """The anomaly event of an observation, if it raises one; notes it in the head.

    place: of its predictive distribution, before the label was seen.
    """
    if record.anomaly is None:
        return None
    threshold = head.settings.anomaly_alarm
    return raise_alarm(
        head,
        threshold,
        record.seq,
        record.anomaly,
        [value - record.offset for value in numbers(record.y)],
        lambda: moments(place),
        record.time,
    )


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
