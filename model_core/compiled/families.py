"""Families of predictives of conjugate models: their scores, and summaries of their mixtures.

`params` has means and variances (d lines each), then of each parameter one for each output and
part; where parts are mixed, their log weights, and one of each part to work in. Those of Student-t
are as `student_t` has them, those of classes their probabilities and a sum. The last column
is of outliers. Families of one number are compiled from their functions alone, those of positive
labels from `components.positive`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from model_core import components
from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, student_t
from model_core.compiled.arithmetic import INF, maths
from model_core.compiled.belief import CHANCE, EACH
from model_core.compiled.jit import (
    FUNCTIONS,
    Floats,
    compiled,
    entry,
    every,
    inlined,
    of_class,
    state,
    state_at,
    whole,
)
from model_core.compiled.step import ALONE, Model, RowStep
from model_core.maths import counterpart
from model_core.maths.families import EXACT_COUNTS
from model_core.quantiles import COUNT_STEPS

_FAMILIES = maths("families")
_SPECIAL = maths("special")
# Fields of a component of counts after WEIGHT and LOC of `mixture`; CUMULATIVE has EXACT_COUNTS.
SHAPE, RATE, SHARE, RUNNING, CUMULATIVE = range(mixture.PARAMETERS, mixture.PARAMETERS + 5)
COUNT_FIELDS = mixture.SCALE + 1
ROUNDING = 1e-12  # by which a sum of masses may miss a level that it meets


class Answers(NamedTuple):
    """What a family is asked.

    places: (outputs, parts, at) lines in `params` of the parameters of a part, counted over all
    outputs. lines_of: (outputs, parts) how many lines there are. spare: fields of its components
    where they are mixed. finish: (model, params) what is left once all parameters are there.
    score, summarise, draw: see `step.Functions`.
    """

    places: Callable[[int, int, int], tuple[int, ...]]
    lines_of: Callable[[int, int], int]
    spare: int
    finish: Callable[[Model, Floats], None]
    score: Callable[..., float]
    summarise: Callable[..., float]
    draw: Callable[..., float] | None = None


@compiled
def _finished(model: Model, params: Floats) -> None:
    """Nothing is left."""


@inlined
def _label(number: Floats) -> float:
    return number[LABEL] if number[LABELLED] > 0 else np.nan


# --- mixtures of negative binomials ---------------------------------------------------------------


@compiled
def _log_masses(y: float, shape: Floats, rate: Floats, out: Floats) -> None:
    """Log mass at a count under each component; -inf below zero."""
    if y < 0:
        arithmetic.fill(out, -INF)
    elif y < 1:
        for i in range(out.shape[0]):
            out[i] = _FAMILIES.negative_binomial_log_zero(shape[i], rate[i])
    else:
        error = _SPECIAL.stirling_error(y)
        for i in range(out.shape[0]):
            out[i] = _FAMILIES.negative_binomial_log_mass(y, error, shape[i], rate[i])


@compiled
def _small_counts(components: Floats, n: int, counts: int, cumulative: Floats) -> None:
    """Cumulative probability of each of the first few counts."""
    weight = components[mixture.WEIGHT]
    shape = components[SHAPE]
    rate = components[RATE]
    running = components[RUNNING]
    share = components[SHARE]
    for i in range(n):
        share[i] = rate[i] / (shape[i] + rate[i])
        running[i] = weight[i] * arithmetic.exp(
            _FAMILIES.negative_binomial_log_zero(shape[i], rate[i])
        )
    cumulative[0] = arithmetic.total(running, n)
    for k in range(1, counts):
        for i in range(n):
            running[i] *= _FAMILIES.negative_binomial_growth(k, shape[i], share[i])
        cumulative[k] = cumulative[k - 1] + arithmetic.total(running, n)


@compiled
def _cdf_of_counts(value: float, components: Floats, n: int, cumulative: Floats) -> float:
    """Cumulative probability; cumulative: (EXACT_COUNTS) of `_small_counts`."""
    value = float(np.floor(value))
    if value < 0:
        return 0.0
    if value < EXACT_COUNTS:
        return min(float(cumulative[int(value)]), 1.0)
    total = 0.0
    for i in range(n):
        total += components[mixture.WEIGHT, i] * _FAMILIES.negative_binomial_large(
            value, components[SHAPE, i], components[RATE, i]
        )
    return total


@compiled
def _quantiles_of_counts(
    levels: Floats,
    mean: float,
    variance: float,
    components: Floats,
    n: int,
    cumulative: Floats,
    out: Floats,
) -> None:
    """Smallest counts whose cumulative probabilities reach levels (2, Q)."""
    for j in range(levels.shape[1]):
        level = levels[0, j]
        k = 0
        while k < EXACT_COUNTS and cumulative[k] - level + ROUNDING < 0:
            k += 1
        out[j] = k
        if k < EXACT_COUNTS:
            continue
        # Outwards from a normal's quantile to a bracket, then false position and halving in turn.
        low = EXACT_COUNTS - 1.0
        high = INF
        below = cumulative[EXACT_COUNTS - 1] - level
        above = 1.0 - level
        spread = math.sqrt(variance) if math.isfinite(variance) else mean
        x = max(float(np.floor(mean + spread * levels[1, j])), low + 1)
        for step in range(COUNT_STEPS):
            excess = _cdf_of_counts(x, components, n, cumulative) - level + ROUNDING
            if excess >= 0:
                high = x
                above = excess
            else:
                low = x
                below = excess
            far = float(np.floor(0.25 * spread + 1.0)) * 2.0**step
            if high == INF:
                x = low + far
                continue
            part = below / (below - above) if step % 2 else 0.5
            inside = float(np.floor(low + part * (high - low)))
            inside = min(max(inside, low + 1), high - 1)
            if not low < inside < high:  # floats may be far apart
                break
            x = max(inside, high - far) if step < 8 else inside
        out[j] = high


@compiled
def _summarise_counts(y: float, levels: Floats, components: Floats, n: int, out: Floats) -> None:
    """Cumulative probabilities at a label and below it, and quantiles, after mean and variance.

    y: nan where there is no label.
    """
    cumulative = components[CUMULATIVE]
    _small_counts(components, n, EXACT_COUNTS, cumulative)
    for k in range(2):
        out[2 + k] = np.nan if math.isnan(y) else _cdf_of_counts(y - k, components, n, cumulative)
    _quantiles_of_counts(levels, out[0], out[1], components, n, cumulative, out[4:])


# --- counts and positive labels, of one output: parameters as the functions of the family have them


def _of_one_number(kind: type[Any], mixed: bool) -> Answers:
    """Answers of a family, compiled for its own functions.

    mixed: whether predictives are mixtures of parts; the log weight of each is its last parameter,
    and the lines after those of the weights are to work in.
    """
    counted = kind is components.NegativeBinomial
    FUNCTIONS[kind] = _COUNTS if counted else _functions_of(kind)
    count = len(kind._fields)
    family = kind(*range(mixture.PARAMETERS, mixture.PARAMETERS + count))
    own = (0,) * count
    stated = (0,) * (count + mixed)

    def places(outputs: int, parts: int, at: int) -> Any:
        return every(stated, 2 + at, parts)

    def finish(model: Model, params: Floats) -> None:
        if mixed:
            first = 2 + count * model.noise.parts
            logs = params[first : first + model.noise.parts]
            total = params[0]
            student_t.fold(logs, params[1], total)
            for k in range(model.noise.parts):
                for i in range(whole(total)):
                    logs[k, i] -= total[i]

    def score(step: RowStep) -> float:
        y = step.number[LABEL]
        params = step.params
        density = step.work[EACH]
        parts = step.model.noise.parts
        first = 2 + count * parts
        for k in range(parts):
            lines = every(own, 2 + k, parts)
            line = params[first + parts + k] if mixed else density
            if counted:
                _log_masses(y, params[2 + k], params[2 + parts + k], line)
                continue
            for i in range(whole(density)):
                line[i] = of_class(family, "log_density", y, state_at(params, lines, i))
        if mixed:
            masses = params[first + parts : first + 2 * parts]
            for k in range(parts):
                arithmetic.add(masses[k], params[first + k], masses[k])
            student_t.fold(masses, params[0], density)
        return 1.0

    def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
        params = step.params
        chance = step.work[CHANCE]
        n = 0
        mean = params[0]
        variance = params[1]
        columns = whole(chance)
        parts = step.model.noise.parts
        first = 2 + count * parts
        shares = params[first + parts :]
        if mixed:
            arithmetic.fill(mean, 0.0)
            arithmetic.fill(variance, 0.0)
            for k in range(parts):
                lines = every(own, 2 + k, parts)
                arithmetic.exp_of(params[first + k], 0.0, shares[k], columns)
                for i in range(columns):
                    mean[i] += shares[k, i] * of_class(family, "mean", state_at(params, lines, i))
        for k in range(parts):
            lines = every(own, 2 + k, parts)
            for i in range(columns):
                parameters = state_at(params, lines, i)
                centre = of_class(family, "mean", parameters)
                square = of_class(family, "variance", parameters)
                share = 1.0
                if mixed:
                    share = shares[k, i]
                    apart = centre - mean[i]
                    variance[i] += share * (square + apart * apart)
                else:
                    mean[i] = centre
                    variance[i] = square
                if chance[i] * share > mixture.UNSEEN:
                    spare[mixture.WEIGHT, n] = chance[i] * share
                    spare[mixture.LOC, n] = centre
                    spare[mixture.SCALE, n] = of_class(family, "width", parameters)
                    state(spare, family, n, parameters)
                    n += 1
        mixture.moments(chance, params[:1], params[1:2], columns, out)
        y = _label(step.number)
        if counted:
            _summarise_counts(y, levels, spare, n, out)
            return 0.0
        out[2] = np.nan if math.isnan(y) else mixture.sums(y, spare, n, family)[0]
        out[3] = out[2]
        mixture.positive_quantiles(levels, out[0], spare, n, family, out[4:])
        return 0.0

    # By these names numba's cache tells the functions of one family from those of another.
    for function in (finish, score, summarise):
        function.__qualname__ = f"{function.__name__}_{kind.__name__}_{mixed:d}"
    return Answers(
        inlined(places),
        lambda outputs, parts: 2 + (count + 2 * mixed) * parts,
        COUNT_FIELDS if counted else mixture.FIELDS,
        compiled(finish),
        entry(score),
        entry(summarise),
    )


def _functions_of(kind: type[components.Positive]) -> dict[str, Callable[..., Any]]:
    """Of a label, if they take one, and a tuple of parameters."""
    log_density, reached, mean, variance, width = (
        counterpart(function, maths) for function in kind.functions
    )
    return {
        "log_density": inlined(lambda y, parameters: log_density(y, *parameters)),
        "reached": inlined(lambda y, parameters: reached(y, *parameters)),
        "mean": inlined(lambda parameters: mean(*parameters)),
        "variance": inlined(lambda parameters: variance(*parameters)),
        "width": inlined(lambda parameters: width(*parameters)),
    }


_variance_of_count = _FAMILIES.negative_binomial_variance
# Of shape and rate; the width is not needed.
_COUNTS: dict[str, Callable[..., Any]] = {
    "mean": inlined(lambda parameters: parameters[1]),
    "variance": inlined(lambda parameters: _variance_of_count(*parameters)),
    "width": inlined(lambda parameters: 0.0),
}


# --- Bernoulli, of one output: probability of a one -----------------------------------------------


@entry
def _bernoulli_score(step: RowStep) -> float:
    y = step.number[LABEL]
    probability = step.params[2]
    density = step.work[EACH]
    for i in range(whole(density)):
        density[i] = _FAMILIES.bernoulli_log_mass(y, probability[i])
    return 1.0


@entry
def _bernoulli_summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Mean, variance, probabilities up to the label and below it, quantiles."""
    chance = step.work[CHANCE]
    params = step.params
    mean = params[2]
    variance = params[1]
    zeros = params[3]
    n = whole(chance)
    for i in range(n):
        variance[i] = _FAMILIES.bernoulli_variance(mean[i])
        zeros[i] = 1.0 - mean[i]
    mixture.moments(chance, params[2:3], params[1:2], n, out)
    zero = arithmetic.dot(chance, zeros, n)
    everything = arithmetic.total(chance, n)
    y = _label(step.number)
    for k in range(2):
        reached = 0.0 if y - k < 0 else (zero if y - k < 1 else everything)
        out[2 + k] = np.nan if math.isnan(y) else reached
    for k in range(levels.shape[1]):
        out[4 + k] = 0.0 if zero - levels[0, k] + ROUNDING >= 0 else 1.0
    return 0.0


# --- classes, each as an output: a number proportional to its probability, then that --------------


@compiled
def _categorical_finish(model: Model, params: Floats) -> None:
    total = params[model.classes]
    arithmetic.fill(total, 0.0)
    for j in range(model.classes):
        for i in range(whole(total)):
            total[i] += params[j, i]
    for j in range(model.classes):
        for i in range(whole(total)):
            params[j, i] /= total[i]


@entry
def _categorical_score(step: RowStep) -> float:
    """-inf of an index that is none."""
    y = step.number[LABEL]
    density = step.work[EACH]
    j = int(y) if 0 <= y < step.model.classes else 0
    if j == y:
        for i in range(whole(density)):
            density[i] = arithmetic.log(step.params[j, i])
    else:
        arithmetic.fill(density, -INF)
    return 1.0


@entry
def _categorical_summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Probabilities of the classes."""
    chance = step.work[CHANCE]
    for j in range(step.model.classes):
        out[j] = arithmetic.dot(chance, step.params[j], whole(chance))
    return 0.0


_ANSWERS: dict[type, Answers] = {
    components.StudentT: Answers(  # half the degrees of freedom, location, squared scale
        inlined(
            lambda outputs, parts, at: (
                2 * outputs,
                2 * outputs + student_t.FREEDOM + at,
                3 * outputs + student_t.FREEDOM + at,
            )
        ),
        lambda outputs, parts: student_t.lines_of(outputs, ALONE).end,
        mixture.FIELDS,
        student_t.finish,
        student_t.score,
        student_t.summarise,
        student_t.draw,
    ),
    components.Bernoulli: Answers(
        inlined(lambda outputs, parts, at: (2,)),
        lambda outputs, parts: 4,
        0,
        _finished,
        _bernoulli_score,
        _bernoulli_summarise,
    ),
    components.Categorical: Answers(
        inlined(lambda outputs, parts, at: (at,)),
        lambda classes, parts: classes + 1,
        0,
        _categorical_finish,
        _categorical_score,
        _categorical_summarise,
    ),
}


@lru_cache
def answers_of(family: type, mixed: bool) -> Answers:
    """What a family is asked; mixed: whether its predictives are mixtures of parts."""
    return _ANSWERS[family] if family in _ANSWERS else _of_one_number(family, mixed)
