"""The life of changepoint events: suspected, confirmed, withdrawn, relocated (DESIGN, section 2).

An event is suspected when the MAP run start moves past the last confirmed one, confirmed when that
start has been kept for `confirm_after` observations, withdrawn when it is not kept.
"""

from __future__ import annotations

from enum import Enum
from math import copysign, inf, isfinite, sqrt
from typing import NamedTuple

from msgspec.structs import replace

from service.wire import Event, Head

ROUNDING = 1e-12  # of a sum of squares


class Fate(Enum):
    """What becomes of the last confirmed event when a later start is confirmed."""

    KEPT = 1
    MOVED = 2  # it gets another start
    REPLACED = 3  # it was the new one all along


class Reading(NamedTuple):
    """What the belief says after one observation.

    start: MAP run start, with its `probability`. previous_start: where the best path before it
    starts. totals: count, sums and sums of squares of all labels; start_totals: those before
    `start`; both None where labels are no quantities.
    """

    seq: int
    time: str | None
    start: int
    probability: float
    previous_start: int
    totals: list[float] | None
    start_totals: list[float] | None


def track(head: Head, reading: Reading) -> list[Event]:
    """Move a stream's event state by one observation; returns the events that changed."""
    if reading.start <= head.confirmed_start:
        return _withdraw(head, reading)
    changed = _suspect(head, reading)
    if reading.seq - head.kept_since >= head.settings.confirm_after:
        changed = [*changed, *_confirm(head, reading)]
    return changed


def _withdraw(head: Head, reading: Reading) -> list[Event]:
    if head.event is None:
        return []
    gone = replace(head.event, state="withdrawn", probability=0.0, time=reading.time)
    head.event = None
    return [gone]


def _suspect(head: Head, reading: Reading) -> list[Event]:
    """Open an event, or move the open one: the MAP start is one that is not confirmed."""
    event = head.event
    if event is not None and event.start == reading.start:
        return []
    head.kept_since = reading.seq
    changed = []
    if event is not None and reading.start > event.suspected_at:
        # A start after the suspicion cannot be what was suspected.
        changed = _withdraw(head, reading)
        event = None
    if event is None:
        event = Event(head.next_event, "suspected", reading.start, suspected_at=reading.seq)
        head.next_event += 1
    direction, size = _step(head.confirmed_totals, reading)
    head.event = replace(
        event,
        start=reading.start,
        delay=event.suspected_at - reading.start,
        probability=reading.probability,
        direction=direction,
        size=size,
        time=reading.time,
    )
    return [*changed, head.event]


def _confirm(head: Head, reading: Reading) -> list[Event]:
    """Confirm the open event, or, where it replaces the last confirmed one, relocate that."""
    event, last = head.event, head.last_event
    if event is None:
        return []
    changed = []
    fate = _fate(head, reading)
    before = head.before_totals if fate is Fate.REPLACED else head.confirmed_totals
    if last is not None and fate is Fate.REPLACED:
        changed.append(replace(event, state="withdrawn", time=reading.time))
        # The first suspicion stands, unless it was before the start it now belongs to.
        since = last.suspected_at if last.suspected_at >= event.start else event.suspected_at
        event = replace(last, start=event.start, suspected_at=since, delay=since - event.start)
    elif last is not None and fate is Fate.MOVED:
        moved = reading.previous_start
        changed.append(replace(last, start=moved, delay=last.suspected_at - moved))
    if fate is not Fate.REPLACED:
        head.before_start = reading.previous_start
    direction, size = _step(before, reading)
    confirmed = replace(
        event,
        state="confirmed",
        confirmed_at=reading.seq,
        probability=reading.probability,
        direction=direction,
        size=size,
        time=reading.time,
    )
    head.event, head.last_event = None, confirmed
    head.before_totals, head.confirmed_totals = before, reading.start_totals
    head.confirmed_start = reading.start
    return [*changed, confirmed]


def _fate(head: Head, reading: Reading) -> Fate:
    """What the best path of a newly confirmed start says of the event confirmed before it."""
    last, confirmed, previous = head.last_event, head.confirmed_start, reading.previous_start
    if last is None or previous == confirmed or previous > last.suspected_at:
        # One after the suspicion is a short regime of its own, never confirmed.
        return Fate.KEPT
    if previous > confirmed:
        return Fate.MOVED
    # It leads through the start before the confirmed one, give or take; or through a better
    # estimate of the confirmed one.
    return Fate.MOVED if 2 * previous > confirmed + head.before_start else Fate.REPLACED


def _step(
    before: list[float] | None, reading: Reading
) -> tuple[str | None, float | list[float] | None]:
    """Direction and size of a shift, in standard deviations pooled within the two regimes.

    The direction is that of the output that moved most; where that was constant within the
    regimes there is no size.
    """
    totals, middle = reading.totals, reading.start_totals
    if totals is None or middle is None:
        return None, None
    first = before if before is not None else [0.0] * len(totals)
    outputs = (len(totals) - 1) // 2
    old, new = middle[0] - first[0], totals[0] - middle[0]
    if old < 1 or new < 1 or old + new <= 2:
        return None, None
    sizes = []
    for i in range(1, outputs + 1):
        j = i + outputs
        mean_old, mean_new = (middle[i] - first[i]) / old, (totals[i] - middle[i]) / new
        squares = (middle[j] - first[j]) - old * mean_old**2
        squares += (totals[j] - middle[j]) - new * mean_new**2
        size = _ratio(mean_new - mean_old, squares, old + new, totals[j] - first[j])
        sizes.append(size)
    most = max(sizes, key=abs)
    direction = None if most == 0 else "up" if most > 0 else "down"
    if not isfinite(most):
        return direction, None
    return direction, (sizes[0] if outputs == 1 else sizes)


def _ratio(shift: float, within: float, count: float, squares: float) -> float:
    """A shift in standard deviations; infinite where only rounding is left within the regimes."""
    if within > ROUNDING * squares:
        return shift / sqrt(within / (count - 2))
    return 0.0 if shift**2 * count <= ROUNDING * squares else copysign(inf, shift)
