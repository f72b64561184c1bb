"""Observations as columns of numbers: as a filter is stepped by them, and a warm-up is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core import compiled as places
from model_core.filter import Inputs
from model_core.hazard import table_of
from model_core.lazy import Tensor, torch
from model_core.stream.events import NOTHING_WATCHED, Watch
from model_core.stream_settings import Hazard, StreamSettings
from model_core.transfer import to_device
from model_core.upm.base import UnderlyingModel

FEW = 16  # entries of a hazard that are sooner copied than viewed
Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """Observations of series of one model, a row each, with the settings that they met.

    y: (B, d) labels, nan where missing. x: (B, x_dim) inputs. elapsed: (B,) time since the one
    before. changepoint: (B,) supervision, nan where none. outlier_rate: (B,). hazard: (B, H) by run
    length, a last entry holds on. offset: (B, d) seasons, which the filter's labels are less of.
    """

    y: Floats
    x: Floats
    elapsed: Floats
    changepoint: Floats
    outlier_rate: Floats
    hazard: Floats
    offset: Floats

    @property
    def rows(self) -> int:
        """Number of the observations."""
        return len(self.y)

    @property
    def filtered(self) -> Floats:
        """Labels (B, d) less their seasons."""
        return self.y - self.offset

    def part(self, chosen: slice | NDArray[np.int64] | list[int]) -> Columns:
        """Some of the observations."""
        if isinstance(chosen, slice) and chosen.indices(self.rows) == (0, self.rows, 1):
            return self  # as for a single one, which need not wait for seven slices
        return Columns(*(column[chosen] for column in self))

    def unlabelled(self, row: int) -> Columns:
        """The same without the label of one."""
        y = self.y.copy()
        y[row] = np.nan
        return self._replace(y=y)


class Packed(NamedTuple):
    """Observations as a kernel takes them.

    y: (B, d) labels. offset: (B, d) their seasons; None: they have none. hazard: (B, H) as of
    `Columns`. inputs: (B, 7 + d + x) as of `compiled.kernel.Kernel.advance`, of labels less their
    seasons.
    """

    y: Floats
    offset: Floats | None
    hazard: Floats
    inputs: Floats

    def part(self, chosen: slice | NDArray[np.int64]) -> Packed:
        """Some of the observations."""
        offset = None if self.offset is None else self.offset[chosen]
        return Packed(self.y[chosen], offset, self.hazard[chosen], self.inputs[chosen])


def joined(parts: Sequence[Columns]) -> Columns:
    """Observations of several, one after the other."""
    y, x, elapsed, changepoint, outlier_rate, hazards, offset = zip(*parts, strict=True)
    longest = max(hazard.shape[1] for hazard in hazards)
    alike = [longer(hazard, longest) for hazard in hazards]
    whole = (y, x, elapsed, changepoint, outlier_rate, alike, offset)
    return Columns(*map(np.concatenate, whole))


def longer(hazards: Floats, length: int) -> Floats:
    """Hazards (B, H) by run length, of which the last entry holds on, as longer ones."""
    more = length - hazards.shape[1]
    return np.pad(hazards, ((0, 0), (0, more)), "edge") if more else hazards


def of_all(hazard: Floats, rows: int) -> Floats:
    """Hazard (H,) by run length as that of each of so many observations; a view of a long one."""
    # broadcast_to takes numpy 15 us, which few observations need not wait for.
    if rows == 1 or len(hazard) <= FEW:
        return hazard[None].repeat(rows, 0)
    return np.broadcast_to(hazard, (rows, len(hazard)))


def effective_rates(
    model: UnderlyingModel, settings: StreamSettings
) -> tuple[Hazard | None, float]:
    """Hazard (None: the model's own table) and outlier rate: those of the settings, else its."""
    hazard = settings.hazard
    if hazard is None and isinstance(model.hazard, float):
        hazard = model.hazard
    rate = settings.outlier_rate
    return hazard, model.outlier_rate if rate is None else rate


def hazard_table(model: UnderlyingModel, stated: Sequence[Hazard | None]) -> Floats:
    """Hazards by run length (B, H), H that of the longest: a last entry holds on.

    None: the model's own.
    """
    own = [model.hazard if hazard is None else hazard for hazard in stated]
    if own and own.count(own[0]) == len(own):
        return of_all(table_of(own[0]), len(own))
    if {*map(type, own)} <= {float}:
        return np.array(own, dtype=np.float64)[:, None]
    rows = [table_of(hazard)[None] for hazard in own]
    longest = max(row.shape[1] for row in rows)
    return np.concatenate([longer(row, longest) for row in rows])


def labelled(model: UnderlyingModel, y: Floats) -> NDArray[np.bool_]:
    """Which labels (B, d) are some that the model learns from."""
    present = np.isfinite(y)
    return np.asarray(present.any(1) if model.partial else present.all(1))


def packed(
    model: UnderlyingModel,
    seen: Columns,
    watched: Sequence[Watch] | Watch | Floats = NOTHING_WATCHED,
) -> Packed:
    """Observations as a kernel takes them; watched: of each, or of all; also as numbers (B, 3)."""
    label = places.LABEL
    x = label + model.y_dim
    inputs = np.empty((seen.rows, x + model.x_dim))
    there = labelled(model, seen.y)
    inputs[:, places.LABELLED] = there
    inputs[:, places.ELAPSED] = seen.elapsed
    inputs[:, places.CHANGEPOINT] = seen.changepoint
    inputs[:, places.OUTLIER_RATE] = seen.outlier_rate
    inputs[:, places.SETTLED : places.THRESHOLD + 1] = watched
    inputs[:, label:x] = np.where(there[:, None], seen.filtered, 0.0)
    inputs[:, x:] = seen.x
    return Packed(seen.y, seen.offset, seen.hazard, inputs)


def plain(y: Floats, x: Floats, elapsed: Floats, rates: Floats) -> Floats:
    """Inputs (B, 7 + d + x) of a step, as of `Packed`, by labels of which nothing is stated.

    y: (B, d). x: (B, x). elapsed: (B,). rates: (B, 4) outlier rate and numbers of `Watch`.
    """
    end = places.LABEL + y.shape[1]
    inputs = np.empty((len(y), end + x.shape[1]))
    inputs[:, places.LABELLED] = 1.0
    inputs[:, places.ELAPSED] = elapsed
    inputs[:, places.CHANGEPOINT] = np.nan
    inputs[:, places.OUTLIER_RATE : places.LABEL] = rates
    inputs[:, places.LABEL : end] = y
    inputs[:, end:] = x
    return inputs


def inputs_of(model: UnderlyingModel, packed: Packed, device: torch.device | str = "cpu") -> Inputs:
    """Inputs of the eager filter from observations as kernels take them."""
    return unpacked(model, sent(packed, device))


def sent(packed: Packed, device: torch.device | str) -> Tensor:
    """Inputs and hazards (B, 7 + d + x + H) on a device, in one copy."""
    return to_device(np.hstack((packed.inputs, packed.hazard)), device)


def width(model: UnderlyingModel) -> int:
    """Inputs (7 + d + x) of a step."""
    return places.LABEL + model.y_dim + model.x_dim


def unpacked(model: UnderlyingModel, rows: Tensor) -> Inputs:
    """Inputs of the eager filter, views of what was `sent`."""
    label = places.LABEL
    x = label + model.y_dim
    hazard = x + model.x_dim
    return Inputs(
        rows[:, x:hazard] if model.x_dim else None,
        rows[:, label:x],
        rows[:, places.LABELLED] > 0,
        rows[:, hazard:],
        rows[:, places.ELAPSED],
        rows[:, places.CHANGEPOINT],
        rows[:, places.OUTLIER_RATE],
    )


def values(model: UnderlyingModel, seen: Columns) -> list[list[float]]:
    """What location and scale are taken from: labels there are, with inputs if they count."""
    y = seen.filtered
    numbers = np.hstack((y, seen.x)) if model.scales_inputs else y
    listed: list[list[float]] = numbers[labelled(model, y)].tolist()
    return listed
