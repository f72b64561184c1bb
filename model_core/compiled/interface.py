"""A step of one row, as the functions of a model have it, and these functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_core.compiled.jit import Floats, entry

NO_NUMBERS = np.empty(0)


class Noise(NamedTuple):
    """Of the parts of each output, where predictives are Student-t.

    own: so many of the last parts of each output have degrees of freedom of their own, which they
    share. kinds: scales of the noise of each part, a Student-t for each. skews: (parts,), see
    `components.SkewedT`.
    """

    parts: int
    own: int
    kinds: int
    skews: Floats


ALONE = Noise(1, 0, 1, np.ones(1))


class Model(NamedTuple):
    """Sizes and numbers of a model, of whatever class.

    outputs: numbers in a label. kept: lines of the statistics that are copied for a step. params:
    lines of them. classes: of labels, else 0. spare, spares: fields of the components of a mixture,
    and how many there are for each column. outliers: 1 where labels may be some. by_input: 1 where
    the input is scored, by the line of `params` after those of the classes. encoded: 1 where the
    inputs of a row are features. Then sizes that some models have: inputs, features, lags, 1 where
    the context is that of `lags`, a season, 1 for a trend or for unknown noise.
    """

    outputs: int
    kept: int
    params: int
    classes: int = 0
    spare: int = 0
    spares: int = 1
    outliers: int = 1
    by_input: int = 0
    encoded: int = 0
    inputs: int = 0
    features: int = 0
    lags: int = 0
    past: int = 0
    season: int = 0
    trend: int = 0
    noisy: int = 1
    noise: Noise = ALONE
    numbers: Floats = NO_NUMBERS


class RowStep(NamedTuple):
    """A step of one row, as the functions of a model have it.

    number: inputs of the row. context: of the stream. lines: of the row, in place. own: the
    statistics that are copied, as the step works on them. params: of the predictives. work: numbers
    of the belief, see `belief`. marginal: address of `student_t.marginal`, which several
    models call and none contains: it takes long to compile.

    All but `number` and `context` have W columns, whole vectors: after those of the slots the last
    one is the prior's, which outliers are drawn from (with a wider scale), the one before it what a
    model has beside its hypotheses, if anything; those in between are as slots that nothing was
    seen in.
    """

    model: Model
    number: Floats
    context: Floats
    lines: Floats
    own: Floats
    params: Floats
    work: Floats
    marginal: int


class Functions(NamedTuple):
    """What a model computes in a step.

    predict: fills `params`; returns the weight of what is beside the hypotheses. score: log density
    EACH of the label; returns the share of it that counts for run lengths. learn: updates `own` by
    the responsibilities SHARE; its argument is the log score of the hypotheses, its result that
    of the answer, nan where what follows would not be finite. remember: moves the context on,
    and what statistics are stepped in place; the belief is not pruned yet. summarise: (step,
    levels, spare, out) fills a row of the summary; levels: (2, Q); spare: to work in, see
    `advance`.
    """

    predict: Any
    score: Any
    learn: Any
    remember: Any
    summarise: Any


@entry
def forget(step: RowStep) -> float:
    """`remember` of a model that keeps nothing of a label but its statistics."""
    return 0.0
