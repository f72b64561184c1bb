"""The servers of a store: which of them has a key, and commands and scripts sent there.

A store is a list of shards. One server is one shard, and so is the master that sentinels name; each
master of a cluster is one, and all keys of a partition are at one of them.

The library's client of a cluster is not used: its pipelines send a command again whose reply was
cut, its XREAD asks the server where the keys are, and when it looks where the slots are it closes
connections that others are waiting on. Here a command is sent again only when a server says that
it did not run it, and nobody closes a connection that is lent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import redis
import redis.asyncio
from hiredis import pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    MovedError,
    NoScriptError,
    ResponseError,
    TryAgainError,
)
from redis.sentinel import SentinelConnectionPool as SentinelPool

from service.store import keys

SLOTS = 16_384
REDIRECTIONS = 16  # of one command: more means a redirect loop
AGAIN_PAUSE_S = 0.05  # before a command whose keys are on their way between servers
PART = 32_768  # bytes sent at once
LONG = 1024  # bytes of a value that is sent as it is
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
NOT_RUN = (NoScriptError, MovedError, AskError, TryAgainError)  # a server says of a command
UNREACHABLE = (redis.RedisError, OSError)  # what may go wrong with a store, a timeout as well
EVERYWHERE = ("CLIENT", "CONFIG", "FLUSHALL", "SCRIPT")  # without a key, and for each shard

T = TypeVar("T")
P = ParamSpec("P")
Words = Sequence[Any]  # a command
Argument = str | bytes | int | float  # of a script


class Sending(NamedTuple):
    """A command on its way: its number among all that were asked for, and where it goes."""

    number: int
    words: Words
    pool: Any
    asking: bool = False  # whether the server is to take it this once, as another one said


class Shards:
    """A pool of connections for each shard. This store has one: a server or a sentinels' master."""

    def __init__(self, pool: Any) -> None:
        self.pools = [pool]  # of servers that have keys
        self.servers = self.pools  # of all, the likeliest to answer first

    def pool_of(self, words: Words) -> Any:
        """Return the pool for a command; ConnectionError where no server has its key."""
        return self.pools[0]

    def group_of(self, name: str) -> int:
        """Return the group that a key is in; one command may name those of a group."""
        return 0

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Divide keys into groups."""
        groups: dict[int, list[str]] = {}
        for name in names:
            groups.setdefault(self.group_of(name), []).append(name)
        return list(groups.values())

    def redirected(self, index: int, words: Words, reply: Any) -> Sending | None:
        """Return how to send a command again; None: the reply is its result."""
        return None


class ClusterShards(Shards):
    """The masters of a cluster. make: makes the pool of a server."""

    def __init__(self, make: Callable[[str, int], Any], places: Sequence[tuple[str, int]]) -> None:
        self._make = make
        self._by_place: dict[tuple[str, int], Any] = {}  # never closed: a replica may take over
        self._slots: list[Any] = []  # pool of each
        self.pools = []
        self.servers = []  # all that were ever named
        for host, port in places:
            self._at(host, port)

    def pool_of(self, words: Words) -> Any:
        """Return the pool of the master that has a command's key."""
        pool = self._slots[slot_of(key_of(words))] if self._slots else None
        if pool is None:
            raise redis.ConnectionError("no server of the cluster has the slot")
        return pool

    def group_of(self, name: str) -> int:
        """Return the slot of a key."""
        return slot_of(name)

    def redirected(self, index: int, words: Words, reply: Any) -> Sending | None:
        """Follow MOVED, ASK and TRYAGAIN."""
        if isinstance(reply, MovedError):
            pool = self._at(reply.host, reply.port)
            self._slots[reply.slot_id] = pool
            self.servers.remove(pool)
            self.servers.insert(0, pool)  # it knows of all that moved together
            return Sending(index, words, pool)
        if isinstance(reply, AskError):
            return Sending(index, words, self._at(reply.host, reply.port), asking=True)
        if isinstance(reply, TryAgainError):
            return Sending(index, words, self.pool_of(words))
        return None

    def learn(self, pool: Any, slots: Sequence[Any]) -> None:
        """Note which master has which slots, of what a server answered to CLUSTER SLOTS."""
        # A server may name itself by its port alone.
        source = next(place for place, other in self._by_place.items() if other is pool)
        by_slot: list[Any] = [None] * SLOTS
        for first, last, *servers in slots:
            at = [self._at(host.decode() or source[0], port) for host, port, *_ in servers]
            by_slot[first : last + 1] = [at[0]] * (last + 1 - first)
        self._slots = by_slot
        self.pools = list(dict.fromkeys(pool for pool in by_slot if pool is not None))

    def distrust(self, pool: Any) -> None:
        """Ask a server last from now on: it did not answer."""
        self.servers.remove(pool)
        self.servers.append(pool)

    def _at(self, host: str, port: int) -> Any:
        pool = self._by_place.get((host, port))
        if pool is None:
            pool = self._make(host, port)
            self._by_place[host, port] = pool
            self.servers.append(pool)
        return pool


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key."""
    return int(key_slot(key if isinstance(key, bytes) else key.encode()))


def key_of(words: Words) -> str | bytes:
    """Return the key that decides where a command goes.

    One without a key goes where the workers' names are: for all who ask its clock is the same.
    """
    name = words[0]
    if name in ("EVALSHA", "EVAL"):
        return cast("str | bytes", words[3])
    if name in ("XREAD", "XREADGROUP"):
        return cast("str | bytes", words[words.index("STREAMS") + 1])
    return words[1] if len(words) > 1 else keys.WORKERS


def read_of(after: Mapping[str, str], count: int, block_ms: int = 0) -> Words:
    """Return the XREAD of keys that one command may name."""
    wait = ("BLOCK", block_ms) if block_ms else ()  # BLOCK 0 is for ever
    return ("XREAD", "COUNT", count, *wait, "STREAMS", *after, *after.values())


def entries_of(replies: Iterable[Any]) -> list[tuple[str, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Return what several XREADs answered, by key; raises an error among the answers."""
    entries_by_key = []
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
        for name, entries in reply or ():
            entries_by_key.append((name.decode(), [(id_, _pairs(flat)) for id_, flat in entries]))
    return entries_by_key


def _pairs(flat: Sequence[bytes] | None) -> dict[bytes, bytes]:
    pairs = iter(flat or ())
    return dict(zip(pairs, pairs, strict=True))


# --- connections ---------------------------------------------------------------------------------


class _Forgetful:
    """A pool that closes what lies idle when a connection is lost: it went the same way."""

    def release(self, connection: Any) -> None:
        lost = not connection.is_connected
        pool = cast(Any, super())
        pool.release(connection)
        if lost:
            pool.disconnect(inuse_connections=False)


class _AsyncForgetful:
    """The same for asyncio."""

    connection_class: type[Any]
    _available_connections: list[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_class = _closing(cast(Any, self.connection_class))

    async def ensure_connection(self, connection: Any) -> None:
        # What was closed meanwhile is made anew here: a command over it would be lost.
        if connection.is_connected and is_closed(connection):
            await connection.disconnect(nowait=True)
        await cast(Any, super()).ensure_connection(connection)

    async def release(self, connection: Any) -> None:
        lost = not connection.is_connected
        await cast(Any, super()).release(connection)
        if lost:
            # Taken out first: nobody else gets one while it is being closed.
            idle = self._available_connections
            self._available_connections = []
            for lost_too in idle:
                await lost_too.disconnect(nowait=True)


def is_closed(connection: Any) -> bool:
    """Whether a connection of asyncio is closed, here, by the kernel or by the server."""
    if not connection.is_connected:
        return True
    return bool(connection._writer.is_closing() or connection._reader.at_eof())


@functools.cache
def _closing(kind: type[Any]) -> type[Any]:
    """Return a kind of asyncio connection that raises a redis error wherever it is closed.

    Where the kernel has closed what is written to, uvloop raises a RuntimeError, even while the
    library is still greeting the server.
    """

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        limit_s = self.socket_timeout
        if self.is_connected and not self._writer.transport.get_write_buffer_size():
            # A part fits the buffer: the task with a timeout that the library makes would wait for
            # nothing.
            self.socket_timeout = None
        try:
            await kind.send_packed_command(self, command, check_health)
        except RuntimeError as error:
            raise redis.ConnectionError(f"the connection is closed: {error}") from error
        finally:
            self.socket_timeout = limit_s

    return type(kind.__name__, (kind,), {"send_packed_command": send_packed_command})


class ServerPool(_Forgetful, redis.ConnectionPool):
    """Connections to one server."""

    secure = redis.SSLConnection


class MasterPool(_Forgetful, SentinelPool):
    """Connections to the master that sentinels name."""

    def close(self) -> None:
        """Close the connections to the sentinels, too."""
        cast(Any, super()).close()
        for sentinel in cast(Any, self).sentinel_manager.sentinels:
            sentinel.close()


class AsyncServerPool(_AsyncForgetful, redis.asyncio.ConnectionPool):
    """Connections to one server."""

    secure = redis.asyncio.SSLConnection


class AsyncMasterPool(_AsyncForgetful, AsyncSentinelPool):
    """Connections to the master that sentinels name."""

    async def aclose(self) -> None:
        """Close the connections to the sentinels, too."""
        await super().aclose()
        for sentinel in cast(Any, self).sentinel_manager.sentinels:
            await sentinel.aclose()


# Each part that is sent has the connection's timeout for itself, and so has each reply: a slow link
# may take long over many bytes.


def send(connection: Any, commands: Iterable[Words]) -> None:
    """Send commands."""
    for part in _parts(commands):
        connection.send_packed_command([part])


def reply_of(connection: Any) -> Any:
    """Read one reply; an error of the server is a reply as well.

    Any other error leaves the connection to be closed.
    """
    try:
        return connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error


async def send_async(connection: Any, commands: Iterable[Words]) -> None:
    """Send commands."""
    for part in _parts(commands):
        await connection.send_packed_command([part])


async def reply_of_async(connection: Any, limit_s: float) -> Any:
    """Read one reply, as `reply_of` does; redis.TimeoutError after `limit_s`.

    By the library's parser, but without its layers and a cancellation at the limit: these take
    several times as long as the reading.
    """
    parser = connection._parser
    reply = parser._reader.gets()
    if reply is NOT_ENOUGH_DATA:
        stream = parser._stream
        timer = asyncio.get_running_loop().call_later(limit_s, _end_wait, stream, limit_s)
        try:
            while reply is NOT_ENOUGH_DATA:
                await parser.read_from_socket()
                reply = parser._reader.gets()
        except OSError as error:
            raise redis.ConnectionError(f"the connection is lost: {error}") from error
        finally:
            timer.cancel()
            if isinstance(stream.exception(), redis.TimeoutError):
                stream._exception = None  # what comes later may be waited for again
    if isinstance(reply, redis.ConnectionError):  # such as that of a server that is loading
        raise reply
    return reply


def _end_wait(stream: Any, limit_s: float) -> None:
    """End the wait of who reads a stream, unless its connection is lost already."""
    if stream.exception() is None:
        stream.set_exception(redis.TimeoutError(f"no answer within {limit_s:g} s"))


def _parts(commands: Iterable[Words]) -> Iterator[memoryview]:
    # The asyncio connection of the library packs in Python, at several times the cost.
    sent = memoryview(b"".join([*chain.from_iterable(map(_pieces, commands))]))
    for at in range(0, len(sent), PART):
        yield sent[at : at + PART]


def _pieces(words: Words) -> list[bytes]:
    """A command as it is sent, but for long values in pieces that the library packs.

    It takes as long over a long value as over thousands of names.
    """
    words = tuple(words)
    long = [i for i, word in enumerate(words) if type(word) is bytes and len(word) > LONG]
    if not long:
        return [pack_command(words)]
    pieces = [b"*%d\r\n" % len(words)]
    start = 0
    for end in (*long, len(words)):
        packed = pack_command(words[start:end])
        pieces.append(packed[packed.index(b"\n") + 1 :])
        for value in words[end : end + 1]:
            pieces += (b"$%d\r\n" % len(value), value, b"\r\n")
        start = end + 1
    return pieces


def _packed(part: Sequence[Sending]) -> list[Words]:
    """Return what goes over one connection, ASKING before what needs it."""
    commands: list[Words] = []
    for sending in part:
        if sending.asking:
            commands.append(("ASKING",))
        commands.append(sending.words)
    return commands


# --- clients -------------------------------------------------------------------------------------


class _Client:
    """What both clients do alike. Neither repeats a command that may have been run.

    It is written once, as coroutines; those of the blocking client wait for nothing that does not
    block, so that they are through at once: see `_at_once`. _exchange: sends commands and enters
    what is answered, a lost connection as well. _pause: waits while keys are between two servers.
    """

    shards: Shards
    response_callbacks: Any
    _exchange: Callable[..., Awaitable[None]]
    _pause: Callable[[], Awaitable[None]]

    async def _run(self, commands: Iterable[Words]) -> list[Any]:
        """Run commands, each shard's in one round trip; an error is that command's result.

        So is a lost connection, of all commands that were sent over it: their outcome is unknown.
        """
        asked = list(commands)
        replies: list[Any] = [None] * len(asked)
        await self._exchange(await self._placed(asked), replies)
        for attempt in range(REDIRECTIONS):
            again = self._again(asked, replies)
            if not again:
                break
            if attempt:
                await self._pause()
            await self._exchange(again, replies)
            if not all(sending.asking for sending in again):
                await self._look_again()
        if any(isinstance(reply, LOST) for reply in replies):
            await self._look_again()
        return replies

    async def _atomic(self, commands: Iterable[Words], errors: bool = False) -> list[Any]:
        """Run commands of one slot in a transaction, and return what `all` would.

        errors: whether the error of a command is its result.
        """
        listed = list(commands)
        sent: list[Words] = [("MULTI",), *listed, ("EXEC",)]
        replies: list[Any] = [None] * len(sent)
        for attempt in range(REDIRECTIONS):
            pool = (await self._placed(listed[:1]))[0].pool
            sendings = [Sending(i, words, pool) for i, words in enumerate(sent)]
            await self._exchange(sendings, replies)
            # Redirected when it was queued: none of it was run. MOVED is an AskError as well.
            if not any(isinstance(reply, (*LOST, AskError, TryAgainError)) for reply in replies):
                break
            await self._look_again()
            _answered(replies)
            if attempt:
                await self._pause()
        else:
            raise redis.ConnectionError("the keys of a transaction are between two servers")
        results: list[Any] = good(replies)[-1]
        if not errors:
            good(results)
        return [
            result if isinstance(result, Exception) else self.parsed(words, result)
            for words, result in zip(listed, results, strict=True)
        ]

    async def _everywhere(self, *words: Any) -> list[Any]:
        """Run a command without a key at each shard; raises an error among the answers."""
        await self._prepare()
        pools = self.shards.pools
        replies: list[Any] = [None] * len(pools)
        await self._exchange([Sending(i, words, pool) for i, pool in enumerate(pools)], replies)
        if any(isinstance(reply, LOST) for reply in replies):
            await self._look_again()
        return good(replies)

    async def _executed(self, arguments: Words, options: Mapping[str, Any]) -> Any:
        """Run a command of the library's where its key is, or everywhere; raises its error."""
        words = _words(arguments)
        if words[0] in EVERYWHERE:
            return self.parsed(arguments, (await self._everywhere(*words))[0], options)
        return self.parsed(arguments, good(await self._run([words]))[0], options)

    async def _all(self, commands: Iterable[Words]) -> list[Any]:
        """Run many commands, and return what the library's methods would; raises any error."""
        listed = list(commands)
        replies = await self._run([_words(command) for command in listed])
        good(_answered(replies))
        return [self.parsed(*pair) for pair in zip(listed, replies, strict=True)]

    async def _infos(self, *sections: str | None) -> list[dict[str, Any]]:
        """Return INFO of each shard."""
        texts = await self._everywhere("INFO", *sections)
        return [self.parsed(("INFO",), text) for text in texts]

    async def _prepare(self) -> None:
        """Look where the keys are, the first time."""
        if not self.shards.pools:
            await self._refresh()

    async def _refresh(self) -> None:
        """Ask the servers which of them has which keys; ConnectionError where none answers."""
        if not isinstance(self.shards, ClusterShards):
            return
        cause: Exception | None = None
        for pool in list(self.shards.servers):
            replies: list[Any] = [None]
            await self._exchange([Sending(0, ("CLUSTER", "SLOTS"), pool)], replies)
            if not isinstance(replies[0], Exception):
                self.shards.learn(pool, replies[0])
                return
            cause = replies[0]
            self.shards.distrust(pool)
        raise redis.ConnectionError(f"cannot connect to the cluster: {cause}") from cause

    async def _look_again(self) -> None:
        """Refresh, if any server answers."""
        with contextlib.suppress(*LOST):
            await self._refresh()

    async def _placed(self, commands: Sequence[Words]) -> list[Sending]:
        await self._prepare()
        pool_of = self.shards.pool_of
        try:
            return [Sending(i, words, pool_of(words)) for i, words in enumerate(commands)]
        except redis.ConnectionError:
            await self._look_again()
            raise

    def _again(self, commands: list[Words], replies: Sequence[Any]) -> list[Sending]:
        """Return how to send again what a server says it did not run.

        A script that it does not know is sent with its text, which replaces the command.
        """
        again = []
        for index, reply in enumerate(replies):
            if not isinstance(reply, ResponseError):
                continue
            words = commands[index]
            if isinstance(reply, NoScriptError) and words[1] in _sources:
                words = commands[index] = ("EVAL", _sources[words[1]], *words[2:])
                again.append(Sending(index, words, self.shards.pool_of(words)))
            elif (sending := self.shards.redirected(index, words, reply)) is not None:
                again.append(sending)
        return again

    def parsed(self, arguments: Words, reply: Any, options: Mapping[str, Any] | None = None) -> Any:
        """Return a reply as the library's method for the command does."""
        callback = self.response_callbacks.get(arguments[0])
        if callback is None:
            return reply
        # The option names keys for a cache that is off.
        return callback(reply, **{k: v for k, v in (options or {}).items() if k != "keys"})


@functools.cache
def _at_once(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the blocking counterpart of a coroutine function that waits for nothing."""

    @functools.wraps(method)
    def run(*args: P.args, **options: P.kwargs) -> T:
        try:
            method(*args, **options).send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        raise AssertionError(f"{method.__name__} of the blocking client waits")

    return run


class StoreClient(_Client, redis.Redis):
    """Client of a store, with the library's methods for commands.

    The shards are looked up at once. A lost connection raises: the outcome of all commands is then
    unknown.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        super().__init__(connection_pool=shards.servers[0])
        _at_once(_Client._prepare)(self)

    def close(self) -> None:
        """Close every connection."""
        for pool in self.shards.servers:
            pool.close()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command where its key is, or everywhere; raises what a server answers."""
        return _at_once(_Client._executed)(self, args, options)

    def run(self, commands: Iterable[Words]) -> list[Any]:
        """Run commands, each shard's in one round trip; an error of a server is a result."""
        return _answered(_at_once(_Client._run)(self, commands))

    all = _at_once(_Client._all)
    atomic = _at_once(_Client._atomic)
    look_again = _at_once(_Client._look_again)
    everywhere = _at_once(_Client._everywhere)
    infos = _at_once(_Client._infos)

    def info(self, *sections: str | None, **_: Any) -> dict[str, Any]:
        """Return INFO of the shard that is nearest to its limit of memory."""
        return fullest(self.infos(*sections))

    async def _exchange(self, sendings: Sequence[Sending], replies: list[Any]) -> None:
        _exchange(sendings, replies)

    async def _pause(self) -> None:
        time.sleep(AGAIN_PAUSE_S)  # noqa: ASYNC251


class AsyncStoreClient(_Client, redis.asyncio.Redis):  # type: ignore[misc]
    """The asyncio counterpart of `StoreClient`; it connects when it is first used.

    A lost connection is the result of the commands that went over it.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        super().__init__(connection_pool=shards.servers[0])

    run = _Client._run
    all = _Client._all
    atomic = _Client._atomic
    refresh = _Client._refresh
    infos = _Client._infos

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection."""
        for pool in self.shards.servers:
            await pool.aclose()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command where its key is, or everywhere; raises what a server answers."""
        return await self._executed(args, options)

    async def info(self, *sections: str | None, **_: Any) -> dict[str, Any]:
        """Return INFO of the shard that is nearest to its limit of memory."""
        return fullest(await self.infos(*sections))

    async def _pause(self) -> None:
        await asyncio.sleep(AGAIN_PAUSE_S)

    async def _exchange(self, sendings: Sequence[Sending], replies: list[Any]) -> None:
        parts = [self._part(pool, part, replies) for pool, part in _by_pool(sendings).items()]
        if len(parts) == 1:
            await parts[0]  # without a task of its own
        else:
            await asyncio.gather(*parts)

    async def _part(self, pool: Any, part: Sequence[Sending], replies: list[Any]) -> None:
        waiting = [sending.number for sending in reversed(part)]
        try:
            connection = await self._lend(pool)
            try:
                await send_async(connection, _packed(part))
                limit_s = connection.socket_timeout
                for sending in part:
                    if sending.asking:
                        await reply_of_async(connection, limit_s)
                    replies[sending.number] = await reply_of_async(connection, limit_s)
                    waiting.pop()
            except BaseException:
                # Answers that nobody waits for are on their way.
                await connection.disconnect(nowait=True)
                raise
            finally:
                await self._take_back(pool, connection)
        except LOST as error:
            for index in waiting:
                replies[index] = error

    async def _lend(self, pool: Any) -> Any:
        return await pool.get_connection()

    async def _take_back(self, pool: Any, connection: Any) -> None:
        await pool.release(connection)


def _by_pool(sendings: Sequence[Sending]) -> dict[Any, list[Sending]]:
    by_pool: dict[Any, list[Sending]] = {}
    for sending in sendings:
        by_pool.setdefault(sending.pool, []).append(sending)
    return by_pool


def _exchange(sendings: Sequence[Sending], replies: list[Any]) -> None:
    """Send each shard its part, then read what all answer.

    Where a connection is lost, that is what every command is answered.
    """
    lent: dict[Any, Any] = {}  # connections by their pools
    try:
        _exchange_over(lent, _by_pool(sendings), replies)
    except BaseException as error:
        for connection in lent.values():  # answers that nobody waits for are on their way
            connection.disconnect()
        if not isinstance(error, LOST):
            raise
        for sending in sendings:
            replies[sending.number] = error
    finally:
        for pool, connection in lent.items():
            pool.release(connection)


def _exchange_over(
    lent: dict[Any, Any], by_pool: Mapping[Any, Sequence[Sending]], replies: list[Any]
) -> None:
    for pool in by_pool:
        lent[pool] = pool.get_connection()
    for pool, part in by_pool.items():
        send(lent[pool], _packed(part))
    for pool, part in by_pool.items():
        _receive(lent[pool], part, replies)


def _receive(connection: Any, part: Sequence[Sending], replies: list[Any]) -> None:
    for sending in part:
        if sending.asking:
            reply_of(connection)
        replies[sending.number] = reply_of(connection)


def _answered(replies: list[Any]) -> list[Any]:
    good([reply for reply in replies if isinstance(reply, LOST)])
    return replies


def good(replies: list[Any]) -> list[Any]:
    """Return replies; raises an error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _words(arguments: Words) -> Words:
    """Return a command of the library's with its name as separate words."""
    if " " in arguments[0]:
        return (*arguments[0].split(), *arguments[1:])
    return arguments


def fullest(infos: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return INFO of the shard that is nearest to its limit of memory: it refuses first."""

    def share(info: dict[str, Any]) -> float:
        return info["used_memory"] / info["maxmemory"] if info.get("maxmemory") else 0.0

    return max(infos, key=share)


# --- scripts --------------------------------------------------------------------------------------


_sources: dict[str, bytes] = {}  # by the digest: it names the text, so that versions never mix


def script(name: str, names: Sequence[str], arguments: Sequence[Argument]) -> Words:
    """Return the command that runs a script of `scripts/` on keys of these names."""
    return ("EVALSHA", _digest_of(name), len(names), *names, *arguments)


@functools.cache
def _digest_of(name: str) -> str:
    source = files("service.store").joinpath(f"scripts/{name}.lua").read_bytes()
    digest = hashlib.sha1(source, usedforsecurity=False).hexdigest()
    _sources[digest] = source
    return digest
