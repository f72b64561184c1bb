"""Read and write prepared `.npz` files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.errors import BadData


def arrays(file: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of `keys`; BadData if the file or one of them is missing or unreadable."""
    try:
        with np.load(file, allow_pickle=False) as opened:
            missing = [key for key in keys if key not in opened.files]
            if missing:
                raise BadData(f"{file} has no array {missing[0]!r}; it has {opened.files}")
            return {key: opened[key] for key in keys}
    except FileNotFoundError:
        raise BadData(f"{file} does not exist; `moca data prepare` writes it") from None
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{file} is not a readable .npz file: {error}") from error


def keys(file: Path) -> list[str]:
    """Return the names of the arrays of a file; BadData as `arrays`."""
    arrays(file, [])
    with np.load(file, allow_pickle=False) as opened:
        return list(opened.files)


def save(file: Path, **kept: Any) -> Path:
    """Write arrays to an `.npz` file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
    try:
        with os.fdopen(handle, "wb") as opened:
            np.savez_compressed(opened, **kept)
        os.replace(name, file)
    finally:
        Path(name).unlink(missing_ok=True)
    return file
