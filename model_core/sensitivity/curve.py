"""False alarms and delays by threshold: from counts to a monotone curve, and back to a threshold.

A threshold is one of `changed_probability`; between those that were simulated its log odds are
linear in the logarithm of the rate. Nearly so they are in any model: the odds of a change that was
never there exceed `o` about `1 / o` times as often.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import le
from typing import Any, NamedTuple

from model_core.errors import OutOfRange
from model_core.stream_settings import Hazard

PRIOR_COUNT = 10.0  # alarms that the straight line counts for beside those that were counted
FITTED = 50.0  # per 1,000: rates beyond it have no part in the line
# Times what the line says, and deviations: there it does not hold.
BEYOND = 1.5
SPREAD = 3.0
FEWEST = 3  # alarms counted at the quietest threshold of a curve
RATES = ("false_alarms_per_1000", "low", "high")
NORMAL = 1.96  # of a 95 % interval
REACH = 1.2  # times the largest hazard of the curves that a stream's may be


class Delay(NamedTuple):
    """Observations of the new regime until the alarm, for a shift of so many deviations.

    detected: share with an alarm in time. median, mean: of what was detected; None for a median
    where less than half was, and for a mean where nothing was.
    """

    shift: float
    median: float | None
    mean: float | None
    detected: float


class Point(NamedTuple):
    """What a threshold does; low and high are the ends of a 95 % interval."""

    threshold: float
    false_alarms_per_1000: float
    low: float
    high: float
    delays: tuple[Delay, ...] = ()


class Curve(NamedTuple):
    """Points from sensitive to quiet; hazard: of its streams, None: the model's own table."""

    hazard: float | None
    points: tuple[Point, ...]

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest rate per 1,000 that there is a threshold for."""
        return self.points[-1].false_alarms_per_1000, self.points[0].false_alarms_per_1000

    def reaches(self, rate: float) -> bool:
        """Whether there is a threshold for the rate."""
        least, most = self.range
        return least <= rate <= most

    def at(self, rate: float) -> tuple[float, tuple[Delay, ...]]:
        """Log odds of the threshold that has this rate, and its delays; raises OutOfRange."""
        if not self.reaches(rate):
            least, most = self.range
            raise OutOfRange(
                f"false_alarms_per_1000: expected {least:.3g} to {most:.3g}, got {rate:g}"
            )
        rates = [-point.false_alarms_per_1000 for point in self.points]
        upper = max(1, bisect_left(rates, -rate))
        quiet = self.points[upper]
        loud = self.points[upper - 1]
        span = math.log(loud.false_alarms_per_1000 / quiet.false_alarms_per_1000)
        share = math.log(loud.false_alarms_per_1000 / rate) / span if span else 1.0
        odds = _between(log_odds(loud.threshold), log_odds(quiet.threshold), share)
        pairs = zip(loud.delays, quiet.delays, strict=True)
        return odds, tuple(_delay(a, b, share) for a, b in pairs)


def log_odds(probability: float) -> float:
    """`log p / (1 - p)`."""
    return math.log(probability) - math.log1p(-probability)


def probability_of(odds: float) -> float:
    """Probability of log odds."""
    return 1 / (1 + math.exp(-odds)) if odds > 0 else math.exp(odds) / (1 + math.exp(odds))


def rates(
    thresholds: Sequence[float], counts: Sequence[int], observations: int
) -> list[tuple[float, float, float]]:
    """Rate per 1,000 and its interval at each threshold; never rising, from sensitive to quiet.

    Each is the mean of a gamma posterior: the counts, and `PRIOR_COUNT` alarms at the rate of a
    straight line through all counts, if that holds. Few alarms at a quiet threshold so gain from
    the many at sensitive ones.
    """
    thousands = observations / 1000
    line = _line([log_odds(threshold) for threshold in thresholds], counts, thousands)
    used = usable(counts)
    share = PRIOR_COUNT * _holds(line[:used], counts[:used], thousands)
    exposures = [thousands + (share / rate if share else 0.0) for rate in line]
    means = [(count + share) / exposure for count, exposure in zip(counts, exposures, strict=True)]
    pairs = zip(_falling(means, exposures), exposures, strict=True)
    return [(rate, *_interval(rate * exposure, exposure)) for rate, exposure in pairs]


def _holds(line: Sequence[float], counts: Sequence[int], thousands: float) -> bool:
    """Whether a line is not far below what is counted: a few series may alarm at any threshold."""
    expected = [rate * thousands for rate in line]
    most = [1 + BEYOND * count + SPREAD * math.sqrt(count) for count in expected]
    return min(line, default=0.0) > 0 and all(map(le, counts, most))


def usable(counts: Sequence[int]) -> int:
    """How many thresholds, from the most sensitive, have alarms enough to be told apart."""
    return sum(count >= FEWEST for count in counts)


def _line(odds: Sequence[float], counts: Sequence[int], thousands: float) -> list[float]:
    """Rates on a line of their logarithms over log odds; 0 where there are too few to lay one."""
    used = [
        (x, count)
        for x, count in zip(odds, counts, strict=True)
        if count >= PRIOR_COUNT and count / thousands <= FITTED
    ]
    if len(used) < 3:
        return [0.0] * len(odds)
    weight = math.fsum(count for _, count in used)
    logs = [(x, math.log(count / thousands), count) for x, count in used]
    middle = math.fsum(x * count for x, _, count in logs) / weight
    level = math.fsum(y * count for _, y, count in logs) / weight
    square = math.fsum(count * (x - middle) ** 2 for x, _, count in logs)
    slope = math.fsum(count * (x - middle) * (y - level) for x, y, count in logs) / square
    return [math.exp(level + slope * (x - middle)) for x in odds]


def _falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Isotonic regression, never rising: adjacent violators are pooled (Ayer et al. 1955)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (a, v, n), (b, w, m) = blocks[-2:]
            blocks[-2:] = [((a * v + b * w) / (v + w), v + w, n + m)]
    return [value for value, _, size in blocks for _ in range(size)]


def _interval(count: float, exposure: float) -> tuple[float, float]:
    """Exact Poisson interval by Wilson and Hilferty's approximation of its chi-squares."""
    low = (1 - 1 / (9 * count) - NORMAL / (3 * math.sqrt(count))) ** 3 if count else 0.0
    more = count + 1
    high = (1 - 1 / (9 * more) + NORMAL / (3 * math.sqrt(more))) ** 3
    return max(0.0, count * low) / exposure, more * high / exposure


def _between(a: float, b: float, share: float) -> float:
    return a + (b - a) * share


def _delay(a: Delay, b: Delay, share: float) -> Delay:
    """What lies between two thresholds; what one of them does not have is not there."""

    def between(first: float | None, second: float | None) -> float | None:
        return None if first is None or second is None else _between(first, second, share)

    return Delay(
        shift=a.shift,
        median=between(a.median, b.median),
        mean=between(a.mean, b.mean),
        detected=_between(a.detected, b.detected, share),
    )


class ChosenThreshold(NamedTuple):
    """A threshold of `changed_probability`, what delays to expect, and whether it is exact.

    exact: whether the hazard is one that was simulated; between two, and below all, it is not.
    """

    threshold: float
    delays: tuple[Delay, ...]
    exact: bool


def choose(curves: Sequence[Curve], rate: float, hazard: Hazard | None) -> ChosenThreshold:
    """Threshold that gives `rate` false alarms per 1,000; hazard: None is the model's own.

    Between two hazards that were simulated the log odds of the threshold are linear in the log
    hazard. Below all of them they move with the log odds of the hazard, for so does the belief.
    So they do, too, where the curve of a hazard below the model's own ends before the rate. The
    first curve is that of the model's own hazard. Raises OutOfRange.
    """
    if not (hazard is None or isinstance(hazard, float)):
        raise OutOfRange(
            "the hazard must be a number, or the model's own: others are not calibrated"
        )
    own = curves[0].hazard
    if hazard is None or hazard == own:
        return _on(curves[0], rate)
    if own is None:
        raise OutOfRange("hazard: false alarms are calibrated only at the model's own hazard")
    usable = sorted(
        (curve for curve in curves if (curve.hazard or 0.0) >= own or curve.reaches(rate)),
        key=lambda curve: curve.hazard or 0.0,
    )
    places = [curve.hazard or 0.0 for curve in usable]
    if hazard in places:
        return _on(usable[places.index(hazard)], rate)
    if hazard > REACH * places[-1]:
        raise OutOfRange(
            f"hazard: false alarms are calibrated up to {REACH * places[-1]:g}, got {hazard:g}"
        )
    above = next((i for i, place in enumerate(places) if place > hazard), len(places))
    if above in (0, len(places)):
        nearest = usable[max(0, above - 1)]
        odds, delays = nearest.at(rate)
        moved = odds + log_odds(hazard) - log_odds(nearest.hazard or hazard)
        return ChosenThreshold(probability_of(moved), delays, False)
    span = places[above - 1], places[above]
    share = math.log(hazard / span[0]) / math.log(span[1] / span[0])
    first = usable[above - 1].at(rate)
    second = usable[above].at(rate)
    nearer = (first if share < 0.5 else second)[1]
    between = _between(first[0], second[0], share)
    return ChosenThreshold(probability_of(between), nearer, False)


def _on(curve: Curve, rate: float) -> ChosenThreshold:
    odds, delays = curve.at(rate)
    return ChosenThreshold(probability_of(odds), delays, True)


def written(curve: Curve) -> dict[str, Any]:
    """A curve as JSON has it."""
    points = [
        {
            "threshold": point.threshold,
            **{name: _short(value) for name, value in point._asdict().items() if name in RATES},
            "delays": [
                {name: _short(value) for name, value in delay._asdict().items()}
                for delay in point.delays
            ],
        }
        for point in curve.points
    ]
    return {"hazard": curve.hazard, "points": points}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def read(stored: dict[str, Any]) -> Curve:
    """A curve from JSON; raises KeyError, TypeError or ValueError for one that is none."""
    points = tuple(
        Point(**{**point, "delays": tuple(Delay(**delay) for delay in point["delays"])})
        for point in stored["points"]
    )
    falling = all(
        a.threshold < b.threshold and a.false_alarms_per_1000 >= b.false_alarms_per_1000 > 0
        for a, b in zip(points, points[1:], strict=False)
    )
    if len(points) < 2 or not falling or not 0 < points[0].threshold < points[-1].threshold < 1:
        raise ValueError("expected at least two points, with rates that fall as thresholds rise")
    return Curve(stored["hazard"], points)
