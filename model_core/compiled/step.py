"""A whole step of rows in place: what `filter.step` and a summary compute, and what is read off.

A model states its sizes and its functions, see `Model` and `Functions`. The driver is compiled
once; it has the addresses of these functions, and calls them with a `RowStep`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np

from model_core import anomaly
from model_core import regimes as memories
from model_core.compiled import (
    ALARM,
    ELAPSED,
    LABEL,
    LABELLED,
    OUTLIER_RATE,
    SETTLED,
    SUSPECTED,
    THRESHOLD,
    UNTIL,
    Runs,
    arithmetic,
    belief,
    mixture,
    ranks,
    regimes,
)
from model_core.compiled.belief import (
    BORN_PREVIOUS_START,
    CHANGEPOINT_PROBABILITY,
    EACH,
    EVENT_RUN_LENGTH,
    EVIDENCE,
    LOG_SCORE,
    OK,
    OUTLYING,
    PATH,
    PRUNED_MASS,
    ROWS,
    SHARE,
)
from model_core.compiled.jit import (
    Floats,
    Ints,
    address,
    call,
    called,
    compiled,
    context_place,
    either,
    entry,
    entry_point,
    fetch,
    linewise,
    locked,
    statistics_line,
    whole,
)
from model_core.table import LANES, SEQ, Rows

NO_NUMBERS = np.empty(0)
QUANTILE = 4  # place of the first quantile in a summary of one number


class Noise(NamedTuple):
    """Of the parts of each output, where predictives are Student-t.

    own: so many of the last parts of each output have degrees of freedom of their own, which they
    share. kinds: scales of the noise of each part, a Student-t for each. skews: (parts,), see
    `components.SkewedT`.
    """

    parts: int
    own: int
    kinds: int
    skews: Floats


ALONE = Noise(1, 0, 1, np.ones(1))


class Model(NamedTuple):
    """Sizes and numbers of a model, of whatever class.

    outputs: numbers in a label. kept: lines of the statistics that are copied for a step. params:
    lines of them. classes: of labels, else 0. spare, spares: fields of the components of a mixture,
    and how many there are for each column. outliers: 1 where labels may be some. by_input: 1 where
    the input is scored, by the line of `params` after those of the classes. encoded: 1 where the
    inputs of a row are features. Then sizes that some models have: inputs, features, lags, 1 where
    the context is that of `lags`, a season, 1 for a trend or for unknown noise.
    """

    outputs: int
    kept: int
    params: int
    classes: int = 0
    spare: int = 0
    spares: int = 1
    outliers: int = 1
    by_input: int = 0
    encoded: int = 0
    inputs: int = 0
    features: int = 0
    lags: int = 0
    past: int = 0
    season: int = 0
    trend: int = 0
    noisy: int = 1
    noise: Noise = ALONE
    numbers: Floats = NO_NUMBERS


class RowStep(NamedTuple):
    """A step of one row, as the functions of a model have it.

    number: inputs of the row. context: of the stream. lines: of the row, in place. own: the
    statistics that are copied, as the step works on them. params: of the predictives. work: numbers
    of the belief, see `belief`. marginal: address of `mixture.marginal`, which several
    models call and none contains: it takes long to compile.

    All but `number` and `context` have W columns, whole vectors: after those of the slots the last
    one is the prior's, which outliers are drawn from (with a wider scale), the one before it what a
    model has beside its hypotheses, if anything; those in between are as slots that nothing was
    seen in.
    """

    model: Model
    number: Floats
    context: Floats
    lines: Floats
    own: Floats
    params: Floats
    work: Floats
    marginal: int


class Functions(NamedTuple):
    """What a model computes in a step.

    predict: fills `params`; returns the weight of what is beside the hypotheses. score: log density
    EACH of the label; returns the share of it that counts for run lengths. learn: updates `own` by
    the responsibilities SHARE; its argument is the log score of the hypotheses, its result that
    of the answer, nan where what follows would not be finite. remember: moves the context on,
    and what statistics are stepped in place; the belief is not pruned yet. summarise: (step,
    levels, spare, out) fills a row of the summary; levels: (2, Q); spare: to work in, see
    `advance`. draw: (step, noise) draws the label, by (2, N) numbers of which the first line is
    uniform, and the second to work in. None: of one number, which is the quantile at a uniform
    level, or of classes.
    """

    predict: Any
    score: Any
    learn: Any
    remember: Any
    summarise: Any
    draw: Any = None


@entry
def forget(step: RowStep) -> float:
    """`remember` of a model that keeps nothing of a label but its statistics."""
    return 0.0


_LINE, _MATRIX = (numba.types.Array(numba.float64, n, "C") for n in (1, 2))
_MODEL = numba.typeof(Model(0, 0, 0))
_STEP = numba.types.NamedTuple(
    (_MODEL, _LINE, _LINE, _MATRIX, _MATRIX, _MATRIX, _MATRIX, numba.int64), RowStep
)
_PLACES, _FLAGS = (numba.types.Array(kind, 1, "C") for kind in (numba.int64, numba.bool_))
_RUNS = numba.types.NamedTuple((_MATRIX, _MATRIX, _PLACES, _MATRIX, _LINE, _FLAGS), Runs)
_MARGINAL = (
    numba.int64, numba.int64, _LINE, _MATRIX, _MATRIX, numba.int64, _LINE,
)  # fmt: skip


@lru_cache
def addresses(functions: Functions) -> Ints:
    """Of a model's functions and of `mixture.marginal`, compiled or loaded from the cache."""
    return np.array(
        [
            address(functions.predict, (_STEP,)),
            address(functions.score, (_STEP,)),
            address(functions.learn, (_STEP, numba.float64)),
            address(functions.remember, (_STEP,)),
            address(functions.summarise, (_STEP, _MATRIX, _MATRIX, _LINE)),
            address(mixture.marginal, _MARGINAL),
            address(functions.draw, (_STEP, _MATRIX)) if functions.draw else 0,
        ]
    )


@linewise
def _load(lines: Floats, first: int, slot: int, own: Floats) -> None:
    """Copy the statistics, with the prior's in the column of `slot`.

    Those that are not copied have it there in place: the slot is empty, whatever becomes of the
    step.
    """
    last = own.shape[1] - 1
    for k in range(own.shape[0]):
        arithmetic.copy(lines[first + k], own[k])
        own[k, slot] = own[k, last]
    for k in range(first + own.shape[0], lines.shape[0]):
        lines[k, slot] = lines[k, last]


@linewise
def _store(own: Floats, first: int, slots: int, lines: Floats) -> None:
    """Put the slots' columns back."""
    for k in range(own.shape[0]):
        line = lines[first + k]
        values = own[k]
        for i in range(slots):
            line[i] = values[i]


@compiled
def _ahead(numbers: Floats, row: int, size: int) -> None:
    """Have a row of so many numbers at hand when it is stepped, after this one."""
    for at in range(row * size, (row + 1) * size, LANES):
        fetch(numbers, at)


@compiled
def pick(weights: Floats, level: float) -> int:
    """Place of a weight that is not 0: of the one in which this share of all of them ends."""
    left = level * arithmetic.total(weights, weights.shape[0])
    chosen = 0
    for i in range(weights.shape[0]):
        if weights[i] > 0:
            chosen = i
            left -= weights[i]
            if left < 0:
                break
    return chosen


@linewise
def _finite(own: Floats, sums: Floats) -> bool:
    """Whether all statistics are; a sum of finite numbers that overflows counts as not."""
    n = whole(sums)
    arithmetic.fill(sums, 0.0)
    for k in range(own.shape[0]):
        values = own[k]
        for i in range(n):
            sums[i] += values[i]
    return math.isfinite(arithmetic.total(sums, n))


numbers_of_memory = either(memories.size)


@compiled
def _quiet(head: Floats, number: Floats, runs: Runs, b: int, out: Floats, room: Floats) -> bool:
    """Whether an observation is quiet; enters its anomaly. room: of `anomaly.rank`."""
    rest = runs.rest[b]
    if math.isfinite(out[LOG_SCORE]):
        ranked = runs.ranks[runs.places[b]]
        runs.anomalies[b] = ranks.observe(ranked, -out[LOG_SCORE], runs.labels[b], room)
        if runs.anomalies[b] >= rest[ALARM]:
            return False
    position = head[SEQ] - 1.0
    if position >= rest[UNTIL]:
        return False
    start = position - out[EVENT_RUN_LENGTH]
    if rest[SUSPECTED] < 0:
        return bool(start <= number[SETTLED])
    return bool(start == rest[SUSPECTED] and out[EVIDENCE] < number[THRESHOLD])


@called
def advance(
    functions: Ints,
    model: Model,
    slots: int,
    recalled: int,
    lines: Floats,
    heads: Floats,
    rows: Ints,
    inputs: Floats,
    hazards: Floats,
    levels: Floats,
    window: int,
    memory: Floats,
    spare: Floats,
    room: Floats,
    table: Floats,
    summary: Floats,
    beliefs: Floats,
    noise: Floats,
    runs: Runs,
) -> None:
    """Step rows by one observation each, in order.

    A row that is not `ok` stays as it was, but for what its empty slots hold. recalled: regimes of
    their memories. summary: empty where it is not wanted, and no label lacks outputs. noise: of
    labels that are drawn into the inputs, else empty.

    Shapes: see `Kernel.advance`; lines (R, L, W), heads (R, H). memory: (belief.ROWS + model.kept +
    model.params, W) to work in, spare: (model.spare, of `components`), room: of a
    summary of one number, of the classes, of (1 + 2 d) totals, or of `anomaly.rank`.
    """
    predict = functions[0]
    score = functions[1]
    learn = functions[2]
    remember = functions[3]
    summarise = functions[4]
    marginal = functions[5]
    draw = functions[6]
    work = memory[: belief.ROWS]
    own = memory[belief.ROWS : belief.ROWS + model.kept]
    params = memory[belief.ROWS + model.kept :]
    first = statistics_line(model.outputs)
    totals = room[: 1 + 2 * model.outputs]
    width = memory.shape[1]
    at = context_place(model.outputs)
    memory_at = heads.shape[1] - numbers_of_memory(recalled)
    end = at + (memory_at - at) // 2
    ending = runs.quiet.shape[0] > 0
    for b in range(rows.shape[0]):
        table[b, OK] = 0.0
        if ending and b > 0 and rows[b] == rows[b - 1] and not runs.quiet[b - 1]:
            continue
        if not 0 <= rows[b] < lines.shape[0]:
            continue
        if b + 1 < rows.shape[0] and rows[b + 1] != rows[b]:
            _ahead(lines, rows[b + 1], lines.shape[1] * lines.shape[2])
            _ahead(heads, rows[b + 1], heads.shape[1])
            if ending:
                _ahead(runs.ranks, runs.places[b + 1], runs.ranks.shape[1])
        line = lines[rows[b]]
        head = heads[rows[b]]
        number = inputs[b]
        out = table[b]
        context = head[at:end]
        rate = number[OUTLIER_RATE] if model.outliers else 0.0
        labelled = number[LABELLED] > 0
        birth = belief.grow(line, slots, head, number, hazards[b], work)
        _load(line, first, birth.slot, own)
        born_previous = birth.previous
        if recalled > 0:
            birth = regimes.begin(
                line, own, first, slots, recalled, birth, head, model.outputs, head[memory_at:],
                work,
            )  # fmt: skip
        step = RowStep(model, number, context, line, own, params, work, marginal)
        beside = call(predict, step)
        if model.by_input:
            belief.mix_by_input(rate, params[model.classes], work)
        else:
            belief.mix(rate, beside, work)
        if noise.shape[0] > 0:
            if draw != 0:
                call(draw, step, noise[b])
            else:
                call(summarise, step, noise[b], spare, room)
                number[LABEL] = room[QUANTILE]
                if model.classes > 0:
                    number[LABEL] = pick(room[: model.classes], noise[b, 0, 0])
            number[LABELLED] = 1.0
            labelled = True
        arithmetic.fill(work[EACH], 0.0)
        arithmetic.fill(work[SHARE], 1.0)
        counted = 1.0
        if labelled:
            counted = call(score, step)
        if labelled and rate > 0:
            belief.with_outliers(work)
        for i in range(slots, width):  # what is no hypothesis learns nothing
            work[SHARE, i] = 0.0
        log_score = belief.observe(work, counted)
        outlying = labelled and belief.outlying(work)
        best = arithmetic.largest(work[PATH], width)
        if not (math.isfinite(log_score) and math.isfinite(best)):
            continue
        if summary.shape[1] > 0:
            call(summarise, step, levels, spare, summary[b])
        counts = labelled and not outlying
        if not belief.totals_after(head, model.outputs, number, counts, summary[b], totals):
            continue
        if labelled:
            log_score = call(learn, step, log_score)
        if not (math.isfinite(log_score) and _finite(own, work[belief.SPARE])):
            continue
        call(remember, step)  # by the belief of all hypotheses: it is pruned next
        born = 0.0
        lost = 0.0
        if recalled > 0:
            born, lost = regimes.prune(line, slots, slots - 1 - recalled, birth.slot, work)
        belief.keep(line, head, slots, birth, number[ELAPSED], totals, work, out)
        _store(own, first, slots, line)
        if recalled > 0:
            out[CHANGEPOINT_PROBABILITY] = born
            out[PRUNED_MASS] = lost
            out[BORN_PREVIOUS_START] = born_previous
        _read_out(
            model.outputs, slots, recalled, line, regimes.origin_line(line, first), head, number,
            hazards[b], window, work, out,
        )  # fmt: skip
        belief.copy(line, beliefs[b : b + 1])
        out[LOG_SCORE] = log_score if labelled else np.nan
        out[OUTLYING] = 1.0 if outlying else 0.0
        out[OK] = 1.0
        if ending:
            runs.quiet[b] = _quiet(head, number, runs, b, out, room[: anomaly.ROOM])


@compiled
def _read_out(
    outputs: int,
    slots: int,
    recalled: int,
    line: Floats,
    origin: int,
    head: Floats,
    number: Floats,
    hazard: Floats,
    window: int,
    work: Floats,
    out: Floats,
) -> None:
    """Fill what of the table is read off the belief after a step."""
    evidence = 0.0
    decisive = 0.0
    if recalled > 0:
        numbers = head[head.shape[0] - numbers_of_memory(recalled) :]
        columns = out[out.shape[0] - regimes.COLUMNS :]
        evidence, decisive = regimes.read_out(
            line, origin, slots, recalled, head, number, hazard, numbers, work, columns
        )
    else:
        evidence = belief.evidence_of_change(line, head, number, hazard, work)
        decisive = evidence
    out[EVIDENCE] = evidence
    belief.read_out(line, head, outputs, number, decisive, window, work, out)


@called
def _read(
    outputs: int,
    slots: int,
    recalled: int,
    origin: int,
    lines: Floats,
    heads: Floats,
    inputs: Floats,
    hazards: Floats,
    window: int,
    work: Floats,
    table: Floats,
) -> None:
    for b in range(lines.shape[0]):
        belief.recall(lines[b], work)
        _read_out(
            outputs, slots, recalled, lines[b], origin, heads[b], inputs[b], hazards[b], window,
            work, table[b],
        )  # fmt: skip


def read(
    outputs: int,
    held: Rows,
    origin: int,
    inputs: Floats,
    hazards: Floats,
    window: int,
) -> Floats:
    """Table (B, ...) of `readout` of rows as they are, of whatever model; what is of the step is 0.

    held: of the lines those of the belief and the totals at least, and with a memory the origin and
    the returns after it. inputs, hazards, window: of the last step of each, as of `Kernel.advance`;
    labels are not looked at.
    """
    lines, heads, inputs, hazards = (
        np.ascontiguousarray(numbers) for numbers in (held.lines, held.heads, inputs, hazards)
    )
    columns = regimes.COLUMNS if held.regimes else 0
    table = np.zeros((len(lines), belief.NUMBERS + 2 * (1 + 2 * outputs) + columns))
    work = np.empty((ROWS, lines.shape[2]))
    reader()(
        outputs, held.slots, held.regimes, origin, lines, heads, inputs, hazards, window, work,
        table,
    )  # fmt: skip
    return table


@lru_cache
def reader() -> Callable[..., None]:
    """`_read`, compiled or loaded from the cache."""
    cube = np.empty((0, 0, 0))
    table = np.empty((0, 0))
    locked("readouts", lambda: _read(1, 0, 0, 0, cube, table, table, table, 0, table, table))
    return _read


@lru_cache
def driver() -> Callable[..., None]:
    """`advance`, compiled or loaded from the cache."""
    cube = numba.types.Array(numba.float64, 3, "C")
    types = (
        _PLACES, _MODEL, numba.int64, numba.int64, cube, _MATRIX, _PLACES, _MATRIX, _MATRIX,
        _MATRIX, numba.int64, _MATRIX, _MATRIX, _LINE, _MATRIX, _MATRIX, cube, cube, _RUNS,
    )  # fmt: skip
    return entry_point(advance, types)
