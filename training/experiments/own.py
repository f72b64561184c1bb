"""A user's own series: read, split and scaled; and a trained model beside the built-in ones.

`moca evaluate data` runs every model as the service does: step by step from the start of each test
series, in bounded memory, at its own default settings. All are scored on the same observations,
those after `BURN_IN`, when the untrained models have left their warm-up; if all are shorter, those
after the warm-up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from model_core.stream_settings import DEFAULTS, VECTOR_OUTPUTS
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options as ModelOptions
from model_core.upm.builtin import build
from training import paper
from training.config import OWN, Config, checked
from training.data import tables
from training.data.tables import DataSource
from training.data.windows import (
    Scaling,
    Series,
    Splits,
    consecutive,
    fixed,
    in_units,
    shortened,
    windows,
)
from training.errors import BadConfig, BadData, BadRun
from training.meta_training.runs import Run
from training.paper import Protocol
from training.results import Estimate, MethodComparison, compared, estimate, page

PROTOCOL = Protocol(200, 100)
ROUNDED = 1e-3  # largest rounding error of a value, in standard deviations
PARTS = ("training", "validation", "test")
BURN_IN = 50  # unscored observations at the start of a series, of which 20 are warm-up
LEAST_BURN_IN = DEFAULTS.warmup  # where no series is longer than that
GENERATED = 50  # test sequences of an experiment with generated data

Values = NDArray[np.float64]


def splits(config: Config) -> Splits:
    """Data of a run; raises BadData if they are not what it was trained on."""
    source = checked(DataSource, config.data)
    if source.digest and (now := digest(source.path)) != source.digest:
        raise BadData(
            f"{source.path}: {now} is not {source.digest}, the digest of the training data"
        )
    sources, _ = split(source, read(source, config), config)
    return sources


def digest(path: Path) -> str:
    """Digest of a file, or of the files in a folder with their names; raises BadData."""
    content = hashlib.sha256()
    try:
        for file in tables.files(path):
            if path.is_dir():
                content.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as opened_file:
                hashlib.file_digest(opened_file, lambda: content)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from error
    return f"sha256:{content.hexdigest()}"


def read(source: DataSource, config: Config) -> list[Series]:
    """Every series; raises BadData, naming file, row and column."""
    kind = config.model.kind
    return tables.read(source, classes=kind == "pcoc", partial=kind == "fleet")


def split(source: DataSource, series: Sequence[Series], config: Config) -> tuple[Splits, list[str]]:
    """Split and scale series; also lines about those that are shorter than a window.

    Raises BadData, or BadConfig where switches are needed.

    By time, the first share `train` of every series is for training, the next `validation`, the
    rest the test; by stream, the first of the series, the next, the rest, each whole. Training
    windows are random, those of validation and test disjoint and consecutive. Inputs and labels are
    scaled to mean 0 and standard deviation 1 over the training part; but windows of a fleet begin
    with a warm-up that gives their labels units.
    """
    supervised = config.objective.mode == "oracle" or config.objective.supervision > 0
    if supervised and any(one.switch is None for one in series):
        raise BadConfig(
            f"{source.path}: the switches are unknown: mode oracle and supervision need a column "
            "of changepoints (--changepoint)"
        )
    classes = config.model.kind == "pcoc"
    warmup = DEFAULTS.warmup if config.model.kind == "fleet" else 0
    if source.train + source.validation >= 1:
        raise BadData(
            f"{source.path}: expected shares above 0 that leave some for the test, got train "
            f"{source.train}, validation {source.validation}"
        )
    parts = _parts(source, series, source.by)
    length = config.optimiser.length
    short: list[str] = []
    padded = []
    try:
        for name, part in zip(PARTS, parts, strict=True):
            short += _short(name, part, length, warmup, source.by)
            padded.append([one.padded(warmup + length) for one in part if len(one.y) > warmup])
            if all(bool(one.y[warmup:].isnan().all()) for one in padded[-1]):
                raise BadData(
                    f"no row for {name} by {source.by} has a label; name other columns with --y, "
                    "or change the shares"
                )
        train = windows(padded[0])
        validation = fixed(consecutive(padded[1], warmup + length))
        test = fixed(consecutive(padded[2], warmup + length))
    except BadData as error:
        raise BadData(f"{source.path}: {error}") from error
    x_dim = 0 if series[0].x is None else series[0].x.shape[1]
    y_dim = series[0].y.shape[1]
    scaling = scaling_of(parts[0], labels=not (classes or warmup))
    if warmup:
        spread = scaling_of(series, labels=True).y_scale
        if not bool(torch.isfinite(spread).all()):
            raise BadData(
                f"{source.path}: labels have the standard deviations {spread.tolist()}, expected "
                "finite ones: divide them first"
            )
        train = in_units(train, warmup)
        validation = in_units(validation, warmup)
        test = in_units(test, warmup)
    count = 1 + int(max(one.y.nan_to_num(0).max() for one in series)) if classes else 0
    return Splits(train, validation, test, x_dim, y_dim, count, scaling, parts[2]), short


def _parts(source: DataSource, series: Sequence[Series], by: str) -> list[list[Series]]:
    """Shares of every series, or of the series, in their order: see `PARTS`."""
    shares = list(pairwise((0.0, source.train, source.train + source.validation, 1.0)))
    if by == "stream":
        count = len(series)
        return [list(series[round(low * count) : round(high * count)]) for low, high in shares]
    return [
        [one.part(slice(round(low * len(one.y)), round(high * len(one.y)))) for one in series]
        for low, high in shares
    ]


def _short(name: str, parts: Sequence[Series], length: int, warmup: int, by: str) -> list[str]:
    """Messages about series too short for a window, or for anything; BadData if all are."""
    why = "" if not warmup else f", more than the {warmup} that give a stream its units are needed"
    lines = [
        f"stream {one.name!r}: {len(one.y)} observations for {name}{why}"
        for one in parts
        if len(one.y) <= warmup
    ]
    if len(lines) == len(parts):
        reason = shortened(lines, "; ") if lines else "there is no stream left for it"
        raise BadData(f"no window for {name} by {by}: {reason}")
    padded = [repr(one.name) for one in parts if warmup < len(one.y) < warmup + length]
    lines = [f"left out: {line}" for line in lines]
    if padded:
        lines.append(
            f"shorter than a window of {warmup + length}, padded with missing labels: "
            f"{len(padded)} of {len(parts)} streams for {name}, {shortened(padded)}"
        )
    return lines


def scaling_of(series: Sequence[Series], *, labels: bool) -> Scaling:
    """Scaling to mean 0 and standard deviation 1 over all observations; labels: of these, too."""
    y = torch.cat([one.y for one in series])
    inputs = [one.x for one in series if one.x is not None]
    x_offset, x_scale = _moments(torch.cat(inputs) if inputs else y.new_zeros(1, 0))
    if not labels:
        return Scaling(x_offset, x_scale, torch.zeros(y.shape[1]), torch.ones(y.shape[1]))
    return Scaling(x_offset, x_scale, *_moments(y))


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; 1 where a column never changes."""
    mean = values.nanmean(0).nan_to_num(0)
    spread = (values - mean).square().nanmean(0).sqrt()
    # The mean of equal values differs from them by rounding.
    return mean, torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)


def check_scaling(splits: Splits, config: Config) -> None:
    """Raise BadData where the training's dtype cannot represent or distinguish the values."""
    limits = torch.finfo(config.optimiser.precision)
    scaling = splits.scaling
    assert scaling is not None
    for name, offset, scale in (
        ("inputs", scaling.x_offset, scaling.x_scale),
        ("labels", scaling.y_offset, scaling.y_scale),
    ):
        large = (offset.abs() + scale) > limits.max / 1e3
        # A constant column has scale 1, and nothing to distinguish.
        alike = (limits.eps * offset.abs() > ROUNDED * scale) & (scale != 1)
        if bool((large | ~torch.isfinite(scale) | alike).any()):
            raise BadData(
                f"{name}: mean {offset.tolist()} and standard deviation {scale.tolist()} are "
                f"beyond {config.optimiser.dtype}: subtract or divide first, or "
                "--set 'optimiser.dtype=\"float64\"'"
            )


class HeldOutScores(NamedTuple):
    """Log scores of one observation of the test series: means over blocks of them.

    name, trained: of the trained model. untrained: the others. block: length of a block.
    observations: total number scored. burn_in: unscored ones at the start of a series.
    """

    name: str
    trained: Estimate
    untrained: tuple[MethodComparison, ...]
    block: int
    observations: int
    burn_in: int


def evaluate(run: Run, splits: Splits, out: Path | None = None) -> HeldOutScores:
    """Print the table, and write it as `table.json` and `table.md`; raises TrainingError."""
    torch.set_num_threads(1)
    console = Console()
    folder = run.folder
    scores = compare(run, splits, console)
    paper.save_table(table(folder.name, scores), scores, out or folder / "evaluation", console)
    return scores


def finished(folder: Path, data: Path | None = None) -> Run:
    """A finished run; `data`: where its data are now. Raises BadRun or BadConfig."""
    run = Run(folder)
    config = run.config
    if data is not None:
        if config.experiment != OWN:
            raise BadConfig(
                f"--data: the run is of the experiment {config.experiment!r}, which has its own"
            )
        run.config = config.model_copy(update={"data": {**config.data, "path": str(data)}})
    if not run.done:
        raise BadRun(f"{folder}: run is not finished; continue it with moca train ... --resume")
    if config.objective.mode == "toe" and config.model.kind == "pcoc":
        raise BadRun(f"{folder}: a classifier of mode toe never adapts and cannot be served")
    return run


def compare(run: Run, splits: Splits, console: Console, most: int | None = None) -> HeldOutScores:
    """Log scores of the run's model and of the untrained ones, on its test series.

    most: observations from the start of each that are looked at; None: all. Raises BadData where
    no series is long enough.
    """
    series = list(splits.held_out)
    if not series:
        protocol = paper.protocol_of(run)._replace(sequences=GENERATED)
        batch = paper.sequences(splits, protocol)
        series = batch.to("cpu", torch.float64).series()
    burn_in = BURN_IN if any(len(one.y) > BURN_IN for one in series) else LEAST_BURN_IN
    # Nothing of a shorter series is scored.
    series = [one.part(slice(0, most)) for one in series if len(one.y) > burn_in]
    length = run.config.optimiser.length
    models = {"": paper.load(run, splits).served(), **_untrained(run.config, splits)}
    scores = {
        name: log_scores(model, series)
        for name, model in track(models.items(), "filtering", console=console, transient=True)
    }
    # A warm-up lasts longer where labels are missing, and not all models have one.
    for rows in zip(*scores.values(), strict=True):
        unknown = torch.stack(rows).isnan().any(0)
        for row in rows:
            row[unknown] = torch.nan
    ours = scores.pop("")
    blocks = block_means(ours, length, burn_in)
    if not len(blocks):
        raise BadData(
            f"no test series has more than {burn_in} observations, and a whole label after them: "
            "nothing to score"
        )
    return HeldOutScores(
        name=f"trained {run.config.model.kind}",
        trained=estimate(blocks),
        untrained=tuple(
            compared(name, "log score", blocks, block_means(theirs, length, burn_in))
            for name, theirs in scores.items()
        ),
        block=length,
        observations=sum(int((~row[burn_in:].isnan()).sum()) for row in ours),
        burn_in=burn_in,
    )


def by_streams_alone(source: DataSource, series: Sequence[Series]) -> bool:
    """Whether test parts of whole streams can be scored, and those at the ends of streams cannot.

    Nothing could then be compared with the built-in models if the data were split by time.
    """
    parts = _parts(source, series, "stream")
    longest = max(len(one.y) for one in series)
    share = 1 - source.train - source.validation
    return (
        share * longest <= LEAST_BURN_IN
        and all(parts)
        and max(len(one.y) for one in parts[2]) > LEAST_BURN_IN
    )


def _untrained(config: Config, splits: Splits) -> dict[str, UnderlyingModel]:
    """Built-in models for a run's labels; with inputs also the linear one."""
    if splits.classes:
        return {"categorical": build("categorical", ModelOptions(classes=splits.classes))}
    x_dim = splits.x_dim
    y_dim = splits.y_dim
    plain = ModelOptions(y_dim=y_dim)
    models = {name: build(name, plain) for name in ("autoregressive", "averaged")}
    lags = config.model.lags
    if lags > 1:
        options = ModelOptions(y_dim=y_dim, order=lags)
        models[f"autoregressive, order {lags}"] = build("autoregressive", options)
    if 1 < y_dim <= VECTOR_OUTPUTS:
        models["joint"] = build("joint", plain)
    models["gaussian"] = build("gaussian", plain)
    if x_dim:
        models["linear"] = build("linear", ModelOptions(y_dim=y_dim, x_dim=x_dim))
    return models


def log_scores(model: UnderlyingModel, series: Sequence[Series]) -> list[Tensor]:
    """`log p(y_t | x_t, past)` of every series (N,), nan where an output or all are missing.

    Not all models learn from what is left of such a label, and a density of fewer outputs is no
    match for one of all. It is nan in the warm-up, too.
    """
    rows = []
    for one in series:
        score = torch.from_numpy(paper.as_stream(model, one).log_score)
        rows.append(score.masked_fill(one.y.isnan().any(-1), torch.nan))
    return rows


def block_means(scores: Sequence[Tensor], length: int, burn_in: int) -> Values:
    """Mean of every block of `length` after the burn-in; the last may be half of one."""
    means = []
    for series in scores:
        for start in range(burn_in, len(series), length):
            block = series[start : start + length]
            present = block[~block.isnan()]
            only = len(series) - burn_in <= length
            if len(present) and (only or 2 * len(block) >= length):
                means.append(float(present.mean()))
    return np.array(means)


def table(name: str, scores: HeldOutScores) -> str:
    """The table of a run, as Markdown."""
    return page("held_out.md", name=name, scores=scores)
