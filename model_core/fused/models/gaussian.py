"""`upm.conjugate.Gaussian`: mean and variance unknown, outputs independent."""

from __future__ import annotations

import triton.language as tl

from model_core.fused import arithmetic
from model_core.fused.jit import compiled
from model_core.fused.rows import read, write
from model_core.upm import conjugate

STATISTICS = 4
MEAN, KAPPA, ALPHA, BETA, COUNT = map(tl.constexpr, range(5))
OUTLIER_SPREAD = tl.constexpr(conjugate.OUTLIER_SPREAD)


def fits(model: conjugate.Gaussian) -> bool:
    """Whether the kernel serves a model."""
    return True


@compiled
def component(
    views: tl.tensor,
    row: tl.tensor,
    number: tl.tensor,
    output: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """Location, squared scale, half the degrees of freedom and norm of an output's predictives.

    Student-t with `2 alpha` degrees of freedom; beyond the slots that of outliers.
    """
    mean = read(views, row, MEAN, COUNT, OUTPUTS, output, slot, slots, from_prior)
    kappa = read(views, row, KAPPA, COUNT, 1, 0, slot, slots, from_prior)
    alpha = read(views, row, ALPHA, COUNT, 1, 0, slot, slots, from_prior)
    beta = read(views, row, BETA, COUNT, OUTPUTS, output, slot, slots, from_prior)
    square = beta * (kappa + 1.0) / (alpha * kappa)
    square = tl.where(slot < slots, square, square * OUTLIER_SPREAD)
    return mean, square, alpha, arithmetic.student_t_norm(alpha)


@compiled
def learn(
    views: tl.tensor,
    row: tl.tensor,
    number: tl.tensor,
    label: tl.tensor,
    share: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    kept: tl.tensor,
    OUTPUTS: tl.constexpr,
    KEEP: tl.constexpr,
) -> tl.tensor:
    """Conjugate update with the responsibility as a fraction of an observation.

    Returns which slots stay finite; writes those `kept`, if at all.
    """
    kappa = read(views, row, KAPPA, COUNT, 1, 0, slot, slots, from_prior)
    alpha = read(views, row, ALPHA, COUNT, 1, 0, slot, slots, from_prior)
    gain = share / (kappa + share)
    fine = arithmetic.finite(kappa + share) & arithmetic.finite(alpha + share)
    for output in range(OUTPUTS):
        mean = read(views, row, MEAN, COUNT, OUTPUTS, output, slot, slots, from_prior)
        beta = read(views, row, BETA, COUNT, OUTPUTS, output, slot, slots, from_prior)
        error = tl.load(label + output) - mean
        mean = mean + gain * error
        beta = beta + 0.5 * kappa * gain * (error * error)
        fine = fine & arithmetic.finite(mean) & arithmetic.finite(beta)
        if KEEP:
            tl.debug_barrier()  # no thread writes what another has yet to read
            write(views, row, MEAN, OUTPUTS, output, slot, slots, mean, kept)
            write(views, row, BETA, OUTPUTS, output, slot, slots, beta, kept)
    if KEEP:
        tl.debug_barrier()
        write(views, row, KAPPA, 1, 0, slot, slots, kappa + share, kept)
        write(views, row, ALPHA, 1, 0, slot, slots, alpha + 0.5 * share, kept)
    return fine
