"""`upm.multivariate.Multivariate`: means and covariance of all outputs unknown.

Rows of `params`: those of `student_t` for the marginals; then the lower Cholesky factor of psi
(d, d), the squared scale of it, and half of `log det psi`. The last column is the prior's.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic, mixture, step
from model_core.compiled.jit import Floats, compiled, implements, inlined
from model_core.compiled.models import student_t
from model_core.compiled.ops import maths
from model_core.maths.conjugate import OUTLIER_SPREAD
from model_core.upm import multivariate

_SPECIAL = maths("special")
EPSILON = sys.float_info.epsilon
MOST_OUTPUTS = 8  # beyond it one factorisation for all hypotheses is faster


class Multivariate(NamedTuple):
    """Rows of the statistics: mean (d), kappa, nu, psi (d, d)."""

    outputs: int
    rows: int
    kept: int
    params: int
    statistics: int = 4
    parts: int = 1
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: multivariate.Multivariate) -> Multivariate | None:
    """Dimensions of a model; None where there are too many outputs."""
    d = model.y_dim
    rows = d + 2 + d * d
    if d > MOST_OUTPUTS:
        return None
    return Multivariate(d, rows, rows, student_t.rows_of(d, student_t.ALONE) + d * d + 2)


@implements(step.predict, Multivariate)
def predict(
    model: Multivariate,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Student-t of `nu - d + 1` degrees of freedom, scale `psi (kappa + 1) / (kappa df)`."""
    _predict(model.outputs, own, params)


@compiled
def _predict(outputs: int, own: Floats, params: Floats) -> None:
    d, n = outputs, own.shape[1]
    kappa, nu, psi = own[d], own[d + 1], own[d + 2 :]
    own_at = params.shape[0] - d * d - 2
    factor, spread, half = params[own_at:], params[own_at + d * d], params[2 * d]
    for i in range(n):
        half[i] = 0.5 * (nu[i] - (d - 1))
    for i in range(n):
        spread[i] = (kappa[i] + 1.0) / (kappa[i] * 2.0 * half[i])
    for o in range(d):
        arithmetic.copy(own[o], params[2 * d + 4 + o])
        square = params[3 * d + 4 + o]
        for i in range(n):
            square[i] = psi[o * d + o, i] * spread[i]
    factorise(d, psi, factor)
    half_log_determinant(d, factor, params[own_at + d * d + 1])
    student_t.finish(d, student_t.ALONE, params)
    spread[n - 1] *= OUTLIER_SPREAD


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
                left, right = factor[a * d + c], factor[b * d + c]
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


@implements(step.score, Multivariate)
def score(model: Multivariate, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs together."""
    _score(model.outputs, number, params, each)


@compiled
def _score(outputs: int, number: Floats, params: Floats, each: Floats) -> None:
    d = outputs
    own_at = params.shape[0] - d * d - 2
    factor, spread = params[own_at:], params[own_at + d * d]
    half, log_determinant = params[2 * d], params[own_at + d * d + 1]
    locations = params[2 * d + 4 : 3 * d + 4]
    residuals = params[4 * d + 4 : 5 * d + 4]  # the rows of the label's log densities
    distances(d, number, locations, factor, residuals, each)
    log_density(d, half, spread, log_determinant, each)


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
        residual, loc, pivot = residuals[a], locations[a], factor[a * d + a]
        for i in range(n):
            residual[i] = number[LABEL + a] - loc[i]
        for b in range(a):
            before, entry = residuals[b], factor[a * d + b]
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
    product, b = 1.0, a
    for _ in range(d // 2):
        product *= b
        b += 1.0
    value: float = arithmetic.log(product)
    if d % 2:
        norm, factor, _ = _SPECIAL.student_t_norm(b)
        value += norm + 0.5 * arithmetic.log(factor * (2.0 * math.pi * b))
    return value


@implements(step.learn, Multivariate)
def learn(
    model: Multivariate,
    number: Floats,
    context: Floats,
    share: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Conjugate update with a weighted observation."""
    _learn(model.outputs, number, share, own, params)


@compiled
def _learn(outputs: int, number: Floats, share: Floats, own: Floats, params: Floats) -> None:
    d, n = outputs, share.shape[0]
    kappa, nu, psi = own[d], own[d + 1], own[d + 2 :]
    errors, gain = params[4 * d + 4 : 5 * d + 4], params[0]  # neither is needed any more
    for i in range(n):
        gain[i] = share[i] / (kappa[i] + share[i])
    for o in range(d):
        error, mean = errors[o], own[o]
        for i in range(n):
            error[i] = number[LABEL + o] - mean[i]
        for i in range(n):
            mean[i] += gain[i] * error[i]
    for i in range(n):
        gain[i] *= kappa[i]
    scatter(d, errors, gain, psi)
    for i in range(n):
        kappa[i] += share[i]
    for i in range(n):
        nu[i] += share[i]


@compiled
def scatter(d: int, errors: Floats, gain: Floats, psi: Floats) -> None:
    """Add the errors' products to psi, and to its diagonal more than rounding can take away."""
    n, rounding = gain.shape[0], d * (d + 3) * EPSILON
    for a in range(d):
        for b in range(d):
            row, left, right = psi[a * d + b], errors[a], errors[b]
            for i in range(n):
                row[i] += left[i] * right[i] * gain[i]
        row = psi[a * d + a]
        for i in range(n):
            row[i] += row[i] * rounding if gain[i] > 0 else 0.0


@implements(step.remember, Multivariate)
def remember(model: Multivariate, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Multivariate)
def summarise(
    model: Multivariate,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Marginals as any mixture of Student-t; the covariance within hypotheses beside them."""
    d = model.outputs
    student_t.summarise(d, student_t.ALONE, number, chance, params, levels, spare, out)
    _within(d, chance, params, spare[0], out)


@compiled
def _within(outputs: int, chance: Floats, params: Floats, spare: Floats, out: Floats) -> None:
    """Add what is beside the diagonal: the average of `factor factor' spread df / (df - 2)`."""
    d, n = outputs, chance.shape[0]
    own_at = params.shape[0] - d * d - 2
    factor, spread, half = params[own_at:], params[own_at + d * d], params[2 * d]
    for a in range(d):
        for b in range(a):
            total = 0.0
            for c in range(b + 1):
                left, right = factor[a * d + c], factor[b * d + c]
                for i in range(n):
                    exists = half[i] > 1.0 and chance[i] > 0.0
                    share = chance[i] * spread[i] * half[i] / (half[i] - 1.0) if exists else 0.0
                    spare[i] = share * (left[i] * right[i])
                total += arithmetic.total(spare, n)
            out[d + a * d + b] += total
            out[d + b * d + a] += total
