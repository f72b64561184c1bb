"""Seasons of a stream, as `model_core.stream.seasons` has them, and what is retained of it.

The labels that a stream is searched for seasons in are the same when a record is applied once
more after a crash: history is trimmed in commits alone, a commit trims what is older than `history`
before its last observation, and the search looks back no further than that from a later one. Who
has lost the partition may find less, but cannot commit it. Only after `history` was raised what is
there depends on where the commits before ended; what was committed stands in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from model_core.stream import season, seasons
from model_core.stream_settings import SEASONS_FROM
from service.store.streams import UnreadablePart
from service.wire import Record, SeasonPeriods
from service.worker.filtering.history import labels, retained
from service.worker.streams.registry import Engine
from service.worker.streams.series import past_of
from service.worker.streams.step_inputs import number
from service.worker.streams.stream import Floats, Stream


def foreseen(stream: Stream, records: Sequence[Record]) -> Sequence[Record]:
    """Enter the seasons of coming labels into their records.

    Returns those up to the first after which the filter begins anew; the stream stays as it is.
    """
    seq = stream.live().seq
    due = _next_search(stream, seq)
    left = None if due is None else due - seq
    offsets = seasons.foreseen(stream.season, [number(record.y) for record in records], left)
    for record, offset in zip(records, offsets, strict=False):
        record.offset = offset
    return records[: len(offsets)]


def observe(engine: Engine, stream: Stream, record: Record) -> bool:
    """Take in the label of an applied observation; returns whether seasons were found or given up.

    The head, which is after that observation, has the seasons of now.
    """
    if stream.season is not None:
        return seasons.learn(stream.live(), stream.season, number(record.y))
    head = stream.live()
    if _next_search(stream, head.seq - 1) != head.seq:
        return False
    engine.tick()
    try:
        # Fewer than a state holds where `history` is shorter.
        values = labels(stream, engine.store, min(season.CAPACITY, head.settings.history))
    except UnreadablePart as error:
        engine.note(stream, f"{error}; not looking for seasons")
        return False
    stream.season = seasons.search(head, np.array([number(y) for y in values]))
    return stream.season is not None


def _next_search(stream: Stream, seq: int) -> int | None:
    """As `seasons.next_search`; None in the warm-up, too."""
    if stream.slab is None:
        return None
    seasonal = stream.live().settings.seasonal
    return seasons.next_search(stream.slab.model, seasonal, seq, season.phase_of(stream.name))


def begin_anew(engine: Engine, stream: Stream) -> None:
    """Begin the filter anew with the last labels less the seasons of now."""
    head = stream.live()
    slab = stream.slab
    assert slab is not None
    assert stream.season is not None
    try:
        records = retained(stream, engine.store, season.REPLAYED)
    except UnreadablePart as error:
        # No request asked for them: the stream goes on with what it has.
        engine.note(stream, f"{error}; beginning the filter anew without it")
        recent, _ = stream.recent()
        records = [recent[seq] for seq in range(head.sealed, head.seq)]  # in no chunk yet
    stream.come_back()
    engine.tick()
    anew = seasons.begin_anew(
        head,
        stream.season,
        slab,
        stream.row,
        past_of(slab.model, records),
        head.threshold,
        head.stated,
    )
    if anew is None:
        return
    replayed = records[len(records) - len(anew.previous) :]
    for record, offset, previous in zip(
        replayed, anew.offsets.tolist(), anew.previous, strict=True
    ):
        record.offset = offset
        record.previous_start = previous
    stream.relay(records)
    stream.drop_hindsight()
    engine.commit_state(stream)


def warming_up(stream: Stream, record: Record) -> None:
    """Take in the label of an observation of the warm-up, which is in the buffer.

    Where seasons were found or given up all labels are less those of now.
    """
    if stream.season is None or not seasons.learn(stream.live(), stream.season, number(record.y)):
        return
    offsets = season.offsets(stream.season, len(stream.buffer)).tolist()
    for buffered, offset in zip(stream.buffer[-len(offsets) :], offsets, strict=True):
        buffered.offset = offset
        stream.put(buffered)


def known_now(stream: Stream, records: Iterable[Record], seasonal: bool | None) -> list[Record]:
    """Retained records for a rerun, less the seasons that are known now.

    Observations since the filter last began anew are as they were met. seasonal: the setting of the
    rerun; of a stream that has not looked for seasons in that way these are found first.
    """
    records = list(records)
    state = stream.season
    present = stream.live().season
    seq = stream.live().seq
    if seasonal is False:
        return [replace(record, offset=0.0) for record in records] if state is not None else records
    if state is None and seasonal:
        state, present, records = _searched(records)
    elif (
        state is None and stream.live().settings.seasonal is False and len(records) >= SEASONS_FROM
    ):
        state = season.searched(np.array([number(record.y) for record in records]))
        present = None if state is None else SeasonPeriods(season.periods(state), seq)
    if state is None:
        return records
    met = np.array([record.offset for record in records])
    offsets = seasons.known_now(present, state, seq, met).tolist()
    return [replace(record, offset=offset) for record, offset in zip(records, offsets, strict=True)]


def _searched(records: list[Record]) -> tuple[Floats, SeasonPeriods | None, list[Record]]:
    """Seasons of records, as a stream of them alone would have found them."""
    state = season.blank()
    present = None
    met = []
    for record in records:
        met.append(replace(record, offset=season.offset(state)))
        if season.observe(state, number(record.y)):
            present = SeasonPeriods(season.periods(state), record.seq + 1)
    return state, present, met
