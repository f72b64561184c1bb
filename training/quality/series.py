"""The series that quality is measured on: labelled corpora of a folder, and simulated families.

Families are quiet series of unit scale, and the same with a shift; nothing was chosen on them. A
quiet series has no change of level that a user would want to hear of; drifts and seasons are quiet,
too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from model_core.stream_settings import DEFAULT_VECTOR_MODEL
from training.errors import BadData

Floats = NDArray[np.float64]
TCPD = "TCPD"
VECTOR_MODELS = (DEFAULT_VECTOR_MODEL, "multivariate")  # that vectors are scored by
ELEC2_COLUMNS = ("nswprice", "nswdemand")  # the others are constant for the first 17,000
ELEC2_PIECE = 4000  # observations: a series is cut into streams of so many
# Observations by which a detection may be off: a fifth of a phase of the dance, a second of an
# accelerometer at 100 Hz, a minute of the water rig.
MARGINS = {"bees": 10, "HASC": 100, "SKAB": 60}
SETTLED = 200  # observations of an autoregression before its first one
SEASON_NOISE = 0.5  # sd of the noise of seasonal series; season and noise together have 1
DRIFT = 0.002  # a step
OUTLIERS = 0.01  # share
OUTLIER_SIZE = 8.0
LOG_SD = 0.75  # of the logarithm
RATE = 4.0  # of counts
WALK_LENGTH = 400  # observations over which the sd of a walk is taken


class Annotated(NamedTuple):
    """A series (T, d), nan where missing, and its change points by each annotator."""

    name: str
    y: Floats
    annotations: Mapping[str, list[int]]


class Scalars(NamedTuple):
    """A series (T,), nan where missing, and whether each observation is in a labelled window."""

    name: str
    y: Floats
    window: NDArray[np.bool_] | None = None


def spans(window: NDArray[np.bool_]) -> list[list[int]]:
    """First observation of each labelled window, and that after its last."""
    edges = np.flatnonzero(np.diff(window.astype(np.int64), prepend=0, append=0))
    pairs: list[list[int]] = edges.reshape(-1, 2).tolist()
    return pairs


class Corpora(NamedTuple):
    """What the folder holds.

    annotated, scalars: by corpus, the series whose changes are scored, of TCPD the univariate ones,
    and those that are forecast. missing: files that are not there.
    """

    annotated: dict[str, list[Annotated]]
    scalars: dict[str, list[Scalars]]
    missing: list[str]


def load(folder: Path) -> Corpora:
    """Read what there is; raises FileNotFoundError where none of the files is, and BadData."""
    corpora = Corpora({}, {}, [])
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


def tcpd(file: Path) -> list[Annotated]:
    """Every series of the Turing Change Point Dataset, by name.

    The file holds `{name: {"values": [n_dim][n_obs], "annotations": {annotator: [position]}}}`;
    positions count from 0.
    """
    content = json.loads(file.read_text())
    series = []
    for name in sorted(content):
        y = np.array(content[name]["values"], np.float64).T
        series.append(Annotated(name, y, content[name]["annotations"]))
    return series


def _tcpd(file: Path, into: Corpora) -> None:
    univariate = [one for one in tcpd(file) if one.y.shape[1] == 1]
    into.annotated[TCPD] = univariate
    into.scalars[TCPD] = [Scalars(one.name, one.y[:, 0]) for one in univariate]


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
    into.annotated["SKAB"] = _annotated(arrays)
    into.scalars["SKAB"] = [
        Scalars(f"{run.name} {column}", run.y[:, k])
        for run in into.annotated["SKAB"]
        for k, column in enumerate(columns)
    ]


def _bees(file: Path, into: Corpora) -> None:
    into.annotated["bees"] = _annotated(_arrays(file))


def _hasc(file: Path, into: Corpora) -> None:
    into.annotated["HASC"] = _annotated(
        {f"hasc__{key}": values for key, values in _arrays(file).items()}
    )


def _elec2(file: Path, into: Corpora) -> None:
    arrays = _arrays(file)
    columns = [str(name) for name in arrays["columns"]]
    into.scalars["elec2"] = [
        Scalars(f"{name} {first}", y[first : first + ELEC2_PIECE])
        for name in ELEC2_COLUMNS
        for y in [arrays["x"][:, columns.index(name)].astype(float)]
        for first in range(0, len(y) - ELEC2_PIECE + 1, ELEC2_PIECE)
    ]


def _annotated(arrays: Mapping[str, NDArray[Any]]) -> list[Annotated]:
    """Every series that has an array `NAME__changepoint`, its values being `NAME__x`."""
    names = [key.removesuffix("__changepoint") for key in arrays if key.endswith("__changepoint")]
    return [
        Annotated(
            name,
            arrays[f"{name}__x"].astype(float),
            {"corpus": np.flatnonzero(arrays[f"{name}__changepoint"]).tolist()},
        )
        for name in names
    ]


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    with np.load(file, allow_pickle=False) as content:
        return {key: content[key] for key in content.files}


_READERS: dict[str, Callable[[Path, Corpora], None]] = {
    "tcpd.json": _tcpd,
    "nab.npz": _nab,
    "skab.npz": _skab,
    "beedance.npz": _bees,
    "hasc.npz": _hasc,
    "elec2.npz": _elec2,
}


class SeriesFamily(NamedTuple):
    """A kind of quiet series.

    draw: (n,) values of one series. sd: the marginal standard deviation, which shifts are measured
    in; of outliers that of the others, of a walk the expected one within `WALK_LENGTH`.
    """

    name: str
    draw: Callable[[np.random.Generator, int], Floats]
    sd: float = 1.0

    def shifted(self, rng: np.random.Generator, n: int, at: int, by: float) -> Floats:
        """A series that shifts by so many standard deviations from position `at` on."""
        y = self.draw(rng, n)
        y[at:] += by * self.sd
        return y


def _lognormal(rng: np.random.Generator, n: int) -> Floats:
    variance = LOG_SD**2
    mean = math.exp(variance / 2)
    return (np.exp(LOG_SD * rng.normal(size=n)) - mean) / (mean * math.sqrt(math.expm1(variance)))


def _autoregression(coefficient: float, rng: np.random.Generator, n: int) -> Floats:
    noise = rng.normal(size=n + SETTLED) * math.sqrt(1 - coefficient**2)
    noise[0] = 0.0
    y: Floats = signal.lfilter([1.0], [1.0, -coefficient], noise)
    return y[SETTLED:]


def _season(period: int, rng: np.random.Generator, n: int) -> Floats:
    height = math.sqrt(2 * (1 - SEASON_NOISE**2))
    return SEASON_NOISE * rng.normal(size=n) + height * np.sin(2 * np.pi * np.arange(n) / period)


def _outliers(rng: np.random.Generator, n: int) -> Floats:
    y = rng.normal(size=n)
    signs = rng.choice((-OUTLIER_SIZE, OUTLIER_SIZE), n)
    return np.where(rng.random(n) < OUTLIERS, signs, y)


FAMILIES = (
    SeriesFamily("normal", lambda rng, n: rng.normal(size=n)),
    SeriesFamily("1 % outliers", _outliers),
    SeriesFamily("Student-t3", lambda rng, n: rng.standard_t(3, n) / math.sqrt(3)),
    SeriesFamily("lognormal", _lognormal),
    SeriesFamily("counts", lambda rng, n: rng.poisson(RATE, n).astype(float), math.sqrt(RATE)),
    SeriesFamily("AR(0.5)", partial(_autoregression, 0.5)),
    SeriesFamily("AR(0.9)", partial(_autoregression, 0.9)),
    SeriesFamily(
        "random walk", lambda rng, n: rng.normal(size=n).cumsum(), math.sqrt(WALK_LENGTH / 6)
    ),
    SeriesFamily("slow drift", lambda rng, n: rng.normal(size=n) + DRIFT * np.arange(n)),
    SeriesFamily("season of 24", partial(_season, 24)),
    SeriesFamily("season of 288", partial(_season, 288)),
)


class Sizes(NamedTuple):
    """Sizes of the simulations.

    Quiet series have `quiet_length` observations; a shift comes at `shift_at` and has to be found
    within `within`. `aged` normal series have one at each of `ages`. `false_alarm_every` is each of
    `periods`.
    """

    quiet: int = 20
    quiet_length: int = 2000
    shifted: int = 60
    shift_at: int = 300
    within: int = 100
    shifts: tuple[float, ...] = (1.0, 2.0, 3.0)  # standard deviations
    candidates: int = 24  # random settings to choose from, beside the defaults
    aged: int = 200
    ages: tuple[int, ...] = (40, 200)
    periods: tuple[float, ...] = (100.0, 1000.0, 10_000.0)
