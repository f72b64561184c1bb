"""`upm.alpaca.Alpaca`: a regression on learned features, its noise known or not.

The inputs of a row are its features (n). Covariances stay where they are: a step reads each once
to project the features, and once to take what the label tells off it, in the state's own memory.

Rows of `own`: mean (n, d); alpha (d) and beta (d) where the noise is unknown; `P f` (n) and
`f' P f`, which the label turns into the gain and its square; then room for n numbers.

Rows of `params` for `d` outputs: means and variances (d each); then of each output those of
`student_t` for one output, with the fit in scaled units in the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, step
from model_core.compiled.belief import STATISTICS
from model_core.compiled.jit import LANES, Floats, Ints, compiled, flat, floats, implements, padded
from model_core.compiled.models import lags, regression, student_t
from model_core.maths.conjugate import OUTLIER_SPREAD
from model_core.maths.special import HALF_LOG_2PI
from model_core.upm import alpaca

MEAN, COV, ALPHA, BETA = range(STATISTICS, STATISTICS + 4)  # leaves
# Rows of an output in `params`.
HALF, NORM, FACTOR, INVERSE, LOC, SQUARE, DENSITY, FIT, BLOCK = range(2, 11)


class Alpaca(NamedTuple):
    """Dimensions, and the numbers (d) of every stream: scaling and, where known, the noise."""

    outputs: int
    rows: int
    kept: int
    params: int
    statistics: int
    size: int  # n
    lags: int
    noisy: int  # whether the noise is unknown
    y_offset: Floats
    y_scale: Floats
    noise: Floats
    parts: int = 1
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: alpaca.Alpaca) -> Alpaca:
    """Dimensions of a model."""
    size, d = model.prior_mean.shape
    noisy, known = model.noise_variance is None, model.noise_variance
    kept = size * d + 2 * d * noisy + size + 1
    return Alpaca(
        d, kept + padded(size) // LANES, kept, (2 + BLOCK) * d, 4 if noisy else 2, size, model.lags,
        int(noisy),
        numbers(model.y_offset), numbers(model.y_scale),
        np.ones(d) if known is None else numbers(known),
    )  # fmt: skip


def numbers(value: Tensor) -> Floats:
    """A tensor's numbers, one after the other, that nobody else changes."""
    return value.detach().double().reshape(-1).numpy().copy()


@implements(step.load, Alpaca)
def load(model: Alpaca, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """All but the covariances, which are projected."""
    count, first = model.statistics, LABEL + model.outputs
    at = step.load_leaf(views, row, slot, MEAN, count, own)
    if model.noisy:
        at += step.load_leaf(views, row, slot, ALPHA, count, own[at:])
        at += step.load_leaf(views, row, slot, BETA, count, own[at:])
    features = number[first : first + model.size]
    prior, projected = floats(views, COV + count, row), own[at : model.kept]
    product = flat(own[model.kept :], model.size)
    project(floats(views, COV, row), prior, slot, features, projected, product)


@compiled
def project(
    cov: Floats, prior: Floats, slot: int, features: Floats, projected: Floats, product: Floats
) -> None:
    """`P f` and `f' P f` of each slot, and of the prior in the column of `slot` and after all."""
    size = features.shape[0]
    slots = cov.shape[0] // (size * size)
    for i in range(slots):
        if i != slot:
            _times(cov, i * size * size, features, product)
            _put(product, i, projected)
    _times(prior, 0, features, product)
    _put(product, slot, projected)
    for i in range(slots, projected.shape[1]):
        _put(product, i, projected)
    gram = projected[size]
    arithmetic.fill(gram, 0.0)
    for a in range(size):
        add_multiple(features[a], projected[a], gram)


@compiled
def _times(matrices: Floats, first: int, vector: Floats, out: Floats) -> None:
    """Product of the symmetric matrix that begins at `first`, four rows at a time."""
    n = vector.shape[0]
    arithmetic.fill(out, 0.0)
    whole = n - n % 4
    for a in range(0, whole, 4):
        at = first + a * n
        one, two = matrices[at : at + n], matrices[at + n : at + 2 * n]
        three, four = matrices[at + 2 * n : at + 3 * n], matrices[at + 3 * n : at + 4 * n]
        p, q, r, s = vector[a], vector[a + 1], vector[a + 2], vector[a + 3]
        for b in range(n):
            out[b] += (p * one[b] + q * two[b]) + (r * three[b] + s * four[b])
    for a in range(whole, n):
        at = first + a * n
        add_multiple(vector[a], matrices[at : at + n], out)


@compiled
def _put(values: Floats, column: int, out: Floats) -> None:
    for a in range(values.shape[0]):
        out[a, column] = values[a]


@compiled
def add_multiple(by: float, values: Floats, out: Floats) -> None:
    """Add a row times a number."""
    for i in range(out.shape[0]):
        out[i] += by * values[i]


@implements(step.predict, Alpaca)
def predict(
    model: Alpaca, number: Floats, context: Floats, location: Floats, own: Floats, params: Floats
) -> None:
    """`K' f` and squared scale `(1 + f' P f)` times the noise's, in the units of the labels."""
    d, size = model.outputs, model.size
    noise, gram = size * d, own[model.kept - 1]
    for o in range(d):
        block = params[2 * d + BLOCK * o : 2 * d + BLOCK * (o + 1)]
        arithmetic.fill(block[FIT], 0.0)
        for a in range(size):
            add_multiple(number[LABEL + d + a], own[a * d + o], block[FIT])
        if model.noisy:
            _unknown(own[noise + o], own[noise + d + o], gram, block)
        else:
            _known(model.noise[o], gram, block)
        _in_units(model.y_offset[o], model.y_scale[o], block)
        if model.noisy:
            student_t.finish(1, student_t.ALONE, block)
        else:
            block[SQUARE, block.shape[1] - 1] *= OUTLIER_SPREAD


@compiled
def _unknown(alpha: Floats, beta: Floats, gram: Floats, block: Floats) -> None:
    half, square = block[HALF], block[SQUARE]
    for i in range(gram.shape[0]):
        half[i] = alpha[i]
    for i in range(gram.shape[0]):
        square[i] = (1.0 + gram[i]) * (beta[i] / alpha[i])


@compiled
def _known(noise: float, gram: Floats, block: Floats) -> None:
    square = block[SQUARE]
    arithmetic.fill(block[HALF], 0.0)
    arithmetic.fill(block[NORM], -HALF_LOG_2PI)
    for i in range(gram.shape[0]):
        square[i] = (1.0 + gram[i]) * noise


@compiled
def _in_units(offset: float, scale: float, block: Floats) -> None:
    loc, square, fit = block[LOC], block[SQUARE], block[FIT]
    for i in range(loc.shape[0]):
        loc[i] = fit[i] * scale + offset
    for i in range(loc.shape[0]):
        square[i] *= scale * scale


@implements(step.score, Alpaca)
def score(model: Alpaca, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    d = model.outputs
    arithmetic.fill(each, 0.0)
    for o in range(d):
        block = params[2 * d + BLOCK * o : 2 * d + BLOCK * (o + 1)]
        y, density = number[LABEL + o], block[DENSITY]
        if model.noisy:
            student_t.densities(
                y, block[HALF : INVERSE + 1], block[LOC], block[SQUARE], 1.0, density
            )
        else:
            _normal_densities(y, block[LOC], block[SQUARE], density)
        add_multiple(1.0, density, each)


@compiled
def _normal_densities(y: float, loc: Floats, square: Floats, out: Floats) -> None:
    for i in range(out.shape[0]):
        error = y - loc[i]
        out[i] = 0.5 * (error * error / square[i] + arithmetic.log(square[i]))
    for i in range(out.shape[0]):
        out[i] = -HALF_LOG_2PI - out[i]


@implements(step.learn, Alpaca)
def learn(
    model: Alpaca, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """One row absorbed, as `regression.absorb`; the covariances only when it is stored."""
    d, size, noise = model.outputs, model.size, model.size * model.outputs
    projected = own[model.kept - size - 1 : model.kept]
    regression.gain(size, share, projected)
    for o in range(d):
        label = (number[LABEL + o] - model.y_offset[o]) / model.y_scale[o]
        whitened = params[2 * d + BLOCK * o + FIT]
        _whiten(label, projected[size], whitened)
        for a in range(size):
            regression.add_product(projected[a], whitened, own[a * d + o])
        if model.noisy:
            _learn_noise(share, whitened, own[noise + o], own[noise + d + o])
    square_gain(size, projected)


@compiled
def _whiten(label: float, scaled: Floats, fit: Floats) -> None:
    """Residuals of unit variance in those of the noise, in place of the fit."""
    for i in range(fit.shape[0]):
        fit[i] = scaled[i] * (label - fit[i])


@compiled
def _learn_noise(share: Floats, whitened: Floats, alpha: Floats, beta: Floats) -> None:
    for i in range(share.shape[0]):
        beta[i] += 0.5 * (whitened[i] * whitened[i])
    for i in range(share.shape[0]):
        alpha[i] += 0.5 * share[i]


@compiled
def square_gain(size: int, projected: Floats) -> None:
    """Sum of the gain's squares, which is finite where its products with itself are."""
    square = projected[size]
    arithmetic.fill(square, 0.0)
    for a in range(size):
        regression.add_product(projected[a], projected[a], square)


@implements(step.store, Alpaca)
def store(model: Alpaca, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Columns back to their places; covariances less the gain's product with itself."""
    count, size = model.statistics, model.size
    at = step.store_leaf(views, row, MEAN, count, own)
    if model.noisy:
        at += step.store_leaf(views, row, ALPHA, count, own[at:])
        at += step.store_leaf(views, row, BETA, count, own[at:])
    cov, gain = floats(views, COV, row), own[at : at + size]
    fresh = floats(views, COV + count, row)
    arithmetic.copy(fresh, cov[slot * size * size : (slot + 1) * size * size])
    if number[LABELLED] > 0:
        downdate(cov, gain, flat(own[model.kept :], size))


@compiled
def downdate(cov: Floats, gain: Floats, own: Floats) -> None:
    """Take off the gain's (n, W) product with itself, slot by slot; own: (n) to work in."""
    size = gain.shape[0]
    for i in range(cov.shape[0] // (size * size)):
        for a in range(size):
            own[a] = gain[a, i]
        for a in range(size):
            at = (i * size + a) * size
            # Indices of the whole: a slice for each row would cost more than the row.
            for b in range(size):
                cov[at + b] -= own[a] * own[b]


@implements(step.remember, Alpaca)
def remember(model: Alpaca, number: Floats, params: Floats, context: Floats) -> None:
    """Time and lags of a model that has any."""
    if model.lags > 0:
        lags.advance(model.outputs, number, context)


@implements(step.summarise, Alpaca)
def summarise(
    model: Alpaca,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Moments, and each output's mixture of Student-t or of normals."""
    d = model.outputs
    family = mixture.STUDENT_T if model.noisy else mixture.NORMAL
    for o in range(d):
        block = params[2 * d + BLOCK * o : 2 * d + BLOCK * (o + 1)]
        if model.noisy:
            student_t.describe(1, student_t.ALONE, block)
            arithmetic.copy(block[0], params[o])
            arithmetic.copy(block[1], params[d + o])
        else:
            arithmetic.copy(block[LOC], params[o])
            arithmetic.copy(block[SQUARE], params[d + o])
    mixture.moments(chance, params[:d], params[d : 2 * d], chance.shape[0], out)
    for o in range(d):
        block = params[2 * d + BLOCK * o : 2 * d + BLOCK * (o + 1)]
        n = student_t.gather(1, student_t.ALONE, 0, chance, block, spare)
        if model.noisy:
            mixture.tabulate(spare, n)
        student_t.marginal(d, o, family, number, levels, spare, n, out)
