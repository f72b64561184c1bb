"""Trace of the filter over test sequences, step by step as in the service."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import filter as moca
from model_core.components import Components
from model_core.filter import FilterState, Prior
from model_core.stream_settings import DEFAULTS
from model_core.upm.base import UnderlyingModel, tree_map
from training.data.base import Batch
from training.evaluation.online import observed
from training.meta_training.objective import start


class Trace(NamedTuple):
    """Outputs of the filter over a batch.

    belief: (B, T, T) `b_t(r | x_t, y_t)` by [t, r]. pit: (B, T, d), nan where unlabelled or of
    classes. probability: (B, T, J) of classes, else None. states: before each chosen time.
    """

    belief: Tensor
    pit: Tensor
    probability: Tensor | None
    states: dict[int, FilterState]


@torch.no_grad()
def log_scores(model: UnderlyingModel, prior: Prior, batch: Batch) -> Tensor:
    """`log p(y_t | x_t, past)` (B, T), nan where unlabelled; as many hypotheses as a stream has."""
    state, scores = moca.init(prior, DEFAULTS.max_hypotheses), []
    for t in range(batch.y.shape[1]):
        state, info = moca.step(model, state, prior, observed(model, batch, t))
        scores.append(info.log_score)
    return torch.stack(scores, 1)


@torch.no_grad()
def trace(
    model: UnderlyingModel,
    batch: Batch,
    at: tuple[int, ...] = (),
    max_hypotheses: int | None = None,
) -> Trace:
    """Filter a batch from its first observation; by default nothing is pruned."""
    count, steps = batch.y.shape[:2]
    prior = start(model, batch)
    state = moca.init(prior, max_hypotheses or steps)
    beliefs = []
    pits = []
    classes = []
    states = {}
    for t in range(steps):
        if t in at:
            states[t] = state
        inputs = observed(model, batch, t)
        state, info = moca.step(model, state, prior, inputs)
        belief = torch.zeros(count, steps, dtype=torch.float64)
        length = state.belief.run_length.clamp(0, steps - 1)
        beliefs.append(belief.scatter_add(-1, length, state.belief.log_prob.exp()))
        mixture = info.predictive
        if model.label == "class":
            classes.append(mixture.mean())
            pits.append(torch.full_like(batch.y[:, t], math.nan))
        else:
            pits.append(pit(mixture.log_weight, mixture.components, batch.y[:, t]))
    probability = torch.stack(classes, 1) if classes else None
    return Trace(torch.stack(beliefs, 1), torch.stack(pits, 1), probability, states)


def pit(log_weight: Tensor, components: Components, y: Tensor) -> Tensor:
    """PITs (..., d) of labels y (..., d), each output alone; nan where the label is missing.

    log_weight: (..., M) of the belief that the labels are predicted with, as (B, T, T) by [t, r],
    -inf where there is no hypothesis. components: parameters (..., M, d).
    """
    if components.support not in ("real", "positive"):
        raise ValueError(f"expected components of real labels, got {components.support!r}")
    weight = log_weight.exp().unsqueeze(-1)
    cdf = components.cdf(y.unsqueeze(-2))
    # Parameters of an empty slot may be anything.
    mixed = torch.where(weight > 0, weight * cdf, 0.0).sum(-2)
    return torch.where(torch.isnan(y), torch.nan, mixed.clamp(0, 1))


@torch.no_grad()
def density(
    model: UnderlyingModel, state: FilterState, prior: Prior, x: Tensor, y: Tensor
) -> Tensor:
    """Predictive density (len(y), len(x)) of one stream's next label y (Q,) at inputs x (G, 1)."""
    rows = len(x)
    many = moca.rebuild(state, [leaf.expand(rows, *leaf.shape[1:]) for leaf in moca.leaves(state)])
    stats = tree_map(lambda t: t.expand(rows, *t.shape[1:]), prior.stats)
    wide = Prior(stats, prior.location.expand(rows, -1), prior.context.expand(rows, -1))
    nothing = Batch(x.unsqueeze(1), torch.zeros(rows, 1, 1, dtype=x.dtype))
    inputs = observed(model, nothing, 0)
    grown, _ = moca.grow(many, wide, inputs)
    mixture = moca.predict(model, grown, wide, inputs).mixture
    return torch.stack([mixture.log_prob(label.expand(rows, 1)).exp() for label in y])
