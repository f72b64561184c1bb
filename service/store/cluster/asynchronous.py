"""The asyncio counterpart of `service.store.cluster.blocking`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import redis
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, RedisClusterException

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
    read_of,
    redirected,
)
from service.store.exchange import closing, reply_of_async, send_async
from service.tasks import end

MANY = 2**31 - 1  # connections: one waits for each partition


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    """Turn what the library raises without any node to ask into a lost connection."""
    try:
        yield
    except RedisClusterException as error:
        raise redis.ConnectionError(f"cannot connect to the cluster: {error}") from error


class Pipeline(ClusterPipeline):
    """Commands of any slots; what is lost makes the client look where the slots are now."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Queue a command."""
        # Names the keys for a cache that is off; in a transaction the library trips over it.
        kwargs.pop("keys", None)
        return super().execute_command(*args, **kwargs)

    async def execute(
        self, raise_on_error: bool = True, allow_redirections: bool = True
    ) -> list[Any]:
        """Run what was queued."""
        client = cast(AsyncCluster, self.cluster_client)
        try:
            with _as_lost():
                return await super().execute(raise_on_error, allow_redirections)
        except (*LOST, ClusterDownError):
            await client.look_again()
            raise


class AsyncCluster(RedisCluster):
    """Client of a cluster; it connects when it is first used."""

    def __init__(self, address: Address, **options: Any) -> None:
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in address.places],
            retry=Retry(NoBackoff(), 0),
            max_connections=MANY,
            **{**options, **address.options},
        )
        # Of every node that is found: the first ones, too, are made again.
        self.connection_kwargs["connection_class"] = closing(
            self.connection_kwargs["connection_class"]
        )
        self._waiting: dict[Any, tuple[str, asyncio.Task[bool]]] = {}

    async def initialize(self, *args: Any, **kwargs: Any) -> AsyncCluster:
        """Learn which nodes there are."""
        with _as_lost():
            await super().initialize(*args, **kwargs)
        return self

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command where its key is."""
        with _as_lost():
            return await super().execute_command(*args, **kwargs)

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Pipeline:
        """Return a pipeline, of one slot with `transaction`."""
        return cast(Any, Pipeline)(self, transaction)  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        """Close every connection; blocking reads are given up."""
        waiting, self._waiting = self._waiting, {}
        await end(*(task for _, task in waiting.values()))
        await super().aclose()

    async def time(self, **_: Any) -> tuple[int, int]:
        """Return the clock of one node, the same for all who ask: that of the workers' names."""
        await self.initialize()
        node = self.get_node_from_key(keys.WORKERS)
        return cast("tuple[int, int]", await self.execute_command("TIME", target_nodes=node))

    async def memory(self) -> dict[str, Any]:
        """Return INFO's memory of the primary that is nearest to its limit."""
        await self.initialize()
        nodes = self.get_primaries()
        found = await self.execute_command("INFO", "memory", target_nodes=nodes)
        return cast("dict[str, Any]", found if len(nodes) == 1 else fullest(found.values()))

    async def run(self, commands: Sequence[Routed]) -> list[Any]:
        """Run commands where their keys are; an error is that command's result.

        A lost connection is the result of all commands that were sent over it: nobody knows which
        of them took place.
        """
        results: list[Any] = [None] * len(commands)
        todo = dict(enumerate(commands))
        for _ in range(REDIRECTIONS):
            again = {}
            for i, reply in (await self._once(todo)).items():
                results[i] = reply
                following = redirected(self, todo[i], reply)
                if following is not None:
                    again[i] = following
            if not again:
                break
            if any(each.node is None or not each.asking for each in again.values()):
                await self.look_again()
                await asyncio.sleep(AGAIN_PAUSE_S)
            todo = again
        if any(isinstance(reply, (*LOST, ClusterDownError)) for reply in results):
            await self.look_again()
        return results

    async def look_again(self) -> None:
        """Ask the nodes which of them has which slots; none may answer now."""
        with contextlib.suppress(redis.RedisError, RedisClusterException, OSError):
            await self.nodes_manager.initialize()

    async def _once(self, todo: Mapping[int, Routed]) -> dict[int, Any]:
        await self.initialize()
        by_node: dict[str, tuple[ClusterNode, dict[int, Routed]]] = {}
        for i, routed in todo.items():
            with _as_lost():
                node = routed.node or self.nodes_manager.get_node_from_slot(routed.slot)
            by_node.setdefault(node.name, (node, {}))[1][i] = routed
        parts = await asyncio.gather(*(self._part(*each) for each in by_node.values()))
        return {i: reply for part in parts for i, reply in part.items()}

    async def _part(
        self, node: ClusterNode, part: Mapping[int, Routed], wait_s: float = 0.0
    ) -> dict[int, Any]:
        replies: dict[int, Any] = {}
        connection: Any = node.acquire_connection()
        try:
            await node.disconnect_if_needed(connection)
            await send_async(connection, packed(part.values()))
            for i, routed in part.items():
                if routed.asking:
                    await reply_of_async(connection)
                replies[i] = await reply_of_async(connection, wait_s)
        except LOST as error:
            await connection.disconnect(nowait=True)
            idle: Any
            for idle in node._free:  # it went the same way
                idle.mark_for_reconnect()
            return {i: replies.get(i, error) for i in part}
        except BaseException:
            # Answers that nobody waits for are on their way.
            await connection.disconnect(nowait=True)
            raise
        finally:
            node.release(connection)
        return replies

    async def xread(  # type: ignore[override]
        self, streams: Mapping[Any, Any], count: int | None = None, block: int | None = None
    ) -> list[Any]:
        """Read streams of any slots; `block` waits up to so many ms for the first entry."""
        found = entries_of(await self.run([read_of(k, i, count) for k, i in streams.items()]))
        if found or not block or not await self._wait(streams, block):
            return found
        return entries_of(await self.run([read_of(k, i, count) for k, i in streams.items()]))

    async def _wait(self, streams: Mapping[Any, Any], timeout_ms: int) -> bool:
        """Wait until one of the streams has something after its id; whether one has.

        Each is read on a connection of its own, and goes on being so after this returns.
        """
        for key, after in streams.items():
            was = self._waiting.get(key)
            if was is not None and was[0] != after and not was[1].done():
                was[1].cancel()  # its entry came and was read otherwise
            if was is None or was[0] != after:
                read = asyncio.create_task(self._hint(read_of(key, after, 1, WAIT_MS)))
                self._waiting[key] = (after, read)
        tasks = [task for _, task in self._waiting.values()]
        done, _ = await asyncio.wait(
            tasks, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        self._waiting = {k: was for k, was in self._waiting.items() if was[1] not in done}
        hints = await asyncio.gather(*done, return_exceptions=True)
        for hint in hints:
            if isinstance(hint, Exception):
                await self.look_again()
                raise hint
        return any(hints)

    async def _hint(self, routed: Routed) -> bool:
        await self.initialize()
        with _as_lost():
            node = self.nodes_manager.get_node_from_slot(routed.slot)
        (reply,) = (await self._part(node, {0: routed}, WAIT_MS / 1000)).values()
        if isinstance(reply, LOST):
            raise reply
        return reply is not None  # of a slot that moved as well: the read that follows is sent on
