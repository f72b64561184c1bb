"""One step of a series: what it does to events, and whether it raises an alarm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_core.readout import Readout
from model_core.stream import events
from model_core.stream.events import Event
from model_core.stream.state import State

Moments = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation, by output


def follow(
    state: State,
    line: Readout,
    seq: int,
    confirm_after: int,
    threshold: float,
    quantity: bool,
    time: str | None = None,
) -> list[Event]:
    """Enter what a step at `seq` reads off the belief; returns the events that changed.

    confirm_after, threshold: as of `events.track`. quantity: whether labels are numbers.
    """
    changed: list[Event] = []
    track = state.track
    if track.event is not None or seq - line.event_run_length > track.confirmed_start:
        reading = line.reading(seq, time, quantity)
        state.track, changed = events.track(track, reading, confirm_after, threshold)
    state.best_start = line.best_start
    state.map_run_length = line.map_run_length
    state.changed_probability = line.changed_probability
    return changed


def raise_alarm(
    state: State,
    threshold: float | None,
    seq: int,
    anomaly: float,
    label: Sequence[float],
    moments: Callable[[], Moments | None],
    time: str | None = None,
) -> Event | None:
    """The anomaly event of the observation at `seq`, if it raises one; notes it in the state.

    anomaly: nan without a label. label, moments: as of `events.anomaly`.
    """
    if not events.alarming(threshold, anomaly, seq, state.last_anomaly):
        return None
    state.last_anomaly = seq
    return events.anomaly(seq, anomaly, label, moments(), time)
