"""What the commits of a turn write of the streams of their partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service import wire
from service.store import keys
from service.store.log import Effect, expires_ms
from service.store.shards import Argument
from service.wire import stored_records
from service.wire.records import encode_positions
from service.worker.streams.stream import Stream, ordinary, take_effects, take_rows
from service.worker.streams.table import Table

Rows = NDArray[Any]  # of `table.ROW`


class Changes(NamedTuple):
    """Part of a commit: see `Commit`."""

    effects: list[Effect]
    pushed: dict[str, bytes]


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
    # Made at once: a call of numpy takes as long for one as for a hundred.
    position = rows["position"]
    positions = wire.checksummed_all(rows["position_place"].tolist(), encode_positions(position))
    counts = np.array([stream.moved for stream in asleep], dtype=np.int64)
    tails = stored_records.blocks_of(position["seq"] - counts, counts, take_rows(asleep))
    tails = wire.checksummed_all(rows["tail_place"].tolist(), tails)
    moved_ms = position["updated_ms"].tolist()

    written = {partition: Changes([], {}) for partition in others}
    heads: dict[int, list[Argument]] = {partition: [] for partition in others}
    due: defaultdict[int, list[Argument]] = defaultdict(list)
    for partition, streams in others.items():
        for stream in streams:
            _put_effects(stream, written[partition].effects, heads[partition])
    ends = zip(asleep, positions, tails, moved_ms, rows["ttl"].tolist(), strict=True)
    for stream, own_position, tail, own_ms, ttl in ends:
        partition = stream.partition
        own = written[partition]
        heads[partition] += (keys.position_field(stream.name), own_position)
        own.pushed[keys.tail(partition, stream.name)] = tail
        own.effects.extend(take_effects(stream))
        if ttl == ttl:  # not nan
            due[partition] += (expires_ms(own_ms, ttl), stream.name)
    for partition, arguments in due.items():
        written[partition].effects.append(("ZADD", keys.due(partition), *arguments))
    for partition, arguments in heads.items():
        if arguments:
            written[partition].effects.append(("HSET", keys.heads(partition), *arguments))
    return written


def _put_effects(stream: Stream, effects: list[Effect], heads: list[Argument]) -> None:
    """Add what writes a stream: fields of the heads, and all else."""
    heads_key = keys.heads(stream.partition)
    for effect in stream.effects():
        if effect[1] == heads_key:
            assert effect[0] == "HSET"
            heads += effect[2:]
        else:
            effects.append(effect)
