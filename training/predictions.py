"""Class probabilities of classifiers, for MOCA and for every baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from model_core import segments
from model_core.segments import Changes, Segments, Sequences
from model_core.upm.pcoc import Pcoc
from training.config import Objective
from training.data.base import Batch
from training.learners import Classifier, Learner
from training.objective import start

NEG_INF = float("-inf")


def class_log_probabilities(
    learner: Learner, batch: Batch, objective: Objective, told: Tensor | None = None
) -> Tensor:
    """`log p(class | x_t, what the objective conditions on)` (B, T, J)."""
    if isinstance(learner, Classifier):
        assert batch.x is not None
        return learner.log_probabilities(batch.x)
    model = learner.model()
    assert isinstance(model, Pcoc)
    found, each = _by_start(model, batch, objective.window)
    if objective.mode == "moca":
        weight = segments.forward(found, Changes(learner.hazard, None, told)).log_given_input
        # By start again: what is not a hypothesis has no weight, whatever the classes there.
        by_start = segments.by_start(weight)
        return torch.logsumexp(by_start.unsqueeze(2) + each, 1).mT
    index = _starts(batch, objective)[:, None, None].expand(-1, 1, each.shape[2], -1)
    return each.gather(1, index).squeeze(1).mT


def accuracy(log_probability: Tensor, y: Tensor) -> Tensor:
    """Whether the most probable class is the label (B, T), nan where either is not known."""
    label = y.squeeze(-1)
    unknown = torch.isnan(label) | torch.isnan(log_probability).any(-1)
    right = (log_probability.argmax(-1) == label).to(log_probability.dtype)
    return torch.where(unknown, torch.nan, right)


def _starts(batch: Batch, objective: Objective) -> Tensor:
    """Start (B, T) that each observation is predicted from."""
    if objective.mode == "oracle":
        assert batch.switch is not None
        return segments.oracle(batch.switch)
    steps = batch.y.shape[1]
    return segments.window(steps, objective.window).to(batch.y.device).expand(len(batch.y), -1)


def _by_start(model: Pcoc, batch: Batch, longest: int | None) -> tuple[Segments, Tensor]:
    """The matrices by [s, t], and log probabilities of every class by [s, j, t]."""
    rows = segments.observed_rows(model, start(model, batch), Sequences(batch.x, batch.y))
    weight = rows.labelled.to(rows.y.dtype)
    joint = torch.cat(list(model.every_joint(model.required(rows.phi), rows.y, weight, longest)), 3)
    evidence = joint.logsumexp(2)
    log_class = joint - evidence.unsqueeze(2)
    steps = batch.y.shape[1]
    index = torch.where(rows.labelled, rows.y.squeeze(-1), 0.0).long()
    index = index[:, None, None].expand(-1, steps, 1, -1)
    label = log_class.gather(2, index).squeeze(2).masked_fill(~rows.labelled.unsqueeze(1), 0.0)
    unseen = torch.ones(steps, steps, dtype=torch.bool, device=label.device).tril(-1)
    label, evidence = (each.masked_fill(unseen, NEG_INF) for each in (label, evidence))
    return Segments(label, evidence, rows.labelled), log_class
