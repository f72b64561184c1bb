"""`upm.pcoc.Pcoc`: a classifier that scores its inputs before the labels.

The inputs of a row are its features (n). The sums of features stay where they are: a label adds to
those of its class alone.

Rows of `own`: counts (J); then `log p(z, y)` of every class (J), the last column with wider
variances, as of outliers; the label's responsibilities; and room for n numbers. Rows of `params`:
log probabilities of the classes (J), in the last column those without the input; and `log p(z)`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, belief, step
from model_core.compiled.arithmetic import INF
from model_core.compiled.belief import (
    CHANCE,
    EACH,
    GROWN,
    INSIDE,
    LOG_PROB,
    OUTSIDE,
    STATISTICS,
)
from model_core.compiled.jit import LANES, Floats, Ints, compiled, flat, floats, implements, padded
from model_core.compiled.models import student_t
from model_core.compiled.models.alpaca import numbers
from model_core.maths.conjugate import OUTLIER_SPREAD
from model_core.maths.special import HALF_LOG_2PI
from model_core.upm import pcoc

COUNTS, SUMS = STATISTICS, STATISTICS + 1  # leaves
LOG_2PI = 2 * HALF_LOG_2PI


class Pcoc(NamedTuple):
    """Dimensions, and the priors of every stream: (J n) each of the features, (J) of the classes.

    natural: precision times mean. inverse: of the noise's variances.
    """

    classes: int
    rows: int
    kept: int
    params: int
    size: int  # n
    precision: Floats
    natural: Floats
    noise: Floats
    inverse: Floats
    dirichlet: Floats
    statistics: int = 2
    parts: int = 1
    outliers: int = 1
    spare: int = 1


def of(model: pcoc.Pcoc) -> Pcoc:
    """Dimensions of a model."""
    classes, size = model.prior_mean.shape
    return Pcoc(
        classes, 2 * classes + 1 + padded(size) // LANES, classes, classes + 1, size,
        numbers(model.prior_precision), numbers(model.prior_precision * model.prior_mean),
        numbers(model.noise_variance), numbers(1 / model.noise_variance),
        numbers(model.dirichlet),
    )  # fmt: skip


@implements(step.load, Pcoc)
def load(model: Pcoc, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Counts, and the log densities of the features with every class."""
    classes, size = model.classes, model.size
    step.load_leaf(views, row, slot, COUNTS, model.statistics, own)
    sums, prior = floats(views, SUMS, row), floats(views, SUMS + model.statistics, row)
    features = number[LABEL + 1 : LABEL + 1 + size]
    slots, last, each = views[LOG_PROB, 1], own.shape[1] - 1, flat(own[2 * classes + 1 :], size)
    for column in range(slots + 1):
        i = column if column < slots else last
        fresh = i in (slot, last)
        seen = prior if fresh else sums[i * classes * size : (i + 1) * classes * size]
        spread = OUTLIER_SPREAD if i == last else 1.0
        for j in range(classes):
            part = slice(j * size, (j + 1) * size)
            _distances(
                own[j, i], spread, features, seen[part], model.precision[part],
                model.natural[part], model.noise[part], model.inverse[part], each,
            )  # fmt: skip
            own[classes + j, i] = -0.5 * (arithmetic.total(each, size) + size * LOG_2PI)
    for j in range(classes):
        own[classes + j, slots:last] = own[classes + j, slot]
    _add_classes(classes, model.dirichlet, own, own[classes : 2 * classes], own[2 * classes])


@compiled
def _distances(
    count: float,
    spread: float,
    features: Floats,
    sums: Floats,
    precision: Floats,
    natural: Floats,
    noise: Floats,
    inverse: Floats,
    out: Floats,
) -> None:
    """Squared distances in variances, and the variances' logarithms, of one class's features."""
    for k in range(out.shape[0]):
        cov = 1.0 / (precision[k] + count * inverse[k])
        variance = spread * (cov + noise[k])
        error = features[k] - (natural[k] + sums[k] * inverse[k]) * cov
        out[k] = error * error / variance + arithmetic.log(variance)


@compiled
def _add_classes(
    classes: int, dirichlet: Floats, counts: Floats, out: Floats, total: Floats
) -> None:
    """Add `log p(y)` of every class."""
    arithmetic.fill(total, 0.0)
    for j in range(classes):
        for i in range(total.shape[0]):
            total[i] += dirichlet[j] + counts[j, i]
    for i in range(total.shape[0]):
        total[i] = arithmetic.log(total[i])
    for j in range(classes):
        for i in range(total.shape[0]):
            out[j, i] += arithmetic.log(dirichlet[j] + counts[j, i]) - total[i]


@implements(step.predict, Pcoc)
def predict(
    model: Pcoc, number: Floats, context: Floats, location: Floats, own: Floats, params: Floats
) -> None:
    """Bayes' rule over the classes; the outliers' are those of the prior, whatever the input."""
    classes = model.classes
    joint, evidence = own[classes : 2 * classes], params[classes]
    student_t.fold(joint, own[2 * classes], evidence)
    for j in range(classes):
        for i in range(evidence.shape[0]):
            params[j, i] = joint[j, i] - evidence[i]
    last = own.shape[1] - 1
    for j in range(classes):
        params[j, last] = 0.0
    _add_classes(classes, model.dirichlet, own[:, last:], params[:, last:], own[2 * classes, last:])


@implements(step.mix, Pcoc)
def mix(model: Pcoc, rate: float, params: Floats, work: Floats) -> None:
    """The belief after the input, then the weights of hypotheses and outliers."""
    _mix(rate, params[model.classes], work)


@compiled
def _mix(rate: float, evidence: Floats, work: Floats) -> None:
    each, inside, outside = work[EACH], work[INSIDE], work[OUTSIDE]
    n = each.shape[0] - 1
    astray = math.log(rate) + evidence[n] if rate > 0 else -INF
    own = math.log1p(-rate)
    for i in range(n):
        each[i] = arithmetic.logaddexp(own + evidence[i], astray) if rate > 0 else evidence[i]
    for i in range(n):
        inside[i] = own + evidence[i] - each[i]
    for i in range(n):
        outside[i] = astray - each[i]
    belief.observe_input(work)
    grown, chance, spare = work[GROWN], work[CHANCE], work[EACH]
    for i in range(n):
        spare[i] = arithmetic.exp(grown[i] + outside[i])
    for i in range(n):
        chance[i] = arithmetic.exp(grown[i] + inside[i])
    chance[n] = arithmetic.total(spare, n)


@implements(step.score, Pcoc)
def score(model: Pcoc, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log probability of the class; -inf of an index that is none."""
    y = number[LABEL]
    j = int(y) if 0 <= y < model.classes else 0
    arithmetic.fill(each, -INF)
    if j == y:
        arithmetic.copy(params[j], each)


@implements(step.learn, Pcoc)
def learn(
    model: Pcoc, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Count the class; the features are added when it is stored."""
    counts, responsibility = own[int(number[LABEL])], own[2 * model.classes]
    for i in range(share.shape[0]):
        counts[i] += share[i]
        responsibility[i] = share[i]


@implements(step.store, Pcoc)
def store(model: Pcoc, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Counts back to their places; sums of features where the label's class is."""
    classes, size = model.classes, model.size
    step.store_leaf(views, row, COUNTS, model.statistics, own)
    sums, width = floats(views, SUMS, row), classes * size
    prior = floats(views, SUMS + model.statistics, row)
    arithmetic.copy(prior, sums[slot * width : (slot + 1) * width])
    if number[LABELLED] == 0:
        return
    share, label = own[2 * classes], int(number[LABEL])
    for i in range(views[LOG_PROB, 1]):
        at = i * width + label * size
        for k in range(size):
            sums[at + k] += share[i] * number[LABEL + 1 + k]


@implements(step.remember, Pcoc)
def remember(model: Pcoc, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Pcoc)
def summarise(
    model: Pcoc,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Probabilities of the classes."""
    n = chance.shape[0]
    for j in range(model.classes):
        for i in range(n):
            spare[0, i] = arithmetic.exp(params[j, i])
        out[j] = arithmetic.dot(chance, spare[0], n)
