"""API keys in the store: made and revoked by the command line, read by the API.

A key is never deleted: a service that ever had one must not be open once it is revoked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from service.api_keys import Key
from service.store.shards import Argument, AsyncStoreClient, StoreClient, script
from service.wire import checked, checksummed

log = logging.getLogger(__name__)

# One slot: they change together.
KEYS = "moca:{keys}:all"
VERSION = "moca:{keys}:version"  # changes with every change of KEYS
USED = "moca:{keys}:used"
_READ = (("GET", VERSION), ("HGETALL", KEYS))
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Key).decode


class Keyring:
    """All keys, for the command line."""

    def __init__(self, client: StoreClient) -> None:
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

        def change(active: list[Key]) -> list[Key]:
            if active:
                raise ValueError(f"an active key {key.name!r} already exists: revoke it first")
            return [key]

        self._change(key.name, change)

    def revoke(self, name: str) -> list[Key]:
        """Revoke what is active under a name; ValueError when nothing is."""

        def change(active: list[Key]) -> list[Key]:
            if not active:
                raise ValueError(f"no active key {name!r}")
            now_ms = time.time_ns() // 1_000_000
            return [msgspec.structs.replace(key, revoked_ms=now_ms) for key in active]

        return self._change(name, change)

    def _change(self, name: str, change: Callable[[list[Key]], list[Key]]) -> list[Key]:
        """Store what is made of the active keys of a name; anew where any key changes meanwhile."""
        while True:
            version, blobs = self._client.atomic(_READ)
            now_ms = time.time() * 1000
            stored = _table(blobs).values()
            active = [key for key in stored if key.name == name and key.state(now_ms) == "active"]
            changed = change(active)
            arguments: list[Argument] = [version or b""]
            for key in changed:
                arguments += (key.id, checksummed(_encode(key), "key", key.id))
            if self._client.execute_command(*script("keys", [KEYS, VERSION], arguments)):
                return changed


class AsyncKeyring:
    """All keys, for the API."""

    def __init__(self, client: AsyncStoreClient) -> None:
        self._client = client

    async def version(self) -> bytes | None:
        """Return what changes with every change; None before the first key."""
        return cast("bytes | None", await self._client.get(VERSION))

    async def table(self) -> tuple[bytes | None, dict[str, Key]]:
        """Return the version and all keys by id."""
        version, blobs = await self._client.atomic(_READ)
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
