"""Trained runs on test sequences: every method on the same ones, over the paper's protocol."""

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
from training.jobs import learner
from training.learners import Learner
from training.objective import reveal
from training.runs import Run, finished
from training.validation import measured

SEED = 20_200_107  # of test sequences, whatever the seed of the run
DTYPE = torch.float64
NAMES = {"moca": "MOCA", "oracle": "oracle", "toe": "TOE", "coe": "COE"}


class Protocol(NamedTuple):
    """How a run is tested (paper, app. C): so many sequences of such a length."""

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
    """A run that is done."""

    run: Run
    config: Config
    result: dict[str, Any]

    @property
    def hazard(self) -> float | None:
        """Of the data, where there is one."""
        value = self.config.data.get("hazard")
        return None if value is None else float(value)

    @property
    def method(self) -> str:
        """As in tables and figures; a variation has its name behind."""
        mode = self.config.objective.mode
        shown = NAMES.get(mode, mode.upper())
        return f"{shown} {self.config.name}".strip()


def trained(folder: Path) -> Iterator[Trained]:
    """Every run under a folder that is done; raises BadRun."""
    for run in finished(folder):
        yield Trained(run, run.config(), run.result())


def best(found: Sequence[Trained]) -> dict[tuple[float | None, str], Trained]:
    """Of each hazard and method the run that did best in validation, over learning rates."""
    chosen: dict[tuple[float | None, str], Trained] = {}
    for each in found:
        key = (each.hazard, each.method)
        other = chosen.get(key)
        if other is None or each.result["best_metric"] < other.result["best_metric"]:
            chosen[key] = each
    return chosen


def load(each: Trained, splits: Splits, dtype: torch.dtype = DTYPE) -> Learner:
    """A run's learner with its best parameters, ready to be measured."""
    progress, _ = each.run.load()
    # In the precision of the training first: an offset may need it.
    found = learner(each.config, splits).to(getattr(torch, each.config.optimiser.dtype))
    found.load_state_dict(progress.best)
    return found.to(dtype).eval()


def sequences(splits: Splits, protocol: Protocol) -> Batch:
    """The test sequences: the same for every method."""
    generator = torch.Generator().manual_seed(SEED)
    return splits.test.draw(generator, protocol.sequences, protocol.length)


def scores(
    each: Trained, splits: Splits, protocol: Protocol, objective: Objective | None = None
) -> NDArray[np.float64]:
    """The metric of each test sequence (sequences,), kept beside the run once it is known.

    objective: what the test conditions on, that of the training unless given; its supervision is
    the share of switches that the test reveals.
    """
    tested = objective or each.config.objective
    name = digest(each, str(protocol), tested.model_dump_json(), SEED)
    file = each.run.folder / f"test-{name}.npy"
    if file.exists():
        kept: NDArray[np.float64] = np.load(file)
        return kept
    batch = sequences(splits, protocol)
    told = _told(batch, tested)
    found = measured(
        load(each, splits, protocol.dtype),
        batch.to("cpu", protocol.dtype),
        tested,
        None if told is None else told.to(protocol.dtype),
        classes=splits.classes,
        part=protocol.part,
    )[protocol.metric]
    value = _mean(found, batch).numpy()
    np.save(file, value)
    return value


def _mean(found: Tensor, batch: Batch) -> Tensor:
    """Of each sequence (B,), over what is labelled: a score that failed makes it nan."""
    labelled = ~torch.isnan(batch.y).any(-1)
    total = torch.where(labelled, found.double(), 0.0).sum(-1)
    return total / labelled.sum(-1)


def _told(batch: Batch, tested: Objective) -> Tensor | None:
    if tested.supervision == 0:
        return None
    if batch.switch is None:
        raise BadRun("a test with supervision needs switches, and nobody knows those of the data")
    return reveal(batch.switch, tested.supervision, torch.Generator().manual_seed(SEED + 1))


def digest(each: Trained, *how: str | int) -> str:
    """Of a run, of what training came to, and of how it is tested: names what is kept of a test."""
    said = [each.config.model_dump(mode="json"), each.result, how]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
