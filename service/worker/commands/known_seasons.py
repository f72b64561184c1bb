"""Seasons of retained records, as they are known now: see `model_core.stream.seasons`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from model_core.stream import season, seasons
from model_core.stream.state import kept_season, seasons_of
from model_core.stream_settings import SEASONS_FROM
from service.wire import Record, SeasonPeriods
from service.worker.streams.step_inputs import label_of
from service.worker.streams.stream import Floats, Stream


def known_now(stream: Stream, records: Iterable[Record], seasonal: bool | None) -> list[Record]:
    """Retained records for a rerun, less the seasons that are known now.

    Observations since the filter last began anew are as they were met. seasonal: the setting of the
    rerun; of a stream that has not looked for seasons in that way these are found first.
    """
    records = list(records)
    state = stream.season_state
    present = stream.live().season
    seq = stream.live().seq
    if seasonal is False:
        return [replace(record, offset=[]) for record in records] if state is not None else records
    outputs = stream.live().y_dim or 1
    if state is None and seasonal:
        state, present, records = _searched(records, outputs)
    elif (
        state is None and stream.live().settings.seasonal is False and len(records) >= SEASONS_FROM
    ):
        state = season.searched(_labels(records, outputs))
        present = None if state is None else SeasonPeriods(season.periods(state), seq)
    if state is None:
        return records
    return _less(records, seasons.known_now(present, state, seq, _met(records, outputs)))


def learned_anew(
    stream: Stream, records: list[Record], start: int, end: int
) -> tuple[list[Record], Floats | None]:
    """Records for a rerun, and seasons, of which those from `start` to before `end` were corrected.

    Labels that are missing there have no part in the seasons, which are learned anew. Observations
    from `start` on are less the season of now, earlier ones as in `known_now`.
    """
    live = stream.live()
    state = stream.season_state
    if state is None:
        return known_now(stream, records, live.settings.seasonal), None
    first = records[0].seq
    outputs = len(state)
    span = _labels(records[start - first : end - first], outputs)
    state = season.corrected(state, live.seq - start, span)
    offsets = seasons.known_now(live.season, state, live.seq, _met(records, outputs))
    now = season.offsets(state, live.seq - start)
    offsets[len(offsets) - len(now) :] = now
    return _less(records, offsets), state


def put(stream: Stream, state: Floats | None, start: int) -> None:
    """Put seasons in place that were learned anew; start: the first observation that met them."""
    if state is None:
        return
    stream.season_state = state
    head = stream.live()
    periods = season.periods(state)
    if head.season is not None:
        head.season = head.season._replace(periods=periods)
    elif periods:  # else none was found so far
        head.season = SeasonPeriods(periods, start)


def _labels(records: list[Record], outputs: int) -> Floats:
    return np.array([label_of(record, outputs) for record in records]).reshape(-1, outputs)


def _met(records: list[Record], outputs: int) -> Floats:
    return seasons_of([record.offset for record in records], outputs)


def _less(records: list[Record], offsets: Floats) -> list[Record]:
    return [
        replace(record, offset=kept_season(offset))
        for record, offset in zip(records, offsets.tolist(), strict=True)
    ]


def _searched(
    records: list[Record], outputs: int
) -> tuple[Floats, SeasonPeriods | None, list[Record]]:
    """Seasons of records, as a stream of them alone would have found them."""
    state = season.blank(outputs)
    present = None
    met = []
    for record in records:
        met.append(replace(record, offset=kept_season(season.offset(state))))
        if season.observe(state, [label_of(record, outputs)]):
            present = SeasonPeriods(season.periods(state), record.seq + 1)
    return state, present, met
