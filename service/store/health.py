"""Whether a store can be used: checks before the service starts."""

from __future__ import annotations

from typing import cast

import redis

from service import wire
from service.problems import StartupError
from service.store import keys
from service.store.shards import StoreClient

OLDEST_SERVER = (7, 0)
RESTORING = "restoring"  # field of the configuration while a backup is being put in
PARTITIONS = ("partitions", "partitions_copy")  # fields of the number and its copy


def check_server(client: StoreClient) -> None:
    """Refuse servers that are too old or that may evict what we stored."""
    for info in client.infos():
        if "valkey_version" not in info:
            version = str(info["redis_version"])
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
                raise StartupError(f"Redis {version} is too old: expected Redis >= 7.0 or Valkey")
        policy = info["maxmemory_policy"]
        if policy != "noeviction":
            raise StartupError(
                f"maxmemory-policy is {policy!r}, which would evict streams and accepted "
                "observations: set it to 'noeviction'"
            )


def check_formats(client: StoreClient, partitions: int) -> None:
    """Refuse a store of another format."""
    stored = client.all(("HGET", keys.meta(p), "format") for p in range(partitions))
    formats = {number.decode() for number in stored if number is not None}
    if others := formats - {str(wire.FORMAT)}:
        raise StartupError(
            f"the store has format {min(others)}, expected {wire.FORMAT}: use the version that "
            "wrote it, or an empty store"
        )


def stored_partitions(client: redis.Redis) -> int | None:
    """Number of partitions that the store was created with; None: it is new.

    Raises StartupError where the number and its copy differ.
    """
    number, copy = cast(list[bytes | None], client.hmget(keys.CONFIG, PARTITIONS))
    if copy != number:
        raise StartupError(
            f"the store's number of partitions is damaged: {number!r} or {copy!r}; put the right "
            f"one into both fields of {keys.CONFIG}, {' and '.join(PARTITIONS)}"
        )
    return None if number is None else int(number)


def fix_partitions(client: StoreClient, partitions: int) -> None:
    """Record the number of partitions on first use; refuse any other number afterwards.

    Also refuses what a restore that did not end has left.
    """
    stored = stored_partitions(client)  # read first: a store that is full takes no write
    if stored is None:
        # At once: a reader takes one field without the other for damage.
        client.atomic(("HSETNX", keys.CONFIG, field, partitions) for field in PARTITIONS)
        stored = stored_partitions(client)
    if stored != partitions:
        raise StartupError(
            f"this store was created with {stored} partitions, got {partitions}: start with "
            f"--partitions {stored}"
        )
    if client.hexists(keys.CONFIG, RESTORING):
        raise StartupError(
            "a restore into this store is running or was interrupted: run `moca restore` again"
        )


def waiting(client: StoreClient, partitions: int) -> int:
    """Number of observations that were accepted and not applied yet."""
    counts = client.all(("HMGET", keys.meta(p), "in", "done") for p in range(partitions))
    return sum(int(appended or 0) - int(done or 0) for appended, done in counts)


def stored_streams(client: StoreClient, partitions: int) -> int:
    """Number of streams that have a head, deleted ones among them."""
    fields: int = sum(client.all(("HLEN", keys.heads(p)) for p in range(partitions)))
    return -(-fields // 2)  # a head has two; half of one counts
