"""A user's own series: read from a file or folder, split, scaled, identified by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from model_core.stream_settings import DEFAULTS
from training.config import OWN, Config, Options, Section, checked
from training.data import tables
from training.data.base import Splits
from training.data.windows import InUnits, Series
from training.errors import BadConfig, BadData
from training.learners.base import Scaling

ROUNDED = 1e-3  # largest rounding error of a value, in standard deviations


class Source(Section):
    """The section `data` of a run on own series.

    digest: of the file's bytes; a run can only be resumed with the same bytes.
    """

    path: Path
    digest: str = ""
    y: tuple[str, ...] | None = None
    x: tuple[str, ...] | None = None
    stream: str | None = None
    time: str | None = None
    changepoint: str | None = None
    interval: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Time in one unit of the hazard, as the setting of streams: seconds.",
    )
    by: Literal["time", "stream"] = "time"
    train: float = Field(default=0.7, gt=0, lt=1)
    validation: float = Field(default=0.15, gt=0, lt=1)


class Opened(NamedTuple):
    """A user's data as a run reads them.

    validation, test: the series of these, or the parts of all series, unwindowed. scaling: to mean
    0 and standard deviation 1 over the training part; none of labels in units of each stream.
    short: lines about series shorter than a window.
    """

    splits: Splits
    validation: list[Series]
    test: list[Series]
    scaling: Scaling
    short: list[str]


def opened(config: Config) -> Opened:
    """Data of a run; raises BadData if they are not what it was trained on."""
    source = checked(Source, config.data)
    if source.digest and (now := digest(source.path)) != source.digest:
        raise BadData(
            f"{source.path}: {now} is not {source.digest}, the digest of the training data"
        )
    return split(source, read(source, config), config)


def moved(config: Config, path: Path | None) -> Config:
    """The same run with its data at another path; BadConfig if it has no own data."""
    if path is None:
        return config
    if config.experiment != OWN:
        raise BadConfig(
            f"--data: the run is of the experiment {config.experiment!r}, which has its own"
        )
    return config.model_copy(update={"data": {**config.data, "path": str(path)}})


def digest(path: Path) -> str:
    """Digest of a file, or of the files in a folder with their names; raises BadData."""
    content = hashlib.sha256()
    try:
        for file in tables.files(path):
            if path.is_dir():
                content.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as handle:
                while part := handle.read(1 << 20):
                    content.update(part)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from error
    return f"sha256:{content.hexdigest()}"


def scaling(series: Sequence[Series], *, classes: bool) -> Scaling:
    """Scaling to mean 0 and standard deviation 1 over all observations; class indices unscaled."""
    y = torch.cat([one.y for one in series])
    inputs = [one.x for one in series if one.x is not None]
    x = torch.cat(inputs) if inputs else y.new_zeros(1, 0)
    x_offset, x_scale = _moments(x)
    if classes:
        return Scaling(x_offset, x_scale, torch.zeros(y.shape[1]), torch.ones(y.shape[1]))
    return Scaling(x_offset, x_scale, *_moments(y))


def source(settings: Options) -> Source:
    """The section `data` of settings, without a digest; raises BadConfig."""
    return checked(Source, {**settings.get("data", {}), "digest": ""})


def has_classes(config: Config) -> bool:
    """Whether labels are class indices."""
    return config.model.kind == "pcoc"


def read(source: Source, config: Config) -> list[Series]:
    """Every series; raises BadData, naming file, row and column."""
    return tables.read(
        source.path,
        y=source.y,
        x=source.x,
        stream=source.stream,
        time=source.time,
        changepoint=source.changepoint,
        interval=source.interval,
        classes=has_classes(config),
        partial=config.model.kind == "fleet",
    )


def split(source: Source, series: list[Series], config: Config) -> Opened:
    """Split and scale series; raises BadData, or BadConfig where switches are needed."""
    classes = has_classes(config)
    units = DEFAULTS.warmup if config.model.kind == "fleet" else 0
    supervised = config.objective.mode == "oracle" or config.objective.supervision > 0
    if supervised and any(one.switch is None for one in series):
        raise BadConfig(
            f"{source.path}: the switches are unknown: mode oracle and supervision need a column "
            "of changepoints (--changepoint)"
        )
    shares = {"train": source.train, "validation": source.validation}
    try:
        splits, short = tables.split(
            series, config.optimiser.length, before=units, by=source.by, classes=classes, **shares
        )
    except (BadData, ValueError) as error:
        raise BadData(f"{source.path}: {error}") from error
    first = tables.part(series, 0.0, source.train, source.by)
    end = source.train + source.validation
    middle = tables.part(series, source.train, end, source.by)
    last = tables.part(series, end, 1.0, source.by)
    found = scaling(first, classes=classes)
    if units:
        _check_squares(source.path, series)
        train, validation, test = (InUnits(each, units) for each in splits[:3])
        splits = splits._replace(train=train, validation=validation, test=test)
        none = Scaling.none(splits.x_dim, splits.y_dim)
        found = found._replace(y_offset=none.y_offset, y_scale=none.y_scale)
    return Opened(splits, middle, last, found, short)


def _check_squares(path: Path, series: Sequence[Series]) -> None:
    """Raise BadData where labels have no variance that is a number."""
    spread = scaling(series, classes=False).y_scale
    if not bool(torch.isfinite(spread).all()):
        raise BadData(
            f"{path}: labels have the standard deviations {spread.tolist()}, expected finite ones: "
            "divide them first"
        )


def check_scaling(scaling: Scaling, config: Config) -> None:
    """Raise BadData where the training's dtype cannot represent or distinguish the values."""
    limits = torch.finfo(getattr(torch, config.optimiser.dtype))
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


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; 1 where a column never changes."""
    known = ~torch.isnan(values)
    count = known.sum(0).clamp(min=1)
    mean = torch.where(known, values, 0.0).sum(0) / count
    squares = torch.where(known, (values - mean).square(), 0.0).sum(0) / count
    spread = squares.sqrt()
    # The mean of equal values differs from them by rounding.
    return mean, torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)
