"""A copy of the log: every entry that was ever appended, read from the servers' append-only files.

The log itself is trimmed once its commands are applied. What a server appends to its file is never
taken back, so it says what was accepted, and in which order, whatever became of it later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from service import wire
from service.store import keys
from service.wire import rows
from service.wire.commands import Observe, ObserveMany
from tests.clusters import Nodes
from tests.waiting import until

_decode = msgspec.msgpack.Decoder(wire.LogEntry).decode
Place = tuple[int, int]  # milliseconds and number of an entry


Label = float | None


class LogCopy:
    """Entries of all partitions, from the files of the servers."""

    def __init__(self, nodes: Nodes, partitions: int) -> None:
        self._nodes = nodes
        self._logs = {keys.log(p).encode(): p for p in range(partitions)}
        self._read: dict[Path, int] = {}  # bytes of each file
        self._entries: dict[int, dict[Place, bytes]] = {p: {} for p in range(partitions)}

    def accepted(self, streams: Collection[str]) -> dict[str, list[Label]]:
        """Labels of some streams in the order of the log, repeats left out."""
        self.read()
        found: dict[str, dict[str, list[Label]]] = {name: {} for name in streams}
        for entries in self._entries.values():
            for _, payload in sorted(entries.items()):
                for command in _observed(payload):
                    if command.stream in streams:
                        for identity, labels in _parts(command):
                            found[command.stream].setdefault(identity, labels)
            entries.clear()  # those who ask next have other streams
        return {name: list(chain(*parts.values())) for name, parts in found.items()}

    def read(self) -> None:
        """Take in what was written since the last time.

        A server that becomes a replica may begin a new file; what was in the old one is in that of
        the new master, which begins a new one as well once that becomes a replica: read between.
        """
        for port in self._nodes.running:
            # While the disk is busy, a server may answer up to two seconds before it writes. A
            # sentinel writes nothing.
            with closing(self._nodes.client(port)) as client:
                until(lambda client=client: not client.info("persistence").get("aof_buffer_length"))
        for path in sorted(self._nodes.folder.glob("*/appendonlydir/*.incr.aof")):
            with path.open("rb") as file:
                begin = self._read.get(path, 0)
                file.seek(begin)
                data = file.read()
            end = 0
            for words, at in _whole_commands(data):
                end = at
                if words[0].upper() == b"XADD" and words[1] in self._logs:
                    self._enter(words)
            self._read[path] = begin + end

    def _enter(self, words: list[bytes]) -> None:
        at = next(i for i, word in enumerate(words) if b"-" in word and i > 1)  # after options
        ms, _, number = words[at].partition(b"-")
        fields = dict(zip(words[at + 1 :: 2], words[at + 2 :: 2], strict=True))
        self._entries[self._logs[words[1]]][int(ms), int(number)] = fields[b"b"]


def _whole_commands(data: bytes) -> Iterator[tuple[list[bytes], int]]:
    """Commands of a file and where they end; those of a transaction once it is complete."""
    at = 0
    waiting: list[list[bytes]] | None = None
    while (found := _command(data, at)) is not None:
        words, at = found
        name = words[0].upper()
        if name == b"MULTI":
            waiting = []
        elif name == b"EXEC":
            for each in waiting or []:
                yield each, at
            waiting = None
        elif waiting is not None:
            waiting.append(words)
        else:
            yield words, at


def _command(data: bytes, at: int) -> tuple[list[bytes], int] | None:
    """The command at a place, and where the next one begins; None where it is not all there."""
    if (end := data.find(b"\r\n", at)) < 0:
        return None
    words = []
    count = int(data[at + 1 : end])
    at = end + 2
    for _ in range(count):
        if (end := data.find(b"\r\n", at)) < 0:
            return None
        size = int(data[at + 1 : end])
        at = end + 2 + size + 2
        if at > len(data):
            return None
        words.append(data[end + 2 : end + 2 + size])
    return words, at


def _observed(payload: bytes) -> Iterator[Observe]:
    """Observations of an entry, one command for each stream."""
    for envelope in _decode(payload).envelopes:
        command = envelope.command
        if isinstance(command, ObserveMany):
            for row, observations in enumerate(rows.observations_of(command)):
                yield rows.row_of(command, row, observations)
        elif isinstance(command, Observe):
            yield command


def _parts(command: Observe) -> Iterator[tuple[str, list[Any]]]:
    """Labels of a command, and what says that they are a repeat.

    That is the idempotency key with the place in its list; of a remote write, the time.
    """
    if command.key is not None:
        yield f"{command.key}+{command.first}", [seen.y for seen in command.observations]
    else:
        for seen in command.observations:
            yield str(seen.time), [seen.y]
