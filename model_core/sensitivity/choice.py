"""The threshold of a stream, from the curves of its model and the hazard it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from model_core.errors import OutOfRange
from model_core.sensitivity.curve import Curve, Delay, log_odds, probability_of

REACH = 1.2  # times the largest hazard of the curves that a stream's may be


class ChosenThreshold(NamedTuple):
    """A threshold of `changed_probability`, what delays to expect, and whether it is exact.

    exact: whether the hazard is one that was simulated; between two, and below all, it is not.
    """

    threshold: float
    delays: tuple[Delay, ...]
    exact: bool


def choose(curves: Sequence[Curve], rate: float, hazard: float | None) -> ChosenThreshold:
    """Threshold that gives `rate` false alarms per 1,000; hazard: None is the model's own.

    Between two hazards that were simulated the log odds of the threshold are linear in the log
    hazard. Below all of them they move with the log odds of the hazard, for so does the belief.
    So they do, too, where the curve of a hazard below the model's own ends before the rate. The
    first curve is that of the model's own hazard. Raises OutOfRange.
    """
    own = curves[0].hazard
    if hazard is None or hazard == own:
        return _on(curves[0], rate)
    if own is None:
        raise OutOfRange("hazard: false alarms are calibrated only at the model's own hazard")
    usable = sorted(
        (curve for curve in curves if (curve.hazard or 0.0) >= own or _reaches(curve, rate)),
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
    return ChosenThreshold(probability_of(first[0] + (second[0] - first[0]) * share), nearer, False)


def _reaches(curve: Curve, rate: float) -> bool:
    least, most = curve.range
    return least <= rate <= most


def _on(curve: Curve, rate: float) -> ChosenThreshold:
    odds, delays = curve.at(rate)
    return ChosenThreshold(probability_of(odds), delays, True)
