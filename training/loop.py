"""The training loop, top to bottom: draw windows, step, validate, keep the best, save."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.config import Config
from training.data.base import Batch, Splits
from training.errors import BadConfig
from training.learners import Learner
from training.objective import log_scores, reveal
from training.processes import World
from training.runs import Progress, Run
from training.validation import Validation

MAX_SKIPPED = 100  # iterations without a finite gradient, in all, before it is given up

Report = Callable[[Progress, dict[str, float]], None]


class Job(NamedTuple):
    """A run to be done."""

    config: Config
    splits: Splits
    learner: Learner
    run: Run
    device: str = "cpu"


class Objective(nn.Module):
    """Sum and number of `-log p` of a batch: what processes share the gradient of."""

    def __init__(self, learner: Learner, config: Config) -> None:
        super().__init__()
        self.learner, self.config = learner, config.objective

    def forward(self, batch: Batch, told: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both scalars."""
        score = log_scores(self.learner, batch, self.config, told)
        # Not by the score: one that failed must spoil the loss, not count as a missing label.
        labelled = ~torch.isnan(batch.y).any(-1)
        return -torch.where(labelled, score, 0.0).sum(), labelled.sum()


def train(job: Job, world: World, report: Report, *, resume: bool = False) -> Progress:
    """Train until the iterations, the minutes or the patience are at an end.

    With `resume` and a checkpoint it goes on from there, bit for bit, unless `minutes` decide.
    Raises BadConfig where training cannot go on.
    """
    config, wanted = job.config, job.config.optimiser
    if wanted.minutes is not None and world.size > 1:
        raise BadConfig("minutes cannot be given to several processes: their clocks differ")
    share, clock = world.share(wanted.batch), _clock(job.device)
    dtype: torch.dtype = getattr(torch, wanted.dtype)
    learner = job.learner.to(job.device, dtype)
    parameters = [each for each in learner.parameters() if each.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=wanted.learning_rate)
    generator = torch.Generator().manual_seed(config.seed)
    progress = _begun(job, optimiser, generator, world, resume)
    objective: nn.Module = Objective(learner, config)
    if world.size > 1:
        objective = DistributedDataParallel(objective)
    validation = Validation(config, job.splits, job.device)
    begun_s = clock() - progress.elapsed_s
    while not world.agree(_ended(config, progress)):
        learner.train()
        batch = job.splits.train.draw(generator, wanted.batch, wanted.length)
        told = _told(config, batch, generator)
        batch = batch.part(share).to(job.device, dtype)
        total, count = objective(batch, None if told is None else told[share].to(batch.y))
        # Processes average gradients; each label counts the same whichever has it.
        loss = total * world.size / world.total(count).clamp(min=1)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        _step(optimiser, parameters, rate(config, progress), config, progress)
        progress.iteration += 1
        progress.elapsed_s = clock() - begun_s
        measured = {"loss": world.total(loss.detach()).item() / world.size}
        if progress.iteration % config.validation.every == 0 or _ended(config, progress):
            measured |= _validated(job, validation, learner, progress, world)
            progress.generator = generator.get_state()
            _save(job, learner, optimiser, progress, world)
        report(progress, measured)
    if world.leads:
        where = {"device": job.device, "torch": torch.__version__}
        job.run.finish({**_result(config, progress), **where})
    return progress


def _begun(
    job: Job,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    world: World,
    resume: bool,
) -> Progress:
    """Everything as the checkpoint has it, or a new folder."""
    if not (resume and job.run.begun):
        if world.leads:
            job.run.begin(job.config)
        return Progress()
    job.run.check(job.config)
    progress, parts = job.run.load(job.device)
    job.learner.load_state_dict(parts["learner"])
    optimiser.load_state_dict(parts["optimiser"])
    if progress.generator is not None:
        generator.set_state(progress.generator)
    return progress


def _save(
    job: Job,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    world: World,
) -> None:
    if world.leads:
        parts = {"learner": learner.state_dict(), "optimiser": optimiser.state_dict()}
        job.run.save(progress, parts)


def _clock(device: str) -> Callable[[], float]:
    """Seconds; of the process's own time on a CPU, which other processes do not use up."""
    return time.process_time if device == "cpu" else time.monotonic


def rate(config: Config, progress: Progress) -> float:
    """Learning rate of the next iteration."""
    wanted = config.optimiser
    base, iteration = wanted.learning_rate, progress.iteration
    if iteration < wanted.warmup:
        return base * (iteration + 1) / wanted.warmup
    if wanted.schedule == "step":
        return base * wanted.decay ** (iteration // wanted.decay_every)
    if wanted.schedule == "cosine":
        return base * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done(config, progress))))
    return base


def done(config: Config, progress: Progress) -> float:
    """Share of the run that lies behind, in [0, 1]."""
    share = progress.iteration / config.optimiser.iterations
    if config.optimiser.minutes is not None:
        share = max(share, progress.elapsed_s / (60 * config.optimiser.minutes))
    return min(share, 1.0)


def _ended(config: Config, progress: Progress) -> bool:
    if done(config, progress) >= 1:
        return True
    patience = config.validation.patience
    waited = progress.iteration - progress.best_iteration
    return patience is not None and waited >= patience * config.validation.every


def _told(config: Config, batch: Batch, generator: torch.Generator) -> Tensor | None:
    """Supervision of a batch."""
    if config.objective.supervision == 0:
        return None
    if batch.switch is None:
        raise BadConfig("supervision needs switches, and nobody knows those of the data")
    return reveal(batch.switch, config.objective.supervision, generator)


def _step(
    optimiser: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    learning_rate: float,
    config: Config,
    progress: Progress,
) -> None:
    """One step of the optimiser, or none where the gradient is not finite."""
    clip = config.optimiser.clip
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip)
    if not torch.isfinite(norm):
        progress.skipped += 1
        if progress.skipped > MAX_SKIPPED:
            raise BadConfig(
                f"{progress.skipped} gradients were not finite by iteration {progress.iteration}: "
                "a lower learning rate, or float64, may help"
            )
        return
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    optimiser.step()


def _validated(
    job: Job, validation: Validation, learner: Learner, progress: Progress, world: World
) -> dict[str, float]:
    """Measure; keep the parameters if there were none as good."""
    if not world.leads:
        return {}
    found = validation.measure(learner)
    # Higher is better of an accuracy, lower of all else.
    metric = -found["accuracy"] if job.config.validation.metric == "accuracy" else found["nll"]
    if math.isfinite(metric) and (progress.best_metric is None or metric < progress.best_metric):
        progress.best_metric, progress.best_iteration = metric, progress.iteration
        progress.best = copy.deepcopy(learner.state_dict())
    progress.history.append(
        {
            "iteration": progress.iteration,
            "elapsed_s": progress.elapsed_s,
            "learning_rate": rate(job.config, progress),
            "hazard": learner.hazard.item(),
            **found,
        }
    )
    return {f"validation/{name}": value for name, value in found.items()}


def _result(config: Config, progress: Progress) -> dict[str, Any]:
    if progress.best_metric is None:
        raise BadConfig("no validation gave a finite number: nothing was learned")
    return {
        "iterations": progress.iteration,
        "elapsed_s": progress.elapsed_s,
        "best_iteration": progress.best_iteration,
        "best_metric": progress.best_metric,
        "metric": config.validation.metric,
        "skipped": progress.skipped,
        "history": progress.history,
    }
