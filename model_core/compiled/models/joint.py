"""`upm.joint.Joint`: independent outputs as in `averaged`, or outputs with a covariance.

Lines of the statistics: those of `averaged`, then of all together those of `multivariate`, and the
log choice (2). Lines of `params`: those of `averaged`; then, for independent outputs and for all
together, the label's log density with the log choice, the probability given the label, and the
weight in the forecast; for each scale of the noise of all together the squared scale of psi, the
label's log density and its responsibility; the log of the label's density by all; lines to work in,
two; squared scales of an output by scale of the noise; means of the hypotheses (d); a block of
`multivariate`; and the factor of psi in the order of a label that lacks outputs (d, d).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, student_t
from model_core.compiled.arithmetic import INF, maths
from model_core.compiled.belief import CHANCE, EACH, MASS, SHARE
from model_core.compiled.jit import Floats, call, compiled, either, entry, inlined, whole
from model_core.compiled.models import averaged, multivariate
from model_core.compiled.models.averaged import FORECAST, MANY
from model_core.compiled.models.multivariate import DETERMINANT, HALF, LOCATION, SPREAD, VARIANCE
from model_core.compiled.step import Functions, Model, Noise, RowStep, pick
from model_core.maths.regression import SCALES
from model_core.upm import joint
from model_core.upm.joint import DISTANCES, WATCHED

_CONTEXT = maths("context")
_REGRESSION = maths("regression")
LEVEL = FORECAST + 1  # column of a reading: the average mean of all together, given the label
# First lines after those of `averaged`.
DENSITY, LIKELIHOOD, WEIGHT = range(0, 6, 2)
SPREADS, DENSITIES, RESPONSIBILITIES = range(6, 6 + 3 * MANY, MANY)
EVIDENCE, ONE, OTHER, SQUARES = range(6 + 3 * MANY, 10 + 3 * MANY)
MEANS = SQUARES + MANY


class Places(NamedTuple):
    """First lines of the statistics of all together; of `params` after those of `averaged`.

    more: the lines as above. block: that of `multivariate`, whose SPREAD is the average over the
    scales. seen: the factor in the order of the label.
    """

    together: int
    psi: int
    choice: int
    more: int
    block: int
    seen: int
    end: int


@either
def places_of(d: int, noise: Noise) -> Places:
    """By the number of outputs."""
    at = averaged.places_of(d, noise)
    psi = at.kept + d + 2
    block = at.end + MEANS + d
    seen = block + multivariate.block_of(d).end
    return Places(at.kept, psi, psi + d * d, at.end, block, seen, seen + d * d)


def of(model: joint.Joint) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    noise = averaged.noise_of(model)
    at = places_of(model.y_dim, noise)
    sizes = Model(
        outputs=model.y_dim,
        kept=at.choice + 2,
        params=at.end,
        spare=mixture.FIELDS,
        spares=(noise.parts + 1) * MANY,
        noise=noise,
    )
    return sizes, Functions(predict, score, learn, remember, summarise, draw)


@entry
def predict(step: RowStep) -> float:
    """Both, and the hypotheses' means."""
    model = step.model
    context = step.context
    own = step.own
    params = step.params
    d = model.outputs
    noise = model.noise
    averaged.regress(step)
    beside = averaged.complete(step)
    at = places_of(d, noise)
    n = whole(own[0])
    more = params[at.more : at.block]
    block = params[at.block :]
    of_lag, of_trend = _memory(context)
    multivariate.forecast(d, own[at.together :], 1.0 - of_lag - of_trend, block)
    _correlate(d, context, own[at.psi :], block)
    _spread(d, context, more, block)
    alone = more[WEIGHT]
    together = more[WEIGHT + 1]
    arithmetic.exp_of(own[at.choice], 0.0, alone, n)
    arithmetic.exp_of(own[at.choice + 1], 0.0, together, n)
    for i in range(n - 2, n):  # walks and outliers are independent for certain
        alone[i] = 1.0
        together[i] = 0.0
    for o in range(d):
        loc = block[LOCATION + o]
        mean = more[MEANS + o]
        least, most = averaged.bounds(d, o, context)
        lag, trend = _lag_and_trend(d, o, context)
        kept = of_lag * lag + of_trend * trend
        for i in range(n):
            loc[i] = _CONTEXT.bounded(loc[i] + kept, least, most)
        arithmetic.multiply(alone, params[o], mean)
        arithmetic.add_product(together, loc, mean)
    return beside


@inlined
def _watched_at(d: int, context: Floats) -> int:
    """Where a context has `WATCHED` numbers of each output's errors.

    Then come the products of the errors of two, and sums of products of `DISTANCES`.
    """
    place: int = context.shape[0] - WATCHED * d - d * (d - 1) // 2 - DISTANCES
    return place


@inlined
def _lag_and_trend(d: int, o: int, context: Floats) -> tuple[float, float]:
    """Of an output, in units of the label."""
    location = context[1 + o]
    scale = context[1 + d + o]
    trend = averaged.trend_of(d, o, context)
    return location + scale * context[1 + 4 * d + o], location + scale * trend


@inlined
def _memory(context: Floats) -> tuple[float, float]:
    at = context.shape[0] - DISTANCES
    shares: tuple[float, float] = _CONTEXT.memory(
        context[at], context[at + 1], context[at + 2], context[at + 3], context[at + 4]
    )
    return shares


@compiled
def _correlate(d: int, context: Floats, psi: Floats, block: Floats) -> None:
    """Factorise psi with the stream's correlations."""
    watched = context[_watched_at(d, context) :]
    factor = block[multivariate.block_of(d).factor :]
    last = whole(psi[0]) - 1
    pair = WATCHED * d
    n = _CONTEXT.apart_of(d)
    for a in range(d):
        arithmetic.copy(psi[a * d + a], factor[a * d + a])
        for b in range(a):
            correlation = _CONTEXT.correlation(watched[pair], watched[d + a], watched[d + b], n)
            apart = math.sqrt(psi[a * d + a, last] * psi[b * d + b, last]) * correlation
            arithmetic.shift(psi[a * d + b], apart, factor[a * d + b], last + 1)
            pair += 1
    multivariate.factorise(d, d, factor, factor, block[DETERMINANT])


@compiled
def _share(d: int, scale: int, context: Floats) -> float:
    """Share of a scale of the noise of all outputs together."""
    total = 0.0
    for o in range(d):
        total += averaged.share_of(d, o, scale, context)
    return total / d


@compiled
def _spread(d: int, context: Floats, more: Floats, block: Floats) -> None:
    """Squared scales of psi, by scale of the noise and on average."""
    half = block[HALF]
    variance = block[VARIANCE]
    average = block[SPREAD]
    arithmetic.fill(average, 0.0)
    for c in range(MANY):
        spread = more[SPREADS + c]
        share = _share(d, c, context)
        for i in range(whole(half)):
            spread[i] = _REGRESSION.squared_scale(0.5 / half[i], variance[i], SCALES[c])
        for i in range(whole(half)):
            average[i] += share * spread[i]


@entry
def score(step: RowStep) -> float:
    """Log density of all outputs by both; the share by the sums over errors in a row."""
    context = step.context
    own = step.own
    params = step.params
    d = step.model.outputs
    density = step.work[EACH]
    at = places_of(d, step.model.noise)
    last = whole(density) - 1
    averaged.log_density(step)
    astray = density[last]
    more = params[at.more : at.block]
    arithmetic.add(density, own[at.choice], more[DENSITY])
    _score_together(step)
    arithmetic.add(more[DENSITY + 1], own[at.choice + 1], more[DENSITY + 1])
    student_t.explain(
        more[DENSITY : DENSITY + 2], more[ONE], density, more[LIKELIHOOD : LIKELIHOOD + 2]
    )
    arithmetic.copy(density, more[EVIDENCE])
    density[last] = astray  # outliers are independent for certain
    watched = context[_watched_at(d, context) :]
    r = 0.0
    for o in range(d):
        r = max(r, watched[2 * d + o] / watched[d + o])
    share: float = _CONTEXT.independent_share(r)
    return share


@compiled
def _score_together(step: RowStep) -> None:
    """Log density by all together, and responsibilities of the scales."""
    d = step.model.outputs
    number = step.number
    at = places_of(d, step.model.noise)
    more = step.params[at.more : at.block]
    block = step.params[at.block :]
    places = multivariate.block_of(d)
    distance = more[OTHER]
    count = multivariate.present(d, number)
    factor = step.params[_factor_at(step) :]
    if count < d:
        multivariate.reorder(d, number, block[places.factor :], factor)
        multivariate.factorise(d, count, factor, factor, block[DETERMINANT])
    multivariate.distances(d, number, block[LOCATION:], factor, block[places.errors :], distance)
    for c in range(MANY):
        own = more[DENSITIES + c]
        share = _share(d, c, step.context)
        arithmetic.copy(distance, own)
        multivariate.log_density(count, block[HALF], more[SPREADS + c], block[DETERMINANT], own)
        arithmetic.shift(own, math.log(share), own, whole(own))
    student_t.explain(
        more[DENSITIES : DENSITIES + MANY], more[ONE], more[DENSITY + 1],
        more[RESPONSIBILITIES : RESPONSIBILITIES + MANY],
    )  # fmt: skip


@inlined
def _factor_at(step: RowStep) -> int:
    """Where `params` have the factor of psi in the order of the label."""
    d = step.model.outputs
    at = places_of(d, step.model.noise)
    if multivariate.present(d, step.number) < d:
        return at.seen
    return at.block + multivariate.block_of(d).factor


@entry
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update of both, and of their probabilities."""
    own = step.own
    params = step.params
    d = step.model.outputs
    share = step.work[SHARE]
    at = places_of(d, step.model.noise)
    more = params[at.more : at.block]
    _read(step)
    averaged.update(step)
    precision = more[ONE]
    usual = more[RESPONSIBILITIES]
    heavy = more[RESPONSIBILITIES + 1]
    wild = more[RESPONSIBILITIES + 2]
    for i in range(whole(share)):
        precision[i] = share[i] * _REGRESSION.precision(usual[i], heavy[i], wild[i])
    of_lag, of_trend = _memory(step.context)
    multivariate.absorb(
        d, step.number, share, precision, own[at.together :], 1.0 - of_lag - of_trend,
        params[at.block :], params[_factor_at(step) :],
    )  # fmt: skip
    averaged.reweigh(
        step, more[DENSITY : DENSITY + 2], more[EVIDENCE], own[at.choice : at.choice + 2],
        more[ONE : OTHER + 1],
    )  # fmt: skip
    return averaged.score_with_walk(step, log_score)


@compiled
def _read(step: RowStep) -> None:
    """Average responsibilities of the scales, whichever an output follows, and the forecasts."""
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    work = step.work
    at = places_of(d, noise)
    share = work[SHARE]
    mass = work[MASS]
    more = params[at.more : at.block]
    first = averaged.places_of(d, noise).reading
    chance = more[ONE]
    spare = more[OTHER]
    arithmetic.multiply(mass, more[LIKELIHOOD], chance)
    averaged.read(step, chance)
    for c in range(MANY):
        likelihood = more[LIKELIHOOD + 1]
        of_scale = more[RESPONSIBILITIES + c]
        for i in range(whole(mass)):
            product = mass[i] * share[i] * likelihood[i] * of_scale[i]
            spare[i] = product if mass[i] > 0 else 0.0
        average = arithmetic.total(spare, whole(mass))
        for o in range(d):
            params[first + o, c] += average
    for o in range(d):
        params[first + o, FORECAST] = averaged.forecast(work[CHANCE], more[MEANS + o])
        arithmetic.multiply(mass, step.own[at.together + o], spare)
        params[first + o, LEVEL] = arithmetic.total(spare, whole(mass))


@entry
def remember(step: RowStep) -> float:
    """The errors, then as independent outputs."""
    _watch(step)
    averaged.remember(step)
    return 0.0


@compiled
def _watch(step: RowStep) -> None:
    """What is known of errors; before the time moves on."""
    d = step.model.outputs
    number = step.number
    context = step.context
    reading = step.params[averaged.places_of(d, step.model.noise).reading :]
    watched = context[_watched_at(d, context) :]
    for o in range(d):
        if number[LABELLED] == 0 or math.isnan(number[LABEL + o]):
            watched[3 * d + o] = 0.0  # what follows has no neighbour
            continue
        location = context[1 + o]
        scale = context[1 + d + o]
        error = _CONTEXT.in_units(number[LABEL + o], location, scale)
        error -= _CONTEXT.in_units(reading[o, FORECAST], location, scale)
        watched[o], watched[d + o], watched[2 * d + o], watched[3 * d + o] = _CONTEXT.watched(
            watched[o], watched[d + o], watched[2 * d + o], watched[3 * d + o], error, context[0]
        )
    if number[LABELLED] == 0:
        return
    distances = context[context.shape[0] - DISTANCES :]
    for o in range(d):
        if math.isnan(number[LABEL + o]):
            continue
        scale = context[1 + d + o]
        level = reading[o, LEVEL]
        lag, trend = _lag_and_trend(d, o, context)
        label = _CONTEXT.standard((number[LABEL + o] - level) / scale, watched[o])
        lag = _CONTEXT.standard((lag - level) / scale, watched[o])
        trend = _CONTEXT.standard((trend - level) / scale, watched[o])
        distances[0] += lag * lag / d
        distances[1] += lag * trend / d
        distances[2] += trend * trend / d
        distances[3] += label * lag / d
        distances[4] += label * trend / d
    pair = WATCHED * d
    for a in range(d):
        for b in range(a):
            watched[pair] += watched[3 * d + a] * watched[3 * d + b]
            pair += 1


@entry
def draw(step: RowStep, noise: Floats) -> float:
    """Draw the label: outputs each alone, or all together with a scale of the noise."""
    d = step.model.outputs
    at = places_of(d, step.model.noise)
    more = step.params[at.more : at.block]
    column = pick(step.work[CHANCE], noise[0, student_t.HYPOTHESIS])
    alone = more[WEIGHT, column]
    left = noise[0, student_t.SHARED] * (alone + more[WEIGHT + 1, column]) - alone
    if left < 0.0:
        student_t.draw_outputs(step, column, noise[0])
        return 0.0
    scale = 0
    for c in range(MANY):
        scale = c if left >= 0.0 else scale
        left -= more[WEIGHT + 1, column] * _share(d, c, step.context)
    multivariate.draw_together(
        d, step.number, column, more[SPREADS + scale, column], step.params[at.block :], noise
    )
    return 0.0


@entry
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Moments, and each output's mixture of Student-t."""
    model = step.model
    chance = step.work[CHANCE]
    own = step.own
    params = step.params
    d = model.outputs
    noise = model.noise
    at = places_of(d, noise)
    n = whole(chance)
    more = params[at.more : at.block]
    block = params[at.block :]
    student_t.describe(model, params)
    for o in range(d):
        _variance(o, d, own[at.psi + o * d + o], more, block, params)
    mixture.moments(chance, more[MEANS : MEANS + d], params[d : 2 * d], n, out)
    for a in range(d):
        for b in range(a):
            total = _covariance(d, at, a, b, chance, params)
            out[d + a * d + b] += total
            out[d + b * d + a] += total
    share = more[ONE]
    squares = more[SQUARES : SQUARES + MANY]
    shares = more[DENSITIES]  # which are not needed any more
    for c in range(MANY):
        shares[c] = _share(d, c, step.context)
    arithmetic.multiply(chance, more[WEIGHT], share)
    count = mixture.order(chance, params[2 * d + student_t.HALF], spare)
    allowed = mixture.allowed(levels, count * (noise.parts + 1))
    for o in range(d):
        merged = student_t.gather(model, o, allowed, count, share, params, spare)
        for c in range(MANY):
            arithmetic.multiply(own[at.psi + o * d + o], more[SPREADS + c], squares[c])
        merged = mixture.merge(
            allowed, count, chance, more[WEIGHT + 1], block[LOCATION + o], squares, shares,
            block[HALF], 1.0, merged, spare,
        )  # fmt: skip
        call(step.marginal, d, o, step.number, levels, spare, merged, out)
    return 0.0


@compiled
def _variance(o: int, d: int, psi: Floats, more: Floats, block: Floats, params: Floats) -> None:
    """Turn an output's variances by independent outputs into those of hypotheses."""
    alone = more[WEIGHT]
    together = more[WEIGHT + 1]
    mean = more[MEANS + o]
    first = params[o]
    variance = params[d + o]
    loc = block[LOCATION + o]
    half = block[HALF]
    spread = block[SPREAD]
    for i in range(whole(mean)):
        apart = first[i] - mean[i]
        variance[i] = alone[i] * (variance[i] + apart * apart) if alone[i] > 0 else 0.0
    for i in range(whole(mean)):
        apart = loc[i] - mean[i]
        within = psi[i] * spread[i] * half[i] / (half[i] - 1.0) if half[i] > 1.0 else INF
        variance[i] += together[i] * (within + apart * apart) if together[i] > 0 else 0.0


@compiled
def _covariance(d: int, at: Places, a: int, b: int, chance: Floats, params: Floats) -> float:
    """Average covariance of two outputs within hypotheses."""
    more = params[at.more : at.block]
    block = params[at.block :]
    n = whole(chance)
    share = more[ONE]
    spare = more[OTHER]
    left = more[MEANS + a]
    right = more[MEANS + b]
    one = block[LOCATION + a]
    other = block[LOCATION + b]
    for i in range(n):
        between = (params[a, i] - left[i]) * (params[b, i] - right[i])
        spare[i] = chance[i] * (more[WEIGHT, i] * between)
    total = arithmetic.total(spare, n)
    arithmetic.multiply(chance, more[WEIGHT + 1], share)
    for i in range(n):
        spare[i] = share[i] * ((one[i] - left[i]) * (other[i] - right[i]))
    total += arithmetic.total(spare, n)
    return total + multivariate.covariance(d, a, b, share, block, spare)
