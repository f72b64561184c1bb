"""`upm.alpaca.Alpaca`: a regression on features, which torch computes beforehand for a batch.

Covariances `P` (n, n) are most of a state. `prepare` reads the lower triangle of each, `absorb`
reads it again and writes the whole: between them the step finds out whether the row stays finite.
"""

from __future__ import annotations

import torch
import triton.language as tl

from model_core.fused import mixture, prepared
from model_core.fused.arithmetic import finite
from model_core.fused.belief import LABEL, LABELLED, NUMBERS, OK
from model_core.fused.jit import compiled, entry
from model_core.fused.models import Parts
from model_core.fused.prepared import ERROR, FINE, GRAM, HALF, LOC, SHARE, SQUARE
from model_core.fused.rows import LOG_PROB, RUN_LENGTH, STATISTICS, floats, integers
from model_core.upm import alpaca

MEAN, COV, ALPHA, BETA = map(tl.constexpr, range(4))
OFFSET, SCALE, NOISE = map(tl.constexpr, range(3))  # of the labels and, where known, of the noise
MOST_FEATURES = 64  # whose square is still in a program's registers


def of(model: alpaca.Alpaca) -> Parts | None:
    """Parts of a model; None where it has too many features."""
    size, _ = model.prior_mean.shape
    if size > MOST_FEATURES:
        return None
    known = model.noise_variance
    numbers = [model.y_offset, model.y_scale, *([] if known is None else [known])]
    return Parts(
        prepared.component,
        prepared.learn,
        mixture.STUDENT_T.value if known is None else mixture.NORMAL.value,
        4 if known is None else 2,
        prepare,
        absorb,
        size,
        torch.cat([each.double().reshape(-1) for each in numbers]),
    )


@compiled
def statistic(
    views: tl.tensor,
    row: tl.tensor,
    leaf: tl.tensor,
    width: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    COUNT: tl.constexpr,
) -> tl.tensor:
    """Where a slot's statistic, or the prior's, of so many numbers begins."""
    place = STATISTICS + leaf + tl.where(from_prior, COUNT, 0)
    return floats(views, place) + tl.where(from_prior, row, row * slots + slot) * width


@compiled
def triangle(
    cov: tl.tensor, wanted: tl.tensor, FEATURES: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """Lower triangle of a matrix, 0 above it and where it is not wanted."""
    a, b = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    inside = wanted & (b <= a) & (a < FEATURES)
    return tl.load(cov + a * FEATURES + b, mask=inside, other=0.0)


@entry("slots", "wide")
def prepare(
    views: tl.tensor,
    rows: tl.tensor,
    lines: tl.tensor,
    inputs: tl.tensor,
    numbers: tl.tensor,
    table: tl.tensor,
    room: tl.tensor,
    slots: tl.tensor,
    wide: tl.tensor,
    OUTPUTS: tl.constexpr,
    FEATURES: tl.constexpr,
    TILE: tl.constexpr,
    COUNT: tl.constexpr,
) -> None:
    """`P f`, `f' P f` and the predictives of one slot, or of the prior, of one stream."""
    program = tl.program_id(0)
    b = tl.load(lines + program // (slots + 1))
    slot = program % (slots + 1)
    row = tl.load(rows + b)
    number = inputs + b * wide
    own = prepared.line_of(room, b, slots, OUTPUTS, FEATURES)
    is_prior = slot == slots
    at = row * slots + tl.where(is_prior, 0, slot)
    # The new hypothesis takes an empty slot, and reads of the prior: nothing is read for it here.
    wanted = is_prior | (tl.load(floats(views, LOG_PROB) + at) > -mixture.INF)
    a = tl.arange(0, TILE)
    inside = a < FEATURES
    feature = tl.load(number + LABEL + OUTPUTS + a, mask=inside, other=0.0)
    cov = statistic(views, row, COV, FEATURES * FEATURES, slot, slots, is_prior, COUNT)
    lower = triangle(cov, wanted, FEATURES, TILE)
    below = tl.where(a[None, :] < a[:, None], lower, 0.0)
    projected = tl.sum(lower * feature[None, :], 1) + tl.sum(below * feature[:, None], 0)
    gram = tl.sum(projected * feature, 0)
    out = prepared.vector(own, slot, slots, OUTPUTS, FEATURES)
    tl.store(out + a, projected, mask=inside)
    tl.store(prepared.alone(own, GRAM, slots, OUTPUTS) + slot, gram)
    labelled = tl.load(number + LABELLED) > 0
    spread = 1.0 + gram
    # No less than squares of what the update adds, and of what it is added to.
    reach = tl.sum(projected * projected, 0) / spread
    for output in range(OUTPUTS):
        first = statistic(views, row, MEAN, FEATURES * OUTPUTS, slot, slots, is_prior, COUNT)
        mean = tl.load(first + a * OUTPUTS + output, mask=inside & wanted, other=0.0)
        fit = tl.sum(mean * feature, 0)
        offset = tl.load(numbers + OFFSET * OUTPUTS + output)
        scale = tl.load(numbers + SCALE * OUTPUTS + output)
        error = (tl.load(number + LABEL + output) - offset) / scale - fit
        error = tl.where(labelled, error, 0.0)  # what is no label may be anything
        reach = reach + tl.sum(mean * mean, 0) + error * error / spread
        if COUNT == 4:
            alphas = statistic(views, row, ALPHA, OUTPUTS, slot, slots, is_prior, COUNT)
            betas = statistic(views, row, BETA, OUTPUTS, slot, slots, is_prior, COUNT)
            half = tl.load(alphas + output, mask=wanted, other=1.0)
            beta = tl.load(betas + output, mask=wanted, other=1.0)
            noise = beta / half
            reach = reach + half + beta
            tl.store(prepared.by_output(own, HALF, output, slots, OUTPUTS) + slot, half)
        else:
            noise = tl.load(numbers + NOISE * OUTPUTS + output)
        loc = fit * scale + offset
        square = spread * noise * (scale * scale)
        tl.store(prepared.by_output(own, LOC, output, slots, OUTPUTS) + slot, loc)
        tl.store(prepared.by_output(own, SQUARE, output, slots, OUTPUTS) + slot, square)
        tl.store(prepared.by_output(own, ERROR, output, slots, OUTPUTS) + slot, error)
    fine = tl.where(finite(reach) & (spread > 0), 1.0, 0.0)
    tl.store(prepared.alone(own, FINE, slots, OUTPUTS) + slot, fine)


@entry("slots", "wide")
def absorb(
    views: tl.tensor,
    rows: tl.tensor,
    lines: tl.tensor,
    inputs: tl.tensor,
    numbers: tl.tensor,
    table: tl.tensor,
    room: tl.tensor,
    slots: tl.tensor,
    wide: tl.tensor,
    OUTPUTS: tl.constexpr,
    FEATURES: tl.constexpr,
    TILE: tl.constexpr,
    COUNT: tl.constexpr,
) -> None:
    """One row absorbed by one slot, in place, as `regression.absorb`, where the step was `ok`.

    A slot that is empty stays as it is, as does one that learns nothing and is not new.
    """
    program = tl.program_id(0)
    b = tl.load(lines + program // slots)
    slot = program % slots
    row = tl.load(rows + b)
    number = inputs + b * wide
    own = prepared.line_of(room, b, slots, OUTPUTS, FEATURES)
    at = row * slots + slot
    ok = tl.load(table + b * (NUMBERS + 2 + 4 * OUTPUTS) + OK) > 0
    alive = tl.load(floats(views, LOG_PROB) + at) > -mixture.INF
    new = tl.load(integers(views, RUN_LENGTH) + at) == 0
    if ok & alive & (new | (tl.load(number + LABELLED) > 0)):
        source = tl.where(new, slots, slot)
        share = tl.load(prepared.alone(own, SHARE, slots, OUTPUTS) + slot)
        gram = tl.load(prepared.alone(own, GRAM, slots, OUTPUTS) + source)
        root = tl.sqrt(share / (1.0 + share * gram))
        a = tl.arange(0, TILE)
        inside = a < FEATURES
        projected = prepared.vector(own, source, slots, OUTPUTS, FEATURES)
        gain = root * tl.load(projected + a, mask=inside, other=0.0)
        lower = triangle(
            statistic(views, row, COV, FEATURES * FEATURES, slot, slots, new, COUNT),
            True, FEATURES, TILE,
        )  # fmt: skip
        whole = tl.where(a[None, :] <= a[:, None], lower, tl.trans(lower))
        whole = whole - gain[:, None] * gain[None, :]
        tl.debug_barrier()  # no thread writes what another has yet to read
        cov = statistic(views, row, COV, FEATURES * FEATURES, slot, slots, False, COUNT)
        places = a[:, None] * FEATURES + a[None, :]
        tl.store(cov + places, whole, mask=inside[:, None] & inside[None, :])
        for output in range(OUTPUTS):
            error = tl.load(prepared.by_output(own, ERROR, output, slots, OUTPUTS) + source)
            whitened = root * error
            width = FEATURES * OUTPUTS
            before = statistic(views, row, MEAN, width, slot, slots, new, COUNT)
            mean = tl.load(before + a * OUTPUTS + output, mask=inside, other=0.0)
            tl.debug_barrier()
            after = statistic(views, row, MEAN, width, slot, slots, False, COUNT)
            tl.store(after + a * OUTPUTS + output, mean + gain * whitened, mask=inside)
            if COUNT == 4:
                alpha = statistic(views, row, ALPHA, OUTPUTS, slot, slots, new, COUNT)
                beta = statistic(views, row, BETA, OUTPUTS, slot, slots, new, COUNT)
                count = tl.load(alpha + output) + 0.5 * share
                total = tl.load(beta + output) + 0.5 * (whitened * whitened)
                tl.debug_barrier()
                alpha = statistic(views, row, ALPHA, OUTPUTS, slot, slots, False, COUNT)
                beta = statistic(views, row, BETA, OUTPUTS, slot, slots, False, COUNT)
                tl.store(alpha + output, count)
                tl.store(beta + output, total)
