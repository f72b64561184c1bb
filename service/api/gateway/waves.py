"""Commands of many streams: streams side by side, the commands of each one after another.

In waves: the next command of every stream is submitted when all of the wave before are answered.
The commands of one wave and partition go together; partitions do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from service import wire
from service.api.gateway.gateway import AT_ONCE, Gateway, Result
from service.problems import ServiceError

# Takes results of commands, and returns the commands of their streams that come next.
Following = Callable[[Sequence[wire.Observe], Sequence[Result]], list[wire.Observe]]


async def submit_waves(
    gateway: Gateway, commands: Iterable[wire.Observe], following: Following
) -> None:
    """Submit the first command of each stream of a request, and those that follow.

    Each partition is admitted once, before any command is queued; a refusal is the result of its
    streams' first commands.
    """
    waves: defaultdict[int, list[wire.Observe]] = defaultdict(list)
    for i, command in enumerate(commands, start=1):
        waves[gateway.partition(command.stream)].append(command)
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
    refusals: dict[int, ServiceError] = {}
    for partition, wave in waves.items():
        try:
            gateway.admit(wave)
        except ServiceError as error:
            refusals[partition] = error
    await asyncio.gather(
        *(_submit(gateway, wave, following, refusals.get(p)) for p, wave in waves.items())
    )


async def _submit(
    gateway: Gateway, wave: list[wire.Observe], following: Following, refusal: ServiceError | None
) -> None:
    """Submit the waves of one partition; refusal: what the first one comes to."""
    patience = gateway.patience()
    while wave:
        results: list[Result]
        try:
            if refusal is not None:
                raise refusal
            results = await gateway.submit_all(wave, True, patience)
        except ServiceError as error:
            results = [error] * len(wave)
        refusal = None
        later: list[wire.Observe] = []
        for first in range(0, len(wave), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            later += following(wave[part], results[part])
            if first + AT_ONCE < len(wave):
                await asyncio.sleep(0)
        wave = later
