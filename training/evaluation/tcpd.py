"""Turing Change Point Dataset: reading and scores.

Scores are those of the benchmark: van den Burg & Williams, *An Evaluation of Change Point Detection
Algorithms* (arXiv:2003.06222), section 4. A change point is the position of the first observation
of a segment. Several annotators marked each series; 0 counts as a change point of every annotator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

FILE = "tcpd.json"
MARGIN = 5  # observations by which a detection may be off

Annotations = Mapping[str, Collection[int]]  # annotator: change points


class Series(NamedTuple):
    """One series: values [n_obs][n_dim], nan where missing; change points of each annotator."""

    name: str
    values: list[list[float]]
    annotations: dict[str, list[int]]


class Score(NamedTuple):
    """F1 of the change points and covering of the segments, both in [0, 1]."""

    f1: float
    cover: float


def load(folder: Path) -> list[Series]:
    """Every series of `tcpd.json`, by name.

    The file holds `{name: {"values": [n_dim][n_obs], "annotations": {annotator: [position]}}}`;
    positions count from 0.
    """
    content = json.loads((folder / FILE).read_text())
    return [
        Series(name, _rows(content[name]["values"]), content[name]["annotations"])
        for name in sorted(content)
    ]


def _rows(columns: list[list[float | None]]) -> list[list[float]]:
    rows = zip(*columns, strict=True)
    return [[math.nan if value is None else float(value) for value in row] for row in rows]


def score(annotations: Annotations, detections: Iterable[int], length: int) -> Score:
    """Score detections in a series; those at its first and in its last position do not count."""
    inner = [point for point in detections if 1 <= point < length - 1]
    return Score(f1(annotations, inner), covering(annotations, inner, length))


def f1(annotations: Annotations, detections: Iterable[int]) -> float:
    """Harmonic mean of precision and recall.

    Precision counts the points of any annotator; recall is the average over annotators.
    """
    detected = sorted({0, *detections})
    marked = [_with_zero(points) for points in annotations.values()]
    union: set[int] = set()
    for points in marked:
        for point in points:
            union.add(point)
    precision = hits(union, detected) / len(detected)
    recall = sum(hits(points, detected) / len(points) for points in marked) / len(marked)
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _with_zero(points: Iterable[int]) -> set[int]:
    # The matching is greedy, and its order that of a set: the benchmark's sets are made like this.
    marked = {int(point) for point in points}
    marked.add(0)
    return marked


def hits(truth: Iterable[int], detected: Iterable[int], margin: int = MARGIN) -> int:
    """Number of true points with a detection within the margin; each matches one, the nearest."""
    free = list(detected)
    count = 0
    for point in truth:
        nearest = min(free, key=lambda other: abs(other - point), default=None)
        if nearest is not None and abs(nearest - point) <= margin:
            free.remove(nearest)
            count += 1
    return count


def covering(annotations: Annotations, detections: Iterable[int], length: int) -> float:
    """Covering of the annotators' segments by the detected ones, averaged over annotators.

    `1/T sum_A |A| max_A' |A & A'| / |A | A'|` over the segments `A` of an annotator.
    """
    detected = _segments(detections, length)
    covers = [_cover(_segments(points, length), detected) for points in annotations.values()]
    return sum(covers) / len(covers)


def _segments(points: Iterable[int], length: int) -> list[tuple[int, int]]:
    inner = sorted({int(point) for point in points if 0 < point < length})
    return list(zip([0, *inner], [*inner, length], strict=True))


def _cover(truth: list[tuple[int, int]], detected: list[tuple[int, int]]) -> float:
    best = [(b - a) * max(_jaccard((a, b), other) for other in detected) for a, b in truth]
    return sum(best) / truth[-1][1]


def _jaccard(first: tuple[int, int], second: tuple[int, int]) -> float:
    shared = max(0, min(first[1], second[1]) - max(first[0], second[0]))
    return shared / (first[1] - first[0] + second[1] - second[0] - shared)
