"""Fixed windows on which every run of a task is measured alike."""

from __future__ import annotations

import torch
from torch import Tensor

from training.config import Config, Objective
from training.data.base import Batch, Splits
from training.learners import Learner
from training.objective import log_scores, reveal
from training.predictions import accuracy, class_log_probabilities

SEED = 20_201_206  # of validation windows, whatever the seed of the run
PART = 25  # windows measured at once


class Validation:
    """Windows of the validation split, the same for all runs of one experiment."""

    def __init__(self, config: Config, splits: Splits, device: str) -> None:
        wanted = config.validation
        length = wanted.length or config.optimiser.length
        generator = torch.Generator().manual_seed(SEED)
        batch = splits.validation.draw(generator, wanted.windows, length)
        self.told: Tensor | None = None
        if config.objective.supervision > 0 and batch.switch is not None:
            self.told = reveal(batch.switch, config.objective.supervision, generator)
        self.batch, self.objective = batch, config.objective
        self.classes = splits.classes
        self.device, self.dtype = device, getattr(torch, config.optimiser.dtype)

    def measure(self, learner: Learner) -> dict[str, float]:
        """Mean negative log predictive, and the accuracy of classifiers; nan if any failed."""
        learner.eval()
        found = measured(
            learner,
            self.batch.to(self.device, self.dtype),
            self.objective,
            None if self.told is None else self.told.to(self.device, self.dtype),
            classes=self.classes,
        )
        learner.train()
        # By the labels that are there: a score that failed must show, not count as a missing label.
        labelled = (~torch.isnan(self.batch.y).any(-1)).to(self.device)
        return {name: value[labelled].mean().item() for name, value in found.items()}


@torch.no_grad()
def measured(
    learner: Learner,
    batch: Batch,
    objective: Objective,
    told: Tensor | None = None,
    *,
    classes: int = 0,
    part: int = PART,
) -> dict[str, Tensor]:
    """`nll` and, of classes, `accuracy` of every observation, (B, T), nan where unlabelled."""
    found: dict[str, list[Tensor]] = {}
    for first in range(0, len(batch.y), part):
        at = slice(first, first + part)
        some, revealed = batch.part(at), None if told is None else told[at]
        if classes:
            each = _classified(learner, some, objective, revealed)
        else:
            each = {"nll": -log_scores(learner, some, objective, revealed)}
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return {name: torch.cat(parts) for name, parts in found.items()}


def _classified(
    learner: Learner, batch: Batch, objective: Objective, told: Tensor | None
) -> dict[str, Tensor]:
    log_probability = class_log_probabilities(learner, batch, objective, told)
    labelled = ~torch.isnan(batch.y)
    index = torch.where(labelled, batch.y, 0.0).long()
    score = torch.where(labelled, log_probability.gather(-1, index), torch.nan).squeeze(-1)
    return {"nll": -score, "accuracy": accuracy(log_probability, batch.y)}
