"""Commands of many streams: streams side by side, the commands of each one after another.

In waves: the next command of every stream is submitted when all of the wave before are answered.
The commands of one wave and partition go together; partitions do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import NamedTuple

from service import wire
from service.api.gateway.gateway import AT_ONCE, Gateway, Result
from service.problems import ServiceError

# Of one stream: yields its next command, and is sent the result.
StreamCommands = Generator[wire.Observe, Result, None]


class WaveCommand(NamedTuple):
    """The next command of a stream."""

    stream: StreamCommands
    command: wire.Observe


async def submit_waves(gateway: Gateway, streams: Iterable[StreamCommands]) -> None:
    """Submit all commands of one request; each stream is sent the results of its own.

    Each partition is admitted once, before any command is queued; a refusal is the result of its
    streams' first commands.
    """
    waves: defaultdict[int, list[WaveCommand]] = defaultdict(list)
    for i, stream in enumerate(streams, start=1):
        command = next(stream, None)
        if command is not None:
            waves[gateway.partition(command.stream)].append(WaveCommand(stream, command))
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
    admitted: list[list[WaveCommand]] = []
    for wave in waves.values():
        try:
            gateway.admit([waiting.command for waiting in wave])
        except ServiceError as error:
            await _send(wave, [error] * len(wave))
        else:
            admitted.append(wave)
    await asyncio.gather(*(_submit(gateway, wave) for wave in admitted))


async def _submit(gateway: Gateway, wave: list[WaveCommand]) -> None:
    """Submit the waves of one partition."""
    patience = gateway.patience()
    while wave:
        commands = [waiting.command for waiting in wave]
        results: list[Result]
        try:
            results = await gateway.submit_all(commands, True, patience)
        except ServiceError as error:
            results = [error] * len(wave)
        wave = await _send(wave, results)


async def _send(wave: list[WaveCommand], results: list[Result]) -> list[WaveCommand]:
    """Send results to their streams; return the next wave."""
    following: list[WaveCommand] = []
    for i, (waiting, result) in enumerate(zip(wave, results, strict=True), start=1):
        try:
            command = waiting.stream.send(result)
        except StopIteration:
            pass
        else:
            following.append(WaveCommand(waiting.stream, command))
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
    return following
