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
from service.worker.streams.stream import Stream
from service.worker.streams.table import Table


def parted(table: Table, streams: Sequence[Stream]) -> tuple[list[Stream], list[Stream]]:
    """Streams of which nothing is written but position and tail, and all others."""
    asleep = [stream for stream in streams if stream.moved and stream.ordinary]
    rows = table.rows[[stream.at for stream in asleep]]
    early = (rows["position"]["seq"] < rows["due"]).tolist()
    ordinary = [stream for stream, fits in zip(asleep, early, strict=True) if fits]
    places = {stream.at for stream in ordinary}
    return ordinary, [stream for stream in streams if stream.at not in places]


def effects(
    partition: int, table: Table, ordinary: Sequence[Stream], others: Sequence[Stream]
) -> list[Effect]:
    """Effects that write them, with one HSET of the heads; afterwards nothing waits."""
    key = keys.heads(partition)
    every = [effect for stream in others for effect in stream.effects()]
    effects = [effect for effect in every if effect[1] != key]
    heads: list[Argument] = []
    for effect in every:
        if effect[1] == key:
            assert effect[0] == "HSET"
            heads += effect[2:]
    if ordinary:
        rows = table.rows[[stream.at for stream in ordinary]]
        bodies = encode_positions(rows["position"])
        positions = wire.checksummed_all(rows["position_place"].tolist(), bodies)
        fields = [keys.position_field(stream.name) for stream in ordinary]
        heads += chain.from_iterable(zip(fields, positions, strict=True))
        counts = np.array([stream.moved for stream in ordinary])
        firsts = rows["position"]["seq"] - counts
        blocks = stored_records.blocks_of(firsts, counts, [s.new_rows() for s in ordinary])
        tails = wire.checksummed_all(rows["tail_place"].tolist(), blocks)
        pairs = zip(ordinary, tails, strict=True)
        effects += [("RPUSH", keys.tail(partition, s.name), block) for s, block in pairs]
        for i in np.flatnonzero(~np.isnan(rows["ttl"])).tolist():
            end_ms = expires_ms(int(rows["position"]["updated_ms"][i]), float(rows["ttl"][i]))
            effects.append(("ZADD", keys.due(partition), end_ms, ordinary[i].name))
    if heads:
        effects.append(("HSET", key, *heads))
    return effects
