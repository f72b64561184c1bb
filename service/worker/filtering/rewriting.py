"""Commands as they are applied: planned observations marked, those of repeating writers thinned.

The API states the windows of the calendar that are in force with each command, so that they are in
the log: a command that is applied once more after a crash meets the same ones. Which of them are
for a stream is decided by its tags at the command's place in the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.wire import Envelope, Ingest, Observation, Observe, settings_of, tags, timestamps
from service.worker.streams.stream import Stream

Floats = NDArray[np.float64]


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
    observations = []
    for seen in command.observations:
        at_ms = envelope.time_ms if seen.time is None else 1000 * timestamps.seconds(seen.time)
        inside = (span.window for span in spans if span.start_ms <= at_ms < span.end_ms)
        window = next(inside, None)
        observations.append(seen if window is None else replace(seen, planned=window))
    return replace(command, observations=observations)


def resampled(stream: Stream, command: Ingest, takes: Callable[[Observation], bool]) -> Ingest:
    """Return the command with those observations that are to be applied, in order.

    takes: asked of each of them; one that is not taken leaves its place to those after it.

    Of each interval of time (of the stream's `interval`, counted from 1970) it is the first with a
    label, if the stream has none in it yet; `elapsed` counts intervals, and so those without a
    label. Without an interval it is every one after the stream's last time. This depends on nothing
    but the stream and the command, so that repeats and replays give the same.
    """
    last = None
    if not stream.alive:
        interval = settings_of(command).get("interval")
    else:
        interval = stream.live().settings.interval
        times = [seen.time for seen in stream.live().pending if seen.time is not None]
        last = timestamps.seconds(times[-1]) if times else stream.live().last_time
    kept: list[Observation] = []
    for seen in command.observations:
        assert seen.time is not None
        if interval is not None and seen.y is None:
            continue  # such as a staleness marker, which must not take a label's place
        now = timestamps.seconds(seen.time)
        elapsed = 1.0
        if last is not None:
            if interval is not None:
                elapsed = float(math.floor(now / interval) - math.floor(last / interval))
            if now <= last or elapsed < 1.0:
                continue
        if not takes(seen):
            continue
        kept.append(replace(seen, elapsed=elapsed))
        last = now
    return replace(command, observations=kept)


def elapsed_of_each(now: Floats, last: Floats, interval: Floats) -> Floats:
    """Time (B,) that `resampled` has elapse for one observation with a label of each of several.

    0: it is skipped. now: (B,) its time; last: of the one before, nan where none had one. interval:
    of its stream; nan: none.
    """
    passed = np.floor(now / interval) - np.floor(last / interval)
    elapsed = np.where(np.isnan(interval) | np.isnan(last), 1.0, passed)
    return np.where((now <= last) | (elapsed < 1.0), 0.0, elapsed)
