"""Windows of recorded series: random or fixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_core.upm.averaged import Averaged
from model_core.warmup import estimate
from training.data.base import Batch, Source
from training.errors import BadData

FARTHEST = 1e3  # a window whose warm-up hardly varies would be all that is learned from
FEWEST = 5  # labels of a warm-up that give an output its units


class Series(NamedTuple):
    """One unsegmented series of N observations.

    x: (N, x_dim), or None without inputs. y: (N, y_dim), nan where a label is missing.
    switch: (N,) bool whether a regime starts at each observation, None if unknown. elapsed: (N,)
    time since the observation before, in units of the hazard, None for 1; the first is not read.
    """

    x: Tensor | None
    y: Tensor
    switch: Tensor | None
    name: str
    elapsed: Tensor | None = None

    def part(self, start: int, stop: int) -> Series:
        """Observations [start, stop), under the same name."""
        x, switch, elapsed = (
            None if each is None else each[start:stop]
            for each in (self.x, self.switch, self.elapsed)
        )
        return Series(x, self.y[start:stop], switch, self.name, elapsed)

    def padded(self, length: int) -> Series:
        """With observations without a label at the end, up to a length."""
        more = length - len(self.y)
        if more <= 0:
            return self
        y = pad(self.y, (0, 0, 0, more), value=math.nan)
        x = None if self.x is None else torch.cat((self.x, self.x[-1:].expand(more, -1)))
        switch = None if self.switch is None else pad(self.switch, (0, more))
        elapsed = None if self.elapsed is None else pad(self.elapsed, (0, more), value=1.0)
        return Series(x, y, switch, self.name, elapsed)


class Windows:
    """Windows drawn uniformly from all positions in all series where one fits.

    Series shorter than a window have none. The first observation of a window counts as
    the start of a regime, as for the model that has seen nothing before it.
    """

    def __init__(self, series: Sequence[Series]) -> None:
        """Store the series; raises BadData without series or for unequal dimensions."""
        _check_alike(series)
        self.names = [one.name for one in series]
        self._length = torch.tensor([len(one.y) for one in series])
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

    def _sizes(self, limit: int = 10) -> str:
        pairs = zip(self.names, self._length.tolist(), strict=True)
        listed = [f"{name!r} has {have}" for name, have in pairs]
        more = [] if len(listed) <= limit else [f"and {len(listed) - limit} more"]
        return ", ".join(listed[:limit] + more)


class Fixed:
    """Fixed windows, stored as one batch."""

    def __init__(self, held: Batch) -> None:
        self.held = held

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` different windows cut to their first `length` observations.

        All windows in their order if fewer are stored. BadData if they are shorter than `length`.
        """
        number, longest = self.held.y.shape[:2]
        if length > longest:
            raise BadData(
                f"expected at most {longest} observations, as in the fixed windows, got {length}"
            )
        if count >= number:
            chosen = torch.arange(number)
        else:
            chosen = torch.randperm(number, generator=generator)[:count]
        return self.held.part(chosen).cut(0, length)


class InUnits:
    """Windows in units of their own, as streams that have had their warm-up.

    Location and scale of each are those of the `warmup` labels before it. An output of which fewer
    than `FEWEST` are there has no units, and no labels in such a window.
    """

    def __init__(self, source: Source, warmup: int) -> None:
        """source: of windows that are so much longer."""
        self._source, self._warmup = source, warmup

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """As the source; labels beyond `FARTHEST` units count as that far."""
        batch = self._source.draw(generator, count, self._warmup + length)
        model = Averaged(batch.y.shape[-1])
        y = batch.y.double()
        before, y = y[:, : self._warmup], y[:, self._warmup :]
        unknown = (~before.isnan()).sum(1, keepdim=True) < min(FEWEST, self._warmup)
        each = [estimate(window.tolist(), model) for window in before]
        location, scale = (torch.tensor(part, dtype=y.dtype) for part in zip(*each, strict=True))
        units = ((y - location.unsqueeze(1)) / scale.unsqueeze(1)).clamp(-FARTHEST, FARTHEST)
        units = units.masked_fill(unknown, math.nan)
        rest = batch.cut(self._warmup, self._warmup + length)
        switch = None if rest.switch is None else rest.switch.clone()
        if switch is not None:
            switch[:, 0] = True
        return rest._replace(y=units.to(batch.y.dtype), switch=switch)


def consecutive(series: Sequence[Series], length: int) -> Fixed:
    """Disjoint windows of each series, from its first observation on; BadData without any."""
    _check_alike(series)
    parts = [
        one.part(start, start + length)
        for one in series
        for start in range(0, len(one.y) - length + 1, length)
    ]
    if not parts:
        sizes = ", ".join(f"{one.name!r} has {len(one.y)}" for one in series[:10])
        raise BadData(f"every series is shorter than {length}: {sizes}")
    start = torch.arange(len(parts)) * length
    return Fixed(_cut(_joined(parts), start, length))


def _joined(series: Sequence[Series]) -> Series:
    xs = [one.x for one in series if one.x is not None]
    switches = [one.switch for one in series if one.switch is not None]
    elapsed = [one.elapsed for one in series if one.elapsed is not None]
    return Series(
        torch.cat(xs) if xs else None,
        torch.cat([one.y for one in series]),
        torch.cat(switches) if len(switches) == len(series) else None,
        "all",
        torch.cat(elapsed) if len(elapsed) == len(series) else None,
    )


def _cut(series: Series, start: Tensor, length: int) -> Batch:
    at = start[:, None] + torch.arange(length)
    x = None if series.x is None else series.x[at]
    elapsed = None if series.elapsed is None else series.elapsed[at]
    switch = None
    if series.switch is not None:
        switch = series.switch[at]
        switch[:, 0] = True
    return Batch(x, series.y[at], switch, elapsed)


def _check_alike(series: Sequence[Series]) -> None:
    if not series:
        raise BadData("expected at least one series, got none")
    first = _dimensions(series[0])
    for one in series:
        if _dimensions(one) != first:
            raise BadData(
                f"series {one.name!r} has (x_dim, y_dim) {_dimensions(one)}, "
                f"{series[0].name!r} {first}"
            )
        if one.x is not None and len(one.x) != len(one.y):
            raise BadData(f"series {one.name!r} has {len(one.x)} inputs and {len(one.y)} labels")


def _dimensions(series: Series) -> tuple[int | None, int]:
    return None if series.x is None else series.x.shape[1], series.y.shape[1]
