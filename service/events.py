"""Changepoint events of a stream: what `model_core.events` follows, kept in the stream's head."""

from __future__ import annotations

from msgspec.structs import astuple

from model_core import events
from model_core.events import Reading, Track
from service.wire import Event, Head

__all__ = ["Reading", "track"]


def track(head: Head, reading: Reading) -> list[Event]:
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
    alarm = head.alarm
    rule = (head.settings.confirm_after, 0.0) if alarm is None else (0, alarm.threshold)
    after, changed = events.track(before, reading, *rule)
    if after is not before:
        _keep(head, after)
    return [Event(*event) for event in changed]


def _keep(head: Head, state: Track) -> None:
    head.confirmed_start, head.before_start = state.confirmed_start, state.before_start
    head.confirmed_totals, head.before_totals = state.confirmed_totals, state.before_totals
    head.next_event = state.next_event
    head.event, head.last_event = _written(state.event), _written(state.last_event)


def _read(event: Event | None) -> events.Event | None:
    return None if event is None else events.Event(*astuple(event))


def _written(event: events.Event | None) -> Event | None:
    return None if event is None else Event(*event)
