"""`upm.fleet.Fleet`: as `averaged`, with a regression on learned features as the last expert.

The inputs of a row are its features (n). Lines of the statistics: those of `averaged`, then of the
learned expert weights (n, d), shape and rate (d each); covariances are stepped where they lie, as
in `regression`. Lines of `params`: those of `averaged` with one more expert; the features (n);
`P f` (n) and `f' P f`, which the label turns into the gain and its square.
"""

from __future__ import annotations

import math

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, student_t
from model_core.compiled.arithmetic import maths
from model_core.compiled.belief import MASS, SHARE
from model_core.compiled.jit import compiled, entry, statistics_line, whole
from model_core.compiled.models import averaged, regression
from model_core.compiled.models.averaged import MANY
from model_core.compiled.step import Functions, Model, RowStep
from model_core.upm import fleet

_REGRESSION = maths("regression")
NEVER = -700.0  # log weight of what has none


def of(model: fleet.Fleet) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    size, d = model.prior_mean.shape
    noise = averaged.noise_of(model, own=1)
    at = averaged.places_of(d, noise)
    sizes = Model(
        outputs=d,
        kept=at.kept + size * d + 2 * d,
        params=at.end + 2 * size + 1,
        spare=mixture.FIELDS,
        spares=noise.parts * MANY,
        encoded=1,
        features=size,
        lags=model.lags,
        noise=noise,
    )
    return sizes, FUNCTIONS


@entry
def predict(step: RowStep) -> float:
    """Average of all experts."""
    model = step.model
    context = step.context
    own = step.own
    params = step.params
    d = model.outputs
    noise = model.noise
    size = model.features
    averaged.regress(step)
    at = averaged.places_of(d, noise)
    learned = noise.parts - 1
    features = params[at.end : at.end + size]
    projected = params[at.end + size :]
    for k in range(size):
        arithmetic.fill(features[k], step.number[LABEL + d + k])
    regression.project(step.lines[statistics_line(d) + model.kept :], features, projected)
    gram = projected[size]
    n = whole(gram)
    for i in range(n):
        gram[i] = gram[i] if gram[i] > 0.0 else 0.0
    for o in range(d):
        location = context[1 + o]
        scale = context[1 + d + o]
        shape = own[at.kept + size * d + o]
        rate = own[at.kept + size * d + d + o]
        k = o * (learned + 1) + learned
        loc = params[averaged.location_of(d, noise, o, learned)]
        spread = params[at.spreads + k]
        arithmetic.copy(gram, params[at.variances + k])
        arithmetic.fill(loc, 0.0)
        for a in range(size):
            arithmetic.add_product(own[at.kept + a * d + o], features[a], loc)
        for i in range(n):
            loc[i] = location + scale * loc[i]
        for i in range(n):
            spread[i] = scale * scale * (rate[i] / shape[i])
        arithmetic.copy(shape, params[student_t.freedom_of(d, noise, k)])
        _exclude(step, o)
        averaged.by_scale(step, o, learned)
    return averaged.complete(step)


@compiled
def _exclude(step: RowStep, o: int) -> None:
    """The learned expert is none of an outlier's: no weight there, and the first one's numbers."""
    d = step.model.outputs
    noise = step.model.noise
    own = step.own
    params = step.params
    at = averaged.places_of(d, noise)
    every = noise.parts
    last = whole(params[0]) - 1
    learned = every - 1
    first = o * every
    left = math.log1p(-math.exp(own[at.logs + first + learned, last]))
    for j in range(learned):
        own[at.logs + first + j, last] -= left
    own[at.logs + first + learned, last] = NEVER
    loc = params[averaged.location_of(d, noise, o, learned)]
    loc[last] = params[averaged.location_of(d, noise, o, 0), last]
    for lines in (at.spreads, at.variances):
        params[lines + first + learned, last] = params[lines + first, last]
    freedom = student_t.freedom_of(d, noise, first + learned)
    params[freedom, last] = params[2 * d, last]


@entry
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update of all experts, and of their probabilities; covariances later.

    They learn the average share of the outputs.
    """
    model = step.model
    own = step.own
    params = step.params
    work = step.work
    d = model.outputs
    noise = model.noise
    size = model.features
    averaged.read(step, work[MASS])
    averaged.update(step)
    at = averaged.places_of(d, noise)
    learned = noise.parts - 1
    projected = params[at.end + size :]
    gram = projected[size]
    inlier = work[SHARE]
    share = params[at.spare]
    average = params[at.spare + 1]
    moved = params[at.spare + 2]
    n = whole(gram)
    arithmetic.fill(average, 0.0)
    for o in range(d):
        y = step.number[LABEL + o]
        if math.isnan(y):
            continue
        scale = step.context[1 + d + o]
        loc = params[averaged.location_of(d, noise, o, learned)]
        shape = own[at.kept + size * d + o]
        rate = own[at.kept + size * d + d + o]
        averaged.fill_shares(step, o, learned, share)
        for i in range(n):
            error = (y - loc[i]) / scale
            moved[i] = _REGRESSION.gain(share[i], gram[i]) * error
            rate[i] += 0.5 * (moved[i] * error)
        for i in range(n):
            shape[i] += 0.5 * inlier[i]
        for i in range(n):
            average[i] += share[i] / d
        for a in range(size):
            arithmetic.add_product(projected[a], moved, own[at.kept + a * d + o])
    regression.gain(average, projected)
    log_score = averaged.score_with_walk(step, log_score)
    return log_score + regression.unbounded(projected)


@entry
def remember(step: RowStep) -> float:
    """As without the learned expert, then covariances, and the lags, at the context's end."""
    model = step.model
    number = step.number
    context = step.context
    params = step.params
    d = model.outputs
    noise = model.noise
    size = model.features
    averaged.remember(step)
    if number[LABELLED] > 0:
        projected = params[averaged.places_of(d, noise).end + size :]
        regression.downdate(projected, step.lines[statistics_line(d) + model.kept :])
    if model.lags > 0:
        # Lags, one later; after a missing label the latest is there twice.
        first = context.shape[0] - model.lags * d
        for k in range(context.shape[0] - 1, first + d - 1, -1):
            context[k] = context[k - d]
        if number[LABELLED] > 0:
            for o in range(d):
                context[first + o] = context[1 + 4 * d + o]  # the lag of the other experts
    return 0.0


FUNCTIONS = Functions(predict, averaged.score, learn, remember, student_t.summarise, student_t.draw)
