"""`upm.averaged.Averaged`: a level, an autoregression or a line in each regime, noise of outliers.

Lines of the statistics, of J experts, of which the last F have a second feature: level (d, J),
slope (d, F), precision (d, J), cross (d, F), slope precision (d, F), alpha (1), beta (d, J), log
weight (d, J), the origin (1). Lines of `params`: those of `student_t`, a part being an expert
and its kinds the scales of the noise; then as `Places` has them. Other
models share it, with more statistics after these and perhaps a learned last expert, of which there
is only the log weight here: J is F + 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_core.compiled import (
    LABEL,
    LABELLED,
    OUTLIER_RATE,
    arithmetic,
    belief,
    mixture,
    student_t,
)
from model_core.compiled.arithmetic import maths
from model_core.compiled.belief import CHANCE, EACH, MASS, SHARE
from model_core.compiled.jit import (
    Floats,
    compiled,
    either,
    entry,
    inlined,
    linewise,
    whole,
    widest,
)
from model_core.compiled.step import Functions, Model, Noise, RowStep
from model_core.compiled.student_t import FACTOR, HALF, INVERSE, NORM
from model_core.maths.regression import SCALES
from model_core.maths.walk import FORGET, TAILS
from model_core.upm import averaged
from model_core.upm.averaged import EXPERTS, LAG, LEVELS, LINE, TREND, UNIT
from model_core.upm.base import OUTLIER_SPREAD
from model_core.upm.walk import COLUMNS

MANY = len(SCALES)
FEATURES = tuple(expert.feature for expert in EXPERTS)
# Columns of a reading: average responsibilities of the scales come first.
FORECAST = MANY
_CONTEXT = maths("context")
_FAMILIES = maths("families")
_REGRESSION = maths("regression")
_WALK = maths("walk")
# Places in the state of the walk beside the hypotheses; then COLUMNS for each output.
WEIGHT, COUNT, FIRST = range(3)
LAST, CHANGE, SQUARE, AUTO, CROSS = range(COLUMNS)


class Places(NamedTuple):
    """First lines of what is not a statistic of the first kind, and not of `student_t`.

    slopes to origin: in the statistics, whose first `kept` are those of `averaged`. Then in
    `params`, given the label: responsibilities (d J scales) of the scales, log densities (d J) by
    experts, posteriors (d J) of these, evidence (d) log density by all. features (d F): the second
    ones. variances (d J): `f' Lambda^-1 f`. spreads (d J): squared scales of the usual noise.
    reading (d): see `FORECAST`. walk: its weight, its log density of the label and then its lead.
    spare (3): to work in.
    """

    slopes: int
    precisions: int
    crosses: int
    slope_precisions: int
    alpha: int
    betas: int
    logs: int
    origin: int
    kept: int
    responsibilities: int
    experts: int
    posteriors: int
    evidence: int
    features: int
    variances: int
    spreads: int
    reading: int
    walk: int
    spare: int
    end: int


@either
def places_of(d: int, noise: Noise) -> Places:
    """By the number of outputs."""
    every = noise.parts
    fixed = every - noise.own
    sloped = fixed - LEVELS
    slopes = fixed * d
    precisions = slopes + sloped * d
    crosses = precisions + fixed * d
    slope_precisions = crosses + sloped * d
    alpha = slope_precisions + sloped * d
    betas = alpha + 1
    logs = betas + fixed * d
    origin = logs + every * d
    responsibilities = student_t.lines_of(d, noise).end
    experts = responsibilities + every * MANY * d
    posteriors = experts + every * d
    evidence = posteriors + every * d
    features = evidence + d
    variances = features + sloped * d
    spreads = variances + every * d
    reading = spreads + every * d
    walk_line = reading + d
    spare = walk_line + 1
    return Places(
        slopes, precisions, crosses, slope_precisions, alpha, betas, logs, origin, origin + 1,
        responsibilities, experts, posteriors, evidence, features,
        variances, spreads, reading, walk_line, spare, spare + 3,
    )  # fmt: skip


def of(model: averaged.Averaged) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    noise = noise_of(model)
    at = places_of(model.y_dim, noise)
    sizes = Model(
        outputs=model.y_dim, kept=at.kept, params=at.end, spare=mixture.FIELDS,
        spares=noise.parts * MANY, noise=noise,
    )  # fmt: skip
    return sizes, Functions(predict, score, learn, remember, student_t.summarise, student_t.draw)


def noise_of(model: averaged.Averaged, own: int = 0) -> Noise:
    """Noise of all parts; own: experts, the last ones, with degrees of freedom of their own."""
    return Noise(len(model.skews), own, MANY, np.array(model.skews))


@entry
def predict(step: RowStep) -> float:
    """Average of the experts, and the walk."""
    regress(step)
    return complete(step)


@linewise
def regress(step: RowStep) -> None:
    """Locations and squared scales of all experts but a learned one."""
    d = step.model.outputs
    noise = step.model.noise
    context = step.context
    own = step.own
    params = step.params
    at = places_of(d, noise)
    fixed = noise.parts - noise.own
    every = noise.parts
    sloped = fixed - LEVELS
    alpha = own[at.alpha]
    origin = own[at.origin]
    n = whole(alpha)
    arithmetic.copy(alpha, params[2 * d])
    for o in range(d):
        for j in range(fixed):
            k = o * fixed + j
            beta = own[at.betas + k]
            spread = params[at.spreads + o * every + j]
            variance = params[at.variances + o * every + j]
            level = own[k]
            a = own[at.precisions + k]
            loc = params[location_of(d, noise, o, j)]
            for i in range(n):
                spread[i] = beta[i] / alpha[i]
            if j < LEVELS:
                arithmetic.copy(level, loc)
                for i in range(n):
                    variance[i] = 1.0 / a[i]
                by_scale(step, o, j)
                continue
            k = o * sloped + j - LEVELS
            u = params[at.features + k]
            if FEATURES[j] == LAG:
                arithmetic.fill(u, context[1 + 4 * d + o])
            if FEATURES[j] == TREND:
                arithmetic.fill(u, trend_of(d, o, context))
            if FEATURES[j] == LINE:
                for i in range(n):
                    u[i] = _CONTEXT.age_of(context[0], origin[i], UNIT)
            u[n - 1] = 0.0  # an outlier is of the level's prior
            slope = own[at.slopes + k]
            b = own[at.crosses + k]
            c = own[at.slope_precisions + k]
            for i in range(n):
                loc[i], variance[i] = _REGRESSION.forecast(
                    level[i], slope[i], a[i], b[i], c[i], u[i]
                )
            by_scale(step, o, j)


@inlined
def location_of(d: int, noise: Noise, output: int, expert: int) -> int:
    """Line of an expert's location."""
    return student_t.lines_of(d, noise).locations + output * noise.parts + expert


@linewise
def by_scale(step: RowStep, o: int, j: int) -> None:
    """Bound an expert's location, and fill the lines of all scales."""
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    at = places_of(d, noise)
    k = o * noise.parts + j
    least, most = bounds(d, o, step.context)
    loc = params[location_of(d, noise, o, j)]
    first = student_t.lines_of(d, noise).squares + k * MANY
    variance = params[at.variances + k]
    spread = params[at.spreads + k]
    n = whole(loc)
    for i in range(n - 1):  # but for the outliers'
        loc[i] = _CONTEXT.bounded(loc[i], least, most)
    spread[n - 1] *= OUTLIER_SPREAD
    for c in range(MANY):
        square = params[first + c]
        for i in range(n):
            square[i] = _REGRESSION.squared_scale(spread[i], variance[i], SCALES[c])


@inlined
def bounds(d: int, output: int, context: Floats) -> tuple[float, float]:
    """Least and greatest forecast of an output."""
    believed: tuple[float, float] = _REGRESSION.bounds(
        context[1 + output], context[1 + d + output], context[1 + 2 * d + output],
        context[1 + 3 * d + output],
    )  # fmt: skip
    return believed


@inlined
def trend_of(d: int, output: int, context: Floats) -> float:
    """The trend's forecast of an output, in the stream's units."""
    trend: float = _REGRESSION.trend(
        context[1 + 2 * d + output], context[1 + 3 * d + output], context[1 + 8 * d + output],
        context[1 + 9 * d + output],
    )  # fmt: skip
    return trend


@inlined
def share_of(d: int, output: int, scale: int, context: Floats) -> float:
    """Share of a scale of the noise."""
    counts = context[1 + 5 * d + MANY * output : 1 + 5 * d + MANY * (output + 1)]
    total = 0.0
    for c in range(MANY):
        total += counts[c]
    return float(counts[scale] / total)


@compiled
def complete(step: RowStep) -> float:
    """Weights, the walk and what follows, once there are the regressions of all experts.

    Returns the walk's weight.
    """
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    at = places_of(d, noise)
    n = whole(params[0])
    lines = student_t.lines_of(d, noise)
    for k in range(d * noise.parts):
        arithmetic.exp_of(step.own[at.logs + k], 0.0, params[lines.weights + k], n)
    for o in range(d):
        for c in range(MANY):
            params[lines.shares + o, c] = share_of(d, o, c, step.context)
    _walk(step)
    student_t.finish(step.model, params)
    return float(params[at.walk, 0])


@compiled
def _walk(step: RowStep) -> None:
    """The walk's forecast in the column before the last: of the first part, whatever the scale."""
    d = step.model.outputs
    noise = step.model.noise
    context = step.context
    params = step.params
    kept = context[1 + 10 * d :]
    at = whole(params[0]) - 2
    params[places_of(d, noise).walk, 0] = kept[WEIGHT]
    lines = student_t.lines_of(d, noise)
    for group in range(2 * d, lines.locations, student_t.FREEDOM):
        params[group, at] = 0.5 * TAILS
    for o in range(d):
        scale = context[1 + d + o]
        own = kept[FIRST + o :]
        ahead = _WALK.location(own[0], own[CHANGE * d], own[AUTO * d], own[CROSS * d])
        loc = context[1 + o] + scale * ahead
        square = scale * scale * (own[SQUARE * d] / kept[COUNT])
        for k in range(o * noise.parts, (o + 1) * noise.parts):
            params[lines.locations + k, at] = loc
            for c in range(MANY):
                params[lines.squares + k * MANY + c, at] = square
            params[lines.weights + k, at] = 1.0 if k == o * noise.parts else 0.0


@compiled
def _walk_density(step: RowStep, output: int) -> float:
    """Log density of a label's output by the walk."""
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    at = whole(params[0]) - 2
    k = output * noise.parts
    lines = student_t.lines_of(d, noise)
    freedom = 2 * d
    return float(
        _FAMILIES.student_t_log_density(
            step.number[LABEL + output] - params[lines.locations + k, at],
            1.0 / params[lines.squares + k * MANY, at],
            params[freedom + HALF, at], params[freedom + NORM, at], params[freedom + FACTOR, at],
            params[freedom + INVERSE, at],
        )
    )  # fmt: skip


@compiled
def score_with_walk(step: RowStep, log_score: float) -> float:
    """Log score of the answer; the walk's lead before that of the hypotheses is kept."""
    own = step.params[places_of(step.model.outputs, step.model.noise).walk]
    weight = own[0]
    density = own[1]
    own[1] = density - log_score
    return arithmetic.logaddexp(math.log1p(-weight) + log_score, math.log(weight) + density)


@entry
def score(step: RowStep) -> float:
    """Log density of all outputs."""
    log_density(step)
    return 1.0


@linewise
def log_density(step: RowStep) -> None:
    """Fill the label's log densities, of all outputs, and what it makes likely of each.

    An output that is missing, nan, tells nothing; what is of it alone is not filled.
    """
    widest()  # the loops divide and take logarithms more than they load
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    density = step.work[EACH]
    at = places_of(d, noise)
    every = noise.parts
    arithmetic.fill(density, 0.0)
    params[at.walk, 1] = 0.0
    for o in range(d):
        if math.isnan(step.number[LABEL + o]):
            continue
        params[at.walk, 1] += _walk_density(step, o)
        shares = params[student_t.lines_of(d, noise).shares + o]
        for j in range(every):
            k = o * every + j
            y = step.number[LABEL + o]
            skew = noise.skews[j]
            loc = params[location_of(d, noise, o, j)]
            freedom = student_t.freedom_of(d, noise, k)
            half = params[freedom + HALF]
            norm = params[freedom + NORM]
            factor = params[freedom + FACTOR]
            inverse = params[freedom + INVERSE]
            variance = params[at.variances + k]
            spread = params[at.spreads + k]
            of_expert = params[at.experts + k]
            first = at.responsibilities + k * MANY
            one = params[first]
            two = params[first + 1]
            three = params[first + 2]
            # Two loops: a processor works on several turns of a short one at once.
            for i in range(whole(density)):
                one[i], two[i], three[i] = _REGRESSION.leads(
                    y - loc[i], skew, spread[i], variance[i], half[i], inverse[i]
                )
            for i in range(whole(density)):
                of_expert[i], one[i], two[i], three[i] = _REGRESSION.explain(
                    one[i], two[i], three[i], skew, spread[i], variance[i], norm[i], factor[i],
                    shares[0], shares[1], shares[2],
                )  # fmt: skip
            arithmetic.add(of_expert, step.own[at.logs + k], of_expert)
        evidence = params[at.evidence + o]
        student_t.explain(
            params[at.experts + o * every : at.experts + (o + 1) * every], params[at.spare],
            evidence, params[at.posteriors + o * every : at.posteriors + (o + 1) * every],
        )  # fmt: skip
        arithmetic.add(density, evidence, density)


@entry
def learn(step: RowStep, log_score: float) -> float:
    """What is believed of the label; conjugate update of the experts and their probabilities."""
    read(step, step.work[MASS])
    update(step)
    return score_with_walk(step, log_score)


@linewise
def read(step: RowStep, mass: Floats) -> None:
    """Average responsibilities of the scales over hypotheses and experts, and the forecasts.

    mass: probabilities of hypotheses given the label.
    """
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    share = step.work[SHARE]
    at = places_of(d, noise)
    every = noise.parts
    average = params[at.spare]
    n = whole(mass)
    for o in range(d):
        reading = params[at.reading + o]
        reading[FORECAST] = forecast(step.work[CHANCE], params[o])
        arithmetic.fill(reading[:MANY], 0.0)
        if math.isnan(step.number[LABEL + o]):
            continue
        for c in range(MANY):
            arithmetic.fill(average, 0.0)
            for k in range(o * every, (o + 1) * every):
                of_scale = params[at.responsibilities + k * MANY + c]
                arithmetic.add_product(params[at.posteriors + k], of_scale, average)
            for i in range(n):
                average[i] = mass[i] * share[i] * average[i] if mass[i] > 0 else 0.0
            reading[c] = arithmetic.total(average, n)


@compiled
def forecast(chance: Floats, means: Floats) -> float:
    """Average of the hypotheses' means; walk and outliers, in the last columns, do not count."""
    total = 0.0
    everything = 0.0
    for i in range(whole(chance) - 2):
        total += chance[i] * means[i] if chance[i] > 0 else 0.0
        everything += chance[i]
    return total / everything


@linewise
def update(step: RowStep) -> None:
    """Conjugate update of all experts but a learned one, and of the probabilities of all.

    Outputs share alpha; of a missing one the expected variance stays as it is.
    """
    d = step.model.outputs
    noise = step.model.noise
    own = step.own
    params = step.params
    share = step.work[SHARE]
    at = places_of(d, noise)
    fixed = noise.parts - noise.own
    every = noise.parts
    sloped = fixed - LEVELS
    alpha = own[at.alpha]
    origin = own[at.origin]
    n = whole(share)
    learned = params[at.spare]
    spare = params[at.spare + 1 : at.spare + 3]
    for o in range(d):
        y = step.number[LABEL + o]
        if math.isnan(y):
            for k in range(o * fixed, (o + 1) * fixed):
                beta = own[at.betas + k]
                for i in range(n):
                    beta[i] += 0.5 * share[i] * (beta[i] / alpha[i])
            continue
        for j in range(fixed):
            k = o * fixed + j
            variance = params[at.variances + o * every + j]
            loc = params[location_of(d, noise, o, j)]
            level = own[k]
            a = own[at.precisions + k]
            beta = own[at.betas + k]
            fill_shares(step, o, j, learned)
            for i in range(n):
                beta[i] += _REGRESSION.scatter(learned[i], y - loc[i], variance[i])
            arithmetic.add(a, learned, a)
            if j < LEVELS:
                for i in range(n):
                    level[i] += learned[i] * (y - loc[i]) / a[i]
                continue
            k = o * sloped + j - LEVELS
            u = params[at.features + k]
            slope = own[at.slopes + k]
            b = own[at.crosses + k]
            c = own[at.slope_precisions + k]
            for i in range(n):
                b[i], c[i] = _REGRESSION.counted(b[i], c[i], u[i], learned[i])
            for i in range(n):
                first, second = _REGRESSION.solve(a[i], b[i], c[i], u[i])
                moved = learned[i] * (y - loc[i])
                level[i] += moved * first
                slope[i] += moved * second
        reweigh(
            step, params[at.experts + o * every : at.experts + (o + 1) * every],
            params[at.evidence + o], own[at.logs + o * every : at.logs + (o + 1) * every], spare,
        )  # fmt: skip
    for i in range(n):
        alpha[i] += 0.5 * share[i]
    now = step.context[0]
    for i in range(n):
        origin[i] = now if origin[i] < 0 and share[i] > 0 else origin[i]


@linewise
def fill_shares(step: RowStep, o: int, j: int, out: Floats) -> None:
    """Of a label, of which an expert learns."""
    d = step.model.outputs
    noise = step.model.noise
    params = step.params
    share = step.work[SHARE]
    y = step.number[LABEL + o]
    loc = params[location_of(d, noise, o, j)]
    skew = noise.skews[j]
    first = places_of(d, noise).responsibilities + (o * noise.parts + j) * MANY
    usual = params[first]
    heavy = params[first + 1]
    wild = params[first + 2]
    for i in range(whole(out)):
        precision = _REGRESSION.precision(usual[i], heavy[i], wild[i])
        out[i] = share[i] * _REGRESSION.side(y - loc[i], skew) * precision


@linewise
def reweigh(
    step: RowStep, densities: Floats, evidence: Floats, log_weights: Floats, spare: Floats
) -> None:
    """Log of `w exp(density - evidence) + (1 - w) exp(log_weight)`, w the share; spare: 2 lines."""
    share = step.work[SHARE]
    n = whole(share)
    counted = spare[0]
    left = spare[1]
    if step.number[OUTLIER_RATE] == 0:  # all of a label counts
        for k in range(densities.shape[0]):
            density = densities[k]
            log_weight = log_weights[k]
            for i in range(n):
                log_weight[i] = density[i] - evidence[i]
        return
    for i in range(n):
        counted[i] = arithmetic.log(share[i])
        left[i] = arithmetic.log(1.0 - share[i])
    for k in range(densities.shape[0]):
        density = densities[k]
        log_weight = log_weights[k]
        for i in range(n):
            log_weight[i] = arithmetic.logaddexp(
                counted[i] + density[i] - evidence[i], left[i] + log_weight[i]
            )


@compiled
def _advance_walk(
    outputs: int, number: Floats, outlying: bool, context: Floats, first: int, lead: float
) -> None:
    """One observation later; the walk is kept from `first` on in the context.

    lead: log density of the label by the walk less that by the hypotheses.
    """
    kept = context[first:]
    d = outputs
    for o in range(d):
        at = FIRST + o
        if number[LABELLED] == 0:
            kept[at + CHANGE * d] = 0.0
            continue
        if math.isnan(number[LABEL + o]):
            kept[at + CHANGE * d] = 0.0
            if not outlying:  # labels are counted for all outputs; its scale stays as it is
                kept[at + SQUARE * d] *= (FORGET * kept[COUNT] + 1.0) / kept[COUNT]
            continue
        y = _CONTEXT.in_units(number[LABEL + o], context[1 + o], context[1 + d + o])
        if outlying:
            kept[at] = y
            kept[at + CHANGE * d] = 0.0
            continue
        (
            kept[at],
            kept[at + CHANGE * d],
            kept[at + SQUARE * d],
            kept[at + AUTO * d],
            kept[at + CROSS * d],
        ) = _WALK.learned(
            kept[at], kept[at + CHANGE * d], kept[at + SQUARE * d], kept[at + AUTO * d],
            kept[at + CROSS * d], kept[COUNT], y,
        )  # fmt: skip
    if number[LABELLED] > 0 and not outlying:
        kept[COUNT] = FORGET * kept[COUNT] + 1.0
        kept[WEIGHT] = _WALK.reweighed(kept[WEIGHT], lead)


@entry
def remember(step: RowStep) -> float:
    """Time, the lag and its range, labels by scale of the noise, the trend and the walk."""
    number = step.number
    context = step.context
    params = step.params
    d = step.model.outputs
    at = places_of(d, step.model.noise)
    outlying = belief.outlying(step.work)
    _advance_walk(d, number, outlying, context, 1 + 10 * d, params[at.walk, 1])
    before = context[0]
    context[0] += 1.0
    if number[LABELLED] == 0:
        return 0.0
    for o in range(d):
        if math.isnan(number[LABEL + o]):
            continue
        reading = params[at.reading + o]
        not_wild = 0.0
        for c in range(MANY - 1):
            not_wild += reading[c]
        believed = _REGRESSION.believed(reading[FORECAST], number[LABEL + o], not_wild, outlying)
        value = _CONTEXT.in_units(believed, context[1 + o], context[1 + d + o])
        context[1 + 2 * d + o] = min(context[1 + 2 * d + o], value)
        context[1 + 3 * d + o] = max(context[1 + 3 * d + o], value)
        context[1 + 4 * d + o] = value
        for c in range(MANY):
            context[1 + 5 * d + MANY * o + c] += reading[c]
        level = context[1 + 8 * d + o]
        slope = context[1 + 9 * d + o]
        context[1 + 8 * d + o], context[1 + 9 * d + o] = _REGRESSION.followed(
            level, slope, value, before
        )
    return 0.0
