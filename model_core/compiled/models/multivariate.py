"""Normal-Wishart: mean and covariance of all outputs unknown, as of `upm.multivariate`.

Lines of the statistics: mean (d), kappa, nu, psi (d, d). A block of lines holds what a label is
scored by: see `Block`. Lines of `params`: those of `student_t` for the marginals, then a block.
`joint` has these statistics after its own. Murphy, *Conjugate Bayesian analysis* (2007).
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic, mixture, student_t
from model_core.compiled.arithmetic import maths
from model_core.compiled.belief import CHANCE, EACH, SHARE
from model_core.compiled.jit import Floats, compiled, either, entry, inlined, whole
from model_core.compiled.step import ALONE, Functions, Model, RowStep, forget, pick
from model_core.labels import LARGEST
from model_core.upm import multivariate
from model_core.upm.base import OUTLIER_SPREAD

_REGRESSION = maths("regression")
_SPECIAL = maths("special")
MOST_OUTPUTS = 8  # beyond it one factorisation for all hypotheses is faster
EPSILON = sys.float_info.epsilon
# Lines of a block: `f^2 / kappa`; squared scale of psi; half the degrees of freedom; half of
# `log det psi`; squared distance of the label in scales. Then locations (d), squared scales of the
# marginals (d), errors (d), and the Cholesky factor of psi (d, d).
VARIANCE, SPREAD, HALF, DETERMINANT, SQUARE, LOCATION = range(6)


class Block(NamedTuple):
    """Lines in a block, and how many there are."""

    squares: int
    errors: int
    factor: int
    end: int


@either
def block_of(d: int) -> Block:
    """Of d outputs."""
    squares = LOCATION + d
    errors = squares + d
    factor = errors + d
    return Block(squares, errors, factor, factor + d * d)


@compiled
def forecast(d: int, own: Floats, feature: float, block: Floats) -> None:
    """Fill a block but for the label, and for the factor of psi with its determinant.

    own: the statistics. feature: `f` of labels whose mean is `f m`.
    """
    kappa = own[d]
    nu = own[d + 1]
    n = whole(nu)
    variance = block[VARIANCE]
    spread = block[SPREAD]
    half = block[HALF]
    for i in range(n):
        variance[i] = feature * feature / kappa[i]
        half[i] = 0.5 * (nu[i] - (d - 1))
        spread[i] = (1.0 + variance[i]) / (2.0 * half[i])
    squares = block_of(d).squares
    for o in range(d):
        mean = own[o]
        loc = block[LOCATION + o]
        for i in range(n):
            loc[i] = feature * mean[i]
        square = block[squares + o]
        diagonal = own[d + 2 + o * d + o]
        for i in range(n):
            square[i] = diagonal[i] * spread[i]


@inlined
def present(d: int, number: Floats) -> int:
    """How many outputs of the label are there."""
    count = 0
    for o in range(d):
        count += 0 if math.isnan(number[LABEL + o]) else 1
    return count


@inlined
def ordered(d: int, number: Floats, place: int) -> int:
    """The output at a place in the order of the label: first those that are there."""
    left = place
    for missing in range(2):
        for o in range(d):
            if math.isnan(number[LABEL + o]) == (missing == 1):
                if left == 0:
                    return o
                left -= 1
    return d


@compiled
def reorder(d: int, number: Floats, factor: Floats, out: Floats) -> None:
    """The matrix of a Cholesky factor, with outputs in the order of the label, below its diagonal.

    Both (d d, W).
    """
    for a in range(d):
        for b in range(a + 1):
            one = ordered(d, number, a)
            other = ordered(d, number, b)
            entry = out[a * d + b]
            arithmetic.fill(entry, 0.0)
            for c in range(min(one, other) + 1):
                arithmetic.add_product(factor[one * d + c], factor[other * d + c], entry)


@compiled
def factorise(d: int, count: int, psi: Floats, factor: Floats, logs: Floats) -> None:
    """Fill a Cholesky factor, nan if psi is not positive definite.

    psi: (d d, W), of which what lies above the diagonal is not read; it may be the factor itself.
    logs: half the log determinant of the first `count` outputs.
    """
    n = psi.shape[1]
    arithmetic.fill(logs, 0.0)
    for a in range(d):
        for b in range(a + 1):
            row = factor[a * d + b]
            arithmetic.copy(psi[a * d + b], row)
            for c in range(b):
                left = factor[a * d + c]
                right = factor[b * d + c]
                for i in range(n):
                    row[i] -= left[i] * right[i]
            if a > b:
                pivot = factor[b * d + b]
                for i in range(n):
                    row[i] /= pivot[i]
        pivot = factor[a * d + a]
        for i in range(n):
            pivot[i] = math.sqrt(pivot[i]) if pivot[i] > 0 else math.nan
        if a < count:
            for i in range(n):
                logs[i] += arithmetic.log(pivot[i])


@compiled
def distances(
    d: int, number: Floats, locations: Floats, factor: Floats, residuals: Floats, out: Floats
) -> None:
    """Squared distances of the outputs that are there from their locations, by the factors.

    factor: of the outputs in the order of the label. residuals: (d, W), filled with the errors in
    scales of the factor.
    """
    n = out.shape[0]
    arithmetic.fill(out, 0.0)
    for a in range(present(d, number)):
        o = ordered(d, number, a)
        residual = residuals[a]
        loc = locations[o]
        pivot = factor[a * d + a]
        for i in range(n):
            residual[i] = number[LABEL + o] - loc[i]
        for b in range(a):
            before = residuals[b]
            entry = factor[a * d + b]
            for i in range(n):
                residual[i] -= entry[i] * before[i]
        for i in range(n):
            residual[i] /= pivot[i]
        for i in range(n):
            out[i] += residual[i] * residual[i]


@compiled
def log_density(
    d: int, half: Floats, spread: Floats, log_determinant: Floats, each: Floats
) -> None:
    """Log density from the squared distance by the factor, in place.

    half: of the degrees of freedom. spread: squared scale of the factor. log_determinant: half of
    that of the factor's matrix.
    """
    for i in range(each.shape[0]):
        scale = 2.0 * half[i] * spread[i]
        norm = _log_gamma_ratio(half[i], d) - log_determinant[i]
        norm -= 0.5 * d * arithmetic.log(math.pi * scale)
        each[i] = norm - (half[i] + 0.5 * d) * arithmetic.log1p(each[i] / scale)


@inlined
def _log_gamma_ratio(a: float, d: int) -> float:
    """`lgamma(a + d / 2) - lgamma(a)`: the recurrence's product, and half a step if d is odd."""
    product = 1.0
    b = a
    for _ in range(d // 2):
        product *= b
        b += 1.0
    value: float = arithmetic.log(product)
    if d % 2:
        norm, factor, _ = _SPECIAL.student_t_norm(b)
        value += norm + 0.5 * arithmetic.log(factor * (2.0 * math.pi * b))
    return value


@compiled
def absorb(
    d: int,
    number: Floats,
    share: Floats,
    precision: Floats,
    own: Floats,
    feature: float,
    block: Floats,
    factor: Floats,
) -> None:
    """Conjugate update with a label that counts as a share.

    precision: of its noise, times the share. own, feature: as of `forecast`. factor: as of
    `distances`, whose residuals the block has. Missing outputs are expected where the others have
    them, with the scale matrix of the noise that is left, see `upm.joint`.
    """
    n = whole(share)
    count = present(d, number)
    kappa = own[d]
    nu = own[d + 1]
    gain = block[DETERMINANT]
    moved = block[SQUARE]
    variance = block[VARIANCE]
    half = block[HALF]
    errors = block[block_of(d).errors :]
    for i in range(n):
        gain[i] = _REGRESSION.gain(precision[i], variance[i])
        moved[i] = gain[i] * (feature / kappa[i])
    for a in range(count, d):
        error = errors[a]
        arithmetic.fill(error, 0.0)
        for c in range(count):
            arithmetic.add_product(factor[a * d + c], errors[c], error)
        for i in range(n):  # beyond any label its square would overflow
            error[i] = min(max(error[i], -LARGEST), LARGEST)
    for a in range(count):
        o = ordered(d, number, a)
        error = errors[a]
        loc = block[LOCATION + o]
        for i in range(n):
            error[i] = number[LABEL + o] - loc[i]
    for a in range(d):
        arithmetic.add_product(moved, errors[a], own[ordered(d, number, a)])
    rounding = d * (d + 3) * EPSILON  # of psi's diagonal, more than can be taken away
    for a in range(d):
        first = d + 2 + ordered(d, number, a) * d
        for b in range(d):
            row = own[first + ordered(d, number, b)]
            left = errors[a]
            right = errors[b]
            for i in range(n):
                row[i] += left[i] * right[i] * gain[i]
            if a >= count and b >= count:
                arithmetic.fill(moved, 0.0)
                for c in range(count, min(a, b) + 1):
                    arithmetic.add_product(factor[a * d + c], factor[b * d + c], moved)
                for i in range(n):
                    row[i] += share[i] * (moved[i] / (2.0 * half[i]))
        row = own[first + ordered(d, number, a)]
        for i in range(n):
            row[i] += row[i] * rounding if gain[i] > 0 else 0.0
    for i in range(n):
        kappa[i] += precision[i] * (feature * feature)
        nu[i] += share[i]


@compiled
def covariance(d: int, a: int, b: int, share: Floats, block: Floats, spare: Floats) -> float:
    """Sum of the covariances of two outputs, b < a, with weights `share`; 0 where there is none."""
    at = block_of(d)
    spread = block[SPREAD]
    half = block[HALF]
    n = whole(share)
    arithmetic.fill(spare, 0.0)
    for c in range(b + 1):
        arithmetic.add_product(block[at.factor + a * d + c], block[at.factor + b * d + c], spare)
    for i in range(n):
        exists = half[i] > 1.0 and share[i] > 0.0
        spare[i] = share[i] * spread[i] * half[i] / (half[i] - 1.0) * spare[i] if exists else 0.0
    return arithmetic.total(spare, n)


def of(model: multivariate.Multivariate) -> tuple[Model, Functions] | None:
    """Sizes and functions of a model; None where there are too many outputs."""
    d = model.y_dim
    if d > MOST_OUTPUTS:
        return None
    params = student_t.lines_of(d, ALONE).end + block_of(d).end
    sizes = Model(outputs=d, kept=d + 2 + d * d, params=params, spare=mixture.FIELDS)
    return sizes, Functions(predict, score, learn, forget, summarise, draw)


@entry
def predict(step: RowStep) -> float:
    """Student-t of `nu - d + 1` degrees of freedom, scale `psi (kappa + 1) / (kappa df)`."""
    model = step.model
    own = step.own
    params = step.params
    d = model.outputs
    first = student_t.lines_of(model.outputs, model.noise).end
    block = params[first:]
    last = own.shape[1] - 1
    forecast(d, own, 1.0, block)
    at = block_of(d)
    factorise(d, d, own[d + 2 :], block[at.factor :], block[DETERMINANT])
    arithmetic.copy(block[HALF], params[2 * d])
    for o in range(d):
        arithmetic.copy(block[LOCATION + o], params[2 * d + student_t.FREEDOM + o])
        arithmetic.copy(block[at.squares + o], params[3 * d + student_t.FREEDOM + o])
    student_t.widen(model, params)
    student_t.finish(model, params)
    block[SPREAD, last] *= OUTLIER_SPREAD
    return 0.0


@entry
def score(step: RowStep) -> float:
    """Log density of all outputs together."""
    d = step.model.outputs
    density = step.work[EACH]
    block = step.params[student_t.lines_of(d, step.model.noise).end :]
    at = block_of(d)
    distances(d, step.number, block[LOCATION:], block[at.factor :], block[at.errors :], density)
    log_density(d, block[HALF], block[SPREAD], block[DETERMINANT], density)
    if present(d, step.number) < d:
        arithmetic.fill(density, math.nan)  # labels are whole here
    return 1.0


@entry
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update with a weighted observation."""
    d = step.model.outputs
    share = step.work[SHARE]
    block = step.params[student_t.lines_of(d, step.model.noise).end :]
    factor = block[block_of(d).factor :]
    absorb(d, step.number, share, share, step.own, 1.0, block, factor)
    return log_score


@entry
def draw(step: RowStep, noise: Floats) -> float:
    """Draw the label, of one of the hypotheses or of the outliers."""
    model = step.model
    block = step.params[student_t.lines_of(model.outputs, model.noise).end :]
    column = pick(step.work[CHANCE], noise[0, student_t.HYPOTHESIS])
    draw_together(model.outputs, step.number, column, block[SPREAD, column], block, noise)
    return 0.0


@compiled
def draw_together(
    d: int, number: Floats, column: int, spread: float, block: Floats, noise: Floats
) -> None:
    """Draw all outputs, each given those before it: a Student-t of one more degree of freedom.

    spread: squared scale of the factor.
    """
    half = block[HALF, column]
    factor = block[block_of(d).factor :]
    sizes = noise[1]
    reached = 0.0
    for a in range(d):
        first = student_t.DRAWN + student_t.OF_OUTPUT * a
        own = student_t.drawn(half + 0.5 * a, noise[0, first:])
        sizes[a] = own * math.sqrt((2.0 * half + reached) / (2.0 * half + a))
        reached += sizes[a] * sizes[a]
        error = 0.0
        for b in range(a + 1):
            error += factor[a * d + b, column] * sizes[b]
        number[LABEL + a] = block[LOCATION + a, column] + math.sqrt(spread) * error


@entry
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Marginals as any mixture of Student-t; the covariance within hypotheses beside them."""
    model = step.model
    chance = step.work[CHANCE]
    params = step.params
    d = model.outputs
    student_t.summarise(step, levels, spare, out)
    block = params[student_t.lines_of(d, model.noise).end :]
    for a in range(d):
        for b in range(a):
            total = covariance(d, a, b, chance, block, params[0])
            out[d + a * d + b] += total
            out[d + b * d + a] += total
    return 0.0
