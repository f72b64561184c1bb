"""`upm.linear`: regressions on the inputs, and on a stream's own past; their noise is unknown."""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic, mixture, step
from model_core.compiled.jit import Floats, compiled, implements
from model_core.compiled.models import lags, student_t
from model_core.upm import linear
from model_core.upm.base import FARTHEST
from model_core.upm.linear import HARMONICS, TREND_UNIT

MOST_FEATURES = 32  # their squares are rows; beyond it one product for all hypotheses is faster


class Regression(NamedTuple):
    """Rows of the statistics: mean (n, d), covariance (n, n), alpha (d), beta (d), origin (trend).

    Then features (n), the covariance times them (n), and `f' P f`.
    """

    outputs: int
    rows: int
    kept: int
    params: int
    statistics: int
    size: int  # n
    inputs: int  # numbers in an input
    past: int  # whether it is on the stream's own past
    order: int
    trend: int
    season: int
    parts: int = 1
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: linear.Linear | linear.Autoregressive) -> Regression | None:
    """Dimensions of a model; None where there are too many features."""
    d, size, order, trend, season = model.y_dim, 1 + model.x_dim, 0, 0, 0
    past = isinstance(model, linear.Autoregressive)
    if isinstance(model, linear.Autoregressive):
        order, trend, season = model.order, int(model.trend), model.season
        size = 1 + order * d + len(model._sines()) + trend
    if size > MOST_FEATURES:
        return None
    kept = size * d + size * size + 2 * d + trend
    rows, params = kept + 2 * size + 1, student_t.rows_of(d, student_t.ALONE)
    return Regression(
        d, rows, kept, params, 4 + trend, size, model.x_dim, int(past), order, trend, season
    )


@implements(step.predict, Regression)
def predict(
    model: Regression,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """`K' f` and squared scale `(1 + f' P f) beta / alpha`."""
    features = own[model.kept : model.kept + model.size]
    if model.past:
        _past(model.outputs, model.order, model.season, context, features)
    else:
        _inputs(model.outputs, model.inputs, number, context, features)
    if model.trend:
        _since(context[0], own[model.kept - 1], features[model.size - 1])
    _predict(model.outputs, model.size, own, features, own[model.kept + model.size :], params)


@compiled
def _inputs(outputs: int, inputs: int, number: Floats, context: Floats, features: Floats) -> None:
    """One and the inputs in units of the stream."""
    arithmetic.fill(features[0], 1.0)
    for k in range(inputs):
        x = number[LABEL + outputs + k]
        value = (x - context[k]) / context[inputs + k]
        arithmetic.fill(
            features[1 + k], min(max(value, -FARTHEST), FARTHEST) if math.isfinite(x) else x
        )


@compiled
def _past(outputs: int, order: int, season: int, context: Floats, features: Floats) -> None:
    """One, the lags, and the sines of a season."""
    arithmetic.fill(features[0], 1.0)
    for k in range(order * outputs):
        arithmetic.fill(features[1 + k], context[1 + 4 * outputs + k])
    at = 1 + order * outputs
    if season > 0:
        # The remainder first: the sine of a large angle has lost digits.
        time = context[0] % float(season)
        for k in range(1, min(HARMONICS, season // 2) + 1):
            rate = 2 * math.pi * k / season
            arithmetic.fill(features[at], math.sin(rate * time + math.pi / 2))
            at += 1
            if 2 * k != season:
                arithmetic.fill(features[at], math.sin(rate * time))
                at += 1


@compiled
def _since(now: float, origin: Floats, feature: Floats) -> None:
    """Time since each regime's first label."""
    for i in range(feature.shape[0]):
        since = now - origin[i] if now > origin[i] else 0.0
        feature[i] = 0.0 if origin[i] < 0 else since / TREND_UNIT


@compiled
def _predict(
    outputs: int, size: int, own: Floats, features: Floats, projected: Floats, params: Floats
) -> None:
    d, n = outputs, features.shape[1]
    cov, alpha = own[size * d :], own[size * d + size * size]
    gram = projected[size]
    arithmetic.fill(gram, 0.0)
    for a in range(size):
        row = projected[a]
        arithmetic.fill(row, 0.0)
        for b in range(size):
            add_product(cov[a * size + b], features[b], row)
        add_product(row, features[a], gram)
    arithmetic.copy(alpha, params[2 * d])
    for o in range(d):
        loc, square = params[2 * d + 4 + o], params[3 * d + 4 + o]
        beta, own_alpha = (
            own[size * d + size * size + d + o],
            own[size * d + size * size + o],
        )
        arithmetic.fill(loc, 0.0)
        for a in range(size):
            add_product(own[a * d + o], features[a], loc)
        for i in range(n):
            square[i] = (1.0 + gram[i]) * (beta[i] / own_alpha[i])
    student_t.finish(d, student_t.ALONE, params)


@compiled
def add_product(left: Floats, right: Floats, out: Floats) -> None:
    """Add the products of two rows."""
    for i in range(out.shape[0]):
        out[i] += left[i] * right[i]


@implements(step.score, Regression)
def score(model: Regression, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, student_t.ALONE, number, params, each)


@implements(step.learn, Regression)
def learn(
    model: Regression, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """One row absorbed, as `regression.absorb`."""
    _learn(model.outputs, model.size, number, share, own, own[model.kept + model.size :], params)
    if model.trend:
        origin = own[model.kept - 1]
        for i in range(origin.shape[0]):
            origin[i] = context[0] if origin[i] < 0 and share[i] > 0 else origin[i]


@compiled
def _learn(
    outputs: int,
    size: int,
    number: Floats,
    share: Floats,
    own: Floats,
    projected: Floats,
    params: Floats,
) -> None:
    """projected: (n + 1 rows) `P f` and `f' P f`; it becomes the scaled gain."""
    d, n = outputs, share.shape[0]
    noise = size * d + size * size
    gain(size, share, projected)
    for a in range(size):
        for b in range(size):
            _subtract_product(projected[a], projected[b], own[size * d + a * size + b])
    for o in range(d):
        loc, alpha, beta = params[2 * d + 4 + o], own[noise + o], own[noise + d + o]
        whitened = params[3 * d + 4 + o]  # the squared scale is not needed any more
        for i in range(n):
            whitened[i] = projected[size, i] * (number[LABEL + o] - loc[i])
        for a in range(size):
            add_product(projected[a], whitened, own[a * d + o])
        for i in range(n):
            beta[i] += 0.5 * (whitened[i] * whitened[i])
        for i in range(n):
            alpha[i] += 0.5 * share[i]


@compiled
def gain(size: int, share: Floats, projected: Floats) -> None:
    """Turn `f' P f` into `sqrt(w / (1 + w f' P f))`, and `P f` into what is `P f` times that."""
    scaled = projected[size]
    for i in range(share.shape[0]):
        scaled[i] = math.sqrt(share[i]) / math.sqrt(1.0 + share[i] * scaled[i])
    for a in range(size):
        gain = projected[a]
        for i in range(share.shape[0]):
            gain[i] *= scaled[i]


@compiled
def _subtract_product(left: Floats, right: Floats, out: Floats) -> None:
    for i in range(out.shape[0]):
        out[i] -= left[i] * right[i]


@implements(step.remember, Regression)
def remember(model: Regression, number: Floats, params: Floats, context: Floats) -> None:
    """Time and lags."""
    if model.past:
        lags.advance(model.outputs, number, context)


@implements(step.summarise, Regression)
def summarise(
    model: Regression,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of Student-t."""
    student_t.summarise(model.outputs, student_t.ALONE, number, chance, params, levels, spare, out)
