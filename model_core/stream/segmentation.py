"""Segmentation of what is retained of a series: online, and in hindsight. Positions, no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

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


def in_hindsight(
    online: Sequence[Segment], first: int, seq: int, starts: Sequence[int], now: int
) -> list[Segment]:
    """Segmentation in hindsight as far as that reaches, else online.

    first, seq, starts: of the one in hindsight, which was made at `seq`; now: the position by now.
    What hindsight knew of its last NEAR observations was little: once there are more, their
    regimes are the online path's. Starts of both within NEAR observations are one change, which
    is not counted twice.
    """
    if not online:
        return []
    begin = online[0].start
    end = online[-1].end
    settled = seq if now == seq else seq - NEAR
    later = [start for start in starts if start > max(begin, first)]
    kept = [start for start in later if start < settled]
    open_ = [start for start in later if start >= settled]
    inner = [segment.start for segment in online[1:]]
    outside = [s for s in inner if not first <= s < settled or _near(s, open_)]
    joined = sorted([begin, *kept, *(s for s in outside if not _near(s, kept))])
    return [Segment(start, stop) for start, stop in pairwise([*joined, end])]


def _near(start: int, others: Sequence[int]) -> bool:
    return any(abs(start - other) <= NEAR for other in others)
