"""Deliveries as Redis keeps them: a consumer group of each hook on every feed, dead letters.

A hook's group begins with the events that were accepted after the hook was first seen, on every
partition alike and however often its making is interrupted. What is read and not acknowledged
belongs to a process; the next takes it over.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ResponseError

from service.store import keys
from service.store.feed import before_of, readable
from service.store.shards import AsyncStoreClient, Words
from service.wire import Id
from service.wire.event_entries import START, Raised, number_of

PAGE = 64


class Letter(NamedTuple):
    """One event for one hook. `source` is the key it was read from, under `id`."""

    source: str
    id: str
    number: str  # what receivers know it by, however often it is sent
    blob: bytes
    raised: Raised | None  # None: it cannot be read, and is given up at once
    before: Id

    @property
    def event(self) -> Raised:
        """What is delivered, of a letter that can be read."""
        assert self.raised is not None
        return self.raised


class Dead(NamedTuple):
    """A delivery that was given up."""

    id: str
    hook: str
    number: str
    error: str
    attempts: int
    raised: Raised | None


class Letters:
    """The letters of one hook, for one process that holds the hook's lock."""

    def __init__(self, client: AsyncStoreClient, hook: str, consumer: str, partitions: int) -> None:
        self._client = client
        self._hook = hook
        self._consumer = consumer
        self._group = f"webhook:{hook}"
        self.again = keys.webhook_again(hook)
        self._partitions = {keys.feed(p): p for p in range(partitions)}
        self.sources = [*self._partitions, self.again]

    async def open(self) -> dict[str, Id]:
        """Make the groups that are not there; returns how far each source was read."""
        client: Any = self._client
        await client.hsetnx(keys.WEBHOOKS, self._hook, " ".join(map(str, await self._newest())))
        began = (await client.hget(keys.WEBHOOKS, self._hook)).decode().split()
        for source, first in zip(self.sources, [*began, "0"], strict=True):
            try:
                await client.xgroup_create(source, self._group, first, mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
        rows = await self._client.all(("XINFO GROUPS", source) for source in self.sources)
        read_to = dict.fromkeys(self.sources, START)
        for source, groups in zip(self.sources, rows, strict=True):
            for group in groups:
                if group["name"] == self._group.encode():
                    read_to[source] = Id.parse(group["last-delivered-id"])
        return read_to

    async def _newest(self) -> list[Id]:
        """Newest entry of each partition, of its log or its feed: no clock says what came before.

        A store whose clock was ahead, and is set back, goes on with higher ids.
        """
        streams = [key(p) for p in self._partitions.values() for key in (keys.log, keys.feed)]
        there = await self._client.all(("EXISTS", stream) for stream in streams)
        present = itertools.compress(streams, there)
        described = iter(await self._client.all(("XINFO STREAM", stream) for stream in present))
        newest = [Id.parse(next(described)["last-generated-id"]) if yes else START for yes in there]
        return [max(pair) for pair in zip(newest[::2], newest[1::2], strict=True)]

    async def claim(self) -> AsyncIterator[tuple[list[Letter], int]]:
        """Take over what others read and did not acknowledge; then drop these from the groups.

        Yields letters, and how many beside them were trimmed away meanwhile.
        """
        client = cast(Any, self._client)
        taker = (self._group, self._consumer)
        for source in self.sources:
            cursor = None
            while cursor != b"0-0":
                cursor, entries, gone = await client.xautoclaim(
                    source, *taker, min_idle_time=0, start_id=cursor or "0-0", count=PAGE
                )
                yield self._letters(source, entries), len(gone)
        for source in self.sources:
            for consumer in await client.xinfo_consumers(source, self._group):
                if consumer["name"] != self._consumer.encode() and not consumer["pending"]:
                    await client.xgroup_delconsumer(source, self._group, consumer["name"])

    async def read(self, sources: Sequence[str], count: int) -> list[Letter]:
        """Read up to `count` new letters of each source, without waiting."""
        group = ("GROUP", self._group, self._consumer, "COUNT", count)
        rows = await self._client.all(
            ("XREADGROUP", *group, "STREAMS", source, ">") for source in sources
        )
        return [
            letter
            for source, row in zip(sources, rows, strict=True)
            for _, entries in row or []
            for letter in self._letters(source, entries)
        ]

    async def done(self, letters: Iterable[Letter]) -> None:
        """Acknowledge letters: delivered, or not wanted."""
        commands: list[Words] = []
        for letter in letters:
            commands.append(("XACK", letter.source, self._group, letter.id))
            if letter.source == self.again:
                commands.append(("XDEL", letter.source, letter.id))
        await self._client.all(commands)

    async def bury(
        self, letter: Letter, error: str, attempts: int, most: int
    ) -> list[tuple[str, str]]:
        """Give a delivery up: it goes to the dead ones, of which so many are kept.

        Returns those that made room for it: hook and number.
        """
        fields: dict[str, Any] = {
            "hook": self._hook,
            "number": letter.number,
            "error": error,
            "attempts": attempts,
            "e": letter.blob,
        }
        client = cast(Any, self._client)
        await client.xadd(keys.DEAD_LETTERS, fields)
        evicted: list[tuple[str, str]] = []
        while await client.xlen(keys.DEAD_LETTERS) > most:
            for id_, old in await client.xrange(keys.DEAD_LETTERS, count=1):
                # Runners of other hooks evict too: the one that deletes an entry counts it.
                if await client.xdel(keys.DEAD_LETTERS, id_):
                    evicted.append((_text(old, b"hook"), _text(old, b"number")))
        await self.done([letter])
        return evicted

    def _letters(self, source: str, entries: Iterable[Any]) -> list[Letter]:
        letters = []
        for raw_id, fields in entries:
            id_ = raw_id.decode()
            blob = fields.get(b"e", b"")
            before = before_of(raw_id, fields) or Id.parse(id_)
            number = fields.get(b"number", b"").decode(errors="backslashreplace")
            number = number or number_of(self._partitions.get(source, 0), id_)
            letters.append(Letter(source, id_, number, blob, readable(blob, number), before))
        return letters


def dead_letters(client: redis.Redis, hook: str | None = None) -> list[Dead]:
    """Return what was given up, oldest first."""
    letters = []
    for id_, fields in cast(Any, client.xrange(keys.DEAD_LETTERS)):
        of, number, error = (_text(fields, name) for name in (b"hook", b"number", b"error"))
        if hook in (None, of):
            raised = readable(fields.get(b"e", b""), number)
            attempts = fields.get(b"attempts", b"")
            tried = int(attempts) if attempts.isdigit() else 0
            letters.append(Dead(id_.decode(), of, number, error, tried, raised))
    return letters


def redeliver(client: redis.Redis, hook: str | None = None) -> int:
    """Put dead letters back for another round of attempts; returns how many events."""
    moved = 0
    for id_, fields in cast(Any, client.xrange(keys.DEAD_LETTERS)):
        of = _text(fields, b"hook")
        if hook in (None, of):
            # Added before it is removed: an interruption delivers twice, and loses nothing.
            letter = {name: fields.get(name, b"") for name in (b"e", b"number")}
            cast(Any, client).xadd(keys.webhook_again(of), letter)
            client.xdel(keys.DEAD_LETTERS, id_)
            moved += 1
    return moved


def _text(fields: dict[bytes, bytes], name: bytes) -> str:
    """Return a field for people to read, however damaged."""
    return fields.get(name, b"").decode(errors="backslashreplace")
