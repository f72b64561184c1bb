"""`upm.fleet.Fleet`: as `averaged`, with a regression on learned features as the last part.

The inputs of a row are its features (n). Lines of the statistics: those of `averaged`, then of the
learned part weights (n, d), shape and rate (d each); covariances are stepped where they lie, as in
`regression`. Lines of `params`: those of `averaged` with one more part; the features (n); `P f` (n)
and `f' P f`, which the label turns into the gain and its square.
"""

from __future__ import annotations

import math

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture
from model_core.compiled.belief import SHARE
from model_core.compiled.jit import Floats, compiled, inlined, statistics_line, whole
from model_core.compiled.models import averaged, regression, student_t
from model_core.compiled.models.averaged import NOTHING
from model_core.compiled.step import Functions, Model, Noise, RowStep
from model_core.upm import fleet


def of(model: fleet.Fleet) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    size, d = model.prior_mean.shape
    noise = averaged.noise_of(model, own=1)
    sizes = Model(
        outputs=d,
        kept=averaged.lines_of(d, noise) + size * d + 2 * d,
        params=averaged.params_of(d, noise) + 2 * size + 1,
        spare=mixture.FIELDS,
        spares=noise.parts,
        encoded=1,
        features=size,
        lags=model.lags,
        noise=noise,
    )
    return sizes, Functions(predict, student_t.score, learn, remember, student_t.summarise)


@inlined
def _location(d: int, noise: Noise, o: int) -> int:
    """Line of the learned part's location."""
    return student_t.before_locations(d, noise) + (o + 1) * noise.parts - 1


@compiled
def predict(step: RowStep) -> float:
    """Average of all parts, and the walk."""
    model = step.model
    context = step.context
    own = step.own
    params = step.params
    d, noise, size = model.outputs, model.noise, model.features
    averaged.regress(d, noise, context, own, params)
    first, more = averaged.lines_of(d, noise), averaged.params_of(d, noise)
    features, projected = params[more : more + size], params[more + size :]
    for k in range(size):
        arithmetic.fill(features[k], step.number[LABEL + d + k])
    regression.project(step.lines[statistics_line(d) + model.kept :], features, projected)
    gram, parts = projected[size], noise.parts
    n = whole(gram)
    for i in range(n):
        gram[i] = gram[i] if gram[i] > 0.0 else 0.0
    for o in range(d):
        location, scale = context[1 + o], context[1 + d + o]
        shape, rate = own[first + size * d + o], own[first + size * d + d + o]
        at = _location(d, noise, o)
        loc, square = params[at], params[at + parts * d]
        arithmetic.fill(loc, 0.0)
        for a in range(size):
            arithmetic.add_product(own[first + a * d + o], features[a], loc)
        for i in range(n):
            loc[i] = location + scale * loc[i]
        for i in range(n):
            square[i] = scale * scale * (rate[i] / shape[i] * (1.0 + gram[i]))
        arithmetic.copy(shape, params[student_t.freedom_of(d, noise, (o + 1) * parts - 1)])
    _exclude(d, noise, params)
    return averaged.complete(d, noise, context, params)


@compiled
def _exclude(d: int, noise: Noise, params: Floats) -> None:
    """The learned part is none of an outlier's: there it is as the first, and has no weight."""
    first, parts = student_t.before_locations(d, noise), noise.parts
    size, last, learned = parts * d, whole(params[0]) - 1, parts - 1
    for o in range(d):
        k = first + o * parts
        left = math.log1p(-math.exp(params[k + 3 * size + learned, last]))
        for part in range(learned):
            params[k + 3 * size + part, last] -= left
        params[k + 3 * size + learned, last] = NOTHING
        params[k + learned, last] = params[k, last]
        params[k + size + learned, last] = params[k + size, last]
        freedom = student_t.freedom_of(d, noise, (o + 1) * parts - 1)
        params[freedom, last] = params[2 * d, last]


@compiled
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update of all parts, and of their probabilities; covariances later.

    They learn the average share of the outputs.
    """
    model = step.model
    number = step.number
    context = step.context
    own = step.own
    params = step.params
    work = step.work
    d, noise, size = model.outputs, model.noise, model.features
    log_score = averaged.believe(d, noise, number, log_score, params, work)
    averaged.update(d, noise, number, context[0], work[SHARE], own, params)
    first = averaged.lines_of(d, noise)
    projected = params[averaged.params_of(d, noise) + size :]
    gram, average, moved = projected[size], params[0], params[d]
    n = whole(gram)
    arithmetic.fill(average, 0.0)
    for o in range(d):
        y, scale, loc = number[LABEL + o], context[1 + d + o], params[_location(d, noise, o)]
        share = params[averaged.shares_of(d, noise) + (o + 1) * noise.parts - 1]
        shape, rate = own[first + size * d + o], own[first + size * d + d + o]
        for i in range(n):
            error = (y - loc[i]) / scale
            moved[i] = share[i] / (1.0 + share[i] * gram[i]) * error
            rate[i] += 0.5 * (moved[i] * error)
        for i in range(n):
            shape[i] += 0.5 * share[i]
        for i in range(n):
            average[i] += share[i] / d
        for a in range(size):
            arithmetic.add_product(projected[a], moved, own[first + a * d + o])
    regression.gain(average, projected)
    return log_score + regression.unbounded(projected)


@compiled
def remember(step: RowStep) -> float:
    """As without the learned part, then covariances, and the lags, at the context's end."""
    model = step.model
    number = step.number
    context = step.context
    params = step.params
    d, noise, size = model.outputs, model.noise, model.features
    averaged.advance(d, noise, number, context, params)
    if number[LABELLED] > 0:
        projected = params[averaged.params_of(d, noise) + size :]
        regression.downdate(projected, step.lines[statistics_line(d) + model.kept :])
    if model.lags > 0:
        # Lags, one later; after a missing label the latest is there twice.
        first = context.shape[0] - model.lags * d
        for k in range(context.shape[0] - 1, first + d - 1, -1):
            context[k] = context[k - d]
        if number[LABELLED] > 0:
            for o in range(d):
                context[first + o] = context[1 + 4 * d + o]  # the lag of the other parts
    return 0.0
