"""Validation on fixed windows, the same for all runs of a task."""

from __future__ import annotations

import torch
from torch import Tensor

from training.config import Config, Objective
from training.data.windows import Batch, Splits
from training.learners import Learner
from training.meta_training.objective import (
    accuracy,
    class_log_probabilities,
    labelled,
    log_scores,
    reveal,
)

SEED = 20_201_206  # of validation windows, for runs of any seed
PART = 25  # windows measured together


class Validation:
    """Windows of the validation split, the same for all runs of one experiment."""

    def __init__(self, config: Config, splits: Splits, device: str) -> None:
        wanted = config.validation
        length = wanted.length or config.optimiser.length
        generator = torch.Generator().manual_seed(SEED)
        batch = splits.validation.draw(generator, wanted.windows, length)
        self.supervision: Tensor | None = None
        if config.objective.supervision > 0 and batch.switch is not None:
            self.supervision = reveal(batch.switch, config.objective.supervision, generator)
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
            values = _class_metrics(learner, some, objective, revealed)
        else:
            values = {"nll": -log_scores(learner, some, objective, revealed)}
        for name, value in values.items():
            metrics.setdefault(name, []).append(value)
    return {name: torch.cat(parts) for name, parts in metrics.items()}


def _class_metrics(
    learner: Learner, batch: Batch, objective: Objective, supervision: Tensor | None
) -> dict[str, Tensor]:
    log_probability = class_log_probabilities(learner, batch, objective, supervision)
    present = ~torch.isnan(batch.y)
    index = torch.where(present, batch.y, 0.0).long()
    score = torch.where(present, log_probability.gather(-1, index), torch.nan).squeeze(-1)
    return {"nll": -score, "accuracy": accuracy(log_probability, batch.y)}
