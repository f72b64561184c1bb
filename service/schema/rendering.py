"""Committed state as the service shows it: the summary of a stream, its events, its records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, overload

import msgspec

from service import wire
from service.schema.members import ABSENT
from service.schema.responses import (
    Change,
    Event,
    Glance,
    MostProbable,
    Predictive,
    Recorded,
    RecordedSupervision,
    Segment,
    Sensitivity,
    StreamEvent,
    StreamSummary,
)
from service.wire.event_entries import Raised


@overload
def event(found: wire.Event) -> Event: ...
@overload
def event(found: wire.Event | None) -> Event | None: ...
def event(found: wire.Event | None) -> Event | None:
    """Return an event with every field, those at their default too."""
    if found is None:
        return None
    return Event(*[getattr(found, name) for name in Event.__struct_fields__])


def settings(found: wire.StreamSettings) -> dict[str, Any]:
    """Return a stream's settings, with every field."""
    shown = {field: getattr(found, field) for field in found.__struct_fields__}
    for nested in ("hazard", "sensitivity"):
        shown[nested] = msgspec.to_builtins(shown[nested])
    return shown


def change(found: wire.Change) -> Change:
    """Return settings that were changed."""
    return Change(found.seq, instant(found.time_ms), found.settings)


def of_classes(probabilities: list[float]) -> Predictive:
    """Return the predictive distribution of a class."""
    return Predictive(ABSENT, ABSENT, ABSENT, probabilities)


def of_numbers(mean: Any, variance: Any, quantiles: Any) -> Predictive:
    """Return the predictive distribution of numbers; a variance that does not exist is null."""
    return Predictive(mean, variance, quantiles, ABSENT)


def record(found: wire.Record) -> Recorded:
    """Return an observation as it was posted, with its compact answer."""
    predictive = None
    if found.probabilities is not None:
        predictive = of_classes(found.probabilities)
    elif found.mean is not None:
        predictive = of_numbers(found.mean, found.variance, found.quantiles)
    belief = None
    if found.belief_override is not None:
        belief = [{"run_length": r, "probability": p} for r, p in found.belief_override]
    return Recorded(
        seq=found.seq,
        y=found.y,
        x=found.x,
        time=found.time,
        elapsed=found.elapsed,
        supervision=None if found.changepoint is None else RecordedSupervision(found.changepoint),
        belief=belief,
        hazard=found.hazard,
        outlier_rate=found.outlier_rate,
        predictive=predictive,
        log_score=found.log_score,
        changed_probability=found.changed_probability,
        changepoint_probability=found.changepoint_probability,
        recent_change_probability=found.recent_change_probability,
        run_length=_most_probable(found.map_run_length),
    )


def summary(name: str, head: wire.Head) -> StreamSummary:
    """Return the answer to GET stream."""
    return StreamSummary(
        stream=name,
        model=head.settings.model,
        seq=head.seq + len(head.pending),
        awaited=[head.seq + i for i, each in enumerate(head.pending) if each.pending],
        settings=settings(head.settings),
        sensitivity=_sensitivity(head),
        warming_up=not head.warm,
        x_dim=head.x_dim,
        y_dim=head.y_dim,
        created=instant(head.created_ms),
        updated=instant(head.updated_ms),
        run_length=_most_probable(head.map_run_length),
        regime_start=None if head.map_run_length is None else head.seq - 1 - head.map_run_length,
        changed_probability=head.changed_probability,
        last=head.last_label,
        event=event(head.event),
        last_event=event(head.last_event),
        mean_log_score=head.log_score_sum / head.scored if head.scored else None,
        pruned_mass=head.pruned_mass_sum,
    )


def glance(name: str, head: wire.Head, labels: list[float | None]) -> Glance:
    """Return a stream as a list shows it."""
    at = head.map_run_length
    return Glance(
        stream=name,
        model=head.settings.model,
        seq=head.seq + len(head.pending),
        warming_up=not head.warm,
        updated=instant(head.updated_ms),
        regime_start=None if at is None else head.seq - 1 - at,
        regime_length=None if at is None else at + 1,
        changed_probability=head.changed_probability,
        event=event(head.event),
        last_event=event(head.last_event),
        labels=labels,
    )


def _most_probable(run_length: int | None) -> MostProbable | None:
    return None if run_length is None else MostProbable(run_length)


def _sensitivity(head: wire.Head) -> Sensitivity | None:
    """The requested false-alarm rate, with its threshold and expected delays."""
    asked, alarm = head.settings.sensitivity, head.alarm
    if asked is None or alarm is None:
        return None
    return {
        "false_alarms_per_1000": asked.false_alarms_per_1000,
        "threshold": alarm.threshold,
        "expected_delay": alarm.delays,
        "differs": alarm.differs,
    }


def segmentation(head: wire.Head, records: list[wire.Record]) -> list[Segment]:
    """Best (max-product) segmentation of the retained records; each `end` is exclusive.

    Every record keeps where the best path before a regime that starts at it starts: following
    those pointers back from the last regime is Viterbi's backward pass, over the hypotheses that
    were not pruned.
    """
    if not records or not head.warm:
        return []
    pointers = {record.seq: record.previous_start for record in records}
    first, end, start = records[0].seq, records[-1].seq + 1, head.best_start
    found = []
    while start > first and start in pointers:
        found.append(Segment(start, end))
        end, start = start, pointers[start]
    found.append(Segment(max(start, first), end))
    return found[::-1]


def event_state(raised: Raised) -> StreamEvent:
    """Return an entry as readers get it."""
    return StreamEvent(
        stream=raised.stream,
        model=raised.model,
        event=event(raised.event),
        time=raised.time,
        at=instant(raised.at_ms),
    )


def instant(milliseconds: int) -> str:
    """Return a time in ms since 1970 as RFC 3339."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
