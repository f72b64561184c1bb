"""Scores of change points as the Turing Change Point Detection benchmark has them.

van den Burg & Williams, *An Evaluation of Change Point Detection Algorithms* (arXiv:2003.06222),
section 4. A change point is the position of the first observation of a segment; several annotators
marked each series, and 0 counts as a change point that everybody found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

MARGIN = 5  # observations by which a detection may be off

Annotations = Mapping[str, Collection[int]]  # annotator: change points


class Score(NamedTuple):
    """F1 of the change points and covering of the segments, both in [0, 1]."""

    f1: float
    cover: float


def score(annotations: Annotations, found: Iterable[int], length: int) -> Score:
    """Score detections in a series; those at its first and in its last position do not count."""
    kept = [each for each in found if 1 <= each < length - 1]
    return Score(f1(annotations, kept), covering(annotations, kept, length))


def f1(annotations: Annotations, found: Iterable[int]) -> float:
    """Harmonic mean of precision and recall.

    Precision counts what any annotator marked, recall is the average over annotators.
    """
    detected = sorted({0, *found})
    marked = [_with_zero(each) for each in annotations.values()]
    everyone: set[int] = set()
    for points in marked:
        for each in points:
            everyone.add(each)
    precision = _hits(everyone, detected) / len(detected)
    recall = sum(_hits(each, detected) / len(each) for each in marked) / len(marked)
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _with_zero(points: Iterable[int]) -> set[int]:
    # The matching is greedy, and its order that of a set: the benchmark's sets are made like this.
    found = {int(each) for each in points}
    found.add(0)
    return found


def _hits(truth: Iterable[int], detected: list[int]) -> int:
    """How many true points have a detection within the margin; each serves one, the nearest."""
    free, hits = list(detected), 0
    for point in truth:
        nearest = min(free, key=lambda each: abs(each - point), default=None)
        if nearest is not None and abs(nearest - point) <= MARGIN:
            free.remove(nearest)
            hits += 1
    return hits


def covering(annotations: Annotations, found: Iterable[int], length: int) -> float:
    """How well the detected segments cover the annotators', on average over annotators.

    `1/T sum_A |A| max_A' |A & A'| / |A | A'|` over the segments `A` of an annotator.
    """
    detected = _segments(found, length)
    each = [_cover(_segments(points, length), detected) for points in annotations.values()]
    return sum(each) / len(each)


def _segments(points: Iterable[int], length: int) -> list[tuple[int, int]]:
    inner = sorted({int(each) for each in points if 0 < each < length})
    return list(zip([0, *inner], [*inner, length], strict=True))


def _cover(truth: list[tuple[int, int]], detected: list[tuple[int, int]]) -> float:
    best = [(b - a) * max(_jaccard((a, b), other) for other in detected) for a, b in truth]
    return sum(best) / truth[-1][1]


def _jaccard(first: tuple[int, int], second: tuple[int, int]) -> float:
    shared = max(0, min(first[1], second[1]) - max(first[0], second[0]))
    return shared / (first[1] - first[0] + second[1] - second[0] - shared)
