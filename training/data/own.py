"""A user's own series as a run reads them: from a file or a folder, split, scaled, recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from training.config import OWN, Config, Options, Section, checked
from training.data import tables
from training.data.base import Splits
from training.data.windows import Series
from training.errors import BadConfig, BadData
from training.learners.base import Scaling

ROUNDED = 1e-3  # most that rounding may take off a value, in standard deviations


class Source(Section):
    """The section `data` of a run on series of one's own.

    digest: of the file's bytes; a run goes on with the same ones only.
    """

    path: Path
    digest: str = ""
    y: tuple[str, ...] | None = None
    x: tuple[str, ...] | None = None
    stream: str | None = None
    time: str | None = None
    changepoint: str | None = None
    by: Literal["time", "stream"] = "time"
    train: float = Field(default=0.7, gt=0, lt=1)
    validation: float = Field(default=0.15, gt=0, lt=1)


class Opened(NamedTuple):
    """A user's data as a run reads them.

    test: the series, or the later parts of them, that are for the test, whole. scaling: to mean 0
    and standard deviation 1 over the part for training. left_out: what is shorter than a window.
    """

    splits: Splits
    test: list[Series]
    scaling: Scaling
    left_out: list[str]


def opened(config: Config) -> Opened:
    """Data of a run; raises BadData if they are not what it was trained on."""
    source = checked(Source, config.data)
    if source.digest and (now := digest(source.path)) != source.digest:
        raise BadData(f"{source.path}: {now} is not {source.digest}, what the run was trained on")
    return split(source, read(source, has_classes(config)), config)


def moved(config: Config, path: Path | None) -> Config:
    """The same run with its data at another place; BadConfig if it has none."""
    if path is None:
        return config
    if config.experiment != OWN:
        raise BadConfig(
            f"--data: the run is of the experiment {config.experiment!r}, which has its own"
        )
    return config.model_copy(update={"data": {**config.data, "path": str(path)}})


def digest(path: Path) -> str:
    """Digest of a file, or of the files in a folder with their names; raises BadData."""
    found = hashlib.sha256()
    try:
        for file in tables.files(path):
            if path.is_dir():
                found.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as handle:
                while part := handle.read(1 << 20):
                    found.update(part)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from error
    return f"sha256:{found.hexdigest()}"


def scaling(series: Sequence[Series], *, classes: bool) -> Scaling:
    """To mean 0 and standard deviation 1 over all observations; class indices stay as they are."""
    y = torch.cat([each.y for each in series])
    inputs = [each.x for each in series if each.x is not None]
    x = torch.cat(inputs) if inputs else y.new_zeros(1, 0)
    none = torch.zeros(y.shape[1]), torch.ones(y.shape[1])
    return Scaling(*_moments(x), *(none if classes else _moments(y)))


def source(settings: Options) -> Source:
    """The section `data` of settings, as yet of any content; raises BadConfig."""
    return checked(Source, {**settings.get("data", {}), "digest": ""})


def has_classes(config: Config) -> bool:
    """Whether labels are class indices."""
    return config.model.kind == "pcoc"


def read(source: Source, classes: bool) -> list[Series]:
    """Every series; raises BadData, naming file, row and column."""
    return tables.read(
        source.path,
        y=source.y,
        x=source.x,
        stream=source.stream,
        time=source.time,
        changepoint=source.changepoint,
        classes=classes,
    )


def split(source: Source, found: list[Series], config: Config) -> Opened:
    """Series as a run reads them; raises BadData, or BadConfig where switches are needed."""
    classes, length = has_classes(config), config.optimiser.length
    told = config.objective.mode == "oracle" or config.objective.supervision > 0
    if told and any(each.switch is None for each in found):
        raise BadConfig(f"{source.path} has no column of changepoints: nobody knows the switches")
    shares = {"train": source.train, "validation": source.validation}
    try:
        splits, left_out = tables.split(found, length, by=source.by, classes=classes, **shares)
    except (BadData, ValueError) as error:
        raise BadData(f"{source.path}: {error}") from error
    first = tables.part(found, 0.0, source.train, source.by)
    last = tables.part(found, source.train + source.validation, 1.0, source.by)
    return Opened(splits, last, scaling(first, classes=classes), left_out)


def check_scaling(found: Scaling, config: Config) -> None:
    """Raise BadData where the numbers of the training cannot tell values apart, or hold them."""
    limits = torch.finfo(getattr(torch, config.optimiser.dtype))
    for name, offset, scale in (
        ("inputs", found.x_offset, found.x_scale),
        ("labels", found.y_offset, found.y_scale),
    ):
        large = (offset.abs() + scale) > limits.max / 1e3
        # One that never changes has nothing to be told apart, and a scale of 1.
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
    # The mean of equal values is off them by its rounding.
    return mean, torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)
