"""Matrix-normal-Wishart: regressions of all outputs together, their covariance unknown.

    y ~ N(M' f, Sigma),    M | Sigma ~ MatrixNormal(M_0, Lambda_0^-1, Sigma),
    Sigma ~ InverseWishart(psi, nu),

with features `f`: one, and the lags of `p - 1` outputs. `upm.multivariate` has no lags. A block of
lines holds what a label is scored by: see `Block`. Murphy, *Conjugate Bayesian analysis* (2007).
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic
from model_core.compiled.arithmetic import maths
from model_core.compiled.jit import Floats, compiled, either, inlined, whole

_REGRESSION = maths("regression")
_SPECIAL = maths("special")
EPSILON = sys.float_info.epsilon
# Lines of a block: `f' Lambda^-1 f`; squared scale of psi; half the degrees of freedom; half of
# `log det psi`; squared distance of the label in scales. Then locations (d), squared scales of the
# marginals (d), errors (d), `Lambda^-1 f` (p), and the Cholesky factors of psi (d, d), of `Lambda`
# (p, p).
VARIANCE, SPREAD, HALF, DETERMINANT, SQUARE, LOCATION = range(6)


class Block(NamedTuple):
    """Lines in a block, and how many there are."""

    squares: int
    errors: int
    solved: int
    factor: int
    inner: int
    end: int


@either
def block_of(d: int, p: int) -> Block:
    """Of d outputs and p features."""
    squares = LOCATION + d
    errors = squares + d
    solved = errors + d
    factor = solved + p
    inner = factor + d * d
    return Block(squares, errors, solved, factor, inner, inner + p * p)


@compiled
def forecast(
    d: int,
    p: int,
    context: Floats,
    matrix: Floats,
    inverse: Floats,
    psi: Floats,
    nu: Floats,
    block: Floats,
) -> None:
    """Fill a block but for the label.

    matrix, inverse, psi: (p d, p p, d d) lines first. nu: a line.
    """
    at = block_of(d, p)
    n = whole(nu)
    factorise(p, inverse, block[at.inner :])
    _solve(d, p, context, block[at.inner :], block[at.solved :], block[VARIANCE])
    for o in range(d):
        loc = block[LOCATION + o]
        arithmetic.copy(matrix[o], loc)
        for a in range(1, p):
            entry = matrix[a * d + o]
            value = feature(d, context, a)
            for i in range(n):
                loc[i] += value * entry[i]
    spread = block[SPREAD]
    half = block[HALF]
    variance = block[VARIANCE]
    for i in range(n):
        half[i] = 0.5 * (nu[i] - (d - 1))
    for i in range(n):
        spread[i] = (1.0 + variance[i]) / (2.0 * half[i])
    for o in range(d):
        square = block[at.squares + o]
        diagonal = psi[o * d + o]
        for i in range(n):
            square[i] = diagonal[i] * spread[i]
    factorise(d, psi, block[at.factor :])
    half_log_determinant(d, block[at.factor :], block[DETERMINANT])


@inlined
def feature(d: int, context: Floats, a: int) -> float:
    """One, and the lag."""
    feature: float = 1.0 if a == 0 else context[4 * d + a]
    return feature


@compiled
def _solve(
    d: int, p: int, context: Floats, factor: Floats, solved: Floats, variance: Floats
) -> None:
    """`Lambda^-1 f` and `f' Lambda^-1 f`, by the factor (p p, W) of `Lambda`."""
    for a in range(p):
        arithmetic.fill(solved[a], feature(d, context, a))
        for b in range(a):
            arithmetic.subtract_product(factor[a * p + b], solved[b], solved[a])
        arithmetic.divide(solved[a], factor[a * p + a])
    arithmetic.fill(variance, 0.0)
    for a in range(p):
        arithmetic.add_product(solved[a], solved[a], variance)
    for a in range(p - 1, -1, -1):
        for b in range(a + 1, p):
            arithmetic.subtract_product(factor[b * p + a], solved[b], solved[a])
        arithmetic.divide(solved[a], factor[a * p + a])


@compiled
def factorise(d: int, matrix: Floats, factor: Floats) -> None:
    """Lower Cholesky factor of each column's matrix, nan where it is not positive definite.

    matrix, factor: (d d, W); what is above the diagonal of the factor is left as it is.
    """
    n = matrix.shape[1]
    for a in range(d):
        for b in range(a + 1):
            row = factor[a * d + b]
            arithmetic.copy(matrix[a * d + b], row)
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


@compiled
def half_log_determinant(d: int, factor: Floats, out: Floats) -> None:
    """Half the log determinant of the matrices with these factors."""
    arithmetic.fill(out, 0.0)
    for a in range(d):
        pivot = factor[a * d + a]
        for i in range(out.shape[0]):
            out[i] += arithmetic.log(pivot[i])


@compiled
def score(d: int, p: int, number: Floats, block: Floats, density: Floats) -> None:
    """Fill the label's log density, its errors and their squared distance in scales."""
    at = block_of(d, p)
    distances(d, number, block[LOCATION:], block[at.factor :], block[at.errors :], density)
    square = block[SQUARE]
    spread = block[SPREAD]
    for i in range(whole(density)):
        square[i] = density[i] / spread[i]
    log_density(d, block[HALF], spread, block[DETERMINANT], density)


@compiled
def distances(
    d: int, number: Floats, locations: Floats, factor: Floats, residuals: Floats, out: Floats
) -> None:
    """Squared distances of the label from the locations, by the factors.

    residuals: d rows to work in.
    """
    n = out.shape[0]
    arithmetic.fill(out, 0.0)
    for a in range(d):
        residual = residuals[a]
        loc = locations[a]
        pivot = factor[a * d + a]
        for i in range(n):
            residual[i] = number[LABEL + a] - loc[i]
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
def learn(
    d: int,
    p: int,
    number: Floats,
    context: Floats,
    share: Floats,
    precision: Floats,
    block: Floats,
    matrix: Floats,
    inverse: Floats,
    psi: Floats,
    nu: Floats,
) -> None:
    """Conjugate update with a label that counts as a share; other arguments as of `forecast`.

    precision: of its noise, times the share.
    """
    at = block_of(d, p)
    n = whole(share)
    gain = block[DETERMINANT]
    product = block[SQUARE]
    variance = block[VARIANCE]
    errors = block[at.errors :]
    for i in range(n):
        gain[i] = _REGRESSION.gain(precision[i], variance[i])
    for o in range(d):
        error = errors[o]
        loc = block[LOCATION + o]
        for i in range(n):
            error[i] = number[LABEL + o] - loc[i]
    for a in range(p):
        solved = block[at.solved + a]
        for i in range(n):
            product[i] = gain[i] * solved[i]
        for o in range(d):
            arithmetic.add_product(product, errors[o], matrix[a * d + o])
        for b in range(p):
            squared = feature(d, context, a) * feature(d, context, b)
            entry = inverse[a * p + b]
            for i in range(n):
                entry[i] += precision[i] * squared
    scatter(d, errors, gain, psi)
    for i in range(n):
        nu[i] += share[i]


@compiled
def scatter(d: int, errors: Floats, gain: Floats, psi: Floats) -> None:
    """Add the errors' products to psi, and to its diagonal more than rounding can take away."""
    n = gain.shape[0]
    rounding = d * (d + 3) * EPSILON
    for a in range(d):
        for b in range(d):
            row = psi[a * d + b]
            left = errors[a]
            right = errors[b]
            for i in range(n):
                row[i] += left[i] * right[i] * gain[i]
        row = psi[a * d + a]
        for i in range(n):
            row[i] += row[i] * rounding if gain[i] > 0 else 0.0


@compiled
def covariance(
    d: int, p: int, a: int, b: int, share: Floats, block: Floats, spare: Floats
) -> float:
    """Sum of the covariances of two outputs, b < a, with weights `share`; 0 where there is none."""
    at = block_of(d, p)
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
