"""Trained runs and their scores on the test sequences of the paper's protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.config import Config, Objective
from training.data.base import Batch, Splits
from training.errors import BadRun
from training.evaluation import filter_trace
from training.experiments.jobs import learner
from training.learners import Classifier, Learner
from training.meta_training.objective import labelled, reveal, start
from training.meta_training.runs import Run, finished
from training.meta_training.validation import measured

SEED = 20_200_107  # of test sequences, whatever the seed of the run
VERSION = 2  # of what test sequences are drawn from and how they are scored; more with each change
DTYPE = torch.float64
NAMES = {"moca": "MOCA", "oracle": "oracle", "toe": "TOE", "coe": "COE"}


class Protocol(NamedTuple):
    """Test protocol (paper, app. C): number and length of sequences, and the metric."""

    sequences: int
    length: int
    metric: str = "nll"
    dtype: torch.dtype = DTYPE
    part: int = 10  # sequences measured at once

    @property
    def better(self) -> int:
        """Sign of an improvement."""
        return 1 if self.metric == "accuracy" else -1


PROTOCOLS = {
    "sinusoid": Protocol(200, 400),
    "bandit": Protocol(50, 400),
    "players": Protocol(200, 150),
    "rainbow": Protocol(200, 400, "accuracy", torch.float32, 4),
    "miniimagenet": Protocol(200, 400, "accuracy", torch.float32, 4),
    "regimes": Protocol(200, 200),
    "data": Protocol(200, 100),
}


class Trained(NamedTuple):
    """A finished run."""

    run: Run
    config: Config
    result: dict[str, Any]

    @property
    def hazard(self) -> float | None:
        """Hazard of the data, if constant and known."""
        value = self.config.data.get("hazard")
        return None if value is None else float(value)

    @property
    def method(self) -> str:
        """Name in tables and figures: the mode, followed by the variation's name."""
        mode = self.config.objective.mode
        label = NAMES.get(mode, mode.upper())
        return f"{label} {self.config.name}".strip()


def trained(folder: Path) -> Iterator[Trained]:
    """Every finished run under a folder; raises BadRun."""
    for run in finished(folder):
        yield Trained(run, run.config(), run.result())


def best(runs: Sequence[Trained]) -> dict[tuple[float | None, str], Trained]:
    """The run with the best validation of each hazard and method, over learning rates."""
    chosen: dict[tuple[float | None, str], Trained] = {}
    for run in runs:
        key = (run.hazard, run.method)
        other = chosen.get(key)
        if other is None or run.result["best_metric"] < other.result["best_metric"]:
            chosen[key] = run
    return chosen


def load(trained_run: Trained, splits: Splits, dtype: torch.dtype = DTYPE) -> Learner:
    """A run's learner with its best parameters, in evaluation mode."""
    progress, _ = trained_run.run.load()
    # In the precision of the training first: an offset may need it.
    config = trained_run.config
    best_learner = learner(config, splits).to(getattr(torch, config.optimiser.dtype))
    best_learner.load_state_dict(progress.best)
    return best_learner.to(dtype).eval()


def sequences(splits: Splits, protocol: Protocol) -> Batch:
    """The test sequences: the same for every method."""
    generator = torch.Generator().manual_seed(SEED)
    return splits.test.draw(generator, protocol.sequences, protocol.length)


def scores(
    trained_run: Trained, splits: Splits, protocol: Protocol, objective: Objective | None = None
) -> NDArray[np.float64]:
    """The metric of each test sequence (sequences,), cached in the run's folder.

    objective: conditioning of the test, by default that of the training; its supervision is the
    share of switches that the test reveals.
    """
    tested = objective or trained_run.config.objective
    name = digest(trained_run, str(protocol), tested.model_dump_json(), SEED)
    file = trained_run.run.folder / f"test-{name}.npy"
    if file.exists():
        cached: NDArray[np.float64] = np.load(file)
        return cached
    batch = sequences(splits, protocol)
    supervision = _supervision(batch, tested)
    batch = batch.to("cpu", protocol.dtype)
    best_learner = load(trained_run, splits, protocol.dtype)
    served = None if isinstance(best_learner, Classifier) else best_learner.served()
    if served is not None and served.believes:  # what it remembers only the filter knows
        if tested.mode != "moca" or tested.supervision:
            raise BadRun(f"{trained_run.run.folder}: a fleet is filtered, which is mode moca alone")
        each = -filter_trace.log_scores(served, start(served, batch), batch)
    else:
        each = measured(
            best_learner,
            batch,
            tested,
            None if supervision is None else supervision.to(protocol.dtype),
            classes=splits.classes,
            part=protocol.part,
        )[protocol.metric]
    value = _mean(each, labelled(best_learner, batch.y)).numpy()
    np.save(file, value)
    return value


def _mean(score: Tensor, known: Tensor) -> Tensor:
    """Mean of each sequence (B,) over labelled observations: a failed score makes it nan."""
    total = torch.where(known, score.double(), 0.0).sum(-1)
    return total / known.sum(-1)


def _supervision(batch: Batch, tested: Objective) -> Tensor | None:
    if tested.supervision == 0:
        return None
    if batch.switch is None:
        raise BadRun(
            "a test with supervision needs the true switches: those of the data are unknown"
        )
    return reveal(batch.switch, tested.supervision, torch.Generator().manual_seed(SEED + 1))


def digest(trained_run: Trained, *protocol: str | int) -> str:
    """Digest of a run, its result and the protocol of a test: part of the cache file's name."""
    key = [VERSION, trained_run.config.model_dump(mode="json"), trained_run.result, protocol]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
