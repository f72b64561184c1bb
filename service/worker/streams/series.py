"""Streams stepped through several records: one after the other, in few calls of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from model_core.readout import Readout
from model_core.stream.slab import Past, Slab, Step
from model_core.upm.base import UnderlyingModel
from service.observability import metrics
from service.wire import Record
from service.worker.streams import step_inputs
from service.worker.streams.stream import Stream

T = TypeVar("T")


def through(stream: Stream, records: Sequence[Record], believed: bool = False) -> Iterator[Step]:
    """Step one stream through its next records; see `Slab.through`."""
    slab = stream.slab
    assert slab is not None
    head = stream.live()
    return slab.through(
        stream.row,
        step_inputs.columns_of(slab.model, records),
        lambda: head.track.confirmed_start,
        head.threshold,
        believed=believed,
    )


def replay(stream: Stream, records: Sequence[Record]) -> Iterator[Readout]:
    """Step one stream through what counts as applied; see `Slab.replay`."""
    slab = stream.slab
    assert slab is not None
    head = stream.live()
    return slab.replay(
        stream.row,
        past_of(slab.model, records),
        lambda: head.track.confirmed_start,
        head.threshold,
    )


def past_of(
    model: UnderlyingModel,
    records: Sequence[Record],
    last: list[tuple[int, float]] | None = None,
) -> Past:
    """Records as what counts as applied; last: override of the belief after them, if any."""
    made = [*(record.belief_override for record in records), last]
    overrides = {at: belief for at, belief in enumerate(made) if belief}
    previous = [record.previous_start for record in records]
    return Past(step_inputs.columns_of(model, records), previous, overrides)


def replay_buffers(
    streams: Sequence[Stream], tick: Callable[[], None]
) -> Iterator[tuple[Stream, Record, Readout]]:
    """Step streams through the records that wait in their buffers, which are empty afterwards.

    Yields what each gave, those of one stream in order. tick: a sign of life.
    """
    metrics.REPLAYED.inc(sum(len(stream.buffer) for stream in streams))
    in_rounds = []
    for stream in streams:
        if stream.slab is not None and stream.slab.in_series:
            tick()
            for record, readout in zip(stream.buffer, replay(stream, stream.buffer), strict=True):
                yield stream, record, readout
        else:
            in_rounds.append(stream)
    for i in range(max((len(stream.buffer) for stream in in_rounds), default=0)):
        now = [(stream, stream.buffer[i]) for stream in in_rounds if i < len(stream.buffer)]
        for slab, group in by_slab(now):
            tick()
            readouts = _replayed(slab, group)
            for (stream, record), readout in zip(group, readouts, strict=True):
                yield stream, record, readout
    for stream in streams:
        stream.buffer = ()


def _replayed(slab: Slab, group: Sequence[tuple[Stream, Record]]) -> list[Readout]:
    """Step streams through a record of each; a label that breaks the step counts as missing."""
    for stream, record in group:
        if record.belief_override:
            slab.restate(stream.row, record.belief_override)
    rows = [stream.row for stream, _ in group]
    seen = step_inputs.columns_of(slab.model, [record for _, record in group])
    confirmed, thresholds = step_inputs.alarm_inputs([stream.live() for stream, _ in group])
    steps = slab.step(rows, seen, confirmed, thresholds, summarised=False)
    for i, (row, step) in enumerate(zip(rows, steps, strict=True)):
        if not step.readout.ok:
            again = seen.part([i]).unlabelled(0)
            steps[i : i + 1] = slab.step([row], again, [confirmed[i]], [thresholds[i]])
    return [step.readout for step in steps]


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
