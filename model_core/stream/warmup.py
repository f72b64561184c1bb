"""Warm-up of a series: location and scale from its first labels, and forecasts until then."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.stream import columns
from model_core.stream.columns import Columns, Floats
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.resolution import FILLED, hold, repeated, resolution, rests, undecided
from model_core.stream.slab import Detail, Past, Refused, Slab, Step
from model_core.stream_settings import StreamSettings
from model_core.upm.base import UnderlyingModel

LONGEST = 200  # labels after which a series whose values never differ goes on without them
LONGEST_WAIT = 2000  # observations after which one whose labels are missing does
RECALLED = 64  # observations that a forecast in the warm-up is made from, the last ones
UNCOMPILED = 16  # of a model without a kernel, whose steps take milliseconds
FLAT_SCALE = 0.01  # of the location, where all values were the same
SMALLEST_SCALE = 1e-150  # its square is still a number
FIRST_LOOK = 50  # observations after which, and after every doubling, a scale is looked at again
OFTEN = 50  # observations after which, and after as many again, scales of a vector are
OUTGROWN = 100.0  # scales from the location: with a quarter of the labels beyond, it is taken anew
SHRUNK = 0.33  # scales, which nine of ten labels lie within where the noise is a tenth of it
OUTLIVED = 300.0  # the same of an output of a vector, with a quarter of the last `OFTEN` labels
# Standard deviations by the middle half of labels, from which on that of all is an outlier's.
OUTLYING = 5.0
SCALE_FREE = ("count", "positive")  # labels whose location says it all

# Of each observation its label, nan where an output is missing, then its input if that counts.
Values = Sequence[Sequence[float]]
Moments = tuple[list[float], list[float]]  # location and scale


def varied(values: Values, y_dim: int) -> bool:
    """Whether each output has two labels, and two of one differ: a constant one may stay so."""
    known = _columns(values)[:y_dim]
    return all(len(column) > 1 for column in known) and any(len(set(own)) > 1 for own in known)


def _columns(values: Values) -> list[list[float]]:
    """Numbers of each column, without those that are missing."""
    return [
        [number for number in column if number == number] for column in zip(*values, strict=True)
    ]


def complete(model: UnderlyingModel, values: Values, warmup: int, waited: int) -> bool:
    """Whether each output has enough labels, and two of them differ in one (or never will).

    Those that a held series only repeats do not count. waited: observations so far, with those that
    have no label.
    """
    if waited >= LONGEST_WAIT:
        return True
    if len(values) < max(warmup, 1):
        return False
    if len(values) >= LONGEST:
        return True
    fewest = min(len(column) for column in _columns(values)[: model.y_dim])
    if fewest < warmup or not varied(values, model.y_dim):
        return False
    y = np.array(values)[:, : model.y_dim]
    most = hold(model, y)
    if most:
        return int((~repeated(y, most)).sum()) >= warmup
    return not undecided(model, y)


def asked(y: Floats, warmup: int, known: list[float] | None) -> int:
    """Observations (n, d) until each output has the labels asked for, whether they differ or not.

    All where they are too few. A series of one value waits on; what ends that may be a change.
    known: its resolution: those that a held series only repeats do not count.
    """
    there = ~np.isnan(y)
    if known is not None and known[-1]:
        there[repeated(y, known[-1])] = False
    labels = np.cumsum(there, 0).min(1, initial=len(y))
    enough = np.flatnonzero(labels >= max(warmup, 1))
    return int(enough[0]) + 1 if len(enough) else len(y)


def given(model: UnderlyingModel, settings: StreamSettings) -> Moments | None:
    """Location and scale that need no warm-up, if any: counts and durations need no scale."""
    if not model.needs_scale:
        return [0.0] * model.scaled, [1.0] * model.scaled
    location = settings.location
    scale = settings.scale
    if location is None:
        return None
    if scale is None:
        return (location, [1.0] * len(location)) if model.label in SCALE_FREE else None
    return location, scale


def estimate(values: Values, model: UnderlyingModel) -> Moments:
    """Location and scale of each column: of counts the mean, else the median; and the deviation.

    The median is not moved by outliers, and keeps to one side of a change among the first labels.
    A column without any number has location 0 (of counts 1) and scale 1.
    """
    location = []
    scale = []
    for column in _columns(values) or [[]] * model.scaled:
        if not column:
            location.append(float(model.label in SCALE_FREE))
            scale.append(1.0)
            continue
        mean = math.fsum(column) / len(column)
        squares = math.fsum((value - mean) ** 2 for value in column)
        deviation = math.sqrt(squares / max(len(column) - 1, 1)) if len(set(column)) > 1 else 0.0
        if model.label in SCALE_FREE:
            # No count yet: half of one spread over all observations.
            location.append(mean or 0.5 / len(column))
        else:
            location.append(statistics.median(column))
        if model.label == "real" and len(column) <= LONGEST:  # of more it may be that of changes
            usual = _spread(column)
            if usual > 0 and deviation > OUTLYING * usual:
                deviation = usual
        scale.append(max(deviation, SMALLEST_SCALE) if deviation else flat_scale(column[0]))
    return location, scale


def flat_scale(value: float) -> float:
    """Scale of an output that was constant."""
    return max(FLAT_SCALE * abs(value) or 1.0, SMALLEST_SCALE)


def _spread(column: Sequence[float]) -> float:
    """Standard deviation of a normal with the quartiles and the median deviation of numbers.

    0 where half of them are the same: their spread is in the others.
    """
    ordered = sorted(column)
    center = _quantile(ordered, 0.5)
    middle = (_quantile(ordered, 0.75) - _quantile(ordered, 0.25)) / 1.349
    median = 1.4826 * statistics.median([abs(value - center) for value in column])
    return max(middle, median) if min(middle, median) > 0 else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of numbers in order, to the bit as of numpy, which takes 50 times as long."""
    at = share * (len(ordered) - 1)
    before = int(at)
    low = ordered[before]
    high = ordered[min(before + 1, len(ordered) - 1)]
    rest = at - before
    return low + (high - low) * rest if rest < 0.5 else high - (high - low) * (1 - rest)


def next_look(seq: int, outputs: int = 1) -> int:
    """Observations, more than `seq`, after which a scale is looked at again."""
    if outputs > 1:
        return seq - seq % OFTEN + OFTEN
    at = FIRST_LOOK
    while at <= seq:
        at *= 2
    return at


def flat(location: Sequence[float], scale: Sequence[float]) -> list[bool]:
    """Which outputs were constant."""
    return [unit == flat_scale(value) for value, unit in zip(location, scale, strict=True)]


def left(labels: Floats, location: Sequence[float], scale: Sequence[float]) -> NDArray[np.bool_]:
    """Which labels (..., d) of outputs that were constant differ from that constant."""
    differ = np.isfinite(labels) & (labels != np.array(location))
    return np.asarray(differ & flat(location, scale))


def outlived(
    labels: Floats,
    location: Sequence[float],
    scale: Sequence[float],
    steps: Sequence[float] | None,
) -> list[bool]:
    """Outputs of a vector whose scale is to be taken anew, by the last labels (n, d).

    Those that were constant, or nearly so, and move now; that lie far from the location; and that
    stand still or lie close together, by their scale. steps: the resolution, if any.
    """
    every: list[bool] = []
    for o, (center, unit) in enumerate(zip(location, scale, strict=True)):
        column = labels[np.isfinite(labels[:, o]), o]
        last = column[-OFTEN:]
        if unit == flat_scale(center):
            moves = bool((column != center).any())
        else:
            rested = steps is not None and steps[o] == FILLED * unit
            # No burst of the order of the scale is among them: it would soon be that again.
            width = float(np.ptp(column)) if len(column) >= LONGEST else math.inf
            stands = width * OUTGROWN < unit or (width < unit and shrunk(column, unit))
            moves = stands or (rested and not rests(last.tolist()))
        every.append(moves or outgrown(last, center, unit, OUTLIVED))
    return every


def shrunk(labels: Floats, scale: float) -> bool:
    """Whether the last labels (n,), nan where missing, lie close together, by the scale.

    They differ, but so little that each regime would have to learn first how little. Of fewer than
    `OFTEN` labels that may be one regime of several; where half are the same the few others may
    lie anywhere, and a scale that is taken anew is no smaller.
    """
    there = np.sort(labels[np.isfinite(labels)]).tolist()
    if len(there) < OFTEN or _quantile(there, 0.75) == _quantile(there, 0.25):
        return False
    return _quantile(there, 0.95) - _quantile(there, 0.05) < SHRUNK * scale


def outgrown(labels: Floats, location: float, scale: float, most: float = OUTGROWN) -> bool:
    """Whether a quarter of the last labels (n,), nan where missing, lies far from the location.

    Then the scale tells nothing of levels, noise and outliers any more.
    """
    far = np.abs(labels[np.isfinite(labels)] - location)
    if far.max(initial=0.0) <= most * scale:  # as nearly always: none is
        return False
    return _quantile(np.sort(far).tolist(), 0.75) > most * scale


def estimated(model: UnderlyingModel, values: Values, settings: StreamSettings) -> Moments:
    """Location and scale: those of the settings, else those of labels."""
    location, scale = estimate(values, model)
    return settings.location or location, settings.scale or scale


def anew(
    model: UnderlyingModel,
    values: list[list[float]],
    settings: StreamSettings,
    before: Moments,
    chosen: Sequence[bool],
) -> Moments:
    """`estimated` of the chosen columns that have numbers; of others as before."""
    columns_of = _columns(values) or [[]] * len(chosen)
    location, scale = estimated(model, values, settings)
    own = [yes and bool(column) for yes, column in zip(chosen, columns_of, strict=True)]
    return (
        [new if yes else old for yes, new, old in zip(own, location, before[0], strict=True)],
        [new if yes else old for yes, new, old in zip(own, scale, before[1], strict=True)],
    )


class Units(NamedTuple):
    """Location and scale of each column, and the resolution of labels; see `resolution`."""

    location: list[float]
    scale: list[float]
    resolution: list[float] | None


def units(
    model: UnderlyingModel, seen: Columns, settings: StreamSettings, values: Values | None = None
) -> Units:
    """Units by the labels of a warm-up, of held ones without those that only repeat.

    values: as of `columns.values`, where they are known.
    """
    most = hold(model, seen.y)
    if most or values is None:
        values = columns.values(model, updates(seen, most) if most else seen)
    location, scale = estimated(model, values, settings)
    return Units(location, scale, resolution(model, values, scale, most))


def updates(seen: Columns, most: float) -> Columns:
    """Observations without those that repeat the one before; most: see `hold`."""
    return seen.part(np.flatnonzero(~repeated(seen.y, most)))


def first(
    model: UnderlyingModel, rows: Iterable[Sequence[float]], labels: int
) -> tuple[Moments, int]:
    """Location and scale of a whole series, and the number of observations of its warm-up.

    rows: labels, nan where missing, with inputs if they count. labels: of the warm-up.
    """
    values: list[Sequence[float]] = []
    count = 0
    for count, row in enumerate(rows, 1):
        present = list(map(math.isfinite, row))
        if any(present) if model.partial else all(present):
            values.append(row)
        if complete(model, values, labels, count):
            return estimate(values, model), count
    return estimate(values, model), count + 1


def begun(
    slab: Slab, histories: Sequence[Columns], settings: Sequence[StreamSettings]
) -> list[int | None]:
    """Rows of filters that begin now, with the labels of warm-ups so far; the caller's to remove.

    None before two labels differ, and where it takes no observations.
    """
    ready: dict[int, Units] = {}
    chosen: list[Columns] = []
    recalled = RECALLED if slab.in_series else UNCOMPILED
    for i, (seen, own) in enumerate(zip(histories, settings, strict=True)):
        values = columns.values(slab.model, seen)
        if varied(values, slab.model.y_dim):
            ready[i] = units(slab.model, seen, own, values)
            every = len(values) == seen.rows
            chosen.append((seen if every else _recalled(slab, seen)).part(slice(-recalled, None)))
    rows: list[int | None] = [None] * len(histories)
    if not ready:
        return rows
    new = slab.begin(*map(list, zip(*ready.values(), strict=True)))
    try:
        took = slab.absorb(new, chosen) if slab.in_series else [False] * len(new)
        for i, row, seen, done in zip(ready, new, chosen, took, strict=True):
            if done or _replayed(slab, row, seen, ready[i]):
                rows[i] = row
    finally:
        failed = sys.exception() is not None
        for i, row in zip(ready, new, strict=True):
            if failed or rows[i] is None:
                slab.remove(row)
    return rows


def _replayed(slab: Slab, row: int, seen: Columns, own: Units) -> bool:
    """Begin a row once more, where a label that it refuses counts as missing; whether it did."""
    slab.begin_anew(row, *own)
    try:
        for _ in slab.replay(row, Past(seen)):
            pass
    except Refused:
        return False
    return True


def forecasts(
    slab: Slab,
    histories: Sequence[Columns],
    settings: Sequence[StreamSettings],
    coming: Columns,
    detailed: Sequence[Detail | None] = (),
) -> list[Step | None]:
    """Forecast of the coming label of each of several series that warm up, by `begun`.

    detailed: as of `Slab.step`. None where there is no filter yet. A label that is beyond it has no
    log score, but a forecast.
    """
    forecast: list[Step | None] = [None] * coming.rows
    rows = begun(slab, histories, settings)
    begun_rows = {i: row for i, row in enumerate(rows) if row is not None}
    try:
        label = coming
        for _ in range(2):
            left = [i for i in begun_rows if forecast[i] is None]
            nothing = [NOTHING_WATCHED] * len(left)
            wanted = [detailed[i] for i in left] if detailed else ()
            own = [begun_rows[i] for i in left]
            steps = slab.step(own, label.part(left), nothing, wanted)
            for i, step in zip(left, steps, strict=True):
                forecast[i] = step if step.readout.ok else None
            label = coming._replace(y=np.full_like(coming.y, math.nan))
    finally:
        for row in begun_rows.values():
            slab.remove(row)
    return forecast


def _recalled(slab: Slab, seen: Columns) -> Columns:
    """Observations with labels; those without one, too, where they say something."""
    if slab.layout.context:
        return seen
    return seen.part(np.flatnonzero(columns.labelled(slab.model, seen.y)))
