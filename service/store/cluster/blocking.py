"""A Redis Cluster behind the calls that the service makes of one server.

All keys of a partition are in one slot. What names keys of several (reading many logs, committing
many partitions) is sent node by node, each node's part in one round trip.
"""

from __future__ import annotations

import contextlib
import functools
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException, ResponseError
from redis.retry import Retry

from service.store import keys
from service.store.address import Address
from service.store.cluster.routing import (
    AGAIN_PAUSE_S,
    LOST,
    REDIRECTIONS,
    WAIT_MS,
    Routed,
    entries_of,
    fullest,
    packed,
    pairs_of,
    read_of,
    redirected,
)
from service.store.exchange import reply_of, send


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    """Turn what the library raises without any node to ask into a lost connection."""
    try:
        yield
    except RedisClusterException as error:
        raise redis.ConnectionError(f"cannot connect to the cluster: {error}") from error


_Library: Any = RedisCluster  # most of it has no types


class Cluster(_Library):  # type: ignore[misc]
    """Client of a cluster; raises redis.ConnectionError at once where no node answers."""

    def __init__(self, address: Address, **options: Any) -> None:
        node: Any = ClusterNode
        nodes = [node(*place) for place in address.places]
        with _as_lost():
            super().__init__(
                startup_nodes=nodes,
                retry=Retry(NoBackoff(), 0),
                **{**options, **address.options},
            )
        self._waits = Waits(self)

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command where its key is."""
        with _as_lost():
            return super().execute_command(*args, **kwargs)

    def close(self) -> None:
        """Close every connection."""
        if hasattr(self, "_waits"):
            self._waits.close()
        super().close()

    def time(self, **_: Any) -> tuple[int, int]:
        """Return the clock of one node, the same for all who ask: that of the workers' names."""
        node = self.get_node_from_key(keys.WORKERS)
        return cast("tuple[int, int]", super().execute_command("TIME", target_nodes=node))

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        """Return a pipeline, of one slot with `transaction`."""
        pipe: Any = super().pipeline(transaction, shard_hint)
        if transaction:
            pipe.execute = functools.partial(_execute, pipe, pipe.execute)
        return pipe

    def infos(self, *sections: str) -> list[dict[str, Any]]:
        """Return INFO of each primary."""
        nodes = self.get_primaries()
        with _as_lost():
            found = super().execute_command("INFO", *sections, target_nodes=nodes)
        return [found] if len(nodes) == 1 else list(found.values())

    def info(self, *sections: str, **_: Any) -> dict[str, Any]:
        """Return INFO of the primary that is nearest to its limit of memory."""
        return fullest(self.infos(*sections)) if "memory" in sections else self.infos(*sections)[0]

    def run(self, commands: Sequence[Routed]) -> list[Any]:
        """Run commands where their keys are; an error of a server is that command's result.

        A lost connection raises: then nobody knows which of them took place.
        """
        results: list[Any] = [None] * len(commands)
        todo = dict(enumerate(commands))
        for _ in range(REDIRECTIONS):
            replies = self._once(todo)
            again = {}
            for i, reply in replies.items():
                results[i] = reply
                following = redirected(self, todo[i], reply)
                if following is not None:
                    again[i] = following
            if not again:
                return results
            if any(each.node is None or not each.asking for each in again.values()):
                self.look_again()
                time.sleep(AGAIN_PAUSE_S)
            todo = again
        return results

    def look_again(self) -> None:
        """Ask the nodes which of them has which slots."""
        with _as_lost():
            self.nodes_manager.initialize()

    def _by_node(self, todo: Mapping[int, Routed]) -> list[tuple[Any, dict[int, Routed]]]:
        found: dict[str, tuple[Any, dict[int, Routed]]] = {}
        for i, routed in todo.items():
            with _as_lost():
                node = routed.node or self.nodes_manager.get_node_from_slot(routed.slot)
            found.setdefault(node.name, (node, {}))[1][i] = routed
        return list(found.values())

    def _once(self, todo: Mapping[int, Routed]) -> dict[int, Any]:
        replies: dict[int, Any] = {}
        with self._opened(self._by_node(todo)) as opened:
            for connection, part in opened:
                send(connection, packed(part.values()))
            for connection, part in opened:
                for i, routed in part.items():
                    if routed.asking:
                        reply_of(connection)
                    replies[i] = reply_of(connection)
        return replies

    @contextlib.contextmanager
    def _opened(
        self, parts: Sequence[tuple[Any, dict[int, Routed]]]
    ) -> Iterator[list[tuple[Any, dict[int, Routed]]]]:
        """Lend a connection to each node, and look where the slots are when one is lost."""
        lent: list[tuple[Any, Any]] = []
        try:
            for node, _ in parts:
                pool: Any = self.get_redis_connection(node).connection_pool
                lent.append((pool, pool.get_connection()))
            yield [(lent[at][1], part) for at, (_, part) in enumerate(parts)]
        except BaseException as error:
            for pool, connection in lent:  # answers that nobody waits for are on their way
                connection.disconnect()
                pool.disconnect(inuse_connections=False)  # what is idle went the same way
            if isinstance(error, LOST):
                with contextlib.suppress(redis.RedisError, OSError):
                    self.look_again()
            raise
        finally:
            for pool, connection in lent:
                pool.release(connection)

    def xread(
        self, streams: Mapping[Any, Any], count: int | None = None, block: int | None = None
    ) -> list[Any]:
        """Read streams of any slots; `block` waits up to so many ms for the first entry."""
        found = entries_of(self.run([read_of(k, str(id_), count) for k, id_ in streams.items()]))
        if found or not block or not self._waits.wait(streams, block):
            return found
        return entries_of(self.run([read_of(k, str(id_), count) for k, id_ in streams.items()]))


def _execute(pipe: Any, execute: Any, raise_on_error: bool = True) -> list[Any]:
    """Run a transaction; the library leaves what HGETALL answers in it as it came."""
    names = [command.args[0] for command in pipe._execution_strategy.command_queue]
    return [
        pairs_of(result) if name == "HGETALL" and isinstance(result, list) else result
        for name, result in zip(names, execute(raise_on_error), strict=True)
    ]


class Wait(NamedTuple):
    """A blocking read under way on a connection of its own."""

    pool: Any
    connection: Any
    after: str


class Waits:
    """Blocking reads, one for each stream, that outlast the calls that wait for the first.

    What they answer is only a hint that there is something to read. For the one thread that reads.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[Any, Wait] = {}

    def wait(self, streams: Mapping[Any, Any], timeout_ms: int) -> bool:
        """Wait until one of the streams has something after its id; whether one has."""
        try:
            for key in [key for key in self._open if key not in streams]:
                self._drop(key)
            for key, after in streams.items():
                self._begin(key, str(after))
            closed = [key for key, wait in self._open.items() if wait.connection._sock is None]
            if closed:  # by the library, as it looked again where the slots are: read, then wait
                for key in closed:
                    self._drop(key)
                return True
            poller = select.poll()
            by_descriptor = {}
            for key, wait in self._open.items():
                number = wait.connection._sock.fileno()
                by_descriptor[number] = key
                poller.register(number, select.POLLIN)
            ready = [by_descriptor[number] for number, _ in poller.poll(timeout_ms)]
            replies = [self._end(key) for key in ready]
            if any(isinstance(reply, ResponseError) for reply in replies):
                self._cluster.look_again()  # moved: the read that follows is sent on
            return any(reply is not None for reply in replies)
        except LOST:
            self.close()
            with contextlib.suppress(redis.RedisError, OSError):
                self._cluster.look_again()
            raise

    def close(self) -> None:
        """Give every read up."""
        for key in list(self._open):
            self._drop(key)

    def _begin(self, key: Any, after: str) -> None:
        wait = self._open.get(key)
        if wait is not None and wait.after != after:
            # Its entry came and was read otherwise; or the log is another one.
            if wait.connection.can_read(0):
                self._end(key)
            else:
                self._drop(key)
        if key in self._open:
            return
        routed = read_of(key, after, 1, WAIT_MS)
        with _as_lost():
            node = self._cluster.nodes_manager.get_node_from_slot(routed.slot)
        pool: Any = self._cluster.get_redis_connection(node).connection_pool
        self._open[key] = wait = Wait(pool, pool.get_connection(), after)
        wait.connection.send_command(*routed.arguments)

    def _end(self, key: Any) -> Any:
        """Take an answer, which is a hint of something to read; None: its time was over."""
        reply = reply_of(self._open[key].connection)
        wait = self._open.pop(key)
        wait.pool.release(wait.connection)
        return reply

    def _drop(self, key: Any) -> None:
        wait = self._open.pop(key)
        wait.connection.disconnect()
        wait.pool.release(wait.connection)
