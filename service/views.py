"""What the service shows of committed state: the summary of a stream, its events, its records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from service.wire import Change, Event, Head, Record, StreamSettings


def event(found: Event | None) -> dict[str, Any] | None:
    """Return an event with every field, those at their default too."""
    if found is None:
        return None
    return {name: getattr(found, name) for name in found.__struct_fields__}


def settings(found: StreamSettings) -> dict[str, Any]:
    """Return a stream's settings, with every field."""
    shown = {field: getattr(found, field) for field in found.__struct_fields__}
    for nested in ("hazard", "sensitivity"):
        shown[nested] = msgspec.to_builtins(shown[nested])
    return shown


def change(found: Change) -> dict[str, Any]:
    """Return settings that were changed."""
    return {"seq": found.seq, "at": _time(found.time_ms), "settings": found.settings}


def record(found: Record) -> dict[str, Any]:
    """Return an observation as it was posted, with its compact answer."""
    predictive: dict[str, Any] | None = None
    if found.probabilities is not None:
        predictive = {"probabilities": found.probabilities}
    elif found.mean is not None:
        predictive = {
            "mean": found.mean,
            "variance": found.variance,
            "quantiles": found.quantiles,
        }
    supervision = None if found.changepoint is None else {"changepoint": found.changepoint}
    belief = None
    if found.believed is not None:
        belief = [{"run_length": r, "probability": p} for r, p in found.believed]
    run_length = None if found.map_run_length is None else {"map": found.map_run_length}
    return {
        "seq": found.seq,
        "y": found.y,
        "x": found.x,
        "time": found.time,
        "elapsed": found.elapsed,
        "supervision": supervision,
        "belief": belief,
        "hazard": found.hazard,
        "outlier_rate": found.outlier_rate,
        "predictive": predictive,
        "log_score": found.log_score,
        "changed_probability": found.changed_probability,
        "changepoint_probability": found.changepoint_probability,
        "recent_change_probability": found.recent_change_probability,
        "run_length": run_length,
    }


def summary(name: str, head: Head) -> dict[str, Any]:
    """Return the answer to GET stream."""
    return {
        "stream": name,
        "model": head.settings.model,
        "seq": head.seq + len(head.pending),
        "awaited": [head.seq + i for i, each in enumerate(head.pending) if each.pending],
        "settings": settings(head.settings),
        "sensitivity": _sensitivity(head),
        "warming_up": not head.warm,
        "x_dim": head.x_dim,
        "y_dim": head.y_dim,
        "created": _time(head.created_ms),
        "updated": _time(head.updated_ms),
        "run_length": None if head.map_run_length is None else {"map": head.map_run_length},
        "regime_start": None if head.map_run_length is None else head.seq - 1 - head.map_run_length,
        "changed_probability": head.changed_probability,
        "last": head.last,
        "event": event(head.event),
        "last_event": event(head.last_event),
        "mean_log_score": head.log_score_sum / head.scored if head.scored else None,
        "pruned_mass": head.pruned_mass_sum,
    }


def glance(name: str, head: Head, labels: list[float | None]) -> dict[str, Any]:
    """Return a stream as a list shows it."""
    at = head.map_run_length
    return {
        "stream": name,
        "model": head.settings.model,
        "seq": head.seq + len(head.pending),
        "warming_up": not head.warm,
        "updated": _time(head.updated_ms),
        "regime_start": None if at is None else head.seq - 1 - at,
        "regime_length": None if at is None else at + 1,
        "changed_probability": head.changed_probability,
        "event": event(head.event),
        "last_event": event(head.last_event),
        "labels": labels,
    }


def _sensitivity(head: Head) -> dict[str, Any] | None:
    """What was asked for, and what it comes to."""
    asked, alarm = head.settings.sensitivity, head.alarm
    if asked is None or alarm is None:
        return None
    return {
        "false_alarms_per_1000": asked.false_alarms_per_1000,
        "threshold": alarm.threshold,
        "expected_delay": alarm.delays,
        "differs": alarm.differs,
    }


def segmentation(head: Head, records: list[Record]) -> list[dict[str, int]]:
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
        found.append({"start": start, "end": end})
        end, start = start, pointers[start]
    found.append({"start": max(start, first), "end": end})
    return found[::-1]


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
