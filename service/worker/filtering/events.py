"""Events of a stream: changes, as `model_core.events` follows them, and alarms on `anomaly`.

What they need from one observation to the next is kept in the stream's head.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_core import events
from model_core.events import Reading, Track
from service.store import keys
from service.store.shards import Argument
from service.wire import Head, Record, StoredEvent, event_entries
from service.worker.filtering.warmup import filtered
from service.worker.streams.answers import PredictiveRow, moments
from service.worker.streams.stream import Stream
from service.worker.streams.task import CommandTask

__all__ = ["Reading", "track"]


def concerned(head: Head, start: int) -> bool:
    """Whether a most probable run start can move a stream's events at all."""
    return start > head.confirmed_start or head.event is not None


def track(head: Head, reading: Reading) -> list[StoredEvent]:
    """Move a stream's event state by one observation; returns the events that changed."""
    before = Track(
        head.confirmed_start,
        head.before_start,
        head.confirmed_totals,
        head.before_totals,
        _read(head.event),
        _read(head.last_event),
        head.next_event,
    )
    confirm_after = (head.settings.confirm_after or 0) if head.alarm is None else 0
    threshold = 0.0 if head.alarm is None else head.alarm.threshold
    after, changed = events.track(before, reading, confirm_after, threshold)
    if after is not before:
        _keep(head, after)
    return [_kept(event, head) for event in changed]


def _kept(event: events.Event, head: Head) -> StoredEvent:
    """An event as stored, with the verdict there is on it."""
    for stored in (head.event, head.last_event):
        if stored is not None and stored.id == event.id:
            return StoredEvent(**event._asdict(), verdict=stored.verdict)
    return StoredEvent(**event._asdict())


def _keep(head: Head, state: Track) -> None:
    head.confirmed_start = state.confirmed_start
    head.before_start = state.before_start
    head.confirmed_totals = state.confirmed_totals
    head.before_totals = state.before_totals
    head.next_event = state.next_event
    event = None if state.event is None else _kept(state.event, head)
    last = None if state.last_event is None else _kept(state.last_event, head)
    head.event = event
    head.last_event = last


def _read(event: StoredEvent | None) -> events.Event | None:
    if event is None:
        return None
    return events.Event(*(getattr(event, field) for field in events.Event._fields))


def alarm(head: Head, record: Record, place: PredictiveRow) -> StoredEvent | None:
    """The anomaly event of an observation, if it raises one; notes it in the head.

    place: of its predictive distribution, before the label was seen.
    """
    threshold = head.settings.anomaly_alarm
    last = head.last_anomaly
    if record.anomaly is None or not events.alarming(threshold, record.anomaly, record.seq, last):
        return None
    head.last_anomaly = record.seq
    event = events.anomaly(record.seq, record.anomaly, filtered(record), moments(place))
    return StoredEvent(**event._asdict() | {"time": record.time})


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
