"""Segmentation of what is retained of a series. Positions, no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from model_core.stream.events import Event

NEAR = 10  # observations between the starts of what counts as the same change


class Segment(NamedTuple):
    """One regime; `end` is exclusive."""

    start: int
    end: int


def best(previous: Callable[[int], int | None], start: int, first: int, end: int) -> list[Segment]:
    """Best (max-product) segmentation of observations from `first` to before `end`.

    start: of the last regime. previous: of an observation that starts a regime, where the best path
    before it starts; None where that is not retained. Following these pointers back is Viterbi's
    backward pass, over the hypotheses that were not pruned.
    """
    segments = []
    while start > first:
        before = previous(start)
        if before is None:
            break
        segments.append(Segment(start, end))
        end = start
        start = before
    segments.append(Segment(max(start, first), end))
    return segments[::-1]


def confirmed(events: Iterable[Event]) -> list[int]:
    """Starts of changes that are confirmed, and not excluded from learning."""
    return [
        event.start
        for event in events
        if event.kind == "change" and event.state == "confirmed" and not event.excluded
    ]


def lasting(starts: Sequence[int], seq: int) -> list[int]:
    """Starts in hindsight that are changes; starts: those of all that was segmented, up to `seq`.

    It knew little of its first and its last NEAR observations.
    """
    return [start for start in starts if starts[0] + NEAR < start < seq - NEAR]


def regimes(
    path: Sequence[Segment], changes: Iterable[int], hindsight: Iterable[int] = ()
) -> list[Segment]:
    """Regimes of the observations of the best path: nothing takes a confirmed change away.

    changes: starts of the confirmed ones. The best path, and then hindsight, add what is farther
    than NEAR observations from those that are there, and from where the path begins.
    """
    if not path:
        return []
    begin = path[0].start
    end = path[-1].end
    starts = sorted({begin, *(start for start in changes if begin < start < end)})
    for others in ([segment.start for segment in path], hindsight):
        within = [other for other in others if begin < other < end]
        far = [other for other in within if all(abs(other - start) > NEAR for start in starts)]
        starts = sorted([*starts, *far])
    return [Segment(start, stop) for start, stop in pairwise([*starts, end])]
