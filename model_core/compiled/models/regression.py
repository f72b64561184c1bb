"""Bayesian linear regressions: of `upm.linear` on inputs or a stream's past, of `upm.alpaca`.

Lines of the statistics: mean (n, d); alpha and beta (d each) where the noise is unknown; the origin
of a trend. The covariance (n, n) is stepped where it lies: it is read once to project the features,
and once to take what the label tells off it. Lines of `params`: those of `student_t`; the features
(n), the covariance times them (n) and `f' P f`, which the label turns into the gain and its square;
the fit (d) in scaled units. Of an encoder the row's inputs are the features. numbers: offsets and
scales of the labels and the noise, where it is known, (d each), or rate and phase of each sine of a
season.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, student_t
from model_core.compiled.arithmetic import maths
from model_core.compiled.belief import CHANCE, EACH, SHARE
from model_core.compiled.jit import Floats, compiled, entry, statistics_line, whole
from model_core.compiled.models import lags
from model_core.compiled.step import ALONE, Functions, Model, Noise, RowStep
from model_core.maths.special import HALF_LOG_2PI
from model_core.upm import alpaca, linear
from model_core.upm.base import OUTLIER_SPREAD
from model_core.upm.linear import TREND_UNIT

if TYPE_CHECKING:
    from torch import Tensor

_CONTEXT = maths("context")
MOST_FEATURES = 32  # of a model without an encoder; beyond it one product for all is faster


def of(
    model: linear.Linear | linear.Autoregressive | alpaca.Alpaca,
) -> tuple[Model, Functions] | None:
    """Sizes and functions of a model; None where there are too many features."""
    d = model.y_dim
    if isinstance(model, alpaca.Alpaca):
        size = len(model.prior_mean)
        units = [model.y_offset, model.y_scale]
        if model.noise_variance is None:
            noise = Noise(1, 1, 1, np.ones(1))
            sizes = _sizes(d, size, numbers(*units))
            return sizes._replace(
                encoded=1, lags=model.lags, past=int(model.lags > 0), noise=noise,
                params=_params_of(d, size, noise),
            ), FUNCTIONS  # fmt: skip
        sizes = _sizes(d, size, numbers(*units, model.noise_variance))._replace(noisy=0)
        sizes = sizes._replace(encoded=1, lags=model.lags, past=int(model.lags > 0), kept=size * d)
        return sizes, OF_KNOWN_NOISE
    unscaled = np.repeat((0.0, 1.0), d)
    if isinstance(model, linear.Linear):
        sizes = _sizes(d, 1 + model.x_dim, unscaled)._replace(inputs=model.x_dim)
    else:
        sines = model.sines()
        size = 1 + model.order * d + len(sines) + model.trend
        sizes = _sizes(d, size, np.append(unscaled, sines))
        sizes = sizes._replace(
            lags=model.order, past=1, season=model.season, trend=int(model.trend),
            kept=sizes.kept + model.trend,
        )  # fmt: skip
    return None if sizes.features > MOST_FEATURES else (sizes, FUNCTIONS)


def _sizes(outputs: int, features: int, numbers: Floats) -> Model:
    """Of unknown noise that has the same degrees of freedom in all outputs."""
    return Model(
        outputs=outputs,
        kept=(features + 2) * outputs,
        params=_params_of(outputs, features, ALONE),
        spare=mixture.FIELDS,
        features=features,
        numbers=numbers,
    )


def _params_of(outputs: int, features: int, noise: Noise) -> int:
    return student_t.lines_of(outputs, noise).end + 2 * features + 1 + outputs


def numbers(*values: Tensor) -> Floats:
    """The numbers of tensors, one after the other, that nobody else changes."""
    return np.concatenate([value.detach().double().reshape(-1).numpy() for value in values])


@entry
def predict(step: RowStep) -> float:
    """`K' f` and squared scale `(1 + f' P f)` times the noise's, in the units of the labels."""
    model = step.model
    number = step.number
    context = step.context
    own = step.own
    params = step.params
    d = model.outputs
    n = model.features
    noise = model.noise
    at = student_t.lines_of(d, noise)
    first = at.end
    features = params[first : first + n]
    projected = params[first + n : first + 2 * n + 1]
    fits = params[first + 2 * n + 1 :]
    if model.encoded:
        for k in range(n):
            arithmetic.fill(features[k], number[LABEL + d + k])
    elif model.past:
        _past(model, context, features)
    else:
        _inputs(model, number, context, features)
    if model.trend:  # time since each regime's first label
        origin = own[model.kept - 1]
        since = features[n - 1]
        for i in range(whole(since)):
            since[i] = _CONTEXT.age_of(context[0], origin[i], TREND_UNIT)
    project(step.lines[statistics_line(d) + model.kept :], features, projected)
    fit(d, own, features, fits)
    gram = projected[n]
    for o in range(d):
        offset = model.numbers[o]
        scale = model.numbers[d + o]
        loc = params[at.locations + o]
        square = params[at.squares + o]
        for i in range(whole(gram)):
            loc[i] = fits[o, i] * scale + offset
        if model.noisy:
            alpha = own[n * d + o]
            beta = own[n * d + d + o]
            for i in range(whole(gram)):
                square[i] = (1.0 + gram[i]) * (beta[i] / alpha[i]) * (scale * scale)
            arithmetic.copy(alpha, params[student_t.freedom_of(d, noise, o)])
        else:
            variance = model.numbers[2 * d + o] * (scale * scale)
            for i in range(whole(gram)):
                square[i] = (1.0 + gram[i]) * variance
            square[whole(gram) - 1] *= OUTLIER_SPREAD
    if model.noisy:
        arithmetic.copy(own[n * d], params[2 * d])
        student_t.widen(model, params)
        student_t.finish(model, params)
    return 0.0


@compiled
def _inputs(model: Model, number: Floats, context: Floats, features: Floats) -> None:
    """One and the inputs in units of the stream."""
    arithmetic.fill(features[0], 1.0)
    for k in range(model.inputs):
        x = number[LABEL + model.outputs + k]
        arithmetic.fill(
            features[1 + k], _CONTEXT.in_units(x, context[k], context[model.inputs + k])
        )


@compiled
def _past(model: Model, context: Floats, features: Floats) -> None:
    """One, the lags, and the sines of a season."""
    d = model.outputs
    arithmetic.fill(features[0], 1.0)
    for k in range(model.lags * d):
        arithmetic.fill(features[1 + k], context[1 + 4 * d + k])
    if model.season > 0:
        # The remainder first: the sine of a large angle has lost digits.
        time = context[0] % float(model.season)
        sines = model.numbers[2 * d :]
        for k in range(sines.shape[0] // 2):
            sine = math.sin(sines[2 * k] * time + sines[2 * k + 1])
            arithmetic.fill(features[1 + model.lags * d + k], sine)


@compiled
def project(cov: Floats, features: Floats, projected: Floats) -> None:
    """`P f` (n) and, after it, `f' P f`; cov: its n n lines first. Four products at a time."""
    size = features.shape[0]
    gram = projected[size]
    end = size - size % 4
    arithmetic.fill(gram, 0.0)
    for a in range(size):
        out = projected[a]
        arithmetic.fill(out, 0.0)
        for b in range(0, end, 4):
            at = a * size + b
            one = cov[at]
            two = cov[at + 1]
            three = cov[at + 2]
            four = cov[at + 3]
            p = features[b]
            q = features[b + 1]
            r = features[b + 2]
            s = features[b + 3]
            for i in range(whole(out)):
                out[i] += (p[i] * one[i] + q[i] * two[i]) + (r[i] * three[i] + s[i] * four[i])
        for b in range(end, size):
            arithmetic.add_product(cov[a * size + b], features[b], out)
        arithmetic.add_product(out, features[a], gram)


@compiled
def fit(d: int, mean: Floats, features: Floats, out: Floats) -> None:
    """`K' f` (d lines); mean: (n d) lines first."""
    for o in range(d):
        arithmetic.fill(out[o], 0.0)
        for a in range(features.shape[0]):
            arithmetic.add_product(mean[a * d + o], features[a], out[o])


@entry
def score_normal(step: RowStep) -> float:
    """Log density of all outputs whose noise is known."""
    model = step.model
    params = step.params
    d = model.outputs
    density = step.work[EACH]
    first = student_t.lines_of(d, model.noise).locations
    for o in range(d):
        y = step.number[LABEL + o]
        loc = params[first + o]
        square = params[first + d + o]
        for i in range(whole(density)):
            error = y - loc[i]
            density[i] -= 0.5 * (error * error / square[i] + arithmetic.log(square[i]))
    for i in range(whole(density)):
        density[i] -= d * HALF_LOG_2PI
    return 1.0


@entry
def learn(step: RowStep, log_score: float) -> float:
    """One row absorbed, as `upm.regression.absorb`; the covariance where it lies, later."""
    model = step.model
    own = step.own
    params = step.params
    work = step.work
    d = model.outputs
    n = model.features
    share = work[SHARE]
    first = student_t.lines_of(d, model.noise).end + n
    projected = params[first : first + n + 1]
    fits = params[first + n + 1 :]
    gain(share, projected)
    for o in range(d):
        label = (step.number[LABEL + o] - model.numbers[o]) / model.numbers[d + o]
        whitened = fits[o]
        scaled = projected[n]
        for i in range(whole(share)):
            whitened[i] = scaled[i] * (label - whitened[i])
        for a in range(n):
            arithmetic.add_product(projected[a], whitened, own[a * d + o])
        if model.noisy:
            alpha = own[n * d + o]
            beta = own[n * d + d + o]
            for i in range(whole(share)):
                beta[i] += 0.5 * (whitened[i] * whitened[i])
                alpha[i] += 0.5 * share[i]
    if model.trend:
        origin = own[model.kept - 1]
        for i in range(whole(share)):
            origin[i] = step.context[0] if origin[i] < 0 and share[i] > 0 else origin[i]
    return log_score + unbounded(projected)


@compiled
def gain(share: Floats, projected: Floats) -> None:
    """Turn `f' P f` into `sqrt(w / (1 + w f' P f))`, and `P f` into what is `P f` times that."""
    size = projected.shape[0] - 1
    scaled = projected[size]
    for i in range(whole(share)):
        scaled[i] = math.sqrt(share[i]) / math.sqrt(1.0 + share[i] * scaled[i])
    for a in range(size):
        own = projected[a]
        for i in range(whole(share)):
            own[i] *= scaled[i]


@compiled
def unbounded(projected: Floats) -> float:
    """0 where the gain's products with itself are finite, else nan; the sum of squares is last."""
    size = projected.shape[0] - 1
    square = projected[size]
    arithmetic.fill(square, 0.0)
    for a in range(size):
        arithmetic.add_product(projected[a], projected[a], square)
    return 0.0 if math.isfinite(arithmetic.total(square, whole(square))) else math.nan


@compiled
def downdate(projected: Floats, cov: Floats) -> None:
    """Take off the gain's product with itself."""
    size = projected.shape[0] - 1
    for a in range(size):
        for b in range(size):
            left = projected[a]
            right = projected[b]
            line = cov[a * size + b]
            for i in range(whole(left)):
                line[i] -= left[i] * right[i]


@entry
def remember(step: RowStep) -> float:
    """The covariance, then time and lags."""
    model = step.model
    number = step.number
    d = model.outputs
    n = model.features
    if number[LABELLED] > 0:
        first = student_t.lines_of(d, model.noise).end + n
        downdate(step.params[first : first + n + 1], step.lines[statistics_line(d) + model.kept :])
    if model.past:
        lags.advance(d, number, step.context)
    return 0.0


@entry
def summarise_normal(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Moments, and each output's mixture of normals."""
    model = step.model
    chance = step.work[CHANCE]
    params = step.params
    d = model.outputs
    at = student_t.lines_of(d, model.noise)
    mixture.moments(
        chance, params[at.locations : at.squares], params[at.squares : at.weights], whole(chance),
        out,
    )  # fmt: skip
    arithmetic.fill(params[2 * d + student_t.HALF], student_t.NORMAL)
    for o in range(d):
        arithmetic.fill(params[at.weights + o], 1.0)
        params[at.shares + o, 0] = 1.0
    student_t.each_output(step, levels, spare, out)
    return 0.0


FUNCTIONS = Functions(
    predict, student_t.score, learn, remember, student_t.summarise, student_t.draw
)
OF_KNOWN_NOISE = FUNCTIONS._replace(score=score_normal, summarise=summarise_normal)
