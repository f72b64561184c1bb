"""Planned windows of the calendar: observations in them are excluded from learning.

The API states the windows in force with each command, so that they are in the log: a command that
is applied once more after a crash meets the same ones. Which of them are for a stream is decided by
its tags at the command's place in the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from service.wire import Envelope, Observation, Observe, PlannedSpan, settings_of, tags, timestamps
from service.worker.streams.stream import Stream


def marked(stream: Stream, command: Observe, envelope: Envelope) -> Observe:
    """Return a command with the window of each observation that is in one; envelope: its own.

    By the time of the observation, or else when it was accepted.
    """
    if envelope.planned is None:
        return command
    own = stream.live().settings.tags if stream.alive else settings_of(command).get("tags", {})
    spans = [span for span in envelope.planned if tags.selected(span.match, stream.name, own)]
    if not spans:
        return command
    observations = [_marked(seen, spans, envelope.time_ms) for seen in command.observations]
    return replace(command, observations=observations)


def _marked(seen: Observation, spans: Sequence[PlannedSpan], accepted_ms: int) -> Observation:
    at_ms = accepted_ms if seen.time is None else 1000 * timestamps.seconds(seen.time)
    window = next((span.window for span in spans if span.start_ms <= at_ms < span.end_ms), None)
    return seen if window is None else replace(seen, planned=window)
