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
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from model_core.stream_settings import DEFAULT_VECTOR_MODEL
from training.errors import BadData

Floats = NDArray[np.float64]
TCPD = "TCPD"
FILES = {
    "tcpd.json": TCPD,
    "nab.npz": "NAB",
    "skab.npz": "SKAB",
    "beedance.npz": "bees",
    "hasc.npz": "HASC",
    "elec2.npz": "elec2",
}
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
NOWHERE = np.zeros(0, bool)


class LabelledSeries(NamedTuple):
    """A series (T,) or (T, d), nan where missing.

    annotations: its change points by each annotator. window: whether each observation is in a
    labelled window; none: no observation is.
    """

    name: str
    y: Floats
    annotations: Mapping[str, list[int]] = {}
    window: NDArray[np.bool_] = NOWHERE


def spans(window: NDArray[np.bool_]) -> list[list[int]]:
    """First observation of each labelled window, and that after its last."""
    edges = np.flatnonzero(np.diff(window.astype(np.int64), prepend=0, append=0))
    pairs: list[list[int]] = edges.reshape(-1, 2).tolist()
    return pairs


class Corpora(NamedTuple):
    """What the folder holds.

    annotated, scalars: by corpus, the series (T, d) whose changes are scored, of TCPD the
    univariate ones, and those (T,) that are forecast. missing: files that are not there.
    """

    annotated: dict[str, list[LabelledSeries]]
    scalars: dict[str, list[LabelledSeries]]
    missing: list[str]


def load(folder: Path) -> Corpora:
    """Read what there is; raises FileNotFoundError where none of the files is, and BadData."""
    corpora = Corpora({}, {}, [])
    for name in FILES:
        file = folder / name
        if not file.is_file():
            corpora.missing.append(name)
            continue
        try:
            _read(file, corpora)
        except (KeyError, ValueError, BadZipFile) as error:
            raise BadData(f"{file}: cannot be read as that corpus: {error}") from error
    if len(corpora.missing) == len(FILES):
        raise FileNotFoundError(
            f"{folder}: expected at least one of {', '.join(FILES)}, found none"
        )
    return corpora


def _read(file: Path, into: Corpora) -> None:
    corpus = FILES[file.name]
    if corpus == TCPD:
        into.annotated[TCPD] = [one for one in tcpd(file) if one.y.shape[1] == 1]
        into.scalars[TCPD] = [one._replace(y=one.y[:, 0]) for one in into.annotated[TCPD]]
        return
    with np.load(file, allow_pickle=False) as content:
        arrays = {key: content[key] for key in content.files}

    def named(end: str) -> list[tuple[str, Floats]]:
        return [
            (key.removesuffix(end), values.astype(float))
            for key, values in arrays.items()
            if key.endswith(end)
        ]

    columns = [str(name) for name in arrays.get("columns", ())]
    if corpus == "NAB":
        into.scalars[corpus] = [
            LabelledSeries(name, y, window=arrays[f"{name}__window"].astype(bool))
            for name, y in named("__value")
        ]
    elif corpus == "elec2":
        into.scalars[corpus] = [
            LabelledSeries(f"{name} {first}", y[first : first + ELEC2_PIECE])
            for name in ELEC2_COLUMNS
            for y in [arrays["x"][:, columns.index(name)].astype(float)]
            for first in range(0, len(y) - ELEC2_PIECE + 1, ELEC2_PIECE)
        ]
    else:
        if corpus == "HASC":  # one series without a name
            arrays = {f"hasc__{key}": values for key, values in arrays.items()}
        into.annotated[corpus] = [
            LabelledSeries(
                name,
                arrays[f"{name}__x"].astype(float),
                {"corpus": np.flatnonzero(starts).tolist()},
            )
            for name, starts in named("__changepoint")
        ]
        if columns:
            into.scalars[corpus] = [
                LabelledSeries(f"{run.name} {column}", run.y[:, k])
                for run in into.annotated[corpus]
                for k, column in enumerate(columns)
            ]


def tcpd(file: Path) -> list[LabelledSeries]:
    """Every series of the Turing Change Point Dataset, by name.

    The file holds `{name: {"values": [n_dim][n_obs], "annotations": {annotator: [position]}}}`;
    positions count from 0.
    """
    content = json.loads(file.read_text())
    return [
        LabelledSeries(name, np.array(one["values"], np.float64).T, one["annotations"])
        for name, one in sorted(content.items())
    ]


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
