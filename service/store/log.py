"""The log of one partition: its worker has the lease, reads and commits; API processes append.

A worker owns a partition while its token is in the lease. It reads entries beyond the
committed offset and commits their effects together with the new offset, in one script that
checks token and offset. Whatever dies, each command takes effect once, in order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, cast
from zlib import crc32

import msgspec
import redis

from service import wire
from service.observability import metrics
from service.store import keys
from service.store.shards import (
    LOST,
    NOT_RUN,
    Argument,
    AsyncStoreClient,
    StoreClient,
    Words,
    entries_of,
    good,
    is_closed,
    read_of,
    reply_of,
    script,
    send,
)
from service.wire import FORMAT, Head, grouped

logger = logging.getLogger(__name__)
LENT_S = 1.0  # then the pool has a look at the connection, which it does for each call otherwise
WAIT_MS = 1000  # longest blocking read
LATE_S = 1.0  # after that its connection is lost
MOST_EFFECTS = 4096  # of commits that are made in one run of the script
DONE = -1  # index of an offset: the whole entry is applied
# A command is set aside after so many failures of it alone: certain ones, or workers that did not
# come back. Others may have killed those, so then it must go on for so long since the first one.
FAILURES = 3
UNCERTAIN_MS = 60_000
UNSURE_S = 60.0  # since the store answered again: later it carries out nothing sent before
# What a worker's trial of a command came to: "unknown" where it died of what may not be its fault.
Verdict = Literal["innocent", "failed", "unknown"]


class Offset(NamedTuple):
    """Commands 0..index of log entry `entry` are applied; index DONE: the whole entry.

    Each row of an ObserveMany counts as a command.
    """

    entry: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here

    def __str__(self) -> str:
        return f"{self.entry}:{self.index}"

    @classmethod
    def parse(cls, text: str | bytes) -> Offset:
        """Read the text form, such as 1690000000000-0:3."""
        entry, _, index = (text if isinstance(text, str) else text.decode()).rpartition(":")
        return cls(entry, int(index))


START = Offset("0-0", DONE)


class Lease(NamedTuple):
    """Ownership of a partition.

    `attempts`: earlier attempts at this unmoved offset; `trials`: of these, how many applied its
    first command alone and did not end well; `guilty`: whether they suffice to set it aside.
    """

    partition: int
    token: str
    epoch: int
    offset: Offset
    attempts: int
    trials: int
    guilty: bool


class Entry(NamedTuple):
    """One entry of the log."""

    id: str
    payload: bytes
    sums: bytes = b""  # see `wire.Sums`


Effect = tuple[Argument, ...]  # see `Commit`


class Pushed(NamedTuple):
    """What is written of streams of which only tail and position move, together.

    positions: of each, as they are stored. full: those whose tail a block is pushed to. tails: of
    these the blocks. Both are lists in msgpack, as of `stored_records.packed`.
    """

    streams: Sequence[str] = ()
    positions: bytes = b""
    full: Sequence[str] = ()
    tails: bytes = b""


class Commit(NamedTuple):
    """What one partition commits at once.

    An effect is (HSET, key, field, value...), (HDEL, key, field...), (RPUSH, key, element...),
    (ZADD, key, score, member...), (ZREM, key, member...), (UNLINK, key),
    (DROP, tail, position), (CUT, tail, position): its first elements with rows before a position
    alone, or its last ones with rows from there on alone,
    (FEED, key, most entries, id, entry...) or
    (ANSWER, key, ms to keep, oldest id to keep, id, results...), both with rising ids.
    `new` may equal `expected`: effects without progress. No effect but DROP is on a tail of
    `pushed`.
    """

    partition: int
    token: str
    expected: Offset
    new: Offset
    done: int  # observations finished
    effects: list[Effect]
    pushed: Pushed = Pushed()


def due_effect(partition: int, name: str, head: Head) -> Effect:
    """Effect that keeps a stream's place in the list of those that expire, if it does.

    One that does no more is taken out when it seems to be due.
    """
    ttl = head.settings.ttl
    if ttl is None:
        return ("ZREM", keys.due(partition), name)
    return ("ZADD", keys.due(partition), head.updated_ms + int(1000 * ttl), name)


class Log:
    """Leases, reads and commits of one worker. A lost connection raises: reacquire then."""

    def __init__(self, client: StoreClient, worker_id: str, ttl_ms: int, partitions: int) -> None:
        if "/" in worker_id:
            raise ValueError(f"expected a worker id without '/', got {worker_id!r}")
        self.client = client
        self.worker_id = worker_id
        self.ttl_ms = ttl_ms
        self.partitions = partitions
        self.rollbacks = 0  # logs found to end below their offset, and repaired
        self.ahead_ms = 0.0  # the store's clock ahead of our monotonic one, at the heartbeat
        self._owed: dict[int, tuple[Lease, Verdict]] = {}  # ours no longer, and not yet given back
        # Tokens of acquisitions without an answer, by partition, and when to forget each: the store
        # may still carry one out, as a server does that was stopped, or a network that was cut,
        # once it comes to what a closed connection had sent.
        self._unsure: dict[int, dict[str, float]] = {}
        self.declined: set[int] = set()  # partitions of another format, or damaged
        self._partitions = {keys.log(p): p for p in range(partitions)}
        self._lines = Lines(client)

    def acquire(self, partition: int, blame: bool = True) -> Lease | None:
        """Take a partition's lease, or None when someone holds it, or it is of another format.

        With `blame` it counts as an attempt at the offset if anything waits there. Pass False
        after a fault that no command can be guilty of, such as a lost connection.
        """
        if partition in self.declined:
            return None
        self.give_back()
        token = f"{self.worker_id}/{secrets.token_hex(16)}"
        bounds = (FAILURES, UNCERTAIN_MS)
        arguments: list[Argument] = [token, self.ttl_ms, int(blame), FORMAT, *bounds]
        unsure = self._unsure.setdefault(partition, {})
        unsure[token] = float("inf")
        answer = self.client.execute_command(*script("acquire", _keys(partition), arguments))
        del unsure[token]
        if answer is None:
            return None
        unsure.clear()  # while this lease lasts, no other comes to be
        if len(answer) == 1:
            why = f"it has format {answer[0]}, expected {FORMAT}"
            if answer == [-1]:
                why = "its offset is damaged"
            logger.error("not taking partition %d: %s", partition, why)
            self.declined.add(partition)
            return None
        epoch, offset, attempts, rolled_back, trials, guilty = answer
        self.rollbacks += rolled_back
        metrics.LOG_ROLLBACKS.inc(rolled_back)
        at = Offset.parse(offset)
        return Lease(partition, token, epoch, at, attempts, trials, bool(guilty))

    def renew(self, leases: Iterable[Lease]) -> list[bool]:
        """Prolong each lease; False for one that is ours no more."""
        results = self.client.all(
            script("renew", [keys.lease(at.partition)], [at.token, self.ttl_ms]) for at in leases
        )
        return [result == 1 for result in results]

    def begin_trial(self, lease: Lease, entry: str, index: int) -> bool:
        """Name the command that is applied alone next, lest it ends this process.

        False if the lease is lost. A commit ends the trial, and so does giving the lease back.
        """
        names = _keys(lease.partition)[:2]
        command = script("trial", names, [lease.token, f"{entry}:{index}"])
        return bool(self.client.execute_command(*command) == 1)

    def release(self, lease: Lease, clean: bool = True, verdict: Verdict = "innocent") -> bool:
        """Give a lease back; False if it was lost before. `clean` forgets the attempts.

        verdict: on the command that is applied alone under this lease, if any.
        """
        return self._release_tokens([(lease.partition, lease.token, verdict)], clean) == [1]

    def give_up(self, leases: Iterable[Lease], verdict: Verdict = "innocent") -> None:
        """Give leases back after a failure, now or, while the store is away, by `give_back`."""
        given = {lease.partition: (lease, verdict) for lease in leases}
        self._owed.update(given)
        try:
            self.give_back()
        except redis.RedisError as error:
            if given:
                logger.info("leases are released later, or expire: %s", error)

    def give_back(self) -> None:
        """Release what failures left: leases given up, and acquisitions without an answer.

        Nobody else can take these partitions until then, whether this worker wants them or not.
        """
        unsure = [(p, token) for p, tokens in self._unsure.items() for token in tokens]
        held = [(p, lease.token, how) for p, (lease, how) in self._owed.items()]
        released = self._release_tokens(
            [*held, *((p, token, "innocent") for p, token in unsure)], clean=False
        )
        self._owed.clear()
        now = time.monotonic()
        for (p, token), came in zip(unsure, released[len(held) :], strict=True):
            forget = min(self._unsure[p][token], now + UNSURE_S)
            if came or now > forget:
                del self._unsure[p][token]
            else:
                self._unsure[p][token] = forget

    def release_worker(self, worker_id: str, verdict: Verdict = "unknown") -> int:
        """Drop every lease of a dead worker and return how many; its attempts stay counted.

        verdict: "failed" where it died by its own doing; so did its trials whose lease has ended.
        """
        every = range(self.partitions)
        found = self.client.all(
            command
            for p in every
            for command in (("GET", keys.lease(p)), ("HGET", keys.meta(p), "tries"))
        )
        held = [
            (p, token, verdict)
            for p, lease, tries in zip(every, found[::2], found[1::2], strict=True)
            for token in {(lease or b"").decode(), *_tried(tries)}
            if token.startswith(f"{worker_id}/")
        ]
        return sum(self._release_tokens(held, clean=False))

    def begin_read(self, positions: Mapping[int, Offset], count: int, wait: bool) -> None:
        """Begin to read up to `count` entries per partition beyond each position, and no others.

        Commits that were begun go out with it, and are carried out before. wait: where there are
        none it goes on until the first comes; it is the same read if it is begun again meanwhile.
        """
        reads: dict[int, Read] = {}
        group_of = self.client.shards.group_of
        for p, at in positions.items():
            name = _keys(p)[2]
            read = reads.setdefault(group_of(name), Read({}, count, WAIT_MS if wait else 0))
            read.after[name] = at.entry if at.index == DONE else _before(at)
        self._lines.begin(reads)

    def end_read(self, timeout_ms: int) -> dict[int, list[Entry]]:
        """Return what the read that was begun came to, by partition; nothing: it goes on.

        An entry that is applied in part comes first and whole: skip up to the offset's index.
        """
        return {
            self._partitions[name]: [
                Entry(id_.decode(), fields.get(b"b", b""), fields.get(b"c", b""))
                for id_, fields in entries
            ]
            for name, entries in entries_of(self._lines.received(timeout_ms))
        }

    def read(
        self, positions: Mapping[int, Offset], count: int, block_ms: int
    ) -> dict[int, list[Entry]]:
        """Read entries as `begin_read` and `end_read` do, waiting so long for the first."""
        self.begin_read(positions, count, block_ms > 0)
        return self.end_read(block_ms)

    def commit(self, commits: Sequence[Commit]) -> list[str]:
        """Commit each partition on its own: OK, ALREADY (done before), FENCED (not ours).

        A commit that can never succeed (wrong type, malformed effect) answers "INVALID: why"
        and writes nothing. Other errors raise: what came of the partitions is not known then.
        """
        return self.begin_commit(commits)()

    def begin_commit(self, commits: Sequence[Commit]) -> Callable[[], list[str]]:
        """Begin to commit; the returned function waits for the results, as `commit` does.

        They go out with the next read, which is answered after them, or when they are waited for.
        """
        groups = self._groups(commits)
        replies = [
            self._lines.put(line, _command_of([commits[i] for i in places]))
            for line, places in groups
        ]

        def results() -> list[str]:
            self._lines.flush()
            answers = good([reply.value for reply in replies])
            if None in answers:
                raise redis.ConnectionError("the connection was lost before commits were answered")
            places = chain.from_iterable(places for _, places in groups)
            by_place = zip(places, chain.from_iterable(answers), strict=True)
            return [result.decode() for _, result in sorted(by_place)]

        return results

    def _groups(self, commits: Sequence[Commit]) -> list[tuple[int, list[int]]]:
        """Places of commits that go together, not too many at a time, and where they go."""
        by_group: dict[int, list[int]] = {}
        for place, commit in enumerate(commits):
            group = self.client.shards.group_of(_keys(commit.partition)[0])
            by_group.setdefault(group, []).append(place)

        def size(place: int) -> int:
            commit = commits[place]
            return 1 + len(commit.effects) + len(commit.pushed.streams)

        return [
            (group, part)
            for group, places in by_group.items()
            for part in grouped(places, size, MOST_EFFECTS)
        ]

    def close(self) -> None:
        """Close the connections for reads and commits."""
        self._lines.close()

    def heartbeat(self) -> list[str]:
        """Say that this worker lives for as long as a lease; return the ids of all that live.

        One that declined a partition does not say so: the others have to make room for all.
        """
        seconds, micros = self.client.time()
        now_ms = seconds * 1000 + micros // 1000
        self.ahead_ms = now_ms - time.monotonic() * 1000  # which is never stepped
        mine: Words = ("ZADD", keys.WORKERS, now_ms + self.ttl_ms, self.worker_id)
        if self.declined:
            mine = ("ZREM", keys.WORKERS, self.worker_id)
        ended = ("ZREMRANGEBYSCORE", keys.WORKERS, "-inf", now_ms)
        _, _, living = self.client.atomic([mine, ended, ("ZRANGE", keys.WORKERS, 0, -1)])
        return sorted({self.worker_id, *(worker.decode() for worker in living)})

    def leave(self) -> None:
        """Stop being counted among the living workers."""
        self.client.zrem(keys.WORKERS, self.worker_id)

    def _release_tokens(self, held: Sequence[tuple[int, str, Verdict]], clean: bool) -> list[int]:
        released: list[int] = self.client.all(
            script("release", _keys(p)[:2], [token, int(clean), verdict])
            for p, token, verdict in held
        )
        return released


@cache
def _keys(partition: int) -> tuple[str, str, str]:
    return keys.lease(partition), keys.meta(partition), keys.log(partition)


def _tried(tries: bytes | None) -> Iterable[str]:
    """Tokens of trials; damaged ones count for nothing, as in the scripts."""
    try:
        found = msgspec.json.decode(tries or b"{}", type=dict[str, float])
    except msgspec.MsgspecError:
        return ()
    return found.keys()


def _before(offset: Offset) -> str:
    """Return the id after which XREAD finds the entry of an offset."""
    ms, seq = (int(part) for part in offset.entry.split("-"))
    return f"{ms}-{seq - 1}" if seq else f"{ms - 1}-{2**64 - 1}"


def _command_of(commits: Sequence[Commit]) -> Words:
    """Return the run of the script that makes commits; see it for the order."""
    names: list[str] = []
    arguments: list[Argument] = []
    for commit in commits:
        p = commit.partition
        tag = f"{{{p}}}"
        streams, positions, full, tails = commit.pushed
        begin = len(arguments)
        arguments += (0, 0, commit.token, str(commit.expected), str(commit.new), commit.done)
        arguments += (len(full), tails, wire.encode(streams), positions)
        tail = keys.tail(p, "")
        tails_of = [tail + stream for stream in full]
        number = {keys.heads(p): 1}
        for operation, key, *others in commit.effects:
            if type(key) is not str or tag not in key:
                raise ValueError(f"an effect of partition {p} on key {key!r}")
            at = number.setdefault(key, len(tails_of) + len(number) + 1)
            arguments += (operation, at, len(others), *others)
        arguments[begin] = 3 + len(tails_of) + len(number)
        arguments[begin + 1] = len(arguments) - begin - 2
        written = {key for operation, key, *_ in commit.effects if operation != "DROP"}
        if not written.isdisjoint(tails_of):
            raise ValueError(f"an effect of partition {p} on a tail that an element is pushed to")
        heads, *more = number
        names += (*_keys(p), heads, *tails_of, *more)
    return script("commit", names, arguments)


# --- appends of an API process --------------------------------------------------------------------

REMEMBER_MS = 3_600_000
MAX_ENTRY_BYTES = 262_144  # of a log entry; a worker reads 64 of a partition at a time, 16 MiB


class Appended(NamedTuple):
    """Where a batch went (`entry` None: refused, full) and how many observations wait.

    Below 0: the record of what was appended is damaged, and it is not known whether this was.
    """

    entry: str | None
    waiting: int


class Queued(Protocol):
    """A command that is to be appended: encoded envelope, and what it counts for."""

    number: int
    units: int
    payload: bytes
    rows: int


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
        self._client = AsyncPipe(client)
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


# --- connections that are kept --------------------------------------------------------------------


class AsyncPipe(AsyncStoreClient):
    """Runs commands one after the other, over connections that it keeps.

    To have one from the pool, and to give it back, takes as long as most commands do.
    """

    def __init__(self, client: AsyncStoreClient) -> None:
        super().__init__(client.shards)
        self._kept: dict[Any, Any] = {}  # a connection of each pool
        self._until_s: dict[Any, float] = {}  # then the pool has a look at it

    async def _lend(self, pool: Any) -> Any:
        kept = self._kept.pop(pool, None)
        if kept is not None:
            if time.monotonic() < self._until_s[pool] and not is_closed(kept):
                return kept
            await pool.release(kept)
        self._until_s[pool] = time.monotonic() + LENT_S
        return await pool.get_connection()

    async def _take_back(self, pool: Any, connection: Any) -> None:
        if connection.is_connected and pool not in self._kept:
            self._kept[pool] = connection
        else:
            await pool.release(connection)


class Read(NamedTuple):
    """Entries after each of several ids, so many of each; block_ms: it waits so long for one."""

    after: dict[str, str]
    count: int  # type: ignore[assignment]
    block_ms: int


@dataclass(slots=True, eq=False)
class Reply:
    """What a command is answered, an error of the server as well; None: nothing came yet."""

    words: Words
    value: Any = None


@dataclass(slots=True, eq=False)
class Line:
    """A connection with the replies, then the entries, that a server still has to send."""

    pool: Any
    connection: Any
    until_s: float  # then the pool has a look at it
    owed: list[Reply] = field(default_factory=list)
    read: Read | None = None
    began_s: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether its read may go on for long."""
        return self.read is not None and self.read.block_ms > 0


class Lines:
    """Commands and reads of one worker, over a connection for each group of keys. Not thread-safe.

    Commands wait for the next read, and go out as one message with it. A blocking read outlasts
    the calls that wait for it; nothing else goes over its connection meanwhile. Redis before 7.2
    answers it with entries of one key alone, and the next read with the others. A connection that
    is lost raises, and takes all replies with it that were to come.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._open: dict[int, Line] = {}  # by what `Shards.group_of` says
        self._unsent: dict[int, list[Reply]] = {}

    def put(self, group: int, words: Words) -> Reply:
        """Have a command go out before the group's next read, or with `flush`."""
        reply = Reply(words)
        self._unsent.setdefault(group, []).append(reply)
        return reply

    def begin(self, reads: Mapping[int, Read]) -> None:
        """Have these reads of groups under way, and no others."""
        now = time.monotonic()
        try:
            for group in self._open.keys() - reads.keys():
                self._drop(group)
            for group, read in reads.items():
                line = self._open.get(group)
                if line is not None and line.read == read and read.block_ms:
                    continue
                words = read_of(read.after, read.count, read.block_ms)
                line = self._free(group, self._client.shards.pool_of(words), now)
                replies = self._unsent.pop(group, [])
                send(line.connection, [*[reply.words for reply in replies], words])
                line.owed += replies
                line.read = read
                line.began_s = now
        except BaseException as error:
            self._lose(error)
            raise

    def flush(self) -> None:
        """Have the reply to every command."""
        again: list[Reply] = []
        try:
            for line in self._open.values():
                for reply in line.owed:
                    reply.value = reply_of(line.connection)
                again += [reply for reply in line.owed if isinstance(reply.value, NOT_RUN)]
                line.owed = []
        except BaseException as error:
            self._lose(error)
            raise
        again += chain.from_iterable(self._unsent.values())
        self._unsent = {}
        if again:
            values = self._client.run(reply.words for reply in again)
            for reply, value in zip(again, values, strict=True):
                reply.value = value

    def received(self, timeout_ms: int) -> list[Any]:
        """Return what reads are answered until then; of one that blocks there may be no answer."""
        self.flush()
        answers = []
        try:
            for line in self._answered(timeout_ms):
                answer = reply_of(line.connection)
                assert line.read is not None
                if isinstance(answer, Exception):  # moved, or not a master any more
                    again = read_of(line.read.after, line.read.count)
                    (answer,) = self._client.run([again])
                line.read = None
                answers.append(answer)
            late_s = time.monotonic() - WAIT_MS / 1000 - LATE_S
            if any(line.read and line.began_s < late_s for line in self._open.values()):
                raise redis.TimeoutError("no answer to a blocking read")
        except BaseException as error:
            self._lose(error)
            raise
        return answers

    def close(self) -> None:
        """Close the connections: replies that nobody waits for may be on their way."""
        self._unsent = {}
        for group in list(self._open):
            self._drop(group)

    def _answered(self, timeout_ms: int) -> list[Line]:
        """Lines over which a read is answered, or will be at once."""
        reading = [line for line in self._open.values() if line.read is not None]
        ready = [line for line in reading if not line.waits or line.connection.can_read(0)]
        if ready or not timeout_ms:
            return ready
        poller = select.poll()
        by_descriptor = {line.connection._sock.fileno(): line for line in reading}
        for descriptor in by_descriptor:
            poller.register(descriptor, select.POLLIN)
        return [by_descriptor[descriptor] for descriptor, _ in poller.poll(timeout_ms)]

    def _free(self, group: int, pool: Any, now: float) -> Line:
        """A group's line to a pool, over which nothing is under way."""
        line = self._open.get(group)
        if line is not None and (
            line.read is not None or line.owed or line.pool is not pool or now > line.until_s
        ):
            self._drop(group)
            line = None
        if line is None:
            line = self._open[group] = Line(pool, pool.get_connection(), now + LENT_S)
        return line

    def _drop(self, group: int) -> None:
        line = self._open.pop(group)
        if line.read is not None or line.owed:  # nobody waits for what is on its way
            line.connection.disconnect()
        line.pool.release(line.connection)

    def _lose(self, error: BaseException) -> None:
        """Close every connection: where one is lost, the others went the same way."""
        for line in self._open.values():
            line.connection.disconnect()
        self.close()
        if isinstance(error, LOST):
            self._client.look_again()
