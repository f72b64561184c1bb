"""Streams stepped through several records: one after the other, in few calls of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from model_core.stream.events import Watch
from model_core.stream.slab import Past, Slab
from model_core.upm.base import UnderlyingModel
from service.wire import Head, Record
from service.worker.streams import step_inputs
from service.worker.streams.stream import Stream

T = TypeVar("T")


def past_of(
    model: UnderlyingModel,
    records: Sequence[Record],
    last: list[tuple[int, float]] | None = None,
) -> Past:
    """Records as what counts as applied; last: override of the belief after them, if any."""
    made = [*(record.belief_override for record in records), last]
    overrides = {at: belief for at, belief in enumerate(made) if belief}
    previous = [record.previous_start for record in records]
    times = [record.time for record in records]
    accepted = [record.accepted_ms for record in records]
    return Past(step_inputs.columns_of(model, records), previous, overrides, times, accepted)


def replay_buffers(streams: Sequence[Stream], tick: Callable[[], None]) -> list[Stream]:
    """Step streams through the records that wait in their buffers, which are empty afterwards.

    Returns those whose filters take none. tick: a sign of life.
    """
    refused = []
    for slab, group in by_slab((stream, stream.live()) for stream in streams):
        replayed = slab.replay_each(
            [stream.row for stream, _ in group],
            [past_of(slab.model, stream.buffer) for stream, _ in group],
            [partial(_watched, head) for _, head in group],
        )
        for i, _, line in replayed:
            tick()
            if line is None:
                refused.append(group[i][0])
    for stream in streams:
        stream.buffer = ()
    return refused


def _watched(head: Head) -> Watch:
    return head.watch


def by_slab(work: Iterable[tuple[Stream, T]]) -> list[tuple[Slab, list[tuple[Stream, T]]]]:
    """Group work by the slab that its streams are in, large states a few at a time."""
    groups: dict[int, tuple[Slab, list[tuple[Stream, T]]]] = {}
    for stream, item in work:
        assert stream.slab is not None
        groups.setdefault(id(stream.slab), (stream.slab, []))[1].append((stream, item))
    parts = []
    for slab, group in groups.values():
        most = slab.step_rows
        parts += [(slab, group[i : i + most]) for i in range(0, len(group), most)]
    return parts
