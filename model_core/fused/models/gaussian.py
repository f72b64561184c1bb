"""`upm.conjugate.Gaussian`: mean and variance unknown, outputs independent."""

from __future__ import annotations

import triton.language as tl

from model_core.fused import arithmetic, mixture
from model_core.fused.jit import compiled
from model_core.fused.models import Parts
from model_core.fused.rows import read, write
from model_core.upm import conjugate

MEAN, KAPPA, ALPHA, BETA, COUNT = map(tl.constexpr, range(5))


def of(model: conjugate.Gaussian) -> Parts:
    """Parts of a model."""
    return Parts(component, learn, mixture.STUDENT_T.value, COUNT.value)


@compiled
def component(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    output: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """Location, squared scale and half the degrees of freedom of an output's predictives.

    Student-t with `2 alpha` degrees of freedom.
    """
    mean = read(views, row, MEAN, COUNT, OUTPUTS, output, slot, slots, from_prior)
    kappa = read(views, row, KAPPA, COUNT, 1, 0, slot, slots, from_prior)
    alpha = read(views, row, ALPHA, COUNT, 1, 0, slot, slots, from_prior)
    beta = read(views, row, BETA, COUNT, OUTPUTS, output, slot, slots, from_prior)
    square = beta * (kappa + 1.0) / (alpha * kappa)
    return mean, square, alpha


@compiled
def learn(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
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
