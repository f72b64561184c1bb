"""Families of predictives of conjugate models: their scores, and summaries of their mixtures.

`params` has means and variances (d rows each), then of each parameter of `maths.families` one for
each output and part, then one of each to work in. Those of Student-t are as `models.student_t` has
them, those of classes their probabilities and a sum. The last column is of outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from model_core import components
from model_core.compiled import LABEL, LABELLED, arithmetic, counts, mixture
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import Floats, inlined, whole
from model_core.compiled.models import student_t
from model_core.compiled.ops import maths

_FAMILIES = maths("families")


class Places(NamedTuple):
    """Rows of a few numbers, and how much further on the next output's are: 0 if it shares them."""

    first: tuple[int, ...]
    step: tuple[int, ...]


class Answers(NamedTuple):
    """What a family is asked.

    places: of the parameters in `params`, and how many rows that has, by outputs and parts. spare:
    fields of its components where they are mixed. finish: what is left of a step's `predict` once
    all parameters are there, (model, params). log_density, describe: its `score`, without the
    statistics, and `summarise`.
    """

    places: Callable[[int, int], tuple[Places, int]]
    spare: int
    finish: Callable[..., None]
    log_density: Callable[..., None]
    describe: Callable[..., None]


def _rows_of(parameters: int) -> Callable[[int, int], tuple[Places, int]]:
    def places(outputs: int, parts: int) -> tuple[Places, int]:
        size = outputs * parts
        first = tuple(2 * outputs + k * size for k in range(parameters))
        return Places(first, (1,) * parameters), 2 * outputs + (parameters + 1) * size

    return places


def _finished(model: Any, params: Floats) -> None:
    """Nothing is left."""


@inlined
def _label(number: Floats) -> float:
    return number[LABEL] if number[LABELLED] > 0 else np.nan


# --- Student-t: half the degrees of freedom, location, squared scale ------------------------------


def _student_t_places(outputs: int, parts: int) -> tuple[Places, int]:
    locations = student_t.before_locations(outputs, student_t.ALONE)
    first = 2 * outputs + student_t.HALF, locations, locations + outputs
    return Places(first, (0, 1, 1)), student_t.rows_of(outputs, student_t.ALONE)


def _student_t_finish(model: Any, params: Floats) -> None:
    student_t.add_norms(model.outputs, student_t.ALONE, params)


def _student_t_log_density(model: Any, number: Floats, params: Floats, each: Floats) -> None:
    student_t.log_density(model.outputs, student_t.ALONE, number, params, each)


def _student_t_describe(
    model: Any,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    student_t.summarise(model.outputs, student_t.ALONE, number, chance, params, levels, spare, out)


# --- Lomax, of one output: shape, scale -----------------------------------------------------------


def _lomax_log_densities(model: Any, number: Floats, params: Floats, each: Floats) -> None:
    y, shape, scale = number[LABEL], params[2], params[3]
    for i in range(whole(each)):
        each[i] = _FAMILIES.lomax_log_density(y, shape[i], scale[i])


def _lomax_describe(
    model: Any,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    mean, variance, shape, scale = params[0], params[1], params[2], params[3]
    for i in range(whole(chance)):
        mean[i] = _FAMILIES.lomax_mean(shape[i], scale[i])
        variance[i] = _FAMILIES.lomax_variance(shape[i], scale[i])
    n = 0
    for i in range(whole(chance)):
        if chance[i] > mixture.NEGLIGIBLE:
            spare[mixture.WEIGHT, n] = chance[i]
            spare[mixture.SHAPE, n] = shape[i]
            spare[mixture.INVERSE, n] = 1.0 / scale[i]
            n += 1
    mixture.moments(chance, params[:1], params[1:2], whole(chance), out)
    y, family = _label(number), mixture.LOMAX
    out[2] = np.nan if math.isnan(y) else mixture.sums(y, spare, n, family)[0]
    out[3] = out[2]
    mixture.quantiles(levels, out[0], student_t.TOLERANCE, spare, n, family, out[4:])


# --- negative binomial, of one output of several parts: shape, mean, log weight -------------------


def _negative_binomial_finish(model: Any, params: Floats) -> None:
    """Weights that sum to one."""
    logs, total = params[2 + 2 * model.parts : 2 + 3 * model.parts], params[0]
    student_t.fold(logs, params[1], total)
    for k in range(model.parts):
        for i in range(whole(total)):
            logs[k, i] -= total[i]


def _negative_binomial_log_masses(model: Any, number: Floats, params: Floats, each: Floats) -> None:
    parts = model.parts
    masses = params[2 + 3 * parts : 2 + 4 * parts]
    for k in range(parts):
        shape, rate, logs = params[2 + k], params[2 + parts + k], params[2 + 2 * parts + k]
        counts.log_masses(number[LABEL], shape, rate, masses[k])
        for i in range(whole(each)):
            masses[k, i] += logs[i]
    student_t.fold(masses, params[0], each)


def _negative_binomial_describe(
    model: Any,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    parts, mean, variance, columns = model.parts, params[0], params[1], whole(chance)
    arithmetic.fill(mean, 0.0)
    arithmetic.fill(variance, 0.0)
    for k in range(parts):
        rate, weight = params[2 + parts + k], params[2 + 3 * parts + k]
        arithmetic.exp_of(params[2 + 2 * parts + k], 0.0, weight, columns)
        for i in range(columns):
            mean[i] += weight[i] * rate[i]
    n = 0
    for k in range(parts):
        shape, rate, weight = params[2 + k], params[2 + parts + k], params[2 + 3 * parts + k]
        for i in range(columns):
            apart = rate[i] - mean[i]
            within = _FAMILIES.negative_binomial_variance(shape[i], rate[i])
            variance[i] += weight[i] * (within + apart * apart)
        for i in range(columns):
            if chance[i] * weight[i] > mixture.NEGLIGIBLE:
                spare[counts.WEIGHT, n] = chance[i] * weight[i]
                spare[counts.SHAPE, n] = shape[i]
                spare[counts.RATE, n] = rate[i]
                n += 1
    mixture.moments(chance, params[:1], params[1:2], columns, out)
    counts.summarise(_label(number), levels, spare, n, out)


# --- Bernoulli, of one output: probability of a one -----------------------------------------------


def _bernoulli_log_masses(model: Any, number: Floats, params: Floats, each: Floats) -> None:
    y, probability = number[LABEL], params[2]
    for i in range(whole(each)):
        each[i] = _FAMILIES.bernoulli_log_mass(y, probability[i])


def _bernoulli_describe(
    model: Any,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Mean, variance, probabilities up to the label and below it, quantiles."""
    mean, variance, zeros, n = params[2], params[1], params[3], whole(chance)
    for i in range(n):
        variance[i] = _FAMILIES.bernoulli_variance(mean[i])
        zeros[i] = 1.0 - mean[i]
    mixture.moments(chance, params[2:3], params[1:2], n, out)
    zero, everything = arithmetic.dot(chance, zeros, n), arithmetic.total(chance, n)
    y = _label(number)
    for k in range(2):
        reached = 0.0 if y - k < 0 else (zero if y - k < 1 else everything)
        out[2 + k] = np.nan if math.isnan(y) else reached
    for k in range(levels.shape[1]):
        out[4 + k] = 0.0 if zero - levels[0, k] + counts.ROUNDING >= 0 else 1.0


# --- classes, each as an output: a number proportional to its probability, then that --------------


def _categorical_places(classes: int, parts: int) -> tuple[Places, int]:
    return Places((0,), (1,)), classes + 1


def _categorical_finish(model: Any, params: Floats) -> None:
    total = params[model.outputs]
    arithmetic.fill(total, 0.0)
    for j in range(model.outputs):
        for i in range(whole(total)):
            total[i] += params[j, i]
    for j in range(model.outputs):
        for i in range(whole(total)):
            params[j, i] /= total[i]


def _categorical_log_mass(model: Any, number: Floats, params: Floats, each: Floats) -> None:
    """-inf of an index that is none."""
    y = number[LABEL]
    j = int(y) if 0 <= y < model.classes else 0
    if j == y:
        for i in range(whole(each)):
            each[i] = arithmetic.log(params[j, i])
    else:
        arithmetic.fill(each, -INF)


def _categorical_describe(
    model: Any,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Probabilities of the classes."""
    for j in range(model.classes):
        out[j] = arithmetic.dot(chance, params[j], whole(chance))


ANSWERS: dict[type, Answers] = {
    components.StudentT: Answers(
        _student_t_places,
        mixture.FIELDS,
        _student_t_finish,
        _student_t_log_density,
        _student_t_describe,
    ),
    components.Lomax: Answers(
        _rows_of(2), mixture.FIELDS, _finished, _lomax_log_densities, _lomax_describe
    ),
    components.NegativeBinomial: Answers(
        _rows_of(3),
        counts.FIELDS,
        _negative_binomial_finish,
        _negative_binomial_log_masses,
        _negative_binomial_describe,
    ),
    components.Bernoulli: Answers(
        _rows_of(1), 0, _finished, _bernoulli_log_masses, _bernoulli_describe
    ),
    components.Categorical: Answers(
        _categorical_places, 0, _categorical_finish, _categorical_log_mass, _categorical_describe
    ),
}
