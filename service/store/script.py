"""Lua scripts run by digest: EVALSHA; on NOSCRIPT, load once and retry."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

from service.store.cluster.asynchronous import AsyncCluster
from service.store.cluster.blocking import Cluster
from service.store.cluster.routing import Routed
from service.store.exchange import reply_of, reply_of_async, send, send_async

Argument = str | bytes | int | float


class Call(NamedTuple):
    """One run of a script."""

    keys: Sequence[str]
    arguments: Sequence[Argument]


class Script:
    """A script of `scripts/`. Its digest names its text, so versions never mix."""

    def __init__(self, name: str) -> None:
        self.source = files("service.store").joinpath(f"scripts/{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()

    def run(self, client: redis.Redis, call: Call) -> Any:
        """Run once; raises what the server answers."""
        result = self.run_all(client, [call])[0]
        if isinstance(result, ResponseError):
            raise result
        return result

    def run_all(self, client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
        """Run each call in one pipeline; an error of the server is that call's result.

        A lost connection raises: then nobody knows which of the calls took place.
        """
        return self.run_unknown(client, calls, self._pipeline(client, calls))

    def run_unknown(
        self, client: redis.Redis, calls: Sequence[Call], results: list[Any]
    ) -> list[Any]:
        """Return the results of calls, after running again those that got NOSCRIPT."""
        if unknown := _unknown(results):
            text = isinstance(client, Cluster)  # each node learns from what is sent to it
            if not text:
                client.script_load(self.source)
            again = self._pipeline(client, [calls[i] for i in unknown], text)
            for i, result in zip(unknown, again, strict=True):
                results[i] = result
        return results

    async def run_all_async(self, client: redis.asyncio.Redis, calls: Sequence[Call]) -> list[Any]:
        """Run each call in one pipeline, as `run_all` does.

        On a cluster a lost connection is the result of the calls that went over it.
        """
        results = await self._pipeline_async(client, calls)
        if unknown := _unknown(results):
            text = isinstance(client, AsyncCluster)
            if not text:
                await client.script_load(self.source)
            again = await self._pipeline_async(client, [calls[i] for i in unknown], text)
            for i, result in zip(unknown, again, strict=True):
                results[i] = result
        return results

    # Both talk to a connection themselves: a pipeline of the library does the same with several
    # times the work for each command.

    def _pipeline(
        self, client: redis.Redis, calls: Sequence[Call], text: bool = False
    ) -> list[Any]:
        if not calls:
            return []
        if isinstance(client, Cluster):
            return client.run(self._routed(calls, text))
        pool: Any = client.connection_pool
        connection = pool.get_connection()
        try:
            send(connection, self.commands(calls))
            return [reply_of(connection) for _ in calls]
        except BaseException:
            connection.disconnect()  # answers that nobody waits for are on their way
            raise
        finally:
            pool.release(connection)

    async def _pipeline_async(
        self, client: redis.asyncio.Redis, calls: Sequence[Call], text: bool = False
    ) -> list[Any]:
        if not calls:
            return []
        if isinstance(client, AsyncCluster):
            return await client.run(self._routed(calls, text))
        pool: Any = client.connection_pool
        connection = await pool.get_connection()
        try:
            await send_async(connection, self.commands(calls))
            return [await reply_of_async(connection) for _ in calls]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    def commands(self, calls: Sequence[Call]) -> list[tuple[Argument, ...]]:
        """Return the commands that run the script where the server knows it."""
        return [("EVALSHA", self.digest, len(c.keys), *c.keys, *c.arguments) for c in calls]

    def _routed(self, calls: Sequence[Call], text: bool) -> list[Routed]:
        how: tuple[Argument, ...] = ("EVAL", self.source) if text else ("EVALSHA", self.digest)
        return [Routed(c.keys[0], (*how, len(c.keys), *c.keys, *c.arguments)) for c in calls]


def _unknown(results: Sequence[Any]) -> list[int]:
    return [i for i, result in enumerate(results) if isinstance(result, NoScriptError)]
