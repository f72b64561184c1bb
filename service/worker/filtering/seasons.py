"""Seasons of retained records, as they are known now: see `model_core.stream.seasons`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from model_core.stream import season, seasons
from model_core.stream_settings import SEASONS_FROM
from service.wire import Record, SeasonPeriods
from service.worker.streams.step_inputs import number
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
