"""Detectors on disk: one file, versioned and checksummed; see `codec.pack`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_core import codec
from model_core.errors import BadState, ModelCoreError
from model_core.stream import season
from model_core.stream.local import LocalPipeline
from model_core.stream.rows import PREVIOUS
from model_core.table import LOG_PROB

MAGIC = b"MOCD"
VERSION = 12
T = TypeVar("T")
# What a header that says something else than it should may raise.
_MISTAKES = (AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A draft that takes the place of a file at the end; of a failure nothing is left."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def write(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file, whole or not at all."""
    blob = codec.pack(MAGIC, VERSION, header, arrays)
    with replacing(Path(path)) as draft:
        draft.write_bytes(blob)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a file; raises BadState."""
    try:
        return codec.unpack(MAGIC, VERSION, Path(path).read_bytes())
    except BadState as error:
        raise BadState(f"{os.fspath(path)}: expected a file that `save` wrote; {error}") from error


def restored(path: str | os.PathLike[str], make: Callable[[], T]) -> T:
    """What `make` makes of a file; raises BadState where that says something impossible."""
    try:
        return make()
    except ModelCoreError:
        raise
    except _MISTAKES as error:
        raise BadState(f"{os.fspath(path)}: cannot be restored: {error!r}") from error


def arrays(pipeline: LocalPipeline) -> dict[str, NDArray[Any]]:
    """All arrays of a pipeline, by name; what is not in them are the numbers of the series."""
    warm = [series.row for series in pipeline.series if series.warm]
    stored: dict[str, NDArray[Any]] = {
        f"filter {i}": array for i, array in enumerate(pipeline.slab.read(warm))
    }
    for row, series in enumerate(pipeline.series):
        stored[f"retained {row}"] = series.retained.rows
        if series.season_state is not None:
            stored[f"season {row}"] = series.season_state
    return stored


def restore(
    pipeline: LocalPipeline, numbers: Sequence[dict[str, Any]], stored: Mapping[str, NDArray[Any]]
) -> None:
    """Put arrays and numbers of series into a new pipeline; for `restored`."""
    warm = [
        series for series, fields in zip(pipeline.series, numbers, strict=True) if fields["warm"]
    ]
    for series, fields in zip(pipeline.series, numbers, strict=True):
        series.restore(fields)
    missing = [series for series in warm if not series.warm]
    locations = [series.location or [] for series in missing]
    scales = [series.scale or [] for series in missing]
    resolutions = [series.resolution for series in missing]
    begun = pipeline.slab.begin(locations, scales, resolutions) if missing else []
    for series, row in zip(missing, begun, strict=True):
        series.slab = pipeline.slab
        series.row = row
    filtered = [series.row for series in warm]
    own = pipeline.slab.read(filtered)
    for i, array in enumerate(own):
        kept = stored[f"filter {i}"]
        if array.shape != kept.shape or array.dtype != kept.dtype:
            raise ValueError(
                f"array 'filter {i}' is {kept.dtype} {list(kept.shape)}, expected {array.dtype} "
                f"{list(array.shape)}"
            )
        array[:] = kept
    for held in zip(*own, strict=True):  # none where all are in their warm-up
        state = codec.StreamRow(*held)
        alive = np.isfinite(state.lines[LOG_PROB])
        codec.check(pipeline.slab.layout, state._replace(lines=state.lines[:, alive]))
    pipeline.slab.write(filtered, own)
    for row, (series, fields) in enumerate(zip(pipeline.series, numbers, strict=True)):
        rows = stored[f"retained {row}"]
        _check_retained(rows, fields["first"], pipeline.layout.width, f"retained {row}")
        series.retained.fill(rows, fields["first"])
        season_state = stored.get(f"season {row}")
        series.season_state = None if season_state is None else season_state.copy()
        own_season = series.season_state
        outputs = pipeline.model.y_dim
        if own_season is not None and not (season.valid(own_season) and len(own_season) == outputs):
            raise ValueError(f"array 'season {row}' is no state of a season")


def _check_retained(rows: NDArray[Any], first: int, width: int, name: str) -> None:
    """Raise ValueError for rows of another shape, or with paths that do not lead back."""
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"array {name!r} is of shape {list(rows.shape)}")
    previous = rows[:, PREVIOUS]
    before = np.maximum(first + np.arange(len(rows)) - 1, 0)
    if not ((previous >= -1) & (previous <= before)).all():
        raise ValueError(f"array {name!r} has a path that does not lead back")


def plain(value: Any) -> Any:
    """Settings, or a part of them, as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
