"""Lua scripts run by digest: EVALSHA; on NOSCRIPT, EVAL, which each server learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

from service.store.shards import AsyncStoreClient, StoreClient, Words

Argument = str | bytes | int | float


class ScriptCall(NamedTuple):
    """One run of a script."""

    keys: Sequence[str]
    arguments: Sequence[Argument]


class Script:
    """A script of `scripts/`. Its digest names its text, so versions never mix."""

    def __init__(self, name: str) -> None:
        self.source = files("service.store").joinpath(f"scripts/{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()

    def run(self, client: StoreClient, call: ScriptCall) -> Any:
        """Run once; raises what the server answers."""
        result = self.run_all(client, [call])[0]
        if isinstance(result, ResponseError):
            raise result
        return result

    def run_all(self, client: StoreClient, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run each call in one round trip; an error of the server is that call's result.

        A lost connection raises: the outcome of all calls is then unknown.
        """
        return self.run_unknown(client, calls, client.run(self.commands(calls)))

    def run_unknown(
        self, client: StoreClient, calls: Sequence[ScriptCall], results: list[Any]
    ) -> list[Any]:
        """Return the results of calls, after running again those that got NOSCRIPT."""
        if unknown := _unknown(results):
            again = client.run(self._texts([calls[i] for i in unknown]))
            for i, result in zip(unknown, again, strict=True):
                results[i] = result
        return results

    async def run_all_async(
        self, client: AsyncStoreClient, calls: Sequence[ScriptCall]
    ) -> list[Any]:
        """Run each call in one round trip, as `run_all` does.

        But a lost connection is the result of the calls that went over it.
        """
        results = await client.run(self.commands(calls))
        if unknown := _unknown(results):
            again = await client.run(self._texts([calls[i] for i in unknown]))
            for i, result in zip(unknown, again, strict=True):
                results[i] = result
        return results

    def commands(self, calls: Sequence[ScriptCall]) -> list[Words]:
        """Return the commands that run the script where the server knows it."""
        return [("EVALSHA", self.digest, len(c.keys), *c.keys, *c.arguments) for c in calls]

    def _texts(self, calls: Sequence[ScriptCall]) -> list[Words]:
        return [("EVAL", self.source, len(c.keys), *c.keys, *c.arguments) for c in calls]


def _unknown(results: Sequence[Any]) -> list[int]:
    return [i for i, result in enumerate(results) if isinstance(result, NoScriptError)]
