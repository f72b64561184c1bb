"""API keys in the store: made and revoked by the command line, read by the API.

A key is never deleted: a service that ever had one must not be open once it is revoked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import redis
import redis.asyncio

from service.api_keys import Key
from service.wire import checked, checksummed

log = logging.getLogger(__name__)

# One slot: they change in one transaction.
KEYS = "moca:{keys}:all"
VERSION = "moca:{keys}:version"  # changes with every change of KEYS
USED = "moca:{keys}:used"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Key).decode


class Keyring:
    """All keys, for the command line."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def any(self) -> bool:
        """Whether a key was ever made."""
        return bool(self._client.exists(KEYS))

    def all(self) -> list[tuple[Key, int]]:
        """Return every key with when it was last used, in seconds since 1970 (0: never)."""
        table = _table(cast(Any, self._client.hgetall(KEYS)))
        # Of a damaged time: never.
        times = cast(dict[bytes, bytes], self._client.hgetall(USED))
        used = {id_.decode(): int(at) for id_, at in times.items() if at.isdigit()}
        # Of one name only the last can be active, even of keys made within a millisecond.
        order = sorted(
            table.values(), key=lambda key: (key.name, key.created_ms, not key.revoked_ms)
        )
        return [(key, used.get(key.id, 0)) for key in order]

    def add(self, key: Key) -> None:
        """Add a new key; ValueError when an active one has its name."""

        def change(pipe: redis.client.Pipeline) -> None:
            if self._active(pipe, key.name):
                raise ValueError(f"an active key {key.name!r} already exists: revoke it first")
            self._put(pipe, key)

        self._client.transaction(change, KEYS)

    def revoke(self, name: str) -> list[Key]:
        """Revoke what is active under a name; ValueError when nothing is."""
        revoked: list[Key] = []

        def change(pipe: redis.client.Pipeline) -> None:
            active = self._active(pipe, name)
            if not active:
                raise ValueError(f"no active key {name!r}")
            now_ms = time.time_ns() // 1_000_000
            revoked[:] = [msgspec.structs.replace(key, revoked_ms=now_ms) for key in active]
            self._put(pipe, *revoked)

        self._client.transaction(change, KEYS)
        return revoked

    def _active(self, pipe: redis.client.Pipeline, name: str) -> list[Key]:
        now_ms = time.time() * 1000
        keys = _table(cast(Any, pipe.hgetall(KEYS))).values()
        return [key for key in keys if key.name == name and key.state(now_ms) == "active"]

    def _put(self, pipe: redis.client.Pipeline, *keys: Key) -> None:
        pipe.multi()
        pipe.hset(KEYS, mapping={key.id: checksummed(_encode(key), "key", key.id) for key in keys})
        pipe.incr(VERSION)


class AsyncKeyring:
    """All keys, for the API."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def version(self) -> bytes | None:
        """Return what changes with every change; None before the first key."""
        return cast("bytes | None", await self._client.get(VERSION))

    async def table(self) -> tuple[bytes | None, dict[str, Key]]:
        """Return the version and all keys by id."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.get(VERSION)
            pipe.hgetall(KEYS)
            version, blobs = await pipe.execute()
        return version, _table(blobs)

    async def note_used(self, used: Mapping[str, int]) -> None:
        """Record when keys were last used, in seconds since 1970."""
        await cast(Any, self._client.hset(USED, mapping=cast(Any, used)))


def _table(blobs: Mapping[bytes, bytes]) -> dict[str, Key]:
    """Decode all keys; one that cannot be read counts for nothing, and is said once a change."""
    table = {}
    for id_, blob in blobs.items():
        try:
            table[id_.decode()] = _decode(checked(blob, "key", id_.decode()))
        except (msgspec.MsgspecError, ValueError) as error:
            log.warning("cannot read key %r, refusing it: %s", id_, error)
    return table
