"""Publish a finished run as a model artifact with its training report."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.markdown import Markdown

from model_core import artifact
from model_core.artifact_digest import DESCRIPTION, TENSORS
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN
from training import catalogue, paper, results
from training.config import OWN, Config, Objective
from training.data.files import Place
from training.data.windows import Batch, Splits
from training.errors import BadConfig, BadData, BadRun, TrainingError
from training.experiments import own
from training.figures import Chart
from training.meta_training.runs import Run
from training.paper import DTYPE, METRICS, Protocol
from training.results import MethodComparison, compared, estimate

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
AUTO = "auto"
TOLERANCE = 1e-5  # nats between the scores of the written artifact and of the run
CHECKED = 4  # test sequences of that comparison
STEPS = 100  # their first observations
COMPARED = 2000  # first observations of each held-out series that built-in models forecast, too

VERSION = 1  # of the layout of report.json
SERVED = Objective()  # the service's conditioning, for any mode of training


class Publication(NamedTuple):
    """Run, name and options of a publication.

    version: an integer, or `auto` for the next. data: new path of own data that were moved. page:
    whether to write report.html. date: optional, kept with the model. anyway: whether a model that
    is behind a built-in one is published, too. regimes: names of its typical regimes, in order;
    none: numbers.
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
    anyway: bool = False
    regimes: Sequence[str] = ()


def publish(wanted: Publication, console: Console | None = None) -> Path:
    """Write the artifact and its report; returns the folder, which appears atomically.

    The written artifact is loaded and must reproduce the scores of the run's parameters first. A
    model of own data is compared with the built-in ones before, on the console if there is one.
    Raises BadConfig for an invalid name or version, BadRun for an unusable run.
    """
    console = console or Console(quiet=True)
    if not NAME.fullmatch(wanted.name):
        raise BadConfig(f"--name: expected letters, digits and . _ -, got {wanted.name!r}")
    if wanted.name in BUILTIN:
        raise BadConfig(f"--name: {wanted.name!r} is the name of a built-in model; choose another")
    folder = wanted.models_dir / wanted.name
    _version(folder, wanted.version)  # before the work
    torch.set_num_threads(1)
    run = own.finished(wanted.run, wanted.data)
    priors = run.config.model.priors
    names = wanted.regimes
    if names and priors == 1:
        raise BadConfig(
            "--regimes: the model has no typical regimes: leave it out, or train with --set "
            "model.priors=4"
        )
    if names and (not all(names) or not len(names) == len(set(names)) == priors):
        raise BadConfig(f"--regimes: expected {priors} different names, got {', '.join(names)!r}")
    splits = catalogue.splits(run.config, wanted.place)
    batch = paper.sequences(splits, paper.protocol_of(run))
    report, charts = measured(wanted, run, splits, batch, console)
    temporary = folder / f".publish-{os.getpid()}"
    try:
        _write(temporary, wanted, run, splits, report)
        write_report(temporary, report, charts, page=wanted.page)
        model = paper.load(run, splits).served()
        _check(temporary, model, batch.part(slice(0, CHECKED)).cut(0, STEPS))
        return _placed(temporary, folder, wanted.version)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()  # of a model without any version


def _version(folder: Path, wanted: str) -> int:
    """The new version; raises BadConfig."""
    versions = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if wanted == AUTO:
        return 1 + max((int(name) for name in versions if name.isdecimal()), default=0)
    if not wanted.isdecimal() or str(int(wanted)) != wanted:
        raise BadConfig(f"--version: expected a whole number or {AUTO}, got {wanted!r}")
    if wanted in versions:
        raise BadConfig(
            f"--version: {folder / wanted} exists and is never overwritten; choose another"
        )
    return int(wanted)


def _write(
    folder: Path, wanted: Publication, run: Run, splits: Splits, report: Mapping[str, Any]
) -> None:
    learner = paper.load(run, splits, run.config.optimiser.precision)
    description, tensors = learner.artifact()
    data = "data of one's own" if run.config.experiment == OWN else run.config.experiment
    text = wanted.description or f"Trained on {data}; see its report."
    about: dict[str, Any] = {"description": text}
    if wanted.regimes:
        named = zip(description["regimes"], wanted.regimes, strict=True)
        about["regimes"] = [{**regime, "name": name} for regime, name in named]
    metric = report["metrics"][0]
    about["training"] = {
        "experiment": run.config.experiment,
        "mode": run.config.objective.mode,
        "iterations": run.result["iterations"],
        "best_iteration": run.result["best_iteration"],
        "metric": {
            "name": metric["name"],
            "unit": metric["unit"],
            **metric["estimate"]._asdict(),
        },
        "data_digest": report["data_digest"],
        "versions": {"moca-service": metadata.version("moca-service"), "torch": torch.__version__},
        "report": "report.json",
        **({} if wanted.date is None else {"date": wanted.date}),
    }
    artifact.save(folder, {**description, **about}, tensors)
    # The service runs under its own user: it may read the tensors if it may read the description.
    (folder / TENSORS).chmod((folder / DESCRIPTION).stat().st_mode)


@torch.no_grad()
def _check(folder: Path, model: UnderlyingModel, batch: Batch) -> None:
    """Raise BadRun unless the written artifact gives the scores of the run's parameters."""
    written = artifact.load(folder)
    batch = batch.to("cpu", DTYPE)
    ours = paper.log_scores(model, batch)
    theirs = paper.log_scores(written, batch)
    worst = float((ours - theirs).abs()[~ours.isnan()].max())
    if not worst <= TOLERANCE:
        raise BadRun(
            f"{folder.parent.name}: scores of the written artifact differ from the run's by up to "
            f"{worst:.1e} nats, expected at most {TOLERANCE:.0e}: nothing is published"
        )


def _placed(temporary: Path, folder: Path, version: str) -> Path:
    """Rename into place; a version taken by another process meanwhile is not touched."""
    for _ in range(100):
        target = folder / str(_version(folder, version))
        try:
            return temporary.rename(target)
        except OSError:
            if not target.exists():
                raise
    raise BadConfig(f"{folder}: other processes keep taking the next version; try again")


# --- the report: test scores, other methods, calibration; as a page and as JSON -----------------


def measured(
    wanted: Publication, run: Run, splits: Splits, batch: Batch, console: Console
) -> tuple[dict[str, Any], list[Chart]]:
    """Report of a run's model, measured on the test split, whose sequences are the batch.

    environment: that of the training, with its duration. comparisons: other methods on the same
    sequences. untrained: built-in models on the held-out part of own data, by log score (more is
    better); empty: not compared. history: one record for each validation, which the first of the
    charts shows.
    """
    untrained = _untrained(wanted, run, splits, console)
    protocol = paper.protocol_of(run)
    first = protocol.metric
    other = [metric for metric in METRICS if metric != first and splits.classes]
    values = {
        metric: paper.scores(run, splits, protocol._replace(metric=metric), SERVED)
        for metric in (first, *other)
    }
    configuration = run.config.model_dump(mode="json")
    if run.config.experiment == OWN:  # of own files only the name, as their path is private
        configuration["data"]["path"] = Path(configuration["data"]["path"]).name
    calibration, chart = paper.calibration(run, splits)
    report = {
        "version": VERSION,
        "name": wanted.name,
        "kind": run.config.model.kind,
        "data_digest": digest(run.config, batch),
        "configuration": configuration,
        "environment": {
            "torch": run.result["torch"],
            "device": run.result["device"],
            "seed": run.config.seed,
            "wall_time_s": run.result["elapsed_s"],
        },
        "metrics": [
            {
                "name": METRICS[metric][0],
                "estimate": estimate(of_metric[~np.isnan(of_metric)]),
                "unit": METRICS[metric][1],
            }
            for metric, of_metric in values.items()
        ],
        "comparisons": _comparisons(run, splits, protocol, values[first]),
        "untrained": untrained,
        "calibration": calibration,
        "history": run.result["history"],
    }
    return report, [paper.validations(run), chart]


def _comparisons(
    run: Run, splits: Splits, protocol: Protocol, ours: NDArray[np.float64]
) -> tuple[MethodComparison, ...]:
    """Other methods trained on the same data, of each the run with the best validation."""

    def comparable(one: Run) -> tuple[Any, ...]:
        config = one.config
        # Own files count by their digest, at any path.
        data = {**config.data, "path": ""} if config.experiment == OWN else config.data
        return data, config.experiment, config.model.kind, config.optimiser.length

    others = [
        other
        for other in paper.finished(run.folder.resolve().parent)
        if comparable(other) == comparable(run) and other.config.method != run.config.method
    ]
    comparisons = []
    for (_, method), other in paper.best(others).items():
        try:
            theirs = paper.scores(other, splits, protocol)
        except (TrainingError, ValueError, RuntimeError):  # another shape, or switches unknown
            continue
        comparisons.append(compared(method, METRICS[protocol.metric][0], ours, theirs))
    return tuple(comparisons)


def write_report(
    folder: Path, report: Mapping[str, Any], charts: Sequence[Chart], page: bool = True
) -> None:
    """Write `report.json`, with the texts of the charts alone, and, as a page, `report.html`."""
    drawn = [{"title": chart.title, "description": chart.description} for chart in charts]
    results.write(folder / "report.json", {**report, "figures": drawn})
    if not page:
        return
    settings = list(_flat(report["configuration"]))
    content = {**report, "figures": charts, "settings": settings}
    text = results.page("report.html", **content)
    (folder / "report.html").write_text(text, "utf-8")


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", str(value)


def _untrained(
    wanted: Publication, run: Run, splits: Splits, console: Console
) -> tuple[MethodComparison, ...]:
    """Built-in models on the run's held-out data; raises BadRun where one is clearly ahead."""
    if run.config.experiment != OWN:
        return ()
    try:
        scores = own.compare(run, splits, console, COMPARED)
    except BadData as error:
        console.print(
            f"Warning: this model is published without a comparison with the built-in ones, which "
            f"may forecast better: {error}. Hold whole streams out (moca train --hold-out stream), "
            "or train on longer series.",
            style="yellow",
        )
        return ()
    console.print(Markdown(own.table(wanted.name, scores)))
    clear = [other for other in scores.untrained if other.difference.high < 0]
    best = min(clear or scores.untrained, key=lambda other: other.difference.mean)
    lead = best.difference
    if lead.mean < 0:
        ahead = lead._replace(mean=-lead.mean, low=-lead.high, high=-lead.low)
        text = (
            f"the built-in model {best.method!r} is ahead of this one by {ahead} nats an "
            "observation on the held-out data"
        )
        if clear and not wanted.anyway:
            raise BadRun(
                f"{wanted.run}: {text}: use that, train longer or on more series, or publish this "
                "with --anyway"
            )
        console.print(f"Warning: {text}.", style="yellow")
    return scores.untrained


def digest(config: Config, batch: Batch) -> str:
    """Digest of the data: of own files, else of the test sequences."""
    if config.experiment == OWN:
        return str(config.data["digest"])
    content = hashlib.sha256()
    for values in (batch.x, batch.y):
        if values is not None:
            content.update(values.contiguous().numpy().tobytes())
    return f"sha256:{content.hexdigest()} (test sequences)"
