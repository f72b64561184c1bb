"""What the history of a stream has on both sides of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from moca_client.responses import Explanation, Numbers, RegimeStatistics
from model_core import explanation
from model_core.upm.builtin import BUILTIN
from service import wire


class Sides(NamedTuple):
    """What the history has on a change."""

    before: RegimeStatistics | None = None
    after: RegimeStatistics | None = None
    explanation: Explanation | None = None
    start_time: str | None = None


def sides_of(
    head: wire.Head,
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    first: wire.Record | None,
) -> Sides:
    """Return both sides of a change, and what changed, in words.

    before, after: labels of the regimes, rows of the stream's outputs. first: the record at the
    change's start, if it is retained.
    """
    outputs = head.y_dim or 1
    left, right = (np.array(side, dtype=float).reshape(-1, outputs) for side in (before, after))
    built_in = BUILTIN.get(head.settings.model)
    labels: explanation.Labels = "numbers" if built_in is None else built_in.labels
    if first is not None and first.probabilities is not None:
        labels = "classes"
    text = None if head.x_dim else explanation.explain(left, right, labels)
    return Sides(
        _regime(left, labels),
        _regime(right, labels),
        None if text is None else Explanation(*text),
        None if first is None else first.time,
    )


def _regime(labels: Any, kind: explanation.Labels) -> RegimeStatistics | None:
    if not len(labels):
        return None
    if kind == "classes":
        return RegimeStatistics(len(labels))
    moments = explanation.moments(labels)
    return RegimeStatistics(moments.length, _numbers(moments.mean), _numbers(moments.sd))


def _numbers(values: list[float | None]) -> Numbers:
    return values[0] if len(values) == 1 else values
