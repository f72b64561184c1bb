"""Folders of data sets, and their prepared `.npz` files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.stream.storage import replacing
from training.errors import BadConfig, BadData


class Place(NamedTuple):
    """Folder of the data sets, and cache of what experiments derive from them."""

    data: Path | None
    cache: Path

    @property
    def recorded(self) -> Path:
        """The folder of the data sets; raises BadConfig where there is none."""
        if self.data is None:
            raise BadConfig("--datasets is needed: the folder of the data sets")
        return self.data


def arrays(
    file: Path, keys: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The arrays of `keys`, and those of `optional` that are there.

    BadData if the file or one of `keys` is missing or unreadable.
    """
    try:
        with np.load(file, allow_pickle=False) as opened:
            missing = [key for key in keys if key not in opened.files]
            if missing:
                raise BadData(f"{file} has no array {missing[0]!r}; it has {opened.files}")
            return {key: opened[key] for key in (*keys, *optional) if key in opened.files}
    except FileNotFoundError:
        raise BadData(f"{file} does not exist; `moca data prepare` writes it") from None
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{file} is not a readable .npz file: {error}") from error


def save(file: Path, **kept: Any) -> Path:
    """Write arrays to an `.npz` file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary, temporary.open("wb") as opened:
        np.savez_compressed(opened, **kept)
    return file
