"""Windows of unsegmented series: batches, the sources they are drawn from, and random regimes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_core import segments, transfer
from model_core.stream.warmup import estimate
from model_core.upm.averaged import Averaged
from training.errors import BadData

FARTHEST = 1e3  # a window whose warm-up hardly varies would be all that is learned from
LISTED = 10  # series or streams named in a message
FEWEST = 5  # labels of a warm-up that give an output its units


class Observations(NamedTuple):
    """Observations of one series (N, ...), or of `T` in windows from `B` places (B, T, ...).

    x: (..., x_dim), or None for a model of labels alone. y: (..., y_dim), nan where a label is
    missing; class indices have y_dim 1. switch: (...) whether a regime starts at each observation,
    None if unknown; only oracles and supervision read it. elapsed: (...) time since the observation
    before, in units of the hazard, None for 1; that of the first is not read. name: of a series.
    """

    x: Tensor | None
    y: Tensor
    switch: Tensor | None = None
    elapsed: Tensor | None = None
    name: str = ""

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Self:
        """The same on another device; the host does not wait for the copies."""

        def copy(field: Tensor) -> Tensor:
            # Numbers are rounded here: a copy to a GPU that rounds them too is waited for.
            rounded = field if field.dtype == torch.bool else field.to(dtype)
            return transfer.to_device(rounded, device)

        return self._changed(copy)

    def part(self, at: int | slice | Tensor | tuple[slice, int]) -> Self:
        """Some of the windows, or of the observations of a series."""
        return self._changed(lambda field: field[at])

    def series(self) -> list[Self]:
        """Each window as a series, named by its place."""
        return [self.part(k)._replace(name=str(k)) for k in range(len(self.y))]

    def cut(self, start: int, stop: int) -> Self:
        """Observations [start, stop) of every window."""
        return self._changed(lambda field: field[:, start:stop])

    def padded(self, length: int) -> Self:
        """A series with observations without a label at the end, up to a length."""
        more = length - len(self.y)
        if more <= 0:
            return self
        return self._replace(
            x=None if self.x is None else torch.cat((self.x, self.x[-1:].expand(more, -1))),
            y=pad(self.y, (0, 0, 0, more), value=math.nan),
            switch=None if self.switch is None else pad(self.switch, (0, more)),
            elapsed=None if self.elapsed is None else pad(self.elapsed, (0, more), value=1.0),
        )

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change every tensor that is there."""
        changed: dict[str, Any] = {
            name: change(field)
            for name, field in self._asdict().items()
            if isinstance(field, Tensor)
        }
        return self._replace(**changed)


Batch = Observations
Series = Observations

# Windows by a generator, their number and their length, each of one unsegmented series. The
# generator is the only randomness, so a seed reproduces them.
Source = Callable[[torch.Generator, int, int], Batch]


class Scaling(NamedTuple):
    """`(value - offset) / scale` of inputs (x_dim,) and labels (y_dim,), learned from the data."""

    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor

    @classmethod
    def none(cls, x_dim: int, y_dim: int) -> Scaling:
        """Identity scaling."""
        return cls(torch.zeros(x_dim), torch.ones(x_dim), torch.zeros(y_dim), torch.ones(y_dim))


class Splits(NamedTuple):
    """Sources of the same kind of series that share no observation.

    classes: number of classes of labels that are class indices. scaling: None for none. held_out:
    of own data the series that the test is of, whole.
    """

    train: Source
    validation: Source
    test: Source
    x_dim: int
    y_dim: int
    classes: int = 0
    scaling: Scaling | None = None
    held_out: Sequence[Series] = ()


def windows(series: Sequence[Series]) -> Source:
    """Windows drawn uniformly, with replacement, from all positions in all series where one fits.

    Series shorter than a window have none. The first observation of a window counts as
    the start of a regime, as for the model that has seen nothing before it. To draw from series
    that are all shorter raises BadData.
    """
    lengths = torch.tensor([len(one.y) for one in series])
    first = torch.cumsum(lengths, 0) - lengths
    joined = _joined(series)

    def draw(generator: torch.Generator, count: int, length: int) -> Batch:
        places = (lengths - length + 1).clamp(min=0)
        stop = torch.cumsum(places, 0)
        total = int(stop[-1])
        if total == 0:
            raise _too_short(series, length)
        place = torch.randint(total, (count,), generator=generator)
        chosen = torch.searchsorted(stop, place, right=True)
        start = first[chosen] + place - (stop - places)[chosen]
        return _cut(joined, start, length)

    return draw


def fixed(batch: Batch) -> Source:
    """Different ones of some windows, cut to their first observations; all if they are too few.

    Raises BadData where they are shorter than what is drawn.
    """

    def draw(generator: torch.Generator, count: int, length: int) -> Batch:
        number, longest = batch.y.shape[:2]
        if length > longest:
            raise BadData(
                f"expected at most {longest} observations, as in the fixed windows, got {length}"
            )
        if count >= number:
            chosen = torch.arange(number)
        else:
            chosen = torch.randperm(number, generator=generator)[:count]
        return batch.part(chosen).cut(0, length)

    return draw


def in_units(source: Source, warmup: int) -> Source:
    """Windows of a source in units of their own, as streams that have had their warm-up.

    Location and scale of each are those of the `warmup` labels before it; labels beyond `FARTHEST`
    units count as that far. An output of which fewer than `FEWEST` are there has no units, and no
    labels in such a window.
    """

    def draw(generator: torch.Generator, count: int, length: int) -> Batch:
        batch = source(generator, count, warmup + length)
        model = Averaged(batch.y.shape[-1])
        before = batch.y[:, :warmup].double()
        moments = [estimate(window.tolist(), model) for window in before]
        location, scale = (
            torch.tensor(part, dtype=torch.float64).unsqueeze(1)
            for part in zip(*moments, strict=True)
        )
        after = batch.cut(warmup, warmup + length)
        y = ((after.y.double() - location) / scale).clamp(-FARTHEST, FARTHEST)
        without_units = (~before.isnan()).sum(1, keepdim=True) < min(FEWEST, warmup)
        y = y.masked_fill(without_units, math.nan).to(batch.y.dtype)
        return after._replace(y=y, switch=_from_a_start(after.switch))

    return draw


def consecutive(series: Sequence[Series], length: int) -> Batch:
    """Disjoint windows of each series, from its first observation on; BadData without any."""
    parts = [
        one.part(slice(start, start + length))
        for one in series
        for start in range(0, len(one.y) - length + 1, length)
    ]
    if not parts:
        raise _too_short(series, length)
    return _cut(_joined(parts), torch.arange(len(parts)) * length, length)


def switches(generator: torch.Generator, count: int, length: int, hazard: float) -> Tensor:
    """Whether a regime starts at each observation: (count, length) bool; hazard: in [0, 1].

    The first observation starts one; every later one does with probability `hazard`.
    """
    switch = torch.rand(count, length, generator=generator, dtype=torch.float64) < hazard
    switch[:, :1] = True
    return switch


def held(values: Tensor, switch: Tensor) -> Tensor:
    """Values held from the start of each regime.

    values: (B, T, ...), one independent draw per observation. switch: (B, T), true at 0.
    """
    rows = torch.arange(switch.shape[0])[:, None]
    return values[rows, segments.oracle(switch)]


def uniform(
    generator: torch.Generator, shape: Sequence[int], bounds: tuple[float, float] = (0.0, 1.0)
) -> Tensor:
    """Numbers uniform between two, in float64."""
    low, high = bounds
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def below(generator: torch.Generator, bound: Tensor) -> Tensor:
    """Integers uniform on 0 ... bound - 1, one for each positive integer `bound`."""
    share = torch.rand(bound.shape, generator=generator, dtype=torch.float64)
    return (share * bound).long().clamp(max=bound - 1)


def member(generator: torch.Generator, count: Tensor, group: Tensor) -> Tensor:
    """One of each group, uniformly, where groups of `count` (n,) items lie one after the other."""
    first = torch.cumsum(count, 0) - count
    return first[group] + below(generator, count[group])


def _joined(series: Sequence[Series]) -> Series:
    """All series one after the other; a field that some of them lack is left out."""
    joined: dict[str, Any] = {}
    for name in ("x", "y", "switch", "elapsed"):
        fields = [getattr(one, name) for one in series]
        joined[name] = None if any(field is None for field in fields) else torch.cat(fields)
    return Series(**joined)


def _cut(series: Series, start: Tensor, length: int) -> Batch:
    batch = series.part(start[:, None] + torch.arange(length))
    return batch._replace(switch=_from_a_start(batch.switch))


def _from_a_start(switch: Tensor | None) -> Tensor | None:
    """Switches (B, T) with one at the first observation of every window."""
    if switch is None:
        return None
    first = torch.ones_like(switch[:, :1])
    return torch.cat((first, switch[:, 1:]), 1)


def _too_short(series: Sequence[Series], length: int) -> BadData:
    sizes = [f"{one.name!r} has {len(one.y)}" for one in series]
    return BadData(f"every series is shorter than {length}: {shortened(sizes)}")


def shortened(texts: Sequence[str], separator: str = ", ") -> str:
    """The first of some texts for a message, and how many more there are."""
    more = [f"and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
    return separator.join([*texts[:LISTED], *more])
