"""Commands of many streams: streams side by side, the commands of each one after another.

In waves: the next command of every stream is submitted when all of the wave before are answered.
The commands of one wave and partition go together; partitions do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Generator, Iterable

from service import wire
from service.api.gateway.gateway import AT_ONCE, Gateway, Result
from service.problems import ServiceError

# Of one stream: yields its next command, and is sent the result.
StreamCommands = Generator[wire.Observe, Result, None]


class Wave:
    """The next command of each of some streams of a partition."""

    def __init__(self) -> None:
        self.streams: list[StreamCommands] = []
        self.commands: list[wire.Observe] = []

    def add(self, stream: StreamCommands, command: wire.Observe) -> None:
        """Add a stream and its next command."""
        self.streams.append(stream)
        self.commands.append(command)

    async def following(self, results: Iterable[Result]) -> Wave:
        """Send the results to their streams; return the next wave."""
        wave = Wave()
        for i, (stream, result) in enumerate(zip(self.streams, results, strict=True), start=1):
            try:
                command = stream.send(result)
            except StopIteration:
                pass
            else:
                wave.add(stream, command)
            if i % AT_ONCE == 0:
                await asyncio.sleep(0)
        return wave


async def submit_waves(gateway: Gateway, streams: Iterable[StreamCommands]) -> None:
    """Submit all commands of one request; each stream is sent the results of its own.

    Each partition is admitted once, before any command is queued; a refusal is the result of its
    streams' first commands.
    """
    waves: defaultdict[int, Wave] = defaultdict(Wave)
    for i, stream in enumerate(streams, start=1):
        command = next(stream, None)
        if command is not None:
            waves[gateway.partition(command.stream)].add(stream, command)
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
    for partition, wave in waves.items():
        try:
            gateway.admit(wave.commands)
        except ServiceError as error:
            waves[partition] = await wave.following([error] * len(wave.commands))
    await asyncio.gather(*(_submit(gateway, wave) for wave in waves.values()))


async def _submit(gateway: Gateway, wave: Wave) -> None:
    """Submit the waves of one partition."""
    patience = gateway.patience()
    while wave.commands:
        results: list[Result]
        try:
            results = await gateway.submit_all(wave.commands, True, patience)
        except ServiceError as error:
            results = [error] * len(wave.commands)
        wave = await wave.following(results)
