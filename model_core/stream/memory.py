"""What a memory of regimes stores, once the end of one is confirmed: see `model_core.regimes`.

A regime that had returned takes its place again. One that was fresh is pooled with the stored one
that it is most probably the same as, if the log Bayes factor for that exceeds `SAME`; else it takes
a free place, or that of the regime which was not seen for longest. The older id stays, and none is
used again. The labels behind what is stored count for `LABELS` at most, since regimes drift; and
fresh regimes have a prior as wide as the stored ones lie apart: docs/mathematics.md, section 16.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from model_core.regimes import NEXT_ID, OF_EACH, REGIMES, SETTLED
from model_core.stream.state import KnownRegime
from model_core.table import LOG_PROB, RUN_LENGTH, SEQ, Layout, context_place
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
LABELS = 30.0  # that a stored regime counts for at its return
SAME = 3.0  # log Bayes factor from which on two regimes are one


def settle(
    model: UnderlyingModel, layout: Layout, lines: Floats, head: Floats, settled: float
) -> None:
    """Enter into a row (L, W) and (H,), in place, that changes up to a position are confirmed.

    The first such position only says where changes begin to count.
    """
    numbers = head[layout.numbers :]
    before = numbers[SETTLED]
    numbers[SETTLED] = settled
    if before < 0:
        return
    starts = head[SEQ] - 1 - lines[RUN_LENGTH, : layout.slots]
    alive = np.isfinite(lines[LOG_PROB, : layout.slots])
    began = np.flatnonzero(alive & (starts > before) & (starts > 0))
    if not len(began):
        return
    newest = int(began[lines[LOG_PROB, began].argmax()])
    place = _place(model, layout, lines, head, newest)
    ids, seen, last_seen = _regimes(layout, head)
    if ids[place] == 0:
        ids[place] = numbers[NEXT_ID]
        numbers[NEXT_ID] += 1
        seen[place] = 0
    seen[place] += 1
    last_seen[place] = starts[newest] - 1
    used = [layout.stored.start + m for m in np.flatnonzero(ids).tolist()]
    prior = layout.columns(lines, [layout.width - 1])
    wider = model.spread(layout.columns(lines, used), prior)
    for column in (*range(layout.slots, layout.stored.start), *layout.beside):
        layout.put_column(lines, column, wider)


def remembered(layout: Layout, lines: Floats, head: Floats) -> list[KnownRegime]:
    """Regimes that a row (L, W) and (H,) stores, by id, each with the probability that it is on."""
    if not layout.regimes:
        return []
    ids, seen, last_seen = (own.astype(int) for own in _regimes(layout, head))
    mass = np.exp(lines[LOG_PROB, : layout.slots])
    origin = lines[layout.origin, : layout.slots]
    regimes = [
        KnownRegime(
            None, min(float(mass[origin == m + 1].sum()), 1.0), int(ids[m]), int(seen[m]),
            int(last_seen[m]),
        )
        for m in np.flatnonzero(ids).tolist()
    ]  # fmt: skip
    return sorted(regimes, key=lambda regime: regime.id or 0)


def number(layout: Layout, head: Floats, ids: Mapping[int, int], following: int) -> None:
    """Give the regimes of a row other ids, in place. following: of the next that is stored."""
    if not layout.regimes:
        return
    own, _, _ = _regimes(layout, head)
    for place in np.flatnonzero(own).tolist():
        own[place] = ids[int(own[place])]
    head[layout.numbers + NEXT_ID] = following


def carry(layout: Layout, before: Floats, head: Floats, base: int) -> None:
    """Go on with ids where a filter begins anew at position `base`; what was stored is forgotten.

    Its labels were of another season or scale. before, head: of the filters.
    """
    if not layout.regimes:
        return
    numbers = head[layout.numbers :]
    numbers[NEXT_ID] = before[layout.numbers + NEXT_ID]
    if numbers[SETTLED] >= 0:
        numbers[SETTLED] += base


def _regimes(layout: Layout, head: Floats) -> list[Floats]:
    """Views (M,): ids of stored regimes, 0 of a free place; how often and when they were seen."""
    return list(head[layout.numbers + REGIMES :].reshape(OF_EACH, -1))


def _place(model: UnderlyingModel, layout: Layout, lines: Floats, head: Floats, newest: int) -> int:
    """Store the regime that ended before the hypothesis in slot `newest`; returns its place."""
    ids, _, last_seen = _regimes(layout, head)
    at = context_place(layout.outputs)
    context = head[None, at : at + layout.context]
    columns = range(layout.stored.start, layout.stored.stop)
    prior = layout.columns(lines, [layout.width - 1])
    ended = layout.columns(lines, [newest], ended=True)
    place = int(lines[layout.ended, newest]) - 1
    if place < 0:
        best = SAME
        for m in np.flatnonzero(ids).tolist():
            stored = layout.columns(lines, [columns[m]])
            factor, both = model.pooled(stored, ended, prior, context)
            if factor > best:
                best = factor
                place = m
                pooled = both
        if place >= 0:
            ended = pooled
    if place < 0:
        free = np.flatnonzero(ids == 0)
        if len(free):
            place = int(free[0])
        else:  # the one that was not seen for longest goes, but for that which the stream is in
            present = int(lines[layout.origin, newest]) - 1
            order = np.argsort(last_seen, kind="stable").tolist()
            place = next((other for other in order if other != present), order[0])
            for line in (layout.origin, layout.ended):  # what began as it is as fresh
                own = lines[line, : layout.slots]
                own[own == place + 1] = 0
            ids[place] = 0
    layout.put_column(lines, columns[place], model.tempered(ended, prior, LABELS))
    return place
