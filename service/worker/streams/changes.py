"""What a commit writes of the streams of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from service import wire
from service.store import keys
from service.store.log import Effect, expires_ms
from service.store.shards import Argument
from service.wire import stored_records
from service.wire.positions import encode_positions
from service.worker.streams.stream import Stream, ordinary, take_rows
from service.worker.streams.table import Table


def parted(table: Table, streams: Sequence[Stream]) -> tuple[list[Stream], list[Stream]]:
    """Streams of which nothing is written but position and tail, and all others."""
    asleep = ordinary(streams)
    rows = table.rows[[stream.at for stream in asleep]]
    early = (rows["position"]["seq"] < rows["due"]).tolist()
    alone = [stream for stream, fits in zip(asleep, early, strict=True) if fits]
    places = {stream.at for stream in alone}
    return alone, [stream for stream in streams if stream.at not in places]


def effects(
    partition: int, table: Table, asleep: Sequence[Stream], others: Sequence[Stream]
) -> list[Effect]:
    """Effects that write them, with one HSET of the heads; afterwards nothing waits."""
    heads_key = keys.heads(partition)
    every = [effect for stream in others for effect in stream.effects()]
    effects = [effect for effect in every if effect[1] != heads_key]
    heads: list[Argument] = []
    for effect in every:
        if effect[1] == heads_key:
            assert effect[0] == "HSET"
            heads += effect[2:]
    if asleep:
        names = [stream.name for stream in asleep]
        rows = table.rows[[stream.at for stream in asleep]]
        positions = encode_positions(rows["position"])
        positions = wire.checksummed_all(rows["position_place"].tolist(), positions)
        heads += chain.from_iterable(zip(keys.position_fields(names), positions, strict=True))
        counts = np.array([stream.moved for stream in asleep])
        firsts = rows["position"]["seq"] - counts
        tails = stored_records.blocks_of(firsts, counts, take_rows(asleep))
        tails = wire.checksummed_all(rows["tail_place"].tolist(), tails)
        pairs = zip(keys.tails(partition, names), tails, strict=True)
        effects += [("RPUSH", key, block) for key, block in pairs]
        ends: list[Argument] = []
        updated_ms = rows["position"]["updated_ms"].tolist()
        for name, moved_ms, ttl in zip(names, updated_ms, rows["ttl"].tolist(), strict=True):
            if ttl == ttl:  # not nan
                ends += (expires_ms(moved_ms, ttl), name)
        if ends:
            effects.append(("ZADD", keys.due(partition), *ends))
    if heads:
        effects.append(("HSET", heads_key, *heads))
    return effects
