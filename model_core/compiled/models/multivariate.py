"""`upm.multivariate.Multivariate`, whose statistics are those of `wishart`.

Lines of `params`: those of `student_t` for the marginals, then a block.
"""

from __future__ import annotations

from model_core.compiled import arithmetic, mixture, student_t
from model_core.compiled.belief import CHANCE, EACH, SHARE
from model_core.compiled.interface import ALONE, Functions, Model, RowStep, forget
from model_core.compiled.jit import Floats, entry
from model_core.compiled.models import wishart
from model_core.upm import multivariate
from model_core.upm.base import OUTLIER_SPREAD

MOST_OUTPUTS = 8  # beyond it one factorisation for all hypotheses is faster


def of(model: multivariate.Multivariate) -> tuple[Model, Functions] | None:
    """Sizes and functions of a model; None where there are too many outputs."""
    d = model.y_dim
    if d > MOST_OUTPUTS:
        return None
    params = student_t.lines_of(d, ALONE).end + wishart.block_of(d).end
    sizes = Model(outputs=d, kept=d + 2 + d * d, params=params, spare=mixture.FIELDS)
    return sizes, Functions(predict, score, learn, forget, summarise)


@entry
def predict(step: RowStep) -> float:
    """Student-t of `nu - d + 1` degrees of freedom, scale `psi (kappa + 1) / (kappa df)`."""
    model = step.model
    own = step.own
    params = step.params
    d = model.outputs
    first = student_t.lines_of(model.outputs, model.noise).end
    block = params[first:]
    last = own.shape[1] - 1
    wishart.forecast(d, own, 1.0, block)
    wishart.factorise(d, own[d + 2 :], block)
    squares = wishart.block_of(d).squares
    arithmetic.copy(block[wishart.HALF], params[2 * d])
    for o in range(d):
        arithmetic.copy(block[wishart.LOCATION + o], params[2 * d + student_t.FREEDOM + o])
        arithmetic.copy(block[squares + o], params[3 * d + student_t.FREEDOM + o])
    student_t.widen(model, params)
    student_t.finish(model, params)
    block[wishart.SPREAD, last] *= OUTLIER_SPREAD
    return 0.0


@entry
def score(step: RowStep) -> float:
    """Log density of all outputs together."""
    d = step.model.outputs
    block = step.params[student_t.lines_of(d, step.model.noise).end :]
    wishart.score(d, step.number, block, step.work[EACH])
    return 1.0


@entry
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update with a weighted observation."""
    d = step.model.outputs
    share = step.work[SHARE]
    block = step.params[student_t.lines_of(d, step.model.noise).end :]
    wishart.learn(d, step.number, share, share, step.own, 1.0, block)
    return log_score


@entry
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Marginals as any mixture of Student-t; the covariance within hypotheses beside them."""
    model = step.model
    chance = step.work[CHANCE]
    params = step.params
    d = model.outputs
    student_t.summarise(step, levels, spare, out)
    block = params[student_t.lines_of(d, model.noise).end :]
    for a in range(d):
        for b in range(a):
            total = wishart.covariance(d, a, b, chance, block, params[0])
            out[d + a * d + b] += total
            out[d + b * d + a] += total
    return 0.0
