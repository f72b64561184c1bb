"""Forecasts of a series whose filter runs: predictives of the labels to come, and paths of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from model_core import correction, horizon, summary
from model_core.filter import Inputs
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture
from model_core.stream.columns import Floats
from model_core.stream.slab import Slab
from model_core.summary import Summary
from model_core.transfer import to_device

PATHS = 256  # drawn where labels feed back; a median's level has a standard error of 0.03


def summarised(
    slab: Slab, row: int, mixture: Mixture, levels: Sequence[float]
) -> tuple[Summary, Floats]:
    """Summaries of mixtures of labels to come of a series, corrected by its errors so far.

    levels: of quantiles, rising. Also the corrections (B, d, 3), see `correction`.
    """
    count = len(mixture.log_weight)
    nothing = torch.full((count, mixture.outputs), torch.nan, dtype=torch.float64)
    applied = _corrections(slab, row, summary.of_mixture(mixture, nothing, [0.5]))
    predicted = summary.of_mixture(mixture, nothing, levels)
    correction.apply(predicted.numbers, applied)
    return predicted, applied


def _corrections(slab: Slab, row: int, medians: Summary) -> Floats:
    return slab.corrected([row] * len(medians.numbers), medians, [0.5])


def moved(drawn: Tensor, applied: Floats) -> Tensor:
    """Draws (..., d) that are moved and scaled as corrections (..., d, 3) say."""
    if not applied.shape[-2]:  # of other labels than real numbers
        return drawn
    median, by, scale = to_device(applied, drawn.device).unbind(-1)
    return median + by + scale * (drawn - median)


def ahead(
    slab: Slab, row: int, coming: Inputs, offsets: Floats, levels: Sequence[float]
) -> list[Summary]:
    """Summaries of the next labels, of a model whose labels are exchangeable; as `summarised`.

    coming: inputs of the first of them. offsets: (T,) their seasons. The last label counts for each
    of them as for the next one.
    """
    mixtures = _mixtures(slab, row, coming, offsets)
    return [summarised(slab, row, mixture, levels)[0] for mixture in mixtures]


def _mixtures(slab: Slab, row: int, coming: Inputs, offsets: Floats) -> Iterator[Mixture]:
    state = slab.state(row)
    prior = slab.prior(row)
    steps = horizon.mixtures(slab.model, state, prior, coming, len(offsets))
    for mixture, offset in zip(steps, offsets.tolist(), strict=True):
        by = torch.full_like(mixture.log_weight[:, 0], offset)
        yield mixture.shifted(by) if offset else mixture


def paths(slab: Slab, row: int, coming: Inputs, offsets: Floats, seed: int) -> Tensor:
    """Draws (N, T, d) of the next labels: samples of their joint predictive, corrected.

    coming: inputs of the first of them, a row for each path. offsets: (T,) seasons.
    """
    count = len(coming.elapsed)
    states, priors = horizon.repeated(slab.state(row), slab.prior(row), count)
    generator = torch.Generator(slab.device).manual_seed(seed)
    drawn = horizon.paths(slab.model, states, priors, coming, len(offsets), generator)
    if offsets.any():
        drawn = drawn + to_device(offsets, slab.device)[:, None]
    model = slab.model
    if not correction.outputs(model):
        return drawn
    steps = [summary.of_draws(own, [0.5], model.label, 0) for own in drawn.unbind(1)]
    medians = Summary(np.array(steps), model.y_dim, model.label)
    return moved(drawn, _corrections(slab, row, medians))
