"""`upm.averaged.Averaged`: a level, a line or an autoregression in each regime, averaged."""

from __future__ import annotations

from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic, mixture, step
from model_core.compiled.jit import Floats, compiled, implements, whole
from model_core.compiled.models import lags, student_t
from model_core.upm import averaged
from model_core.upm.averaged import KINDS, LAG, LINE, UNIT

PARTS = len(KINDS)
NOISE = student_t.Noise((1.0,) * PARTS, PARTS)
SINGULAR = 1e-14  # least determinant, as a share of what it is the difference to


class Averaged(NamedTuple):
    """Rows of the statistics, of P parts: mean (d, P, 2), precision (d, P, 3), alpha (1).

    Then beta and weight (d, P), the origin (1); and beside the statistics the second feature and
    `f' Lambda^-1 f`, (d, P) each.
    """

    outputs: int
    rows: int
    kept: int
    params: int
    statistics: int = 6
    parts: int = PARTS
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: averaged.Averaged) -> Averaged:
    """Dimensions of a model."""
    kept = rows_of(model.y_dim, NOISE)
    params = student_t.rows_of(model.y_dim, NOISE)
    return Averaged(model.y_dim, kept + 2 * PARTS * model.y_dim, kept, params)


def rows_of(outputs: int, noise: student_t.Noise) -> int:
    """Rows of the statistics; a learned last part has nothing here but its weight."""
    parts = len(noise.skews)
    return (6 * (parts - noise.own) + parts) * outputs + 2


@implements(step.predict, Averaged)
def predict(
    model: Averaged,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Average of three Student-t."""
    regress(model.outputs, KINDS, NOISE, context, own, params)
    student_t.finish(model.outputs, NOISE, params)


@compiled
def regress(
    outputs: int,
    kinds: tuple[int, ...],
    noise: student_t.Noise,
    context: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Fill half the degrees of freedom, locations, squared scales and log weights.

    kinds: of all parts but a learned last one, of which there is the log weight alone.
    """
    parts, every, d = len(kinds), len(noise.skews), outputs
    size, origin_row = parts * d, (6 * parts + every) * d + 1
    alpha, origin = own[5 * size], own[origin_row]
    first, n = student_t.before_locations(d, noise), whole(alpha)
    arithmetic.copy(alpha, params[2 * d])
    for k in range(every * d):
        arithmetic.copy(own[6 * size + 1 + k], params[first + 3 * every * d + k])
    for o in range(d):
        lag = context[1 + 4 * d + o]
        for part in range(parts):
            k, to, kind = o * parts + part, first + o * every + part, kinds[part]
            u = own[origin_row + 1 + k]
            arithmetic.fill(u, lag if kind == LAG else 0.0)
            if kind == LINE:
                for i in range(n):
                    u[i] = 0.0 if origin[i] < 0 else (context[0] - origin[i]) / UNIT
            u[n - 1] = 0.0  # an outlier is of the level's prior
            beta, variance = own[5 * size + 1 + k], own[origin_row + 1 + size + k]
            _forecast(own[2 * k : 2 * k + 2], own[2 * size + 3 * k : 2 * size + 3 * k + 3], u,
                      params[to], variance)  # fmt: skip
            square = params[to + every * d]
            for i in range(n):
                square[i] = beta[i] / alpha[i] * (1.0 + variance[i])


@compiled
def _forecast(mean: Floats, precision: Floats, u: Floats, loc: Floats, variance: Floats) -> None:
    """`k' f` and `f' Lambda^-1 f` of one kind; the precision as its entries 00, 01, 11."""
    level, slope = mean[0], mean[1]
    n = whole(u)
    for i in range(n):
        loc[i] = level[i] + slope[i] * u[i]
    a, b, c = precision[0], precision[1], precision[2]
    for i in range(n):
        product = a[i] * c[i]
        determinant = product - b[i] * b[i]
        determinant = determinant if determinant > SINGULAR * product else SINGULAR * product
        value = (c[i] - b[i] * u[i]) / determinant + u[i] * ((a[i] * u[i] - b[i]) / determinant)
        variance[i] = value if value > 0.0 else 0.0


@implements(step.score, Averaged)
def score(model: Averaged, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, NOISE, number, params, each)


@implements(step.learn, Averaged)
def learn(
    model: Averaged, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Conjugate update of the three, and of their probabilities."""
    n = model.outputs
    # Means and variances are not needed any more.
    update(n, NOISE, number, context[0], share, -1, own, params, params[0], params[n])


@compiled
def update(
    outputs: int,
    noise: student_t.Noise,
    number: Floats,
    now: float,
    share: Floats,
    shares: int,
    own: Floats,
    params: Floats,
    told: Floats,
    rest: Floats,
) -> None:
    """Conjugate update of all parts but a learned last one, and of the probabilities of all.

    shares: first row of `params` with the share of each part; below 0: each learns as much as its
    regime. told, rest: rows to work in.
    """
    d, every = outputs, len(noise.skews)
    parts = every - noise.own
    size, origin_row = parts * d, (6 * parts + every) * d + 1
    alpha, origin = own[5 * size], own[origin_row]
    first, n = student_t.before_locations(d, noise), whole(share)
    log_shares(share, told, rest)
    for o in range(d):
        evidence, y = params[first + 4 * every * d + o], number[LABEL + o]
        for part in range(parts):
            k, of_all = o * parts + part, o * every + part
            u, variance = own[origin_row + 1 + k], own[origin_row + 1 + size + k]
            loc, beta = params[first + of_all], own[5 * size + 1 + k]
            each = params[shares + of_all] if shares >= 0 else share
            for i in range(n):
                error = y - loc[i]
                grown = each[i] * (error * error) / (1.0 + each[i] * variance[i])
                beta[i] += 0.5 * grown
            _absorb(y, loc, each, u, own[2 * k : 2 * k + 2],
                    own[2 * size + 3 * k : 2 * size + 3 * k + 3])  # fmt: skip
        for k in range(o * every, (o + 1) * every):
            density = params[first + 2 * every * d + k]
            reweigh(density, evidence, told, rest, own[6 * size + 1 + k])
    for i in range(n):
        alpha[i] += 0.5 * share[i]
    for i in range(n):
        origin[i] = now if origin[i] < 0 and share[i] > 0 else origin[i]


@compiled
def _absorb(
    y: float, loc: Floats, share: Floats, u: Floats, mean: Floats, precision: Floats
) -> None:
    n = whole(share)
    level, slope, a, b, c = mean[0], mean[1], precision[0], precision[1], precision[2]
    for i in range(n):
        a[i] += share[i]
    for i in range(n):
        b[i] += share[i] * u[i]
    for i in range(n):
        c[i] += share[i] * (u[i] * u[i])
    for i in range(n):
        product = a[i] * c[i]
        determinant = product - b[i] * b[i]
        determinant = determinant if determinant > SINGULAR * product else SINGULAR * product
        error = share[i] * (y - loc[i])
        level[i] += error * ((c[i] - b[i] * u[i]) / determinant)
        slope[i] += error * ((a[i] * u[i] - b[i]) / determinant)


@compiled
def log_shares(share: Floats, told: Floats, rest: Floats) -> None:
    """Log of the share that a label tells with, and of what is left of one."""
    for i in range(whole(share)):
        told[i] = arithmetic.log(share[i])
        rest[i] = arithmetic.log(1.0 - share[i])


@compiled
def reweigh(
    density: Floats, evidence: Floats, told: Floats, rest: Floats, log_weight: Floats
) -> None:
    """`log(w exp(density - evidence) + (1 - w) exp(log_weight))`, by `log_shares` of w."""
    for i in range(whole(told)):
        log_weight[i] = arithmetic.logaddexp(
            told[i] + density[i] - evidence[i], rest[i] + log_weight[i]
        )


@implements(step.remember, Averaged)
def remember(model: Averaged, number: Floats, params: Floats, context: Floats) -> None:
    """Time and the lag."""
    lags.advance(model.outputs, number, context)


@implements(step.summarise, Averaged)
def summarise(
    model: Averaged,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of Student-t."""
    student_t.summarise(model.outputs, NOISE, number, chance, params, levels, spare, out)
