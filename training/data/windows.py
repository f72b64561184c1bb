"""Windows of recorded series: at random places, or fixed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from training.data.base import Batch
from training.errors import BadData


class Series(NamedTuple):
    """One unsegmented series of N observations.

    x: (N, x_dim), or None without inputs. y: (N, y_dim), nan where a label is missing.
    switch: (N,) bool whether a regime starts at each observation, None where nobody knows.
    """

    x: Tensor | None
    y: Tensor
    switch: Tensor | None
    name: str

    def part(self, start: int, stop: int) -> Series:
        """Observations [start, stop), under the same name."""
        x = None if self.x is None else self.x[start:stop]
        switch = None if self.switch is None else self.switch[start:stop]
        return Series(x, self.y[start:stop], switch, self.name)


class Windows:
    """Windows drawn uniformly from all places where one fits, over all series.

    Series shorter than a window have no such place. The first observation of a window counts as
    the start of a regime, as for the model that has seen nothing before it.
    """

    def __init__(self, series: Sequence[Series]) -> None:
        """Hold the series; BadData where there is none or their dimensions differ."""
        _check_alike(series)
        self.names = [each.name for each in series]
        self._length = torch.tensor([len(each.y) for each in series])
        self._first = torch.cumsum(self._length, 0) - self._length
        self._all = _joined(series)

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` windows, with replacement; BadData if every series is shorter than `length`."""
        places = (self._length - length + 1).clamp(min=0)
        stop = torch.cumsum(places, 0)
        total = int(stop[-1])
        if total == 0:
            raise BadData(f"every series is shorter than {length}: {self._sizes()}")
        place = torch.randint(total, (count,), generator=generator)
        series = torch.searchsorted(stop, place, right=True)
        start = self._first[series] + place - (stop - places)[series]
        return _cut(self._all, start, length)

    def _sizes(self, most: int = 10) -> str:
        pairs = zip(self.names, self._length.tolist(), strict=True)
        listed = [f"{name!r} has {have}" for name, have in pairs]
        more = [] if len(listed) <= most else [f"and {len(listed) - most} more"]
        return ", ".join(listed[:most] + more)


class Fixed:
    """Fixed windows, held as one batch."""

    def __init__(self, held: Batch) -> None:
        self.held = held

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` different windows cut to their first `length` observations.

        There are fewer if fewer are held: then all of them, in their order. BadData if they are
        shorter than `length`.
        """
        number, longest = self.held.y.shape[:2]
        if length > longest:
            raise BadData(f"the fixed windows hold {longest} observations, {length} were asked for")
        if count >= number:
            chosen = torch.arange(number)
        else:
            chosen = torch.randperm(number, generator=generator)[:count]
        x = None if self.held.x is None else self.held.x[chosen, :length]
        switch = None if self.held.switch is None else self.held.switch[chosen, :length]
        return Batch(x, self.held.y[chosen, :length], switch)


def consecutive(series: Sequence[Series], length: int) -> Fixed:
    """Disjoint windows of each series, from its first observation on; BadData if there is none."""
    _check_alike(series)
    parts = [
        each.part(start, start + length)
        for each in series
        for start in range(0, len(each.y) - length + 1, length)
    ]
    if not parts:
        sizes = ", ".join(f"{each.name!r} has {len(each.y)}" for each in series[:10])
        raise BadData(f"every series is shorter than {length}: {sizes}")
    start = torch.arange(len(parts)) * length
    return Fixed(_cut(_joined(parts), start, length))


def _joined(series: Sequence[Series]) -> Series:
    xs = [each.x for each in series if each.x is not None]
    switches = [each.switch for each in series if each.switch is not None]
    return Series(
        torch.cat(xs) if xs else None,
        torch.cat([each.y for each in series]),
        torch.cat(switches) if len(switches) == len(series) else None,
        "all",
    )


def _cut(series: Series, start: Tensor, length: int) -> Batch:
    at = start[:, None] + torch.arange(length)
    x = None if series.x is None else series.x[at]
    switch = None
    if series.switch is not None:
        switch = series.switch[at]
        switch[:, 0] = True
    return Batch(x, series.y[at], switch)


def _check_alike(series: Sequence[Series]) -> None:
    if not series:
        raise BadData("expected at least one series, got none")
    first = _dimensions(series[0])
    for each in series:
        if _dimensions(each) != first:
            raise BadData(
                f"series {each.name!r} has (x_dim, y_dim) {_dimensions(each)}, "
                f"{series[0].name!r} {first}"
            )
        if each.x is not None and len(each.x) != len(each.y):
            raise BadData(f"series {each.name!r} has {len(each.x)} inputs and {len(each.y)} labels")


def _dimensions(series: Series) -> tuple[int | None, int]:
    return None if series.x is None else series.x.shape[1], series.y.shape[1]
