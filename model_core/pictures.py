"""Which outputs of a stream pictures show."""

from __future__ import annotations

from collections.abc import Iterable

DRAWN = 6  # outputs in a picture, at most


def drawn_outputs(outputs: int, changed: Iterable[int | None]) -> list[int]:
    """Outputs that a picture shows: all, or of many those that changed last, then the first.

    changed: of each confirmed change, the last one first; None: no output did by itself.
    """
    if outputs <= DRAWN:
        return list(range(outputs))
    by_rank = dict.fromkeys([i for i in changed if i is not None] + list(range(outputs)))
    return list(by_rank)[:DRAWN]
