"""The curves of a model, by simulation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from model_core import filter as moca
from model_core.errors import CannotSimulate
from model_core.lazy import torch
from model_core.sensitivity import curve as curves
from model_core.sensitivity.alarms import wait, watch
from model_core.sensitivity.curve import Curve, Delay, Point, log_odds, probability_of
from model_core.sensitivity.regimes import Inputs, check, draw, shifted
from model_core.stream_settings import DEFAULTS
from model_core.upm.base import UnderlyingModel

SHIFTS = (1.0, 2.0, 3.0)  # predictive standard deviations
# Log odds of thresholds; the lowest beside the hazard's.
LOWEST = 2.5
HIGHEST = 14.0
STEP = 1.0
# Of what is filtered at once.
BATCH_BYTES = 24 << 20
MOST_SERIES = 256
UNORDERED = ("class", "binary")  # labels that cannot be moved up
FORMAT = 1


Tick = Callable[[int], None]


class Plan(NamedTuple):
    """How much is simulated.

    observations: without a change, in series of `length`. shifted: series for each size of shift,
    which comes after `before` observations and is waited for during `horizon`. hazards: beside the
    model's own, with half as much of both.
    """

    observations: int = 400_000
    length: int = 500
    shifted: int = 200
    before: int = 100
    horizon: int = 150
    hazards: tuple[float, ...] = ()
    seed: int = 0

    def parts(self, model: UnderlyingModel) -> list[tuple[float | None, Plan]]:
        """Hazard of each curve (None: the model's own table), and its plan; the own one first."""
        own = model.hazard if isinstance(model.hazard, float) else None
        half = self._replace(observations=self.observations // 2, shifted=self.shifted // 2)
        return [(own, self), *((hazard, half) for hazard in self.hazards if hazard != own)]

    def amount(self, model: UnderlyingModel) -> int:
        """Observations that are filtered altogether, about."""
        waited = len(SHIFTS) * (self.before + self.horizon) * (model.label not in UNORDERED)
        return sum(plan.observations + plan.shifted * waited for _, plan in self.parts(model))


def calibrate(
    model: UnderlyingModel,
    plan: Plan,
    inputs: Inputs | None = None,
    tick: Tick = lambda observations: None,
    about: str | None = None,
) -> dict[str, Any]:
    """Curves of a model as JSON has them, the first that of its own hazard.

    inputs: where a model that takes some has them from, and `about` says what they are. `tick` is
    told of observations as they are done. Raises CannotSimulate.
    """
    check(model)
    simulated = {
        "observations": plan.observations,
        "length": plan.length,
        "shifted": plan.shifted,
        "seed": plan.seed,
        "outlier_rate": model.outlier_rate,
        "max_hypotheses": DEFAULTS.max_hypotheses,
        "warmup": DEFAULTS.warmup if model.needs_scale else None,
        "classes": model.classes or None,
        "inputs": (about or "standard normal, scaled as the model's") if model.x_dim else None,
    }
    return {
        "format": FORMAT,
        "simulated": simulated,
        "curves": [
            curves.written(_curve(model, own, hazard, inputs, tick))
            for hazard, own in plan.parts(model)
        ],
    }


def _curve(
    model: UnderlyingModel,
    plan: Plan,
    hazard: float | None,
    inputs: Inputs | None,
    tick: Tick,
) -> Curve:
    thresholds = _thresholds(model, hazard)
    generator = torch.Generator().manual_seed(plan.seed)
    counts = [0] * len(thresholds)
    series = max(1, plan.observations // plan.length)
    for size in _batches(model, series):
        drawn = draw(model, size, plan.length, generator, inputs)
        for i, alarms in enumerate(watch(model, drawn, thresholds, hazard, tick)):
            counts[i] += sum(map(len, alarms))
    points: list[Point] = []
    rates = curves.rates(thresholds, counts, series * plan.length)[: curves.usable(counts)]
    for threshold, (rate, low, high) in zip(thresholds, rates, strict=False):
        # Of thresholds that are alike in their alarms the first is the quickest.
        if not points or rate < points[-1].false_alarms_per_1000:
            points.append(Point(threshold, rate, low, high))
    if len(points) < 2:
        raise CannotSimulate(
            f"cannot calibrate: {series * plan.length} observations without a change gave "
            f"{counts[0]} false alarms at the most sensitive threshold, too few to tell thresholds "
            "apart: simulate more"
        )
    delays = _delays(model, plan, hazard, [point.threshold for point in points], inputs, tick)
    delayed = zip(points, delays, strict=True)
    return Curve(hazard, tuple(point._replace(delays=of_point) for point, of_point in delayed))


def _delays(
    model: UnderlyingModel,
    plan: Plan,
    hazard: float | None,
    thresholds: Sequence[float],
    inputs: Inputs | None,
    tick: Tick,
) -> list[tuple[Delay, ...]]:
    """Delays at each threshold; none for labels that are no quantities."""
    if model.label in UNORDERED:
        return [() for _ in thresholds]
    generator = torch.Generator().manual_seed(plan.seed + 1)
    waits: list[list[list[float]]] = [[[] for _ in SHIFTS] for _ in thresholds]
    for size in _batches(model, plan.shifted):
        drawn = draw(model, size, plan.before + plan.horizon, generator, inputs)
        for s, shift in enumerate(SHIFTS):
            moved = shifted(drawn, model.label, plan.before, shift, generator)
            for i, alarms in enumerate(watch(model, moved, thresholds, hazard, tick)):
                waits[i][s] += [wait(of_series, plan.before) for of_series in alarms]
    return [
        tuple(_delay(shift, waited) for shift, waited in zip(SHIFTS, by_shift, strict=True))
        for by_shift in waits
    ]


def _delay(shift: float, waits: Sequence[float]) -> Delay:
    """Summary of the waits after one size of shift, inf where there was no alarm."""
    detected = [waited for waited in waits if math.isfinite(waited)]
    median = statistics.median_low(waits)
    mean = sum(detected) / len(detected) if detected else None
    share = len(detected) / len(waits)
    return Delay(shift, median if math.isfinite(median) else None, mean, share)


def _thresholds(model: UnderlyingModel, hazard: float | None) -> list[float]:
    typical = hazard
    if typical is None:
        table = model.hazard
        typical = table if isinstance(table, float) else sum(table) / len(table)
    lowest = log_odds(typical) + LOWEST
    steps = int((HIGHEST - lowest) / STEP)
    return [probability_of(lowest + STEP * i) for i in range(steps + 1)]


def _batches(model: UnderlyingModel, series: int) -> list[int]:
    """Series that are filtered at once, as many as a processor's memory is quick with."""
    one = torch.ones(1, model.scaled, dtype=torch.float64)
    state = moca.init(moca.make_prior(model, one, one), DEFAULTS.max_hypotheses)
    fit = BATCH_BYTES // sum(leaf.nbytes for leaf in moca.leaves(state))
    size = max(1, min(MOST_SERIES, fit))
    return [min(size, series - i) for i in range(0, series, size)]
