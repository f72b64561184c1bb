"""Trained runs on the paper's test protocol: `moca evaluate EXPERIMENT`.

First of one run: its scores on the test sequences, and traces of the filter over them. Then of all
runs of an experiment or an ablation: tables and figures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track
from torch import Tensor

from model_core import segments
from model_core.hazard import table_of
from model_core.segments import Changes, Sequences
from model_core.stream.columns import packed
from model_core.stream.slab import Refused
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.upm.base import UnderlyingModel
from training import catalogue, figures
from training.catalogue import Ablation
from training.config import OWN, Objective
from training.data.files import Place, save
from training.data.windows import Batch, Series, Splits
from training.errors import BadRun
from training.figures import Chart
from training.learners import Classifier, Learner, learner
from training.meta_training.objective import labelled, measured, reveal, start
from training.meta_training.runs import RESULT, Run
from training.online import Followed, follow
from training.results import (
    Estimate,
    calibration_error,
    coverage,
    distance,
    estimate,
    page,
    paired,
    reliability,
    write,
)

SEED = 20_200_107  # of test sequences, whatever the seed of the run
VERSION = 2  # of what test sequences are drawn from and how they are scored; more with each change
Values = NDArray[np.float64]
DTYPE = torch.float64
CALIBRATION_SEQUENCES = 25  # test sequences on which calibration is measured
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage is measured
MEDIAN = (0.5,)  # without a level predictives are not summed up
METRICS = {"nll": ("test NLL", "nats"), "accuracy": ("test accuracy", "")}  # name and unit
Charts = list[tuple[str, Chart]]  # by the name of their files
Setting = float | None  # the hazard; None if that of the data is unknown
Key = tuple[Setting, str]  # setting and method

BASELINES = ("SW5", "SW10", "SW50", "TOE", "COE")
# Names of methods trained without switches and tested with them, and the other way round.
CROSSED = {
    "MOCA": "MOCA, switches known in the test",
    "oracle": "oracle, switches unknown in the test",
}
# What the paper has for methods (fig. 4), mean and half of the interval: on games of its own.
PAPERS = {
    "players": {
        "MOCA": (-3.291, 0.074),
        "SW5": (-3.032, 0.058),
        "SW10": (-3.049, 0.054),
        "SW50": (-3.061, 0.054),
        "TOE": (0.889, 0.073),
        "COE": (-3.044, 0.059),
    }
}
DRAWN = 150  # observations of a sequence whose belief is drawn


class Protocol(NamedTuple):
    """Test protocol (paper, app. C): number and length of sequences, and the metric."""

    sequences: int
    length: int
    metric: str = "nll"
    dtype: torch.dtype = DTYPE
    part: int = 10  # sequences measured at once

    @property
    def measure(self) -> str:
        """Name of the metric, with its unit."""
        name, unit = METRICS[self.metric]
        return f"{name} ({unit})" if unit else name

    @property
    def better(self) -> int:
        """Sign of an improvement."""
        return 1 if self.metric == "accuracy" else -1


def protocol_of(run: Run) -> Protocol:
    """Test protocol of a run; windows of own data are as long as in training."""
    tested: Protocol = catalogue.module(run.config.experiment).PROTOCOL
    if run.config.experiment == OWN:
        tested = tested._replace(length=run.config.optimiser.length)
    metric = "accuracy" if run.config.model.kind == "pcoc" else "nll"
    return tested._replace(metric=metric)


def kept(
    run: Run, test: str, key: Sequence[str | int], measure: Callable[[], dict[str, Values]]
) -> dict[str, Values]:
    """What a test measures; kept in the run's folder, by a digest of result and `key`."""
    whole = [VERSION, run.config.model_dump(mode="json"), run.result, key]
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    file = run.folder / f"{test}-{digest}.npz"
    if not file.exists():
        save(file, **measure())
    with np.load(file) as arrays:
        return dict(arrays)


def finished(folder: Path) -> list[Run]:
    """Every finished run under a folder, by name."""
    return [Run(result.parent) for result in sorted(folder.rglob(RESULT))]


def best(runs: Sequence[Run], axis: str = "data.hazard") -> dict[Key, Run]:
    """The run with the best validation of each setting and method, over learning rates."""
    chosen: dict[Key, Run] = {}
    for run in runs:
        key = (run.config.setting(axis), run.config.method)
        other = chosen.get(key)
        if other is None or run.result["best_metric"] < other.result["best_metric"]:
            chosen[key] = run
    return chosen


def load(run: Run, splits: Splits, dtype: torch.dtype = DTYPE) -> Learner:
    """A run's learner with its best parameters, in evaluation mode."""
    progress, _ = run.load()
    # In the precision of the training first: an offset may need it.
    best_learner = learner(run.config, splits).to(run.config.optimiser.precision)
    best_learner.load_state_dict(progress.best)
    return best_learner.to(dtype).eval()


def sequences(splits: Splits, protocol: Protocol) -> Batch:
    """The test sequences: the same for every method."""
    generator = torch.Generator().manual_seed(SEED)
    return splits.test(generator, protocol.sequences, protocol.length)


def scores(
    run: Run, splits: Splits, protocol: Protocol, objective: Objective | None = None
) -> Values:
    """The metric of each test sequence (sequences,), kept in the run's folder.

    objective: conditioning of the test, by default that of the training; its supervision is the
    share of switches that the test reveals. A failed score makes that of its sequence nan.
    """
    tested = objective or run.config.objective

    def measure() -> dict[str, Values]:
        batch = sequences(splits, protocol)
        generator = torch.Generator().manual_seed(SEED + 1)
        supervision = reveal(batch, tested.supervision, generator)
        if supervision is not None:
            supervision = supervision.to(protocol.dtype)
        batch = batch.to("cpu", protocol.dtype)
        best_learner = load(run, splits, protocol.dtype)
        served = None if isinstance(best_learner, Classifier) else best_learner.served()
        if served is not None and served.believes:  # what it remembers only the filter knows
            if tested.mode != "moca" or tested.supervision:
                raise BadRun(f"{run.folder}: a fleet is filtered, which is mode moca alone")
            metric = -log_scores(served, batch)
        else:
            metric = measured(
                best_learner,
                batch,
                tested,
                supervision,
                classes=splits.classes,
                part=protocol.part,
            )[protocol.metric]
        present = labelled(best_learner, batch.y)
        total = torch.where(present, metric.double(), 0.0).sum(-1)
        return {"score": (total / present.sum(-1)).numpy()}

    key: list[str | int] = [str(protocol), tested.model_dump_json(), SEED]
    return kept(run, "test", key, measure)["score"]


def log_scores(model: UnderlyingModel, batch: Batch) -> Tensor:
    """`log p(y_t | x_t, past)` (B, T), nan where unlabelled, of sequences in units of their own."""
    return torch.from_numpy(np.stack([one.log_score for one in _followed(model, batch)]))


def as_stream(
    model: UnderlyingModel,
    series: Series,
    settings: StreamSettings = DEFAULTS,
    levels: Sequence[float] = (),
) -> Followed:
    """A series by the pipeline of a stream; raises BadRun where the model's numbers are nan."""
    try:
        return follow(model, series.y, settings, levels, series.x, series.elapsed)
    except Refused as error:
        raise BadRun(
            f"series {series.name!r} cannot be filtered by {model.kind}: {error}"
        ) from error


@torch.no_grad()
def _followed(model: UnderlyingModel, batch: Batch, levels: Sequence[float] = ()) -> list[Followed]:
    """Each sequence as a stream; all are in units of their own, which need no warm-up."""
    settings = DEFAULTS
    if model.needs_scale:
        settings = settings._replace(location=[0.0] * model.y_dim, scale=[1.0] * model.y_dim)
    return [as_stream(model, one, settings, levels) for one in batch.series()]


@torch.no_grad()
def trace(model: UnderlyingModel, batch: Batch) -> Tensor:
    """Belief (B, T, T) `b_t(r | x_t, y_t)` by [t, r] over whole sequences; nothing is pruned."""
    batch = batch.to("cpu", DTYPE)
    data = Sequences(batch.x, batch.y)
    matrix = segments.segment_matrix(model, start(model, batch), data)
    hazard = torch.from_numpy(table_of(model.hazard)).unsqueeze(0)
    return segments.forward(matrix, Changes(hazard, batch.elapsed)).log_posterior.exp()


def calibration(run: Run, splits: Splits) -> tuple[dict[str, Any], Chart]:
    """PITs of numbers or reliability of classes, of sequences as streams.

    pit_distance: of the PITs from uniform (Kolmogorov-Smirnov). coverage: (level, share inside) of
    central intervals. class_error: expected calibration error of a classifier. What does not apply
    is None or empty.
    """
    batch = sequences(splits, protocol_of(run)).part(slice(0, CALIBRATION_SEQUENCES))
    followed = _followed(load(run, splits).served(), batch, MEDIAN)
    measures: dict[str, Any] = {"pit_distance": None, "coverage": [], "class_error": None}
    if splits.classes:
        probability = np.stack([one.summary.mean for one in followed])
        bins = reliability(probability, batch.y.squeeze(-1).numpy())
        measures["class_error"] = calibration_error(bins)
        return measures, figures.classifier(bins)
    pits = np.stack([one.summary.cdf for one in followed])
    measures["pit_distance"] = distance(pits)
    measures["coverage"] = list(zip(LEVELS, coverage(pits, LEVELS).tolist(), strict=True))
    return measures, figures.calibration(pits)


def validations(run: Run) -> Chart:
    """Validations of a run while it trained."""
    method = run.config.method
    return figures.validation({method: run.result["history"]}, f"{method}: validation")


@torch.no_grad()
def density(model: UnderlyingModel, series: Series, x: Tensor, y: Tensor) -> Tensor:
    """Density (len(y), len(x)) of the label y (Q,) that follows a series, at inputs x (G, 1)."""
    settings = DEFAULTS._replace(max_hypotheses=max(2, len(series.y)))
    pipeline = as_stream(model, series, settings).pipeline
    seen = pipeline.coming(len(x))._replace(x=x.numpy())
    mixture, _ = pipeline.slab.mixture(0, packed(model, seen))
    return torch.stack([mixture.log_prob(label.expand(len(x), 1)).exp() for label in y])


# --- runs of an experiment or an ablation beside each other --------------------------------------


class Comparison(NamedTuple):
    """Scores of methods by setting.

    values: by (setting, method), the metric of each test sequence, the same for all. metric: its
    name and unit. better: 1 where more is better, else -1. axis: the name of the settings.
    """

    name: str
    metric: str
    better: int
    values: Mapping[Key, Values]
    axis: str = "hazard"

    def settings(self) -> list[Setting]:
        """Settings, ascending."""
        return sorted({setting for setting, _ in self.values}, key=lambda setting: setting or 0.0)

    def methods(self) -> list[str]:
        """Methods in the paper's order."""
        return list(figures.looks({method: None for _, method in self.values}))

    def estimates(self) -> dict[Key, Estimate]:
        """Means with their 95 % intervals over sequences."""
        return {key: estimate(values) for key, values in self.values.items()}

    def ahead(self, ours: Key, theirs: Key) -> Estimate:
        """Paired lead of a setting and method over another on the same sequences."""
        return paired(self.better * self.values[ours], self.better * self.values[theirs])

    def leads(self) -> dict[Setting, tuple[str, Estimate]]:
        """MOCA's paired lead at each setting, and over what; positive is better.

        Over the best baseline; of an ablation of one method its own lead over the first setting.
        """
        leads = {}
        first, *others = self.settings()
        for setting in (first, *others):
            present = [name for name in BASELINES if (setting, name) in self.values]
            if present and (setting, "MOCA") in self.values:
                best = max(
                    present, key=lambda name: self.better * self.values[setting, name].mean()
                )
                leads[setting] = best, self.ahead((setting, "MOCA"), (setting, best))
        methods = self.methods()
        if len(methods) == 1 and self.axis != "hazard":
            for setting in others:
                ahead = self.ahead((setting, methods[0]), (first, methods[0]))
                leads[setting] = f"{first:g}", ahead
        return leads

    def table(self) -> str:
        """A row for each method, a column for each setting; leads; the paper's numbers."""
        return page(
            "comparison.md",
            comparison=self,
            estimates=self.estimates(),
            leads=self.leads(),
            papers=PAPERS.get(self.name, {}),
        )

    def chart(self) -> Chart:
        """Performance against the settings, with error bars."""
        curves: dict[str, dict[float, Estimate]] = {method: {} for method in self.methods()}
        for (setting, method), mean in sorted(self.estimates().items()):
            curves[method][setting or 0.0] = mean
        title = f"{self.name}: performance against {self.axis}"
        return figures.against(curves, self.metric, title, self.axis)


def show_table(
    comparison: Comparison, runs: Mapping[Key, Run], out: Path, console: Console
) -> None:
    """Print a table; write `table.md`, and `table.json` with details of the runs that are there."""
    rows = []
    for key, mean in comparison.estimates().items():
        named = dict(zip((comparison.axis, "method"), key, strict=True))
        row = {**named, "metric": comparison.metric, **mean._asdict()}
        if key in runs:
            config = runs[key].config
            result = runs[key].result
            row |= {
                "learning_rate": config.optimiser.learning_rate,
                "iterations": result["iterations"],
                "seconds": round(result["elapsed_s"], 1),
                "seed": config.seed,
            }
        rows.append(row)
    save_table(comparison.table(), {"name": comparison.name, "rows": rows}, out, console)


def save_table(table: str, numbers: Any, out: Path, console: Console) -> None:
    """Print a table; write it as `table.md`, and its numbers as `table.json`."""
    console.print(Markdown(table))
    write(out / "table.json", numbers)
    (out / "table.md").write_text(table, "utf-8")


def save_charts(charts: Charts, out: Path, console: Console) -> None:
    """Write figures beside the tables."""
    for name, chart in charts:
        chart.save(out / name)
    console.print(f"tables and figures in {out}")


class Study(NamedTuple):
    """What to evaluate, and where results go. name: of the preset, or of the ablation."""

    experiment: str
    name: str
    runs: Path
    place: Place
    out: Path
    ablation: Ablation | None = None

    @property
    def folder(self) -> Path:
        """Folder of the runs."""
        return self.runs / self.experiment / self.name

    def chosen(self) -> dict[Key, Run]:
        """The best run of each setting and method.

        Raises BadRun where nothing is trained, and for an ablation that is not complete.
        """
        runs = finished(self.folder)
        if not runs:
            option = "" if self.ablation is None else f" --ablation {self.name}"
            raise BadRun(
                f"{self.folder}: no finished run; run moca train {self.experiment}{option}"
            )
        if self.ablation is not None and len(runs) < self.ablation.size:
            raise BadRun(
                f"{self.folder}: {len(runs)} of {self.ablation.size} runs are finished; run moca "
                f"train {self.experiment} --ablation {self.name}"
            )
        return best(runs, (self.ablation or catalogue.GRID).axis)

    def tests(self, run: Run) -> dict[str, Objective]:
        """Conditioning of the tests of a run, by the method's name in the comparison."""
        method = run.config.method
        trained = run.config.objective
        if self.ablation is None:
            tests = {method: trained}
            if method in CROSSED:
                other = "oracle" if trained.mode == "moca" else "moca"
                tests[CROSSED[method]] = Objective(mode=other)
            return tests
        mode = self.ablation.mode or trained.mode
        if not self.ablation.supervision:
            return {method: Objective(mode=mode)}
        return {
            f"{share:g} known in the test": Objective(mode=mode, supervision=share)
            for share in self.ablation.supervision
        }


def evaluate(wanted: Study) -> Comparison:
    """Print the table, write it and the figures; raises BadRun where nothing is trained."""
    torch.set_num_threads(1)
    console = Console()
    chosen = wanted.chosen()
    splits = _splits(wanted, chosen)
    protocol: Protocol = catalogue.module(wanted.experiment).PROTOCOL
    values: dict[Key, Values] = {}
    for (setting, _), run in track(chosen.items(), "testing", console=console, transient=True):
        for name, tested in wanted.tests(run).items():
            try:
                values[setting, name] = scores(run, splits[setting], protocol, tested)
            except ValueError:
                if name not in CROSSED.values():  # these need not have known switches
                    raise
    axis = "hazard" if wanted.ablation is None else wanted.ablation.label
    title = wanted.experiment if wanted.ablation is None else wanted.ablation.question
    comparison = Comparison(title, protocol.measure, protocol.better, values, axis)
    show_table(comparison, chosen, wanted.out, console)
    charts = [("performance", comparison.chart())] if len(comparison.settings()) > 1 else []
    if wanted.ablation is None:
        charts += _pictures(wanted, chosen, splits, protocol)
    save_charts(charts, wanted.out, console)
    return comparison


def _splits(wanted: Study, chosen: Mapping[Key, Run]) -> dict[Setting, Splits]:
    """Data of each setting: methods are compared on the same sequences; raises BadRun."""
    first: dict[Setting, Run] = {}
    for (setting, _), run in chosen.items():
        other = first.setdefault(setting, run)
        if other.config.data != run.config.data:
            names = f"{other.folder.name} and {run.folder.name}"
            raise BadRun(
                f"{wanted.folder}: {names} have different data; use a folder or preset for each"
            )
    return {setting: catalogue.splits(run.config, wanted.place) for setting, run in first.items()}


def _pictures(
    wanted: Study, chosen: Mapping[Key, Run], splits: Mapping[Setting, Splits], protocol: Protocol
) -> Charts:
    """Of each run of MOCA belief and calibration, and how all methods validated beside it."""
    charts: Charts = []
    for (setting, method), run in chosen.items():
        if method != "MOCA":
            continue
        end = "" if setting is None else f"-{setting:g}"
        title = "Validation" if setting is None else f"Validation at hazard {setting:g}"
        histories = {
            other: one.result["history"] for (at, other), one in chosen.items() if at == setting
        }
        panels = figures.BY_ITERATION_AND_TIME
        if protocol.metric == "accuracy":
            panels = (("elapsed_s", "nll"), ("elapsed_s", "accuracy"))
        picture = catalogue.module(wanted.experiment).picture
        charts += [
            (f"belief{end}", picture(run, splits[setting], wanted.place)),
            (f"calibration{end}", calibration(run, splits[setting])[1]),
            (f"losses{end}", figures.validation(histories, title, panels)),
        ]
    return charts


def first_sequence(run: Run, splits: Splits) -> Batch:
    """The first test sequence, as far as its belief is drawn."""
    return sequences(splits, protocol_of(run)).part(slice(0, 1)).cut(0, DRAWN)


def belief_picture(run: Run, splits: Splits, place: Place) -> Chart:
    """Belief over the first test sequence, with its switches."""
    batch = first_sequence(run, splits)
    assert batch.switch is not None
    (belief,) = trace(load(run, splits).model(), batch)
    return figures.heat_map(belief.numpy(), batch.switch[0].numpy())
