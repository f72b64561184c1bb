"""What changed at an event, of the labels on both sides of its start."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from model_core.explanation import AFTER, BEFORE, Labels, explain, moments
from model_core.sentences import BY_INPUTS, Explanation
from model_core.stream.columns import Floats
from model_core.stream.events import SETTLING, Event, Track
from model_core.stream.state import SeenLabels
from model_core.upm.base import UnderlyingModel

LABELS: dict[str, Labels] = {
    "real": "numbers",
    "count": "counts",
    "positive": "durations",
    "binary": "classes",
    "class": "classes",
}


def reach(event: Event) -> int:
    """Position of the first label that is looked at."""
    return max(event.previous, event.start - BEFORE, 0)


def next_due(event: Event, seq: int) -> float:
    """Position from `seq` on at which a confirmed change is explained again; inf: never.

    That is when its start is settled, and when all is there.
    """
    confirmed_at = event.confirmed_at or 0
    due = (confirmed_at + SETTLING, event.start + AFTER - 1)
    return min((at for at in due if at >= max(seq, confirmed_at + 1)), default=inf)


def uncovered(event: Event, changed: Sequence[Event]) -> bool:
    """Whether a confirmed change has more labels to explain it, since a suspicion was withdrawn.

    The suspicion was open at the last explanation, which therefore used only labels before it.
    """
    looked_at = max(event.confirmed_at or 0, event.refined_at or 0)
    return any(
        other.state == "withdrawn"
        and event.start < other.start < event.start + AFTER
        and other.suspected_at <= looked_at
        for other in changed
    )


def following(event: Event, track: Track) -> int | None:
    """Start of the change after it, of those that are followed; None: there is none."""
    others = [other.start for other in (track.event, track.last_event) if other is not None]
    return min((start for start in others if start > event.start), default=None)


def explained(
    event: Event, model: UnderlyingModel, seen: SeenLabels, end: int, until: int, history: int
) -> Event:
    """Return a confirmed event with what changed at it.

    seen: the last labels before position `end`. until: position after the last of them that
    is of its regime. history: observations that are sure to be retained, wherever they are: no
    others count.
    """
    first = max(end - len(seen.y), end - history)
    event = event._replace(before=None, after=None, explanation=None, start_time=None)
    event = event._replace(start_ms=None)
    if event.kind != "change" or not first <= event.start < until:
        return event
    labels = seen.filtered[first - end :]
    start = event.start - first
    before = _labelled(labels[max(reach(event) - first, 0) : start])
    after = _labelled(labels[start : min(until - first, start + AFTER)])
    kind = LABELS[model.label]
    explanation = Explanation(BY_INPUTS) if model.x_dim else explain(before, after, kind)
    at = event.start - end
    return event._replace(
        before=moments(before, kind),
        after=moments(after, kind),
        explanation=explanation,
        start_time=seen.times[at] if seen.times else None,
        start_ms=seen.accepted[at] if seen.accepted else None,
    )


def _labelled(labels: Floats) -> Floats:
    return labels[~np.isnan(labels).all(1)]
