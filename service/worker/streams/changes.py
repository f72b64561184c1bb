"""What the commits of a turn write of the streams of their partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, compress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service import wire
from service.store import keys
from service.store.log import Effect, expires_ms
from service.store.shards import Argument
from service.wire import stored_records
from service.wire.positions import encode_positions
from service.worker.streams.stream import Stream, ordinary, take_effects, take_rows
from service.worker.streams.table import Table

Rows = NDArray[Any]  # of `table.ROW`


class Changes(NamedTuple):
    """Part of a commit: see `Commit`."""

    effects: list[Effect]
    pushed: Mapping[str, bytes] = MappingProxyType({})


def parted(
    table: Table, of_partition: Mapping[int, Sequence[Stream]]
) -> tuple[list[Stream], Rows, dict[int, list[Stream]]]:
    """Streams of which only position and tail move, their rows, and all others.

    They stay in order, and the others by partition. What else waits for a commit, as keyed outcomes
    do, is written as it is.
    """
    asleep = ordinary(chain.from_iterable(of_partition.values()))
    rows = table.of([stream.at for stream in asleep])
    early = rows["position"]["seq"] < rows["due"]
    if not early.all():
        asleep = list(compress(asleep, early.tolist()))
        rows = rows.compress(early)
    places = {stream.at for stream in asleep}
    others = {
        partition: [stream for stream in streams if stream.at not in places]
        for partition, streams in of_partition.items()
    }
    return asleep, rows, others


def effects(
    asleep: Sequence[Stream], rows: Rows, others: Mapping[int, Sequence[Stream]]
) -> dict[int, Changes]:
    """What writes streams, as they were `parted`, by partition; then nothing waits.

    The heads of a partition are one HSET.
    """
    # Made at once and cut by partition: a call of numpy takes as long for one as for a hundred.
    names = [stream.name for stream in asleep]
    position = rows["position"]
    positions = wire.checksummed_all(rows["position_place"].tolist(), encode_positions(position))
    pairs = list(zip(keys.position_fields(names), positions, strict=True))
    counts = np.array([stream.moved for stream in asleep], dtype=np.int64)
    tails = stored_records.blocks_of(position["seq"] - counts, counts, take_rows(asleep))
    tails = wire.checksummed_all(rows["tail_place"].tolist(), tails)
    ends = list(zip(position["updated_ms"].tolist(), rows["ttl"].tolist(), names, strict=True))
    number = Counter(stream.partition for stream in asleep)

    written: dict[int, Changes] = {}
    start = 0
    for partition, streams in others.items():
        heads_key = keys.heads(partition)
        own: list[Effect] = []
        heads: list[Argument] = []
        for effect in chain.from_iterable(stream.effects() for stream in streams):
            if effect[1] == heads_key:
                assert effect[0] == "HSET"
                heads += effect[2:]
            else:
                own.append(effect)
        part = slice(start, start + number[partition])
        start = part.stop
        heads += chain.from_iterable(pairs[part])
        own += chain.from_iterable(map(take_effects, asleep[part]))
        due: list[Argument] = []
        for moved_ms, ttl, name in ends[part]:
            if ttl == ttl:  # not nan
                due += (expires_ms(moved_ms, ttl), name)
        if due:
            own.append(("ZADD", keys.due(partition), *due))
        if heads:
            own.append(("HSET", heads_key, *heads))
        pushed = zip(keys.tails(partition, names[part]), tails[part], strict=True)
        written[partition] = Changes(own, dict(pushed))
    return written
