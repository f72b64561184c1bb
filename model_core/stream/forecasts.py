"""Forecasts of a series whose filter runs: predictives of the labels to come, and paths of them."""

from __future__ import annotations

from collections.abc import Iterator

from model_core import horizon
from model_core.filter import Inputs
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture
from model_core.stream.columns import Floats
from model_core.stream.slab import Slab
from model_core.transfer import to_device

PATHS = 256  # drawn where labels feed back; a median's level has a standard error of 0.03


def mixtures(slab: Slab, row: int, coming: Inputs, offsets: Floats) -> Iterator[Mixture]:
    """Marginal predictives of the next labels, of a model whose labels are exchangeable.

    coming: inputs of the first of them. offsets: (T,) their seasons.
    """
    state = slab.state(row)
    prior = slab.prior(row)
    steps = horizon.mixtures(slab.model, state, prior, coming, len(offsets))
    for mixture, offset in zip(steps, offsets.tolist(), strict=True):
        by = torch.full_like(mixture.log_weight[:, 0], offset)
        yield mixture.shifted(by) if offset else mixture


def paths(slab: Slab, row: int, coming: Inputs, offsets: Floats, seed: int) -> Tensor:
    """Draws (N, T, d) of the next labels: samples of their joint predictive.

    coming: inputs of the first of them, a row for each path. offsets: (T,) seasons.
    """
    count = len(coming.elapsed)
    states, priors = horizon.repeated(slab.state(row), slab.prior(row), count)
    generator = torch.Generator(slab.device).manual_seed(seed)
    drawn = horizon.paths(slab.model, states, priors, coming, len(offsets), generator)
    return drawn + to_device(offsets, slab.device)[:, None] if offsets.any() else drawn
