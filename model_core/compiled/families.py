"""Families of predictives of conjugate models: their scores, and summaries of their mixtures.

`params` has means and variances (d lines each), then of each parameter one for each output and
part; where parts are mixed, their log weights, and one of each part to work in. Those of Student-t
are as `student_t` has them, those of classes their probabilities and a sum. The last column
is of outliers. A family of positive labels is compiled from its functions alone, see
`components.positive`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from model_core import components
from model_core.compiled import LABEL, LABELLED, arithmetic, counts, mixture, student_t
from model_core.compiled.arithmetic import INF
from model_core.compiled.belief import CHANCE, EACH
from model_core.compiled.interface import ALONE, Model, RowStep
from model_core.compiled.jit import (
    INLINED,
    Floats,
    compiled,
    entry,
    every,
    inlined,
    state,
    state_at,
    whole,
)
from model_core.compiled.ops import maths
from model_core.maths import counterpart
from model_core.maths.families import EXACT_COUNTS

_FAMILIES = maths("families")


class Answers(NamedTuple):
    """What a family is asked.

    places: (outputs, parts, at) lines in `params` of the parameters of a part, counted over all
    outputs. lines_of: (outputs, parts) how many lines there are. spare: fields of its components
    where they are mixed. finish: (model, params) what is left once all parameters are there.
    score, summarise: see `step.Functions`.
    """

    places: Callable[[int, int, int], tuple[int, ...]]
    lines_of: Callable[[int, int], int]
    spare: int
    finish: Callable[[Model, Floats], None]
    score: Callable[..., float]
    summarise: Callable[..., float]


@compiled
def _finished(model: Model, params: Floats) -> None:
    """Nothing is left."""


@inlined
def _label(number: Floats) -> float:
    return number[LABEL] if number[LABELLED] > 0 else np.nan


# --- Student-t: half the degrees of freedom, location, squared scale ------------------------------


@inlined
def _student_t_places(outputs: int, parts: int, at: int) -> tuple[int, int, int]:
    return 2 * outputs, 2 * outputs + student_t.FREEDOM + at, 3 * outputs + student_t.FREEDOM + at


def _student_t_lines(outputs: int, parts: int) -> int:
    return student_t.lines_of(outputs, ALONE)


@compiled
def _student_t_finish(model: Model, params: Floats) -> None:
    student_t.finish(model.outputs, model.noise, params)


# --- mixtures of parts: the log weight of each is its last parameter ------------------------------


@compiled
def _normalise(params: Floats, first: int, parts: int) -> None:
    """Weights that sum to one; first: line of the first part's."""
    total = params[0]
    logs = params[first : first + parts]
    student_t.fold(logs, params[1], total)
    for k in range(parts):
        for i in range(whole(total)):
            logs[k, i] -= total[i]


@compiled
def _fold(params: Floats, first: int, parts: int, density: Floats) -> None:
    """Density of the mixture; those of the parts are in the lines after their weights'."""
    masses = params[first + parts : first + 2 * parts]
    for k in range(parts):
        logs = params[first + k]
        for i in range(whole(density)):
            masses[k, i] += logs[i]
    student_t.fold(masses, params[0], density)


# --- positive labels, of one output: parameters as the functions of the family have them ----------


def _log_density(family: Any, y: float, parameters: Any) -> Any:
    """Of a label."""


def _moments(family: Any, parameters: Any) -> Any:
    """Mean and variance."""


def _width(family: Any, parameters: Any) -> Any:
    """Standard deviation of a normal whose peak is as high."""


@overload(_log_density, jit_options=INLINED, strict=False)  # type: ignore[untyped-decorator]
def _log_density_by(family: Any, y: float, parameters: Any) -> Any:
    function = counterpart(family.instance_class.functions.log_density, maths)
    return lambda family, y, parameters: function(y, *parameters)


@overload(_moments, jit_options=INLINED, strict=False)  # type: ignore[untyped-decorator]
def _moments_by(family: Any, parameters: Any) -> Any:
    mean = counterpart(family.instance_class.functions.mean, maths)
    variance = counterpart(family.instance_class.functions.variance, maths)
    return lambda family, parameters: (mean(*parameters), variance(*parameters))


@overload(_width, jit_options=INLINED, strict=False)  # type: ignore[untyped-decorator]
def _width_by(family: Any, parameters: Any) -> Any:
    width = counterpart(family.instance_class.functions.width, maths)
    return lambda family, parameters: width(*parameters)


def _positive(kind: type[components.Positive], mixed: bool) -> Answers:
    """Answers of a family of positive labels, compiled for its own functions.

    mixed: whether predictives are mixtures of parts.
    """
    count = len(kind._fields)  # type: ignore[attr-defined]
    family = kind(*range(mixture.PARAMETERS, mixture.PARAMETERS + count))
    own = (0,) * count
    stated = (0,) * (count + mixed)

    def places(outputs: int, parts: int, at: int) -> Any:
        return every(stated, 2 + at, parts)

    def finish(model: Model, params: Floats) -> None:
        if mixed:
            parts = model.noise.parts
            _normalise(params, 2 + count * parts, parts)

    def score(step: RowStep) -> float:
        y = step.number[LABEL]
        params = step.params
        density = step.work[EACH]
        parts = step.model.noise.parts
        first = 2 + count * parts
        for k in range(parts):
            lines = every(own, 2 + k, parts)
            line = params[first + parts + k] if mixed else density
            for i in range(whole(density)):
                line[i] = _log_density(family, y, state_at(params, lines, i))
        if mixed:
            _fold(params, first, parts, density)
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
                    mean[i] += shares[k, i] * _moments(family, state_at(params, lines, i))[0]
        for k in range(parts):
            lines = every(own, 2 + k, parts)
            for i in range(columns):
                parameters = state_at(params, lines, i)
                centre, square = _moments(family, parameters)
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
                    spare[mixture.SCALE, n] = _width(family, parameters)
                    state(spare, family, n, parameters)
                    n += 1
        mixture.moments(chance, params[:1], params[1:2], columns, out)
        y = _label(step.number)
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
        mixture.FIELDS,
        compiled(finish),
        entry(score),
        entry(summarise),
    )


# --- negative binomial, of one output of several parts: shape, mean, log weight -------------------


@inlined
def _negative_binomial_places(outputs: int, parts: int, at: int) -> tuple[int, int, int]:
    return 2 + at, 2 + parts + at, 2 + 2 * parts + at


@compiled
def _negative_binomial_finish(model: Model, params: Floats) -> None:
    parts = model.noise.parts
    _normalise(params, 2 + 2 * parts, parts)


@entry
def _negative_binomial_score(step: RowStep) -> float:
    params = step.params
    parts = step.model.noise.parts
    density = step.work[EACH]
    for k in range(parts):
        shape = params[2 + k]
        rate = params[2 + parts + k]
        mass = params[2 + 3 * parts + k]
        counts.log_masses(step.number[LABEL], shape, rate, mass)
    _fold(params, 2 + 2 * parts, parts, density)
    return 1.0


@entry
def _negative_binomial_summarise(
    step: RowStep, levels: Floats, spare: Floats, out: Floats
) -> float:
    chance = step.work[CHANCE]
    params = step.params
    parts = step.model.noise.parts
    mean = params[0]
    variance = params[1]
    columns = whole(chance)
    arithmetic.fill(mean, 0.0)
    arithmetic.fill(variance, 0.0)
    for k in range(parts):
        rate = params[2 + parts + k]
        weight = params[2 + 3 * parts + k]
        arithmetic.exp_of(params[2 + 2 * parts + k], 0.0, weight, columns)
        for i in range(columns):
            mean[i] += weight[i] * rate[i]
    n = 0
    for k in range(parts):
        shape = params[2 + k]
        rate = params[2 + parts + k]
        weight = params[2 + 3 * parts + k]
        for i in range(columns):
            apart = rate[i] - mean[i]
            within = _FAMILIES.negative_binomial_variance(shape[i], rate[i])
            variance[i] += weight[i] * (within + apart * apart)
        for i in range(columns):
            if chance[i] * weight[i] > mixture.UNSEEN:
                spare[counts.WEIGHT, n] = chance[i] * weight[i]
                spare[counts.SHAPE, n] = shape[i]
                spare[counts.RATE, n] = rate[i]
                n += 1
    mixture.moments(chance, params[:1], params[1:2], columns, out)
    y = _label(step.number)
    cumulative = spare[counts.CUMULATIVE]
    counts.small_counts(spare, n, EXACT_COUNTS, cumulative)
    for k in range(2):
        out[2 + k] = np.nan if math.isnan(y) else counts.cdf(y - k, spare, n, cumulative)
    counts.quantiles(levels, out[0], out[1], spare, n, cumulative, out[4:])
    return 0.0


# --- Bernoulli, of one output: probability of a one -----------------------------------------------


@inlined
def _bernoulli_places(outputs: int, parts: int, at: int) -> tuple[int]:
    return (2,)


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
        out[4 + k] = 0.0 if zero - levels[0, k] + counts.ROUNDING >= 0 else 1.0
    return 0.0


# --- classes, each as an output: a number proportional to its probability, then that --------------


@inlined
def _categorical_places(outputs: int, parts: int, at: int) -> tuple[int]:
    return (at,)


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
    components.StudentT: Answers(
        _student_t_places,
        _student_t_lines,
        mixture.FIELDS,
        _student_t_finish,
        student_t.score,
        student_t.summarise,
    ),
    components.NegativeBinomial: Answers(
        _negative_binomial_places,
        lambda outputs, parts: 2 + 4 * parts,
        counts.FIELDS,
        _negative_binomial_finish,
        _negative_binomial_score,
        _negative_binomial_summarise,
    ),
    components.Bernoulli: Answers(
        _bernoulli_places,
        lambda outputs, parts: 4,
        0,
        _finished,
        _bernoulli_score,
        _bernoulli_summarise,
    ),
    components.Categorical: Answers(
        _categorical_places,
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
    if issubclass(family, components.Positive):
        return _positive(family, mixed)
    return _ANSWERS[family]
