"""The labelled corpora of a data folder, each of which may be missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from training.errors import BadData
from training.evaluation import tcpd

Floats = NDArray[np.float64]
ELEC2_COLUMNS = ("nswprice", "nswdemand")  # the others are constant for the first 17,000
ELEC2_PIECE = 4000  # observations: a series is cut into streams of so many
# Observations by which a detection may be off: a fifth of a phase of the dance, a second of an
# accelerometer at 100 Hz, a minute of the water rig.
MARGINS = {"bees": 10, "HASC": 100, "SKAB": 60}


class Vectors(NamedTuple):
    """A series of several outputs (T, d), and the positions where a regime starts."""

    name: str
    y: Floats
    changes: list[int]


class Scalars(NamedTuple):
    """A series (T,), nan where missing, and whether each observation is in a labelled window."""

    name: str
    y: Floats
    window: NDArray[np.bool_] | None = None


class Corpora(NamedTuple):
    """What the folder holds.

    tcpd: its univariate series. vectors, scalars: by corpus, those whose changes are scored and
    those that are forecast. missing: files that are not there.
    """

    tcpd: list[tcpd.Series]
    vectors: dict[str, list[Vectors]]
    scalars: dict[str, list[Scalars]]
    missing: list[str]


def load(folder: Path) -> Corpora:
    """Read what there is; raises FileNotFoundError where none of the files is, and BadData."""
    corpora = Corpora([], {}, {}, [])
    for file, read in _READERS.items():
        if not (folder / file).is_file():
            corpora.missing.append(file)
            continue
        try:
            read(folder / file, corpora)
        except (KeyError, ValueError, BadZipFile) as error:
            raise BadData(f"{folder / file}: cannot be read as that corpus: {error}") from error
    if len(corpora.missing) == len(_READERS):
        raise FileNotFoundError(
            f"{folder}: expected at least one of {', '.join(_READERS)}, found none"
        )
    return corpora


def _tcpd(file: Path, into: Corpora) -> None:
    for one in tcpd.load(file.parent):
        if len(one.values[0]) == 1:
            into.tcpd.append(one)
    into.scalars["TCPD"] = [Scalars(s.name, np.array(s.values)[:, 0]) for s in into.tcpd]


def _nab(file: Path, into: Corpora) -> None:
    arrays = _arrays(file)
    names = [key.removesuffix("__value") for key in arrays if key.endswith("__value")]
    into.scalars["NAB"] = [
        Scalars(
            name, arrays[f"{name}__value"].astype(float), arrays[f"{name}__window"].astype(bool)
        )
        for name in names
    ]


def _skab(file: Path, into: Corpora) -> None:
    arrays = _arrays(file)
    columns = [str(name) for name in arrays["columns"]]
    runs = [key.removesuffix("__changepoint") for key in arrays if key.endswith("__changepoint")]
    into.vectors["SKAB"] = [_vectors(run, arrays) for run in runs]
    into.scalars["SKAB"] = [
        Scalars(f"{run.name} {column}", run.y[:, k])
        for run in into.vectors["SKAB"]
        for k, column in enumerate(columns)
    ]


def _bees(file: Path, into: Corpora) -> None:
    arrays = _arrays(file)
    names = [key.removesuffix("__x") for key in arrays if key.endswith("__x")]
    into.vectors["bees"] = [_vectors(name, arrays) for name in names]


def _hasc(file: Path, into: Corpora) -> None:
    arrays = _arrays(file)
    changes = np.flatnonzero(arrays["changepoint"]).tolist()
    into.vectors["HASC"] = [Vectors("hasc", arrays["x"].astype(float), changes)]


def _elec2(file: Path, into: Corpora) -> None:
    arrays = _arrays(file)
    columns = [str(name) for name in arrays["columns"]]
    into.scalars["elec2"] = [
        Scalars(f"{name} {first}", y[first : first + ELEC2_PIECE])
        for name in ELEC2_COLUMNS
        for y in [arrays["x"][:, columns.index(name)].astype(float)]
        for first in range(0, len(y) - ELEC2_PIECE + 1, ELEC2_PIECE)
    ]


def _vectors(name: str, arrays: Mapping[str, NDArray[Any]]) -> Vectors:
    changes = np.flatnonzero(arrays[f"{name}__changepoint"]).tolist()
    return Vectors(name, arrays[f"{name}__x"].astype(float), changes)


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    with np.load(file, allow_pickle=False) as content:
        return {key: content[key] for key in content.files}


_READERS: dict[str, Callable[[Path, Corpora], None]] = {
    tcpd.FILE: _tcpd,
    "nab.npz": _nab,
    "skab.npz": _skab,
    "beedance.npz": _bees,
    "hasc.npz": _hasc,
    "elec2.npz": _elec2,
}
