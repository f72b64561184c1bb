"""Rows of many streams: streams side by side, those of each one after another.

In waves: the next row of every stream is submitted when all of the wave before are answered. The
rows of one wave and partition go together; partitions do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from service import wire
from service.api.gateway.gateway import Gateway, RowsResult
from service.problems import ServiceError

AT_ONCE = 128  # rows whose results are entered before the event loop does something else
R = TypeVar("R")  # what a request has of a row
Following = Callable[[Sequence[R], RowsResult], list[R]]
CommandOf = Callable[[Sequence[R]], wire.ObserveMany]


async def submit_waves(
    gateway: Gateway,
    waves: Mapping[int, Sequence[R]],
    command_of: CommandOf[R],
    following: Following[R],
) -> None:
    """Submit the first row of each stream of a request, by partition, and those that follow.

    following: takes some results of a wave, and returns the next rows of their streams. Each
    partition is admitted once, before any row is queued; a refusal is the result of its first wave.
    """
    commands: dict[int, wire.ObserveMany] = {}
    refusals: dict[int, ServiceError] = {}
    for partition, wave in waves.items():
        commands[partition] = command_of(wave)
        await asyncio.sleep(0)
    for partition, command in commands.items():
        try:
            gateway.admit(partition, command, len(command.streams))
        except ServiceError as error:
            refusals[partition] = error

    async def submit(partition: int, wave: Sequence[R]) -> None:
        patience = gateway.patience()
        command = commands[partition]
        refusal = refusals.get(partition)
        while wave:
            try:
                if refusal is not None:
                    raise refusal
                results = await gateway.submit_rows(partition, command, True, patience)
            except ServiceError as error:
                results = [RowsResult(range(len(wave)), error, 0)]
            refusal = None
            wave = await _entered(wave, results, following)
            command = command_of(wave) if wave else command

    await asyncio.gather(*(submit(partition, wave) for partition, wave in waves.items()))


async def _entered(
    wave: Sequence[R], results: Sequence[RowsResult], following: Following[R]
) -> list[R]:
    """Enter the results of a wave; returns the next one."""
    later: list[R] = []
    entered = 0
    for result in results:
        later += following(wave, result)
        entered += len(result.places)
        if entered >= AT_ONCE:
            entered = 0
            await asyncio.sleep(0)
    return later
