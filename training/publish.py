"""From a run that is done to a model that a service offers, with its training report."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model_core import artifact, segments
from model_core.segments import Changes, Sequences
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import NEWEST
from training import experiments, publish_report, report_files
from training import publish_alarms as alarms
from training.config import OWN, Config
from training.data.base import Batch, Splits
from training.errors import BadConfig, BadRun
from training.evaluation.own import finished
from training.evaluation.trained import DTYPE, PROTOCOLS, Protocol, Trained, load, sequences
from training.experiments import Place
from training.objective import start
from training.report import Report

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
AUTO = "auto"
TOLERANCE = 1e-5  # nats, of what is written against what was trained
CHECKED, STEPS = 4, 100  # test sequences on which that is compared, and their first observations


class Wanted(NamedTuple):
    """What to publish, and as what.

    version: a whole number, or `auto` for the next. data: where a user's data are now, if not
    where they were. page: whether there is a report.html. date: kept only if given. simulated:
    observations from which false alarms are known at each threshold; 0: they are not.
    """

    run: Path
    name: str
    models_dir: Path
    version: str = AUTO
    place: Place = Place(None, Path("cache"))
    data: Path | None = None
    description: str = ""
    date: str | None = None
    page: bool = True
    simulated: int = 0


def publish(wanted: Wanted, said: alarms.Said = alarms.silent) -> Path:
    """Write the artifact and its report; the folder, which appears at once and complete.

    What is written is loaded again first, and must give the scores that the run's parameters give.
    `said` is told of simulated observations: how many more, and of how many.
    Raises BadConfig for a name or version that cannot be had, BadRun for a run that cannot be used.
    """
    folder = wanted.models_dir / _checked_name(wanted.name)
    _version(folder, wanted.version)  # before the work
    torch.set_num_threads(1)
    each = finished(wanted.run, wanted.data)
    splits = experiments.splits(each.config, wanted.place)
    protocol = protocol_of(each.config)
    batch = sequences(splits, protocol)
    found = publish_report.report(wanted.name, each, splits, protocol, digest(each.config, batch))
    temporary = folder / f".publish-{os.getpid()}"
    try:
        _write(temporary, wanted, each, splits, found)
        _check(temporary, load(each, splits).model(), _first(batch))
        alarms.simulate(temporary, wanted.simulated, batch, said)
        return _placed(temporary, folder, wanted.version)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()  # that of a model without any version


def protocol_of(config: Config) -> Protocol:
    """How a run is tested; windows of one's own data are as long as in training."""
    protocol = PROTOCOLS[config.experiment]
    if config.experiment == OWN:
        protocol = protocol._replace(length=config.optimiser.length)
    metric = "accuracy" if config.model.kind == "pcoc" else "nll"
    return protocol._replace(metric=metric)


def digest(config: Config, batch: Batch) -> str:
    """Of the data: of one's own files, else of the test sequences."""
    if config.experiment == OWN:
        return str(config.data["digest"])
    found = hashlib.sha256()
    for each in (batch.x, batch.y):
        if each is not None:
            found.update(each.contiguous().numpy().tobytes())
    return f"sha256:{found.hexdigest()} (test sequences)"


def summary(each: Trained, found: Report, date: str | None) -> dict[str, Any]:
    """The field `training` of a `model.json`: short, the report has the rest."""
    metric = found.metrics[0]
    said = {
        "experiment": each.config.experiment,
        "mode": each.config.objective.mode,
        "iterations": each.result["iterations"],
        "best_iteration": each.result["best_iteration"],
        "metric": {"name": metric.name, "unit": metric.unit, **metric.estimate._asdict()},
        "data_digest": found.data_digest,
        "versions": {"moca-service": metadata.version("moca-service"), "torch": torch.__version__},
        "report": "report.json",
    }
    return said if date is None else {**said, "date": date}


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BadConfig(f"--name: expected letters, digits and . _ -, got {name!r}")
    if name in NEWEST:
        raise BadConfig(f"--name: {name!r} is a built-in model, and would be ignored")
    return name


def _version(folder: Path, wanted: str) -> int:
    """The version to be; raises BadConfig."""
    taken = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if wanted == AUTO:
        return 1 + max((int(name) for name in taken if name.isdecimal()), default=0)
    if not wanted.isdecimal() or str(int(wanted)) != wanted:
        raise BadConfig(f"--version: expected a whole number or {AUTO}, got {wanted!r}")
    if wanted in taken:
        raise BadConfig(f"--version: {folder / wanted} is there already, and is never overwritten")
    return int(wanted)


def _write(folder: Path, wanted: Wanted, each: Trained, splits: Splits, found: Report) -> None:
    dtype: torch.dtype = getattr(torch, each.config.optimiser.dtype)
    learner = load(each, splits, dtype)
    description, tensors = learner.artifact()
    about = {"description": wanted.description or _described(each)}
    training = {"training": summary(each, found, wanted.date)}
    artifact.save(folder, {**description, **about, **training}, tensors)
    # Whoever may read the description may read the tensors, the service under its own user, too.
    (folder / artifact.TENSORS).chmod((folder / artifact.DESCRIPTION).stat().st_mode)
    if wanted.page:
        report_files.write(folder, found)
    else:
        report_files.write_numbers(folder, found)


def _described(each: Trained) -> str:
    what = "data of one's own" if each.config.experiment == OWN else each.config.experiment
    return f"Trained on {what}; see its report."


def _first(batch: Batch) -> Batch:
    x = None if batch.x is None else batch.x[:CHECKED, :STEPS]
    return Batch(x, batch.y[:CHECKED, :STEPS])


@torch.no_grad()
def _check(folder: Path, model: UnderlyingModel, batch: Batch) -> None:
    """Raise BadRun unless what was written says what the parameters say."""
    written = artifact.load(folder)
    batch = batch.to("cpu", DTYPE)
    ours, theirs = (_scores(each, batch) for each in (model, written))
    worst = float((ours - theirs).abs()[~ours.isnan()].max())
    if not worst <= TOLERANCE:
        raise BadRun(
            f"{folder.parent.name}: what was written scores up to {worst:.1e} nats off what was "
            "trained: nothing is published"
        )


def _scores(model: UnderlyingModel, batch: Batch) -> Tensor:
    """`log p(y_t | x_t, past)` (B, T)."""
    found = segments.segment_matrix(model, start(model, batch), Sequences(batch.x, batch.y))
    hazard = torch.tensor(model.hazard, dtype=DTYPE).reshape(1, -1)
    return segments.forward(found, Changes(hazard)).log_score


def _placed(temporary: Path, folder: Path, version: str) -> Path:
    """Rename into place; a version that was taken meanwhile is not touched."""
    for _ in range(100):
        target = folder / str(_version(folder, version))
        try:
            return temporary.rename(target)
        except OSError:
            if not target.exists():
                raise
    raise BadConfig(f"{folder}: its versions keep being taken by others")
