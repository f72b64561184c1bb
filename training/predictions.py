"""Class probabilities of classifiers, for MOCA and for every baseline."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_core import segments
from model_core.segments import Changes, Segments, Sequences
from model_core.upm.pcoc import Pcoc, PcocStats
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
    found, each = _by_start(model, batch)
    if objective.mode == "moca":
        weight = segments.forward(found, Changes(learner.hazard, None, told)).log_given_input
        return torch.logsumexp(weight.unsqueeze(-1) + _by_run_length(each), 2)
    first = _starts(batch, objective)
    index = first.unsqueeze(1).unsqueeze(-1).expand(-1, -1, -1, each.shape[-1])
    return each.gather(1, index).squeeze(1)


def accuracy(log_probability: Tensor, y: Tensor) -> Tensor:
    """Whether the most probable class is the label (B, T), nan where there is none."""
    label = y.squeeze(-1)
    right = (log_probability.argmax(-1) == label).to(log_probability.dtype)
    return torch.where(torch.isnan(label), torch.nan, right)


def _starts(batch: Batch, objective: Objective) -> Tensor:
    """Start (B, T) that each observation is predicted from."""
    if objective.mode == "oracle":
        assert batch.switch is not None
        return segments.oracle(batch.switch)
    steps = batch.y.shape[1]
    return segments.window(steps, objective.window).to(batch.y.device).expand(len(batch.y), -1)


def _by_start(model: Pcoc, batch: Batch) -> tuple[Segments, Tensor]:
    """The matrices, and log probabilities of every class (B, T, T, J), all by [s, t].

    What a window has seen is the difference of two running sums.
    """
    prior, data = start(model, batch), Sequences(batch.x, batch.y)
    rows = segments.observed_rows(model, prior, data)
    phi = model.required(rows.phi)
    chosen = model.chosen(rows.y) * rows.labelled.unsqueeze(-1)
    counts = pad(chosen.cumsum(1), (0, 0, 1, 0))
    sums = pad((chosen.unsqueeze(-1) * phi.unsqueeze(2)).cumsum(1), (0, 0, 0, 0, 1, 0))
    steps, inputs, classes = batch.y.shape[1], [], []
    for t in range(steps):
        seen = PcocStats(
            counts[:, t, None] - counts[:, : t + 1], sums[:, t, None] - sums[:, : t + 1]
        )
        joint = model.log_joint(seen, phi[:, t, None])
        evidence = joint.logsumexp(-1)
        inputs.append(pad(evidence, (0, steps - t - 1), value=NEG_INF))
        each = joint - evidence.unsqueeze(-1)
        classes.append(pad(each, (0, 0, 0, steps - t - 1), value=NEG_INF))
    log_class = torch.stack(classes, 2)
    index = torch.where(rows.labelled, rows.y.squeeze(-1), 0.0).long()
    index = index.unsqueeze(1).unsqueeze(-1).expand(-1, steps, -1, 1)
    label = log_class.gather(-1, index).squeeze(-1).masked_fill(~rows.labelled.unsqueeze(1), 0.0)
    seen_at = torch.ones(steps, steps, dtype=torch.bool, device=label.device).triu()
    label = label.masked_fill(~seen_at, NEG_INF)
    return Segments(label, torch.stack(inputs, -1), rows.labelled), log_class


def _by_run_length(each: Tensor) -> Tensor:
    """From [s, t] to [t, r] with a last axis."""
    return torch.stack([segments.by_run_length(part) for part in each.unbind(-1)], -1)
