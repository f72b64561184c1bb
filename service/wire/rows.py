"""Observations of many streams as one command: its columns, and its rows as commands of a stream.

Nearly all observations are a number, or a number with its time: those lie in columns. What is more
than that stands among the others as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from math import nan
from typing import TypeVar, cast

import numpy as np
from msgspec.structs import replace

from service.wire.commands import (
    Command,
    Ingest,
    Observation,
    Observe,
    ObserveMany,
    Outcome,
)

T = TypeVar("T")


def pack(commands: Sequence[Observe]) -> ObserveMany:
    """Return commands of distinct streams, all of one kind and with the same options, as rows."""
    first = commands[0]
    observations = [seen for command in commands for seen in command.observations]
    numbers = [cast(float, seen.y) if is_number(seen) else nan for seen in observations]
    counts = [len(command.observations) for command in commands]
    times = [seen.time for seen in observations]
    others = [seen for seen, y in zip(observations, numbers, strict=True) if y != y]
    return ObserveMany(
        [command.stream for command in commands],
        np.array(numbers, "<f8").tobytes(),
        counts if len(observations) != len(commands) or 0 in counts else None,
        times if any(times) else None,
        others or None,
        unless_empty([command.seq for command in commands]),
        unless_empty([command.key for command in commands]),
        unless_empty([command.digest for command in commands]),
        [command.settings for command in commands if isinstance(command, Ingest)] or None,
        first.full,
        first.belief,
        first.components,
        first.quantiles,
    )


def check(command: ObserveMany) -> None:
    """Raise ValueError where the observations that are more than numbers do not fit the rest."""
    expected = int(np.isnan(np.frombuffer(command.y, "<f8")).sum())
    got = len(command.others or ())
    if got != expected:
        raise ValueError(f"expected {expected} observations that are no numbers, got {got}")


def ends_of(command: ObserveMany) -> Sequence[int]:
    """Return where the observations of each row begin, and where the last ones end."""
    if command.counts is None:
        return range(len(command.streams) + 1)
    return list(accumulate(command.counts, initial=0))


def part_of(command: ObserveMany, start: int, stop: int) -> list[Observation]:
    """Return observations of all rows, in order, from place `start` to before `stop`."""
    numbers = np.frombuffer(command.y, "<f8")
    labels = numbers[start:stop].tolist()
    if command.times is None:
        observations = [Observation(y) for y in labels]
    else:
        pairs = zip(labels, command.times[start:stop], strict=True)
        observations = [Observation(y, None, time) for y, time in pairs]
    if command.others is not None:
        before = int(np.isnan(numbers[:start]).sum())
        places = [i for i, y in enumerate(labels) if y != y]
        for i, other in enumerate(places, before):
            observations[other] = command.others[i]
    return observations


def observations_of(command: ObserveMany) -> list[list[Observation]]:
    """Return the observations of each row."""
    return [part_of(command, *ends) for ends in pairwise(ends_of(command))]


def row_of(command: ObserveMany, row: int, observations: list[Observation]) -> Observe:
    """Return a row, with its observations, as the command that it stands for."""
    stream = command.streams[row]
    key = None if command.keys is None else command.keys[row]
    digest = None if command.digests is None else command.digests[row]
    seq = None if command.seqs is None else command.seqs[row]
    options = (command.full, command.belief, command.components, command.quantiles)
    if command.settings is None:
        return Observe(stream, observations, key, digest, 0, seq, *options)
    settings = command.settings[row]
    return Ingest(stream, observations, key, digest, 0, seq, *options, settings)


def fitting(command: ObserveMany, most: int) -> int:
    """Return how many of the first rows have at most so many observations together."""
    if command.counts is None:
        return max(0, min(most, len(command.streams)))
    return bisect_right([*accumulate(command.counts)], most)


def chosen(command: ObserveMany, own: Sequence[int]) -> ObserveMany:
    """Return a command of some of the rows alone, in order."""
    if len(own) == len(command.streams):
        return command
    places = own
    if command.counts is not None:
        ends = ends_of(command)
        places = [*chain.from_iterable(range(ends[row], ends[row + 1]) for row in own)]
    y = np.frombuffer(command.y, "<f8")
    others = None
    if command.others is not None:
        before = np.isnan(y).cumsum()
        others = [command.others[before[i] - 1] for i in places if y[i] != y[i]] or None

    def part(column: list[T] | None, chosen: Sequence[int] = own) -> list[T] | None:
        return None if column is None else [column[i] for i in chosen]

    return replace(
        command,
        streams=[command.streams[row] for row in own],
        y=y[places].tobytes(),
        counts=part(command.counts),
        times=part(command.times, places),
        others=others,
        seqs=part(command.seqs),
        keys=part(command.keys),
        digests=part(command.digests),
        settings=part(command.settings),
    )


def rows_of(command: Command | ObserveMany) -> int:
    """Return how many places a command takes in the order of its log entry."""
    return len(command.streams) if isinstance(command, ObserveMany) else 1


def count_of(outcome: Outcome) -> int:
    """Return how many rows, from its first on, an outcome is for."""
    return outcome.rows if outcome.quiet is None else len(outcome.quiet.firsts)


def is_number(seen: Observation) -> bool:
    """Whether an observation is a number, or a number with its time."""
    if type(seen.y) is not float or seen.x is not None or seen.elapsed is not None:
        return False
    return seen.changepoint is None and not seen.pending


def unless_empty(column: list[T | None]) -> list[T | None] | None:
    """Return a column; None for one without a value."""
    return None if column.count(None) == len(column) else column
