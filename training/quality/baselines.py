"""Baselines: detectors of changes and forecasters that cost next to nothing, and other packages.

Detectors take a series in scales of its warm-up, and return the times of their alarms, which they
also take for the starts of what changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import numba
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import special

from model_core.stream import warmup
from model_core.stream_settings import DEFAULTS
from model_core.upm.conjugate import Gaussian

Floats = NDArray[np.float64]
Detector = Callable[[Floats], list[int]]  # (T,) in scales, without gaps
WINDOW = 50  # observations that rolling means and deviations are of
Z_LIMIT = 4.0  # rolling standard deviations
LEAST_SD = 0.01  # scales; a forecast that is surer than that is taken for this sure
TOLERATED = 0.005  # of Page-Hinkley: drift of a step
PAGE_LIMIT = 50.0
PAGE_FORGETTING = 0.9999
PAGE_START = 30  # observations before its first alarm
RUN_LENGTHS = 200  # of fast-bocpd
REGIME = 250.0  # mean length of its regimes
# Of NAB's windowed Gaussian: its window, how far it moves, and its least deviation.
NAB_WINDOW = 6400
NAB_STEP = 100
NAB_LEAST_SD = 1e-6

NOTHING = "no change"
EVEN = "evenly spaced"
ALWAYS = "always fire"
FOCUS = "FOCuS"


Normal = tuple[Floats, Floats]  # mean and standard deviation of each forecast (T,), nan where none


def last_value(y: Floats) -> Normal:
    """The last value, with the root mean square of the last differences; y: (T,), nan: missing."""
    at = np.maximum.accumulate(np.where(np.isnan(y), 0, np.arange(len(y))))
    mean = np.append(np.nan, y[at][:-1])  # of missing values the last before them
    with warnings.catch_warnings(action="ignore"):  # of windows without two values
        square = np.nanmean(_before(y - mean) ** 2, 1)
    return mean, np.maximum(np.sqrt(square), LEAST_SD)


def rolling(y: Floats) -> Normal:
    """Mean and standard deviation of the last observations; y: (T,), nan: missing."""
    windows = _before(y)
    with warnings.catch_warnings(action="ignore"):  # of windows without two values
        return np.nanmean(windows, 1), np.maximum(np.nanstd(windows, 1, ddof=1), LEAST_SD)


FORECASTERS: dict[str, Callable[[Floats], Normal]] = {
    "last value": last_value,
    "rolling mean": rolling,
}


def _before(y: Floats) -> Floats:
    """The up to `WINDOW` values before each (T, WINDOW); all nan where there are fewer than two."""
    windows = sliding_window_view(np.append(np.full(WINDOW, np.nan), y)[:-1], WINDOW)
    return np.where((np.isfinite(windows).sum(1) > 1)[:, None], windows, np.nan)


def rolling_z(y: Floats) -> list[int]:
    """Alarms when a value comes to lie more than `Z_LIMIT` rolling deviations off."""
    mean, sd = rolling(y)
    far = np.abs(y - mean) > Z_LIMIT * sd
    far[:WINDOW] = False
    begins = far & ~np.append(False, far[:-1])
    return np.flatnonzero(begins).tolist()


def page_hinkley(y: Floats) -> list[int]:
    """Page's test in both directions, started anew after each alarm (Page 1954; Hinkley 1971)."""
    alarms = []
    count = 0
    for t, value in enumerate(y.tolist()):
        if count == 0:
            mean = 0.0
            up = 0.0
            down = 0.0
            least = 0.0
            most = 0.0
        count += 1
        mean += (value - mean) / count
        up = PAGE_FORGETTING * up + (value - mean - TOLERATED)
        down = PAGE_FORGETTING * down + (value - mean + TOLERATED)
        least = min(least, up)
        most = max(most, down)
        if count >= PAGE_START and max(up - least, most - down) > PAGE_LIMIT:
            alarms.append(t)
            count = 0
    return alarms


def focus(y: Floats, threshold: float) -> list[int]:
    """Alarms of FOCuS where the log likelihood ratio of a change of the mean reaches a threshold.

    Romano, Eckley, Fearnhead and Rigaill, *Fast Online Changepoint Detection via Functional Pruning
    CUSUM Statistics* (JMLR 24, 2023): normal noise of variance 1, the means before and after
    unknown, started anew after each alarm. Exact: of all starts none is more likely than those that
    are kept.
    """
    alarms = np.empty(len(y), dtype=np.int64)
    count: int = _focus(y, threshold, alarms)
    times: list[int] = alarms[:count].tolist()
    return times


@numba.njit  # type: ignore[untyped-decorator]
def _focus(y: Floats, threshold: float, alarms: NDArray[np.int64]) -> int:
    """Fill `alarms`; returns their number.

    Given both means the likelihood of a start is linear in its time and the sum up to it: the most
    likely start is a vertex of the convex hull of these points, of its lower side for a rise.
    """
    hulls = np.empty((2, len(y)), dtype=np.int64)
    sizes = np.zeros(2, dtype=np.int64)
    sums = np.zeros(len(y) + 1)
    first = 0
    count = 0
    for t in range(1, len(y) + 1):
        sums[t] = sums[t - 1] + y[t - 1]
        total = sums[t] - sums[first]
        highest = 0.0
        for side in range(2 if t - 1 > first else 0):
            hull = hulls[side]
            size = sizes[side]
            sign = 1.0 - 2.0 * side
            while size > 1:
                a = hull[size - 2]
                b = hull[size - 1]
                bend = (sums[b] - sums[a]) * (t - 1 - a) - (sums[t - 1] - sums[a]) * (b - a)
                if sign * bend < 0:
                    break
                size -= 1
            hull[size] = t - 1
            sizes[side] = size + 1
            for k in range(size + 1):
                before = sums[hull[k]] - sums[first]
                after = total - before
                parts = before * before / (hull[k] - first) + after * after / (t - hull[k])
                highest = max(highest, 0.5 * (parts - total * total / (t - first)))
        if highest >= threshold:
            alarms[count] = t - 1
            count += 1
            first = t
            sizes[:] = 0
    return count


def focus_threshold(quiet: Sequence[Floats], alarms: int) -> float:
    """A threshold of FOCuS at which quiet series (T,) have at most so many alarms together.

    The lowest one to a thousandth. No detector knows it: it is chosen on the series themselves.
    """

    def enough(threshold: float) -> bool:
        raised = (focus(y, threshold) for y in quiet)
        return sum(t >= DEFAULTS.warmup for times in raised for t in times) <= alarms

    high = 1.0
    while not enough(high):
        high *= 2.0
    low = high / 2.0
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def adwin(y: Floats) -> list[int]:
    """ADWIN with river's defaults."""
    detector = import_module("river.drift").ADWIN()
    alarms = []
    for t, value in enumerate(y.tolist()):
        detector.update(value)
        if detector.drift_detected:
            alarms.append(t)
    return alarms


def fast_bocpd(y: Floats) -> list[int]:
    """The package fast-bocpd, with a normal-inverse-gamma model."""
    module = import_module("fast_bocpd")
    model = module.GaussianNIG(mu0=0.0, kappa0=1.0, alpha0=1.0, beta0=1.0)
    hazard = module.ConstantHazard(REGIME)
    filtered = module.BOCPD(model, hazard, max_run_length=RUN_LENGTHS)
    detector = module.OnlineChangeDetector(filtered)
    return [t for t, value in enumerate(y.tolist()) if detector.update(value)]


def detectors() -> tuple[dict[str, Detector], list[str]]:
    """Detectors by name, and the packages that are not installed."""
    present: dict[str, Detector] = {
        NOTHING: lambda y: [],
        "rolling z-score": rolling_z,
        "Page-Hinkley": page_hinkley,
    }
    others = {"river": ("ADWIN", adwin), "fast-bocpd": ("fast-bocpd", fast_bocpd)}
    missing = [package for package in others if find_spec(package.replace("-", "_")) is None]
    present |= dict(others[package] for package in others if package not in missing)
    return present, missing


def warmed_up(y: Floats) -> tuple[float, float, int]:
    """Location and scale of a series (T,), nan where missing, from its warm-up, and its length."""
    moments, length = warmup.first(Gaussian(), y[:, None].tolist(), DEFAULTS.warmup)
    (location,), (scale,) = moments
    return location, scale, length


def alarms_of(detector: Detector, y: Floats, apart: int = 1) -> list[int]:
    """Alarms of a detector on a series (T, d) or (T,) in its own units, nan where missing.

    Each output is watched alone. Of alarms closer than `apart` to the one before only the first
    counts: several outputs find one change.
    """
    y = y.reshape(len(y), -1)
    times: set[int] = set()
    for column in y.T:
        location, scale, _ = warmed_up(column)
        present = np.flatnonzero(np.isfinite(column))
        times.update(present[detector((column[present] - location) / scale)].tolist())
    kept: list[int] = []
    for t in sorted(times):
        if not kept or t - kept[-1] >= apart:
            kept.append(t)
    return kept


def windowed_gaussian(y: Floats) -> Floats:
    """The benchmark's baseline: `1 - Q` of the distance from the mean of a window, in deviations.

    The window grows to `NAB_WINDOW` observations, then moves by `NAB_STEP` at a time.
    """
    mean = np.zeros(len(y))
    variance = np.zeros(len(y))
    window_end = min(NAB_WINDOW, len(y))
    before = y[: window_end - 1]
    count = np.arange(1, window_end)
    mean[1:window_end] = before.cumsum() / count
    squares = (before**2).cumsum() / count
    variance[1:window_end] = np.maximum(squares - mean[1:window_end] ** 2, 0.0)
    for first in range(window_end, len(y), NAB_STEP):
        recent = y[first - NAB_WINDOW : first]
        mean[first : first + NAB_STEP] = recent.mean()
        variance[first : first + NAB_STEP] = recent.var()
    sd = np.where(variance > 0, np.sqrt(variance), NAB_LEAST_SD)
    strange: Floats = special.ndtr(np.abs(y - mean) / np.maximum(sd, 1e-12))
    strange[:1] = 0.0
    return strange
