"""Predictive scores of MOCA and of every baseline: the training loss, and validation.

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
from model_core.segments import Changes, Segments, Sequences
from model_core.upm.base import UnderlyingModel
from model_core.upm.pcoc import Pcoc
from training.config import Config, Objective
from training.data.windows import Batch, Splits
from training.errors import BadConfig
from training.learners import Classifier, Learner

NEG_INF = float("-inf")
SEED = 20_201_206  # of validation windows, for runs of any seed
PART = 25  # windows measured together


def log_scores(
    learner: Learner, batch: Batch, objective: Objective, supervision: Tensor | None
) -> Tensor:
    """`log p(y_t | x_t, what the objective conditions on)` (B, T), nan where unlabelled.

    supervision: (B, T) as in `Changes.changepoint`, used by mode `moca` only. Raises ValueError for
    an oracle without known switches.
    """
    if isinstance(learner, Classifier):
        if batch.x is None:
            raise ValueError("a classifier needs inputs, got none")
        return _of_labels(learner.log_probabilities(batch.x), batch.y)
    model = learner.model()
    prior = start(model, batch)
    data = Sequences(batch.x, batch.y)
    if objective.mode == "coe" and not model.partial:  # of partial labels only the matrix knows
        return segments.from_start(model, prior, data)
    if objective.mode == "moca":
        matrix = segments.segment_matrix(model, prior, data)
        changes = Changes(learner.hazard, batch.elapsed, supervision)
        return segments.forward(matrix, changes).log_score
    matrix = segments.segment_matrix(model, prior, data, longest=objective.window)
    scores = segments.select(matrix, _starts(batch, objective))
    weight = objective.prior_weight
    if objective.mode != "oracle" or weight == 0:
        return scores
    by_prior = segments.select(matrix, segments.window(batch.y.shape[1], 0))
    return torch.logaddexp(scores + math.log1p(-weight), by_prior + math.log(weight))


def labelled(learner: Learner, y: Tensor) -> Tensor:
    """Whether there is a label to forecast (B, T) of y (B, T, d): where that counts, a part of it.

    By the labels, not their scores: a failed score must spoil what it is part of, not pass for a
    missing label.
    """
    present = ~torch.isnan(y)
    return present.any(-1) if learner.partial else present.all(-1)


def start(model: UnderlyingModel, batch: Batch) -> Prior:
    """Prior of every window."""
    zeros = batch.y.new_zeros(len(batch.y), model.scaled)
    return moca.make_prior(model, zeros, zeros + 1)


def reveal(batch: Batch, share: float, generator: torch.Generator) -> Tensor | None:
    """Supervision (B, T): 1 at a share of the true switches, nan elsewhere (paper, app. D.4).

    None for a share of 0. Raises BadConfig where the switches are unknown.
    """
    if share == 0:
        return None
    if batch.switch is None:
        raise BadConfig("supervision needs the true switches: those of the data are unknown")
    chosen = torch.rand(batch.switch.shape, generator=generator) < share
    supervision = torch.full(batch.switch.shape, math.nan)
    supervision[chosen & batch.switch.cpu()] = 1.0
    return supervision.to(batch.switch.device)


def class_log_probabilities(
    learner: Learner, batch: Batch, objective: Objective, supervision: Tensor | None = None
) -> Tensor:
    """`log p(class | x_t, what the objective conditions on)` (B, T, J)."""
    if isinstance(learner, Classifier):
        assert batch.x is not None
        return learner.log_probabilities(batch.x)
    model = learner.model()
    assert isinstance(model, Pcoc)
    matrix, log_class = _by_start(model, batch, objective.window)
    if objective.mode == "moca":
        weight = segments.forward(matrix, Changes(learner.hazard, batch.elapsed, supervision))
        # By start again: what is not a hypothesis has no weight, whatever the classes there.
        by_start = segments.by_start(weight.log_given_input)
        return torch.logsumexp(by_start.unsqueeze(2) + log_class, 1).mT
    index = _starts(batch, objective)[:, None, None].expand(-1, 1, log_class.shape[2], -1)
    return log_class.gather(1, index).squeeze(1).mT


def accuracy(log_probability: Tensor, y: Tensor) -> Tensor:
    """Whether the most probable class is the label (B, T), nan where either is not known."""
    label = y.squeeze(-1)
    unknown = torch.isnan(label) | torch.isnan(log_probability).any(-1)
    right = (log_probability.argmax(-1) == label).to(log_probability.dtype)
    return torch.where(unknown, torch.nan, right)


def _starts(batch: Batch, objective: Objective) -> Tensor:
    """Starts (B, T) of what each observation is conditioned on, in a mode other than `moca`."""
    if objective.mode != "oracle":
        window = segments.window(batch.y.shape[1], objective.window)
        return window.to(batch.y.device).expand(len(batch.y), -1)
    if batch.switch is None:
        raise ValueError("mode oracle needs the true switches: those of the data are unknown")
    return segments.oracle(batch.switch)


def _of_labels(log_probability: Tensor, y: Tensor) -> Tensor:
    """Log probabilities (B, T) of labels (B, T, 1) by those of all classes, nan where missing."""
    present = ~torch.isnan(y)
    index = torch.where(present, y, 0.0).long()
    return torch.where(present, log_probability.gather(-1, index), torch.nan).squeeze(-1)


def _by_start(model: Pcoc, batch: Batch, longest: int | None) -> tuple[Segments, Tensor]:
    """The matrices by [s, t], and log probabilities of every class by [s, j, t]."""
    rows = segments.observed_rows(model, start(model, batch), Sequences(batch.x, batch.y))
    weight = rows.labelled.to(rows.y.dtype)
    joint = model.every_joint(model.required(rows.phi), rows.y, weight, longest)
    evidence = joint.logsumexp(2)
    log_class = joint - evidence.unsqueeze(2)
    steps = batch.y.shape[1]
    index = torch.where(rows.labelled, rows.y.squeeze(-1), 0.0).long()
    index = index[:, None, None].expand(-1, steps, 1, -1)
    label = log_class.gather(2, index).squeeze(2).masked_fill(~rows.labelled.unsqueeze(1), 0.0)
    unseen = torch.ones(steps, steps, dtype=torch.bool, device=label.device).tril(-1)
    label = label.masked_fill(unseen, NEG_INF)
    evidence = evidence.masked_fill(unseen, NEG_INF)
    return Segments(label, evidence, rows.labelled), log_class


class Validation:
    """Windows of the validation split, the same for all runs of one experiment."""

    def __init__(self, config: Config, splits: Splits, device: str) -> None:
        wanted = config.validation
        length = wanted.length or config.optimiser.length
        generator = torch.Generator().manual_seed(SEED)
        batch = splits.validation(generator, wanted.windows, length)
        self.supervision = reveal(batch, config.objective.supervision, generator)
        self.batch = batch
        self.objective = config.objective
        self.classes = splits.classes
        self.device = device
        self.dtype = config.optimiser.precision

    def measure(self, learner: Learner) -> dict[str, float]:
        """Mean negative log predictive, and the accuracy of classifiers; nan if any failed."""
        supervision = self.supervision
        learner.eval()
        metrics = measured(
            learner,
            self.batch.to(self.device, self.dtype),
            self.objective,
            None if supervision is None else supervision.to(self.device, self.dtype),
            classes=self.classes,
        )
        learner.train()
        present = labelled(learner, self.batch.y).to(self.device)
        return {name: value[present].mean().item() for name, value in metrics.items()}


@torch.no_grad()
def measured(
    learner: Learner,
    batch: Batch,
    objective: Objective,
    supervision: Tensor | None = None,
    *,
    classes: int = 0,
    part: int = PART,
) -> dict[str, Tensor]:
    """`nll` and, of classes, `accuracy` of every observation, (B, T), nan where unlabelled."""
    metrics: dict[str, list[Tensor]] = {}
    for first in range(0, len(batch.y), part):
        at = slice(first, first + part)
        some = batch.part(at)
        revealed = None if supervision is None else supervision[at]
        if classes:
            chances = class_log_probabilities(learner, some, objective, revealed)
            values = {"nll": -_of_labels(chances, some.y), "accuracy": accuracy(chances, some.y)}
        else:
            values = {"nll": -log_scores(learner, some, objective, revealed)}
        for name, value in values.items():
            metrics.setdefault(name, []).append(value)
    return {name: torch.cat(parts) for name, parts in metrics.items()}
