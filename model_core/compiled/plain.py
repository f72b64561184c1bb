"""Loops over plain observations of many series, for which numpy would take many calls.

Runs are observations of one series after another, which follow each other in columns (N,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.np import arrayobj

from model_core.compiled.jit import Flags, Floats, Ints, called, entry_point, intrinsic, locked
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


@called
def _add_scores(counts: Ints, scores: Floats, pruned: Floats, sums: Floats, scored: Ints) -> None:
    """Add scores (N,; nan: none) and pruned masses of runs to their sums (B, 2), in order.

    counts: (B,) numbers of each run. scored: (B,) is filled in: those of them that have a score.
    """
    i = 0
    for run in range(len(counts)):
        scored[run] = 0
        for _ in range(counts[run]):
            if not math.isnan(scores[i]):
                sums[run, 0] += scores[i]
                scored[run] += 1
            sums[run, 1] += pruned[i]
            i += 1


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
SCORES = (_wholes, _reals, _reals, _any(_real, 2), _wholes)
FOUND = (_table, _any(_real, 2), _table, _wholes)
PACKED = (_table, _fields, _fields, _real, _bytes, _flags)


def _entry_points() -> list[Callable[..., None]]:
    functions = (
        (_count_fitting, FITTING), (_add_scores, SCORES), (_find_rows, FOUND), (_pack, PACKED)
    )  # fmt: skip
    return [entry_point(*function) for function in functions]


count_fitting, add_scores, find_rows, pack = locked("plain observations", _entry_points)
