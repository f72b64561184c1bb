"""`upm.fleet.Fleet`: as `averaged`, with a regression on learned features as the last part.

The inputs of a row are its features (n). Covariances stay where they are, as in `alpaca`.

Rows of `own`: of the learned part, weights (n, d), shape (d), rate (d), and `P f` (n) and `f' P f`,
which the label turns into the gain and its square; then those of `averaged`, whose rows beside
the statistics have room for n numbers while there are none yet, or no more.
Rows of `params`: those of `averaged` with one more part.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, step
from model_core.compiled.belief import STATISTICS
from model_core.compiled.jit import (
    LANES,
    Floats,
    Ints,
    compiled,
    flat,
    floats,
    implements,
    inlined,
    padded,
    whole,
)
from model_core.compiled.models import alpaca, averaged, regression, student_t
from model_core.compiled.models.averaged import KINDS, NOTHING
from model_core.upm import fleet
from model_core.upm.averaged import NORMAL

NOISE = student_t.Noise(fleet.Fleet.skews, NORMAL, own=1)
PARTS = len(NOISE.skews)
LEARNED = PARTS - 1  # the part
LEAVES = 10
WEIGHTS, COV, SHAPE, RATE = range(STATISTICS + 6, STATISTICS + LEAVES)


class Fleet(NamedTuple):
    """Dimensions; `first` is the row of `own` where those of `averaged` begin."""

    outputs: int
    rows: int
    kept: int
    params: int
    size: int  # n
    lags: int
    first: int
    statistics: int = LEAVES
    parts: int = PARTS
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: fleet.Fleet) -> Fleet:
    """Dimensions of a model."""
    size, d = model.prior_mean.shape
    first = size * d + 2 * d + size + 1
    kept = first + averaged.rows_of(d, NOISE)
    beside = max(2 * (PARTS - 1) * d, padded(size) // LANES)
    params = averaged.params_of(d, NOISE)
    return Fleet(d, kept + beside, kept, params, size, model.lags, first)


@implements(step.load, Fleet)
def load(model: Fleet, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """All but the covariances, which are projected."""
    size, at = model.size, model.first
    for leaf in range(STATISTICS, WEIGHTS):
        at += step.load_leaf(views, row, slot, leaf, LEAVES, own[at:])
    at = step.load_leaf(views, row, slot, WEIGHTS, LEAVES, own)
    at += step.load_leaf(views, row, slot, SHAPE, LEAVES, own[at:])
    at += step.load_leaf(views, row, slot, RATE, LEAVES, own[at:])
    features = number[LABEL + model.outputs : LABEL + model.outputs + size]
    prior, projected = floats(views, COV + LEAVES, row), own[at : model.first]
    product = flat(own[model.kept :], size)
    alpaca.project(floats(views, COV, row), prior, slot, features, projected, product)


@implements(step.store, Fleet)
def store(model: Fleet, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Columns back to their places; covariances less the gain's product with itself."""
    size, at = model.size, model.first
    for leaf in range(STATISTICS, WEIGHTS):
        at += step.store_leaf(views, row, leaf, LEAVES, own[at:])
    at = step.store_leaf(views, row, WEIGHTS, LEAVES, own)
    at += step.store_leaf(views, row, SHAPE, LEAVES, own[at:])
    at += step.store_leaf(views, row, RATE, LEAVES, own[at:])
    cov, gain = floats(views, COV, row), own[at : at + size]
    fresh = floats(views, COV + LEAVES, row)
    arithmetic.copy(fresh, cov[slot * size * size : (slot + 1) * size * size])
    if number[LABELLED] > 0:
        alpaca.downdate(cov, gain, flat(own[model.kept :], size))


@implements(step.predict, Fleet)
def predict(
    model: Fleet, number: Floats, context: Floats, location: Floats, own: Floats, params: Floats
) -> None:
    """Average of all parts, and the walk."""
    d = model.outputs
    averaged.regress(d, KINDS, NOISE, context, own[model.first :], params)
    _regress(d, model.size, number, context, own[: model.first], params)
    _exclude(d, params)
    averaged.complete(d, NOISE, context, params)


@compiled
def _regress(
    d: int, size: int, number: Floats, context: Floats, own: Floats, params: Floats
) -> None:
    """Half the degrees of freedom, locations and squared scales of the learned part."""
    gram, noise = own[own.shape[0] - 1], size * d
    n = whole(gram)
    for i in range(n):
        gram[i] = gram[i] if gram[i] > 0.0 else 0.0
    for o in range(d):
        location, scale = context[1 + o], context[1 + d + o]
        shape, rate = own[noise + o], own[noise + d + o]
        at = _row(d, o)
        loc, square = params[at], params[at + PARTS * d]
        arithmetic.fill(loc, 0.0)
        for a in range(size):
            alpaca.add_multiple(number[LABEL + d + a], own[a * d + o], loc)
        for i in range(n):
            loc[i] = location + scale * loc[i]
        for i in range(n):
            square[i] = scale * scale * (rate[i] / shape[i] * (1.0 + gram[i]))
        arithmetic.copy(shape, params[student_t.freedom_of(d, NOISE, o * PARTS + LEARNED)])


@compiled
def _exclude(d: int, params: Floats) -> None:
    """The learned part is none of an outlier's: there it is as the first, and has no weight."""
    first, size = student_t.before_locations(d, NOISE), PARTS * d
    last = whole(params[0]) - 1
    for o in range(d):
        k = first + o * PARTS
        rest = math.log1p(-math.exp(params[k + 3 * size + LEARNED, last]))
        for part in range(LEARNED):
            params[k + 3 * size + part, last] -= rest
        params[k + 3 * size + LEARNED, last] = NOTHING
        params[k + LEARNED, last] = params[k, last]
        params[k + size + LEARNED, last] = params[k + size, last]
        params[student_t.freedom_of(d, NOISE, o * PARTS + LEARNED), last] = params[2 * d, last]


@inlined
def _row(d: int, o: int) -> int:
    """Row of the learned part's location."""
    return student_t.before_locations(d, NOISE) + o * PARTS + LEARNED


@implements(step.mix, Fleet)
def mix(model: Fleet, rate: float, params: Floats, work: Floats) -> None:
    """As any, then with the walk."""
    averaged.mix_walk(rate, params[params.shape[0] - 1, 0], work)


@implements(step.score, Fleet)
def score(model: Fleet, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, NOISE, number, params, each)


@implements(step.believe, Fleet)
def believe(model: Fleet, number: Floats, work: Floats, params: Floats, log_score: float) -> float:
    """By all parts; returns the score with the walk."""
    return averaged.believe_parts(model.outputs, NOISE, number, work, params, log_score)


@implements(step.learn, Fleet)
def learn(
    model: Fleet, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Conjugate update of all parts, and of their probabilities."""
    d = model.outputs
    averaged.learn_parts(d, NOISE, number, context[0], share, own[model.first :], params)
    _learn(d, model.size, number, context, own[: model.first], params, params[0], params[d])


@compiled
def _learn(
    d: int,
    size: int,
    number: Floats,
    context: Floats,
    own: Floats,
    params: Floats,
    average: Floats,
    step: Floats,
) -> None:
    """Update the learned part; its covariances only when it is stored. average, step: to work in.

    They learn the average share of the outputs.
    """
    projected, noise = own[size * d + 2 * d :], size * d
    gram, n = projected[size], whole(average)
    arithmetic.fill(average, 0.0)
    for o in range(d):
        y, scale, loc = number[LABEL + o], context[1 + d + o], params[_row(d, o)]
        share = params[averaged.shares_of(d, NOISE, params) + o * PARTS + LEARNED]
        shape, rate = own[noise + o], own[noise + d + o]
        for i in range(n):
            error = (y - loc[i]) / scale
            step[i] = share[i] / (1.0 + share[i] * gram[i]) * error
            rate[i] += 0.5 * (step[i] * error)
        for i in range(n):
            shape[i] += 0.5 * share[i]
        for i in range(n):
            average[i] += share[i] / d
        for a in range(size):
            regression.add_product(projected[a], step, own[a * d + o])
    regression.gain(size, average, projected)
    alpaca.square_gain(size, projected)


@implements(step.remember, Fleet)
def remember(model: Fleet, number: Floats, params: Floats, context: Floats) -> None:
    """As without the learned part, then the lags, at the context's end."""
    averaged.advance(model.outputs, number, params, context)
    if model.lags > 0:
        _remember(model.outputs, model.lags, number, context)


@compiled
def _remember(d: int, lags: int, number: Floats, context: Floats) -> None:
    """Lags, one later; after a missing label the latest is there twice."""
    first = context.shape[0] - lags * d
    for k in range(context.shape[0] - 1, first + d - 1, -1):
        context[k] = context[k - d]
    if number[LABELLED] > 0:
        for o in range(d):
            context[first + o] = context[1 + 4 * d + o]  # the lag of the other parts


@implements(step.summarise, Fleet)
def summarise(
    model: Fleet,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of Student-t."""
    student_t.summarise(model.outputs, NOISE, number, chance, params, levels, spare, out)
