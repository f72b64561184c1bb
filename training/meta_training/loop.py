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

from model_core import transfer
from training.config import Config
from training.data.windows import Batch, Source, Splits
from training.errors import BadConfig
from training.learners import Learner
from training.meta_training.objective import Validation, labelled, log_scores, reveal
from training.meta_training.processes import World
from training.meta_training.runs import Progress, Run

MAX_SKIPPED = 100  # total iterations without a finite gradient before training fails
LOOK_EVERY = 10  # iterations between looks at the numbers of a device, for each of which it idles

# Called after each iteration, with the numbers that were looked at, on a CPU always the loss.
Report = Callable[[Progress, dict[str, float]], None]


class Job(NamedTuple):
    """A run to train."""

    config: Config
    splits: Splits
    learner: Learner
    run: Run
    device: str = "cpu"


class TrainingLoss(nn.Module):
    """Sum and number of `-log p` of a batch; processes share its gradient."""

    def __init__(self, learner: Learner, config: Config) -> None:
        super().__init__()
        self.learner = learner
        self.config = config.objective

    def forward(self, batch: Batch, supervision: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both scalars."""
        score = log_scores(self.learner, batch, self.config, supervision)
        present = labelled(self.learner, batch.y)
        return -torch.where(present, score, 0.0).sum(), present.sum()


def drawn(
    source: Source,
    config: Config,
    share: slice,
    generator: torch.Generator,
    device: torch.device,
) -> tuple[Batch, Tensor | None]:
    """Windows of one process's share of the next batch, with supervision as of `objective.reveal`.

    All processes draw whole batches, from generators of one seed. Raises BadConfig where
    supervision is not known.
    """
    wanted = config.optimiser
    batch = source(generator, wanted.batch, wanted.length)
    supervision = reveal(batch, config.objective.supervision, generator)
    if supervision is not None:
        supervision = transfer.to_device(supervision[share].to(wanted.precision), device)
    return batch.part(share).to(device, wanted.precision), supervision


def train(job: Job, world: World, report: Report, *, resume: bool = False) -> Progress:
    """Train until the iterations, the minutes or the patience are used up.

    With `resume` and a checkpoint it continues from there, bit for bit unless `minutes` are set.
    Raises BadConfig where training cannot continue.
    """
    config = job.config
    wanted = config.optimiser
    if wanted.minutes is not None and world.size > 1:
        raise BadConfig(
            "optimiser.minutes: processes have clocks that differ; use iterations with several"
        )
    share = world.share(wanted.batch)
    device = torch.device(job.device)
    on_host = device.type == "cpu"
    # On a CPU the process's own time, which other processes do not affect.
    clock = time.process_time if on_host else time.monotonic
    learner = job.learner.to(device, wanted.precision)
    parameters = [value for value in learner.parameters() if value.requires_grad]
    # Fused, the optimiser itself skips a step without the host's looking at the gradient.
    optimiser = torch.optim.Adam(parameters, lr=wanted.learning_rate, fused=not on_host or None)
    generator = torch.Generator().manual_seed(config.seed)
    progress = _begun(job, optimiser, generator, world, resume)
    skipped = torch.full((), float(progress.skipped), device=device)
    objective: nn.Module = TrainingLoss(learner, config)
    if world.size > 1:
        objective = DistributedDataParallel(objective)
    validation = Validation(config, job.splits, job.device)
    begun_s = clock() - progress.elapsed_s
    ended = world.agree(_ended(config, progress))
    while not ended:
        learner.train()
        batch, supervision = drawn(job.splits.train, config, share, generator, device)
        total, count = objective(batch, supervision)
        # Processes average gradients; each label counts the same whichever has it.
        loss = total * world.size / world.total(count).clamp(min=1)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        skipped += _step(optimiser, parameters, rate(config, progress), config)
        progress.iteration += 1
        progress.elapsed_s = clock() - begun_s
        validated = progress.iteration % config.validation.every == 0 or done(config, progress) >= 1
        measured: dict[str, float] = {}
        if on_host or validated or progress.iteration % LOOK_EVERY == 0:
            measured["loss"] = _look(world.total(loss.detach()), skipped, progress) / world.size
        if validated:
            measured |= _validated(job, validation, learner, progress, world)
            progress.generator = generator.get_state()
            if world.leads:
                parts = {"learner": learner.state_dict(), "optimiser": optimiser.state_dict()}
                job.run.save(progress, parts)
            ended = world.agree(_ended(config, progress))
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
    """Restore everything from the checkpoint, or begin a new folder."""
    if not (resume and job.run.begun):
        if world.leads:
            job.run.begin(job.config)
        return Progress()
    job.run.check(job.config)
    progress, parts = job.run.load()
    job.learner.load_state_dict(parts["learner"])
    # Its options are those of the device, which may be another one now.
    options = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({**parts["optimiser"], "param_groups": options})
    if progress.generator is not None:
        generator.set_state(progress.generator)
    return progress


def rate(config: Config, progress: Progress) -> float:
    """Learning rate of the next iteration."""
    wanted = config.optimiser
    base = wanted.learning_rate
    iteration = progress.iteration
    if iteration < wanted.warmup:
        return base * (iteration + 1) / wanted.warmup
    if wanted.schedule == "step":
        return base * wanted.decay ** (iteration // wanted.decay_every)
    if wanted.schedule == "cosine":
        return base * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done(config, progress))))
    return base


def done(config: Config, progress: Progress) -> float:
    """Completed share of the run, in [0, 1]."""
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


def _step(
    optimiser: torch.optim.Adam,
    parameters: list[nn.Parameter],
    learning_rate: float,
    config: Config,
) -> Tensor:
    """One step of the optimiser, or none where the gradient is not finite.

    Returns the number of steps skipped, 0 or 1, as a scalar on the device.
    """
    clip = config.optimiser.clip
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip)
    skipped = (~torch.isfinite(norm)).float()
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    if not transfer.on_host(norm):
        # As torch.amp.GradScaler tells it.
        optimiser.grad_scale = None  # type: ignore[attr-defined]
        optimiser.found_inf = skipped  # type: ignore[attr-defined]
        optimiser.step()
    elif not skipped:
        optimiser.step()
    return skipped


def _look(loss: Tensor, skipped: Tensor, progress: Progress) -> float:
    """The loss, once the device has computed it; raises BadConfig where too many were skipped."""
    value, count = torch.stack((loss.double(), skipped.double())).tolist()
    progress.skipped = int(count)
    if progress.skipped > MAX_SKIPPED:
        raise BadConfig(
            f"{progress.skipped} gradients were not finite by iteration {progress.iteration}: "
            "try a lower learning rate, or float64"
        )
    return float(value)


def _validated(
    job: Job, validation: Validation, learner: Learner, progress: Progress, world: World
) -> dict[str, float]:
    """Validate; keep the parameters if they are the best so far."""
    if not world.leads:
        return {}
    measured = validation.measure(learner)
    # Negated where higher is better, so that lower is better always.
    accuracy = job.config.validation.metric == "accuracy"
    metric = -measured["accuracy"] if accuracy else measured["nll"]
    if math.isfinite(metric) and (progress.best_metric is None or metric < progress.best_metric):
        progress.best_metric = metric
        progress.best_iteration = progress.iteration
        progress.best = copy.deepcopy(learner.state_dict())
    progress.history.append(
        {
            "iteration": progress.iteration,
            "elapsed_s": progress.elapsed_s,
            "learning_rate": rate(job.config, progress),
            "hazard": learner.hazard.item(),
            **measured,
        }
    )
    return {f"validation/{name}": value for name, value in measured.items()}


def _result(config: Config, progress: Progress) -> dict[str, Any]:
    if progress.best_metric is None:
        raise BadConfig(
            "no validation gave a finite number: no parameters were kept; try a lower learning rate"
        )
    return {
        "iterations": progress.iteration,
        "elapsed_s": progress.elapsed_s,
        "best_iteration": progress.best_iteration,
        "best_metric": progress.best_metric,
        "metric": config.validation.metric,
        "skipped": progress.skipped,
        "history": progress.history,
    }
