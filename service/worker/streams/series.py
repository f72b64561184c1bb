"""Streams stepped through several records: one after the other, in few calls of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from model_core.readout import Readout
from service.observability import metrics
from service.wire import Record
from service.worker.streams import step_inputs
from service.worker.streams.answers import PredictiveRow
from service.worker.streams.slab import Probabilities, Slab
from service.worker.streams.stream import Stream

T = TypeVar("T")
AT_ONCE = 64  # observations in a call; of one in which an event is confirmed all are stepped again


class Stepped(NamedTuple):
    """What one observation of a series gave."""

    readout: Readout
    place: PredictiveRow
    anomaly: float | None
    belief: Probabilities | None


def through(
    stream: Stream, records: Sequence[Record], summarised: bool = True, believed: bool = False
) -> Iterator[Stepped]:
    """Step one stream through its next records, by few calls of its kernel; see `Slab.in_series`.

    Yields what each gave, up to the first that the kernel refuses or that lacks outputs. Where the
    caller confirms an event, what follows is stepped anew: its numbers are about another start.
    """
    slab = stream.slab
    at = 0
    refused = False
    assert slab is not None
    while at < len(records) and not refused:
        coming = slab.ready(records[at : at + AT_ONCE])
        if not coming:
            return
        state = slab.state(stream.row)
        ranks = slab.ranks(stream.row)
        (confirmed,), (threshold,) = step_inputs.alarm_inputs([stream.live()])
        step = slab.series(stream.row, coming, confirmed, threshold, summarised, believed)
        beliefs: Sequence[Probabilities | None]
        beliefs = step.beliefs or [None] * len(step.readouts)
        refused = len(step.readouts) < len(coming)
        count = 0
        rows = zip(step.readouts, step.places, step.anomalies, beliefs, strict=True)
        for readout, place, anomaly, belief in rows:
            count += 1
            yield Stepped(readout, place, anomaly, belief)
            if stream.live().track.confirmed_start != confirmed:
                refused = False
                break
        if count < len(coming):
            slab.put(stream.row, state, ranks)
            if count:
                slab.series(stream.row, coming[:count], confirmed, threshold, summarised=False)
        at += count


def replay(stream: Stream, records: Sequence[Record]) -> Iterator[Readout]:
    """Step one stream through what counts as applied, as `Slab.replay` does, in few calls.

    Its state may be ahead of what was yielded until all was.
    """
    slab = stream.slab
    at = 0
    assert slab is not None
    while at < len(records):
        if slab.in_series and not records[at].belief_override:
            later = range(at + 1, len(records))
            end = next((i for i in later if records[i].belief_override), len(records))
            for stepped in through(stream, records[at:end], summarised=False):
                at += 1
                yield stepped.readout
            if at == end:
                continue
        confirmed, thresholds = step_inputs.alarm_inputs([stream.live()])
        yield from slab.replay([stream.row], [records[at]], confirmed, thresholds)
        at += 1


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
            records = [record for _, record in group]
            rows = [stream.row for stream, _ in group]
            confirmed, thresholds = step_inputs.alarm_inputs([stream.live() for stream, _ in group])
            readouts = slab.replay(rows, records, confirmed, thresholds)
            for (stream, record), readout in zip(group, readouts, strict=True):
                yield stream, record, readout
    for stream in streams:
        stream.buffer = ()


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
