"""The log as the API sees it: append a batch, once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec

from service import wire
from service.store import keys
from service.store.shards import Argument, AsyncStoreClient, Words, script

REMEMBER_MS = 3_600_000
MAX_ENTRY_BYTES = 262_144  # of a log entry; a worker reads 64 of a partition at a time, 16 MiB


class Appended(NamedTuple):
    """Where a batch went (`entry` None: refused, full) and how many observations wait.

    Below 0: the record of what was appended is damaged, and it is not known whether this was.
    """

    entry: str | None
    waiting: int


class Queued(msgspec.Struct, gc=False):
    """A command that is to be appended: encoded envelope, and what it counts for."""

    number: int
    units: int
    payload: bytes
    rows: int = 1


def entry_of(partition: int, incarnation: str, commands: Sequence[Queued]) -> tuple[bytes, bytes]:
    """Return the payload of a log entry and its checksums."""
    raw = cast(Any, [msgspec.Raw(command.payload) for command in commands])
    payload = wire.encode(wire.LogEntry(incarnation, raw))
    sums = [
        wire.CommandSum(each.number, each.units, each.rows, len(each.payload), crc32(each.payload))
        for each in commands
    ]
    start = len(payload) - sum(each.length for each in sums)
    encoded = wire.encode(wire.Sums(incarnation, start, sums))
    return payload, wire.checksummed(encoded, "entry", partition)


class Trial(NamedTuple):
    """An append that is asked for: names of its partition's keys, and arguments of the script."""

    names: list[str]
    arguments: list[Argument]
    future: asyncio.Future[Appended]


class Appender:
    """Appends of one API process. One append per partition may be in flight.

    Appends of different partitions that are asked for while others are under way go together, by
    one run of the script where one server has them: most of an append's cost is that of a round
    trip. For the same reason a partition's commands are taken as late as can be, by `before_next`.
    """

    def __init__(self, client: AsyncStoreClient, incarnation: str, max_pending: int) -> None:
        self._client = client
        self.incarnation = incarnation
        self._max_pending = max_pending
        self._names: dict[int, list[str]] = {}  # of the keys of a partition
        self._takers: deque[Callable[[], None]] = deque()
        self._waiting: dict[str, Trial] = {}  # by the first of its names
        # Owns the connection; no caller that gives up ever cancels it.
        self._task: asyncio.Task[None] | None = None

    def before_next(self, take: Callable[[], None]) -> None:
        """Call a function right before the next appends go out, what it appends with them."""
        self._takers.append(take)
        self._begin()

    def append(
        self,
        partition: int,
        batch_no: int,
        count: int,
        payload: bytes,
        sums: bytes = b"",
        repeated: bool = False,
    ) -> asyncio.Future[Appended]:
        """Append a batch of `count` observations as one entry, with its checksums.

        A RedisError or a cancellation leaves the outcome unknown: repeat with the same number
        and payload before any higher number. A number seen before answers its first entry.
        """
        names = self._names.get(partition)
        if names is None:
            own = keys.append(partition, self.incarnation)
            names = self._names[partition] = [own, keys.meta(partition), keys.log(partition)]
        arguments: list[Argument] = [batch_no, count, payload, sums, int(repeated)]
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting[names[0]] = Trial(names, arguments, future)
        self._begin()
        return future

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._takers or self._waiting:
                while self._takers:
                    self._takers.popleft()()
                taken = self._waiting
                self._waiting = {}
                if taken:  # else every request was cancelled
                    await self._send(taken)
        finally:
            self._task = None
            if self._takers or self._waiting:  # a defect of one partition is none of the others
                self._begin()

    async def _send(self, taken: dict[str, Trial]) -> None:
        groups = [[taken[name] for name in names] for names in self._client.shards.groups(taken)]
        results: Sequence[Any]
        try:
            results = await self._client.run([self._command_of(trials) for trials in groups])
        except Exception as error:  # noqa: BLE001, also a defect: the requests that wait get an error
            results = [error] * len(groups)
        for trials, result in zip(groups, results, strict=True):
            answers = [result] * len(trials) if isinstance(result, Exception) else result
            for trial, answer in zip(trials, answers, strict=True):
                if trial.future.done():
                    continue
                if isinstance(answer, Exception):
                    trial.future.set_exception(answer)
                else:
                    entry, waiting = answer
                    entry = None if entry is None else entry.decode()
                    trial.future.set_result(Appended(entry, waiting))

    def _command_of(self, trials: Sequence[Trial]) -> Words:
        names = [name for trial in trials for name in trial.names]
        arguments: list[Argument] = [self._max_pending, REMEMBER_MS]
        for trial in trials:
            arguments += trial.arguments
        return script("append", names, arguments)
