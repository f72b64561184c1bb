"""Loops over plain observations of many series, for which numpy would take many calls.

Runs are observations of one series after another, which follow each other in columns (N,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.np import arrayobj
from numpy.typing import NDArray

from model_core.compiled.jit import (
    Flags,
    Floats,
    Ints,
    called,
    compiled,
    entry_point,
    intrinsic,
    locked,
)
from model_core.labels import LARGEST

# Kinds of fields, as `struct` names them. CLOSE: float32 that has all digits, or is 0.
U1, U2, U4, I4, F8, F4, CLOSE = map(ord, "BHIidfF")
LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LARGEST_U4 = 2.0**32 - 1
LARGEST_I4 = 2.0**31 - 1


@called
def _count_fitting(
    y: Floats,
    outputs: Ints,
    x: Floats,
    inputs: Ints,
    d: int,
    x_dim: int,
    least: float,
    largest: float,
    whole: bool,
    counts: Ints,
    begun: Flags,
    most: Ints,
    chosen: Flags,
) -> None:
    """Choose of each run (B,) the first numbers that a model takes: at most `most`, which it sets.

    y: (N, d at least), with `outputs` (N,) numbers each. x: (N, x_dim at least), with `inputs`.
    least, largest, whole: as of `labels.Range`. counts: numbers of each run. begun: of any other
    all have to fit. chosen: (N,) is filled in.
    """
    first = 0
    for run in range(len(counts)):
        fitting = 0
        if most[run] > 0:
            while fitting < counts[run]:
                i = first + fitting
                fits = outputs[i] == d and inputs[i] == x_dim
                if fits:
                    for value in y[i, :d]:
                        fits = fits and least <= value <= largest
                        fits = fits and (not whole or math.floor(value) == value)
                    for value in x[i, :x_dim]:
                        fits = fits and abs(value) <= LARGEST
                if not fits:
                    break
                fitting += 1
            if fitting < counts[run] and not begun[run]:
                fitting = 0
        most[run] = max(min(most[run], fitting), 0)
        for i in range(counts[run]):
            chosen[first + i] = i < most[run]
        first += counts[run]


class RestColumns(NamedTuple):
    """Fields of a table of series at rest, one of each (S,), which quiet observations go by.

    seq to seen: what they move. since, timed, seen, per_day: as of `service.wire.Pace`. interval:
    nan where times do not count. until, look: last position, and first one, that they may not be
    at. own_rule, stale: whether the period of alarms is stated, or of a setting that is no more.
    recent: (K, R) the last labels of the first series, each at its position modulo R.
    """

    seq: NDArray[Any]
    scored: NDArray[Any]
    map_run_length: NDArray[Any]
    best_start: NDArray[Any]
    updated_ms: NDArray[Any]
    changed_probability: NDArray[Any]
    evidence: NDArray[Any]
    pruned_mass: NDArray[Any]
    log_score_sum: NDArray[Any]
    pruned_mass_sum: NDArray[Any]
    last_label: NDArray[Any]
    last_time: NDArray[Any]
    moved: NDArray[Any]
    since: NDArray[Any]
    timed: NDArray[Any]
    seen: NDArray[Any]
    per_day: NDArray[Any]
    interval: NDArray[Any]
    until: NDArray[Any]
    look: NDArray[Any]
    own_rule: NDArray[Any]
    stale: NDArray[Any]
    recent: Floats


@called
def _count_left(
    rest: RestColumns, places: Ints, counts: Ints, timed: Flags, days: Floats, left: Ints
) -> None:
    """Fill in of how many numbers each run (B,) may be quiet, as far as is known of its series.

    timed: (B,) of repeating writers, whose time counts; empty: of none. days: (B,) between false
    alarms of the service, nan: not stated; empty: of none. Of several numbers none may be quiet
    where the period of alarms is followed: it is fixed after all of them.
    """
    for run in range(len(places)):
        at = places[run]
        usable = math.isnan(rest.interval[at])
        if len(timed) and timed[run]:
            usable = counts[run] == 1
        if counts[run] > 1:
            followed = not math.isnan(rest.since[at]) or rest.stale[at]
            if len(days) and not math.isnan(days[run]):
                followed = not rest.own_rule[at]
            usable = usable and not followed
        following = np.int64(rest.seq[at])
        end = min(np.int64(rest.until[at]) + 1, max(rest.look[at], following + 1))
        left[run] = end - following if usable else 0


@called
def _enter(
    rest: RestColumns,
    places: Ints,
    counts: Ints,
    read: Floats,
    columns: Ints,
    labels: Floats,
    accepted_ms: Ints,
    times: Floats,
    days: Floats,
    first_s: float,
    day_s: float,
    left: Flags,
) -> None:
    """Enter quiet numbers of runs (B,) of distinct series into their rows.

    read: (N, C) as of `readout.table`; columns: those of score, pruned mass, likeliest run length,
    best start, probability of a change and evidence. labels: (N, d). accepted_ms: (B,). times:
    (N,) in seconds, nan: without one; empty: of none. days: as of `_count_left`. first_s, day_s:
    how long a period of alarms is, at first and later. left: (B,) is filled in: whose period is to
    be fixed, or is followed no more.
    """
    score, pruned, run_length, start, changed, evidence = columns
    i = 0
    for run in range(len(places)):
        at = places[run]
        first = i
        for _ in range(counts[run]):
            if not math.isnan(read[i, score]):
                rest.log_score_sum[at] += read[i, score]
                rest.scored[at] += 1
            rest.pruned_mass_sum[at] += read[i, pruned]
            if len(times) and not math.isnan(times[i]):
                rest.last_time[at] = times[i]
            if at < len(rest.recent):
                rest.recent[at, (rest.seq[at] + i - first) % rest.recent.shape[1]] = labels[i, 0]
            i += 1
        last = i - 1
        rest.seq[at] += counts[run]
        rest.moved[at] += counts[run]
        rest.map_run_length[at] = np.uint32(read[last, run_length])
        rest.best_start[at] = np.uint32(read[last, start])
        rest.changed_probability[at] = read[last, changed]
        rest.evidence[at] = read[last, evidence]
        rest.pruned_mass[at] = read[last, pruned]
        rest.last_label[at] = labels[last, 0]
        rest.updated_ms[at] = accepted_ms[run]
        timed = len(times) > 0 and not math.isnan(times[last])
        now = times[last] if timed else accepted_ms[run] / 1000
        day = days[run] if len(days) else math.nan
        left[run] = _followed(rest, at, now, timed, day, first_s, day_s)


@compiled
def _followed(
    rest: RestColumns, at: int, now: float, timed: bool, day: float, first_s: float, day_s: float
) -> bool:
    """Count an observation for the period of alarms of a series, unless it is `left` by `_enter`.

    now: when it was made; timed: by its own time.
    """
    since = rest.since[at]
    if math.isnan(day):
        return not math.isnan(since) or rest.stale[at]
    if rest.own_rule[at]:
        return False
    if rest.timed[at] == timed and now >= since:  # not with since nan
        if day != 0 and now - since >= (first_s if math.isnan(rest.per_day[at]) else day_s):
            return True
        rest.seen[at] += 1
        return False
    rest.since[at] = now
    rest.timed[at] = timed
    rest.seen[at] = 0
    return False


@called
def _find_rows(rows: Floats, offset: Floats, known: Floats, places: Ints) -> None:
    """Fill in the place of each row (N, C) among the known ones (K, C), nan like nan; -1: none.

    One with an offset (N, d) other than 0 has none.
    """
    for i in range(len(rows)):
        places[i] = -1
        usual = True
        for value in offset[i]:
            usual = usual and value == 0.0
        for k in range(len(known) if usual else 0):
            alike = True
            for column in range(known.shape[1]):
                own = rows[i, column]
                other = known[k, column]
                alike = alike and (own == other or (math.isnan(own) and math.isnan(other)))
            if alike:
                places[i] = k


@intrinsic
def _put(context: Any, row: Any, at: Any, value: Any) -> Any:
    """Write a number into a row of bytes, wherever it lies there."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = arrayobj.make_array(signature.args[0])(target, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        number = arguments[2]
        builder.store(number, builder.bitcast(place, number.type.as_pointer()), align=1)
        return target.get_dummy_value()

    return numba.types.void(row, at, value), generate


@called
def _pack(
    numbers: Floats, fields: Ints, pairs: Ints, narrowest: float, rows: Any, fit: Flags
) -> None:
    """Write rows of numbers (N, C) as bytes (N, size), little-endian; fills in which `fit` them.

    fields: (C, 3) kind of each column, its first byte, and the column that it is less; -1: none.
    pairs: (P, 2) columns that are further apart than `narrowest` of their sum, or do not fit.
    """
    for i in range(len(numbers)):
        own = numbers[i]
        row = rows[i]
        fits = True
        for column in range(len(fields)):
            kind = fields[column, 0]
            at = fields[column, 1]
            value = own[column]
            if fields[column, 2] >= 0:
                value -= own[fields[column, 2]]
                own[column] = value
            size = abs(value)
            if kind == F8:
                _put(row, at, value)
            elif kind == F4:
                fits = fits and not LARGEST_FLOAT32 < size < math.inf
                _put(row, at, np.float32(value))
            elif kind == CLOSE:
                fits = fits and (size == 0.0 or LEAST_FLOAT32 <= size <= LARGEST_FLOAT32)
                _put(row, at, np.float32(value))
            elif kind == U4:
                fits = fits and value <= LARGEST_U4
                _put(row, at, np.uint32(value))
            elif kind == I4:
                fits = fits and value <= LARGEST_I4
                _put(row, at, np.int32(value))
            elif kind == U2:
                _put(row, at, np.uint16(value))
            else:
                _put(row, at, np.uint8(value))
        for k in range(len(pairs)):
            lower = own[pairs[k, 0]]
            upper = own[pairs[k, 1]]
            fits = fits and upper - lower >= narrowest * abs(lower + upper)
        fit[i] = fits


def _any(kind: Any, dimensions: int) -> Any:
    """Type of arrays that may lie in any way."""
    return numba.types.Array(kind, dimensions, "A")


_real, _whole, _flag = numba.float64, numba.int64, numba.bool_
_table = numba.types.Array(_real, 2, "C")
_fields = numba.types.Array(_whole, 2, "C")
_bytes = numba.types.Array(numba.uint8, 2, "C")
_reals, _wholes, _flags = _any(_real, 1), _any(_whole, 1), _any(_flag, 1)
FITTING = (
    _any(_real, 2), _wholes, _any(_real, 2), _wholes, _whole, _whole, _real, _real, _flag, _wholes,
    _flags, _wholes, _flags,
)  # fmt: skip
_KINDS = {"f8": _real, "i8": _whole, "u4": numba.uint32, "u1": numba.uint8, "b1": _flag}
_REST = (
    "u4", "u4", "u4", "u4", "i8", "f8", "f8", "f8", "f8", "f8", "f8", "f8", "i8", "f8", "u1", "u4",
    "f8", "f8", "f8", "i8", "b1", "b1",
)  # fmt: skip
_rest = numba.types.NamedTuple(
    # Fields lie anywhere in their rows.
    [*(numba.types.Array(_KINDS[kind], 1, "A", aligned=False) for kind in _REST), _table],
    RestColumns,
)
LEFT = (_rest, _wholes, _wholes, _flags, _reals, _wholes)
ENTERED = (
    _rest, _wholes, _wholes, _any(_real, 2), _wholes, _any(_real, 2), _wholes, _reals, _reals,
    _real, _real, _flags,
)  # fmt: skip
FOUND = (_table, _any(_real, 2), _table, _wholes)
PACKED = (_table, _fields, _fields, _real, _bytes, _flags)


def _entry_points() -> list[Callable[..., None]]:
    functions = (
        (_count_fitting, FITTING), (_count_left, LEFT), (_enter, ENTERED), (_find_rows, FOUND),
        (_pack, PACKED),
    )  # fmt: skip
    return [entry_point(*function) for function in functions]


count_fitting, count_left, enter, find_rows, pack = locked("plain observations", _entry_points)
