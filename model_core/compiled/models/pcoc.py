"""`upm.pcoc.Pcoc`: a classifier that scores its inputs before the labels.

The inputs of a row are its features (n). The sums of features (J, n) are stepped where they lie: a
label adds to those of its class alone. Lines of the statistics: counts (J). Lines of `params`: log
probabilities of the classes (J), in the last column those without the input; `log p(z)`; `log p(z,
y)` of every class (J), the last column with wider variances, as of outliers; and one to work in.
numbers: (J n) each precision, precision times mean of the features' priors, the noise's variances
and their inverses, then the prior of the classes (J).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_core.compiled import LABEL, LABELLED, arithmetic, student_t
from model_core.compiled.arithmetic import INF, maths
from model_core.compiled.belief import CHANCE, EACH, SHARE
from model_core.compiled.jit import Floats, entry, statistics_line, whole
from model_core.compiled.models.regression import numbers
from model_core.compiled.step import Functions, Model, RowStep
from model_core.maths.special import HALF_LOG_2PI
from model_core.upm.base import OUTLIER_SPREAD

if TYPE_CHECKING:
    from model_core.upm.pcoc import Pcoc

_DISCRIMINANT = maths("discriminant")
LOG_2PI = 2 * HALF_LOG_2PI


def of(model: Pcoc) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    classes, size = model.prior_mean.shape
    sizes = Model(
        outputs=1,
        kept=classes,
        params=2 * classes + 2,
        classes=classes,
        spare=1,
        by_input=1,
        encoded=1,
        features=size,
        numbers=numbers(
            model.prior_precision,
            model.prior_precision * model.prior_mean,
            model.noise_variance,
            1 / model.noise_variance,
            model.dirichlet,
        ),
    )
    return sizes, FUNCTIONS


@entry
def predict(step: RowStep) -> float:
    """Bayes' rule over the classes; the outliers' are those of the prior, whatever the input."""
    model = step.model
    own = step.own
    params = step.params
    classes = model.classes
    size = model.features
    joint = params[classes + 1 : 2 * classes + 1]
    evidence = params[classes]
    spare = params[2 * classes + 1]
    last = whole(evidence) - 1
    sums = step.lines[statistics_line(1) + classes :]
    features = step.number[LABEL + 1 : LABEL + 1 + size]
    of_all = classes * size
    dirichlet = model.numbers[4 * of_all :]
    n = whole(evidence)
    arithmetic.fill(spare, 0.0)
    for j in range(classes):
        for i in range(n):
            spare[i] += dirichlet[j] + own[j, i]
    for j in range(classes):
        for i in range(n):
            params[j, i] = _DISCRIMINANT.log_class(dirichlet[j] + own[j, i], spare[i])
    for j in range(classes):
        density = joint[j]
        counts = own[j]
        arithmetic.fill(density, size * LOG_2PI)
        for k in range(size):
            at = j * size + k
            precision = model.numbers[at]
            natural = model.numbers[of_all + at]
            noise = model.numbers[2 * of_all + at]
            inverse = model.numbers[3 * of_all + at]
            total = sums[at]
            for i in range(n):
                spread = 1.0 if i < last else OUTLIER_SPREAD
                density[i] += _DISCRIMINANT.surprise(
                    features[k], precision, natural, noise, inverse, counts[i], total[i], spread
                )
        for i in range(n):
            density[i] = -0.5 * density[i] + params[j, i]
    student_t.fold(joint, spare, evidence)
    for j in range(classes):
        for i in range(last):
            params[j, i] = joint[j, i] - evidence[i]
    return 0.0


@entry
def score(step: RowStep) -> float:
    """Log probability of the class; -inf of an index that is none."""
    work = step.work
    y = step.number[LABEL]
    j = int(y) if 0 <= y < step.model.classes else 0
    arithmetic.fill(work[EACH], -INF)
    if j == y:
        arithmetic.copy(step.params[j], work[EACH])
    return 1.0


@entry
def learn(step: RowStep, log_score: float) -> float:
    """Count the class."""
    work = step.work
    counts = step.own[int(step.number[LABEL])]
    share = work[SHARE]
    for i in range(whole(share)):
        counts[i] += share[i]
    return log_score


@entry
def remember(step: RowStep) -> float:
    """Add the features to the sums of the label's class."""
    model = step.model
    number = step.number
    if not number[LABELLED] > 0:  # as the step has it: the label is an index
        return 0.0
    size = model.features
    share = step.work[SHARE]
    first = statistics_line(1) + model.classes + int(number[LABEL]) * size
    for k in range(size):
        line = step.lines[first + k]
        feature = number[LABEL + 1 + k]
        for i in range(whole(share)):
            line[i] += share[i] * feature
    return 0.0


@entry
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Probabilities of the classes."""
    chance = step.work[CHANCE]
    for j in range(step.model.classes):
        arithmetic.exp_of(step.params[j], 0.0, spare[0], whole(chance))
        out[j] = arithmetic.dot(chance, spare[0], whole(chance))
    return 0.0


FUNCTIONS = Functions(predict, score, learn, remember, summarise)
