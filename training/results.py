"""Results: means over sequences with their intervals, calibration measures, and pages of them.

A sequence is one value: its steps depend on each other, sequences do not. The probability integral
transform (PIT) of a label is the predictive CDF at it. Under the true model PITs are uniform and
independent; those of an overconfident one gather at both ends.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from numpy.typing import ArrayLike, NDArray
from scipy import stats

LEVEL = 0.95
DRAWS = 10_000
BLOCK = 2**22  # indices that the bootstrap draws together
BINS = 15
Floats = NDArray[np.float64]

NOT_FINITE = re.compile(r"\b(nan|inf)\b")


class Estimate(NamedTuple):
    """A mean and its interval, from `count` sequences; the interval of one sequence is nan."""

    mean: float
    low: float
    high: float
    count: int  # type: ignore[assignment]

    @property
    def half_width(self) -> float:
        """The longer half of the interval."""
        return max(self.mean - self.low, self.high - self.mean)

    def __format__(self, digits: str) -> str:
        """As `-3.291 ± 0.074`, the longer half of the interval; only the mean without one."""
        mean = format(self.mean, digits or ".3f")
        if math.isnan(self.half_width):
            return mean
        return f"{mean} ± {format(self.half_width, digits or '.3f')}"

    def __str__(self) -> str:
        return format(self)


class MethodComparison(NamedTuple):
    """Another method on the same sequences; difference: the model less the method, paired."""

    method: str
    metric: str
    estimate: Estimate
    difference: Estimate


def compared(method: str, metric: str, ours: ArrayLike, theirs: ArrayLike) -> MethodComparison:
    """A method beside ours, of one value per sequence each; nan where it has none."""
    first = np.asarray(ours, np.float64)
    second = np.asarray(theirs, np.float64)
    present = ~(np.isnan(first) | np.isnan(second))
    estimated = estimate(second[~np.isnan(second)])
    return MethodComparison(method, metric, estimated, paired(first[present], second[present]))


def alone(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(value, math.nan, math.nan, 1)


def estimate(values: ArrayLike) -> Estimate:
    """Mean of one value per sequence with its Student-t interval."""
    checked = _checked(values)
    mean = float(checked.mean())
    if len(checked) == 1:
        return alone(mean)
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, len(checked) - 1) * stats.sem(checked))
    return Estimate(mean, mean - reach, mean + reach, len(checked))


def bootstrap(values: ArrayLike, generator: np.random.Generator) -> Estimate:
    """Mean of one value per sequence with its percentile bootstrap interval.

    For skewed values and at least some twenty sequences; of fewer it is too narrow.
    """
    checked = _checked(values)
    mean = float(checked.mean())
    if len(checked) == 1:
        return alone(mean)
    low, high = stats.bootstrap(
        (checked,),
        np.mean,
        n_resamples=DRAWS,
        batch=max(1, BLOCK // len(checked)),
        confidence_level=LEVEL,
        method="percentile",
        rng=generator,
    ).confidence_interval
    return Estimate(mean, float(low), float(high), len(checked))


def paired(ours: ArrayLike, theirs: ArrayLike) -> Estimate:
    """Mean difference of two methods, ours less theirs; both must be of the same sequences."""
    first = _checked(ours)
    second = _checked(theirs)
    if len(first) != len(second):
        raise ValueError(
            f"expected values of the same sequences, got {len(first)} and {len(second)}"
        )
    return estimate(first - second)


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected one value per sequence, got an array of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"expected finite values, got {int((~np.isfinite(array)).sum())} others")
    return array


def distance(pits: Floats) -> float:
    """Largest gap between the PITs' empirical CDF and that of the uniform (Kolmogorov-Smirnov)."""
    return float(stats.kstest(_present(pits), "uniform", method="asymp").statistic)


def coverage(pits: Floats, levels: ArrayLike) -> Floats:
    """Share (Q,) of labels within their central predictive interval of each level (Q,)."""
    off_centre = 2 * np.abs(_present(pits) - 0.5)
    inside: Floats = (off_centre[:, None] <= np.asarray(levels)).mean(0)
    return inside


def uniform_band(count: int, bins: int = BINS) -> tuple[int, int]:
    """Interval of a bin's count, with probability 95 %, if `count` PITs are uniform."""
    low, high = stats.binom.interval(LEVEL, count, 1 / bins)
    return int(low), int(high)


def _present(pits: Floats) -> Floats:
    present = np.asarray(pits, np.float64)
    present = present[~np.isnan(present)]
    if not present.size:
        raise ValueError("expected PITs of labels, got none")
    return present


class Reliability(NamedTuple):
    """Per bin of confidence: mean confidence, accuracy and count; nan in empty bins."""

    confidence: Floats
    accuracy: Floats
    count: NDArray[np.int64]  # type: ignore[assignment]


def reliability(probability: Floats, label: Floats, bins: int = BINS) -> Reliability:
    """Confidence against accuracy of the most probable class.

    probability: (..., J). label: (...) class indices; those that are nan or negative are missing.
    """
    present = np.isfinite(label) & (label >= 0)
    if not present.any():
        raise ValueError("expected labels, got none")
    confidence = probability[present].max(-1)
    right = probability[present].argmax(-1) == label[present]
    at = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(at, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(at, confidence, bins) / count
        accuracy = np.bincount(at, right, bins) / count
    return Reliability(mean_confidence, accuracy, count)


def calibration_error(bins: Reliability) -> float:
    """Expected calibration error: mean gap of confidence and accuracy, weighted by count."""
    gap = np.nan_to_num(np.abs(bins.confidence - bins.accuracy))
    return float((gap * bins.count).sum() / bins.count.sum())


def number(value: Any, digits: str = "", sd: float = math.nan) -> str:
    """A number or an estimate with so many digits, `-` where it is not finite; sd: what follows."""
    spread = "" if math.isnan(sd) else f" ± {format(sd, digits)}"
    return NOT_FINITE.sub("-", format(value, digits)) + spread


def rounded(estimate: Estimate) -> str:
    """Mean and interval to three digits: scales of a warm-up may be tiny."""
    return number(estimate.mean, ".3g") + (
        "" if math.isnan(estimate.half_width) else f" ± {estimate.half_width:.2g}"
    )


ENVIRONMENT = Environment(
    loader=PackageLoader("training"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters |= {
    "number": number,
    "rounded": rounded,
    "base64": lambda content: base64.b64encode(content).decode(),
}


def page(template: str, **content: Any) -> str:
    """A page of results: Markdown of tables, which a console shows too, or HTML."""
    return ENVIRONMENT.get_template(template).render(content)


def plain(value: Any) -> Any:
    """Results in JSON types; numbers that are not finite are null, named tuples are objects."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: plain(field) for key, field in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def write(file: Path, results: Any) -> None:
    """Write results as JSON; see `plain`."""
    text = json.dumps(plain(results), indent=1, ensure_ascii=False, allow_nan=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", "utf-8")
