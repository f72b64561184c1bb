"""Observations of many streams as one command: its columns, and its rows as commands of a stream.

Nearly all observations are numbers, a label and perhaps an input, or these with their time: those
lie in columns. What is more than that stands among the others as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from math import nan
from sys import maxsize
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.wire.commands import (
    Command,
    Ingest,
    NumberList,
    Observation,
    Observe,
    ObserveMany,
    Outcome,
)

T = TypeVar("T")
WIDEST = 16  # numbers of a label, or of an input, in columns: all others have room for as many


class Numbers(NamedTuple):
    """Labels and inputs of observations (N, ...), nan behind those that have fewer than others.

    outputs, inputs: (N,) how many each has. times: (N,) None: it has none; None: nor has any other.
    A label that is nan alone is that of an observation which is more than numbers and their time.
    """

    y: NDArray[np.float64]
    outputs: NDArray[np.int64]
    x: NDArray[np.float64]
    inputs: NDArray[np.int64]
    times: NDArray[np.object_] | None

    @classmethod
    def of(cls, command: ObserveMany) -> Numbers:
        """Those of a command."""
        return cls.read(command.y, command.outputs, command.x, command.inputs, command.times)

    @classmethod
    def listed(cls, observations: NumberList) -> Numbers:
        """Those of a list of numbers."""
        return cls.read(observations.y, None, b"", None, observations.times)

    @classmethod
    def given(cls, observations: Sequence[Observation]) -> Numbers:
        """Those of observations, however wide they are."""
        y: list[Any] = [seen.y for seen in observations]
        x = [seen.x for seen in observations]
        stated = [(seen.elapsed, seen.changepoint, seen.pending) for seen in observations]
        # Of those that nearly all are, without a call for each.
        simple = {*map(type, y)} <= {float} and x.count(None) == len(x)
        if not (simple and stated.count((None, None, False)) == len(stated)):
            for i, seen in enumerate(observations):
                if not is_plain(seen, maxsize):
                    y[i] = nan
                    x[i] = None
        times = [seen.time for seen in observations]
        return cls.read(*columns(y, x), times if any(times) else None)

    @classmethod
    def read(
        cls,
        y: bytes,
        outputs: list[int] | None,
        x: bytes,
        inputs: list[int] | None,
        times: list[str | None] | None,
    ) -> Numbers:
        """Those of an ObserveMany's columns."""
        labels = np.frombuffer(y, "<f8")
        count = len(labels) if outputs is None else len(outputs)
        own = np.ones(count, np.int64) if outputs is None else np.array(outputs, np.int64)
        given = np.zeros(count, np.int64) if inputs is None else np.array(inputs, np.int64)
        known = None if times is None else np.array(times, object)
        table = labels[:, None] if outputs is None else _table(labels, own, 1)
        if inputs is None:
            return cls(table, own, np.empty((count, 0)), given, known)
        return cls(table, own, _table(np.frombuffer(x, "<f8"), given, 0), given, known)

    def part(self, chosen: slice | NDArray[Any]) -> Numbers:
        """Those of some of the observations."""
        y, outputs, x, inputs, times = self
        known = None if times is None else times[chosen]
        return Numbers(y[chosen], outputs[chosen], x[chosen], inputs[chosen], known)

    @classmethod
    def joined(cls, parts: Sequence[Numbers]) -> Numbers:
        """Those of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        y, outputs, x, inputs, times = zip(*parts, strict=True)
        known = None
        if any(own is not None for own in times):
            known = np.concatenate([part._known for part in parts])
        return cls(_stacked(y), np.concatenate(outputs), _stacked(x), np.concatenate(inputs), known)

    @property
    def _known(self) -> NDArray[np.object_]:
        """Times, if there are none None of each."""
        return np.full(len(self.y), None, object) if self.times is None else self.times

    @property
    def plain(self) -> NDArray[np.bool_]:
        """Which observations are numbers and their time (N,)."""
        return np.asarray(~np.isnan(self.y[:, 0]))

    @property
    def observations(self) -> list[Observation]:
        """Observations that are numbers."""
        known = self._known.tolist()
        if self.y.shape[1] == 1 and not self.x.shape[1]:
            pairs = zip(self.y[:, 0].tolist(), known, strict=True)
            return [Observation(y, None, time) for y, time in pairs]
        labels = zip(self.y.tolist(), self.outputs.tolist(), strict=True)
        inputs = zip(self.x.tolist(), self.inputs.tolist(), strict=True)
        return [
            Observation(y[0] if outputs == 1 else y[:outputs], x[:size] or None, time)
            for (y, outputs), (x, size), time in zip(labels, inputs, known, strict=True)
        ]


def _table(flat: NDArray[np.float64], sizes: NDArray[np.int64], least: int) -> NDArray[np.float64]:
    """Numbers (N, ...) that lie one after the other, `sizes` in each row; nan behind them.

    least: columns.
    """
    most = int(sizes.max(initial=least))
    if len(flat) == most * len(sizes):
        return flat.reshape(len(sizes), most)
    table = np.full((len(sizes), most), nan)
    table[np.arange(most) < sizes[:, None]] = flat
    return table


def _stacked(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Tables, one after the other; nan in columns that others have more."""
    most = max(part.shape[1] for part in parts)
    return np.concatenate(
        [
            part
            if part.shape[1] == most
            else np.pad(part, ((0, 0), (0, most - part.shape[1])), constant_values=nan)
            for part in parts
        ]
    )


def columns(
    y: Sequence[float | list[float]], x: Sequence[list[float] | None]
) -> tuple[bytes, list[int] | None, bytes, list[int] | None]:
    """Return labels and inputs as an ObserveMany has them: y, outputs, x, inputs."""
    outputs = None
    numbers = cast(Sequence[float], y)
    if list in set(map(type, y)):
        each = [own if isinstance(own, list) else [own] for own in y]
        outputs = list(map(len, each))
        numbers = [*chain.from_iterable(each)]
    inputs = None
    given: list[float] = []
    if any(x):
        inputs = [len(own or ()) for own in x]
        given = [*chain.from_iterable(own or () for own in x)]
    return np.array(numbers, "<f8").tobytes(), outputs, np.array(given, "<f8").tobytes(), inputs


def check(command: ObserveMany) -> None:
    """Raise ValueError where the observations that are more than numbers do not fit the rest."""
    labels = np.frombuffer(command.y, "<f8")
    if command.outputs is not None:  # the first number of each
        labels = labels[np.cumsum(command.outputs) - command.outputs]
    expected = int(np.count_nonzero(labels != labels))
    got = len(command.others or ())
    if got != expected:
        raise ValueError(f"expected {expected} observations that are no numbers, got {got}")


def ends_of(command: ObserveMany) -> Sequence[int]:
    """Return where the observations of each row begin, and where the last ones end."""
    if command.counts is None:
        return range(len(command.streams) + 1)
    return list(accumulate(command.counts, initial=0))


def part_of(command: ObserveMany, numbers: Numbers, start: int, stop: int) -> list[Observation]:
    """Return observations of all rows, in order, from place `start` to before `stop`."""
    own = numbers.part(slice(start, stop))
    observations = own.observations
    if command.others is not None:
        before = int((~numbers.plain[:start]).sum())
        places = (~own.plain).nonzero()[0].tolist()
        for i, other in enumerate(places, before):
            observations[other] = command.others[i]
    return observations


def observations_of(command: ObserveMany) -> list[list[Observation]]:
    """Return the observations of each row."""
    numbers = Numbers.of(command)
    return [part_of(command, numbers, *ends) for ends in pairwise(ends_of(command))]


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
    numbers = Numbers.of(command)
    others = None
    if command.others is not None:
        no_number = ~numbers.plain
        before = no_number.cumsum()
        others = [command.others[before[i] - 1] for i in places if no_number[i]] or None
    taken = np.zeros(command.units, dtype=bool)
    taken[places] = True

    def part(column: list[T] | None, chosen: Sequence[int] = own) -> list[T] | None:
        return None if column is None else [column[i] for i in chosen]

    return replace(
        command,
        streams=[command.streams[row] for row in own],
        y=np.frombuffer(command.y, "<f8")[taken.repeat(numbers.outputs)].tobytes(),
        counts=part(command.counts),
        times=part(command.times, places),
        outputs=part(command.outputs, places),
        x=np.frombuffer(command.x, "<f8")[taken.repeat(numbers.inputs)].tobytes(),
        inputs=part(command.inputs, places),
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


def is_plain(seen: Observation, widest: int = WIDEST) -> bool:
    """Whether an observation is a label and an input of numbers, or these with their time.

    One that is wider is not: it would make the columns of all others as wide.
    """
    y = seen.y
    several = type(y) is list and 1 < len(y) <= widest and None not in y
    if not (several or type(y) is float) or seen.x == [] or len(seen.x or ()) > widest:
        return False
    return seen.elapsed is None and seen.changepoint is None and not seen.pending


def unless_empty(column: list[T | None]) -> list[T | None] | None:
    """Return a column; None for one without a value."""
    return None if column.count(None) == len(column) else column
