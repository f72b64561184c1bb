"""What training minimises and evaluation measures, for MOCA and for every baseline.

One segment log-likelihood matrix serves all (DESIGN, sec. 2): MOCA is a forward recursion over its
columns, baselines are selections of its entries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model_core import filter as moca
from model_core import segments
from model_core.filter import Prior
from model_core.segments import Changes, Sequences
from model_core.upm.base import UnderlyingModel
from training.config import Objective
from training.data.base import Batch
from training.learners import Classifier, Learner


def log_scores(learner: Learner, batch: Batch, objective: Objective, told: Tensor | None) -> Tensor:
    """`log p(y_t | x_t, what the objective conditions on)` (B, T), nan where unlabelled.

    told: (B, T) supervision as in `Changes.changepoint`, read by `moca` only. Raises ValueError for
    an oracle without known switches.
    """
    if isinstance(learner, Classifier):
        return _classified(learner, batch)
    model = learner.model()
    prior, data = start(model, batch), Sequences(batch.x, batch.y)
    if objective.mode == "coe":
        return segments.from_start(model, prior, data)
    if objective.mode == "moca":
        found = segments.segment_matrix(model, prior, data)
        return segments.forward(found, Changes(learner.hazard, None, told)).log_score
    steps = batch.y.shape[1]
    if objective.mode == "oracle":
        return _oracle(segments.segment_matrix(model, prior, data), batch, objective.prior_weight)
    window = objective.window
    found = segments.segment_matrix(model, prior, data, longest=window)
    return segments.select(found, segments.window(steps, window))


def start(model: UnderlyingModel, batch: Batch) -> Prior:
    """Prior of every window."""
    nothing = batch.y.new_zeros(len(batch.y), model.scaled)
    return moca.make_prior(model, nothing, nothing + 1)


def reveal(switch: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Supervision (B, T): 1 at a share of the true switches, nan elsewhere (paper, app. D.4)."""
    chosen = torch.rand(switch.shape, generator=generator) < rate
    told = torch.full(switch.shape, math.nan)
    told[chosen & switch.cpu()] = 1.0
    return told.to(switch.device)


def _oracle(found: segments.Segments, batch: Batch, prior_weight: float) -> Tensor:
    """Given the true regimes; mixed with the prior's predictive where that has a weight."""
    if batch.switch is None:
        raise ValueError(
            "an oracle needs to be told the switches, and nobody knows those of the data"
        )
    known = segments.select(found, segments.oracle(batch.switch))
    if prior_weight == 0:
        return known
    prior = segments.select(found, segments.window(known.shape[1], 0))
    return torch.logaddexp(known + math.log1p(-prior_weight), prior + math.log(prior_weight))


def _classified(learner: Classifier, batch: Batch) -> Tensor:
    if batch.x is None:
        raise ValueError("a classifier needs inputs")
    labelled = ~torch.isnan(batch.y)
    index = torch.where(labelled, batch.y, 0.0).long()
    found = learner.log_probabilities(batch.x).gather(-1, index)
    return torch.where(labelled, found, torch.nan).squeeze(-1)
