"""The curves of a model, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from model_core import filter as moca
from model_core.sensitivity import curve as curves
from model_core.sensitivity.alarms import watch
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
        for i, confirmed in enumerate(watch(model, drawn, thresholds, hazard, tick)):
            counts[i] += sum(map(len, confirmed))
    used = curves.usable(counts)
    delays = _delays(model, plan, hazard, thresholds[:used], inputs, tick)
    rates = curves.rates(thresholds, counts, series * plan.length)[:used]
    points: list[Point] = []
    for threshold, (rate, low, high), late in zip(thresholds, rates, delays, strict=False):
        # Of thresholds that are alike in their alarms the first is the quickest.
        if not points or rate < points[-1].false_alarms_per_1000:
            points.append(Point(threshold, rate, low, high, late))
    return Curve(hazard, tuple(points))


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
    waits: list[list[list[int | None]]] = [[[] for _ in SHIFTS] for _ in thresholds]
    for size in _batches(model, plan.shifted):
        drawn = draw(model, size, plan.before + plan.horizon, generator, inputs)
        for s, shift in enumerate(SHIFTS):
            moved = shifted(drawn, model.label, plan.before, shift, generator)
            for i, confirmed in enumerate(watch(model, moved, thresholds, hazard, tick)):
                waits[i][s] += [_wait(alarms, plan.before) for alarms in confirmed]
    return [
        tuple(_delay(shift, waited) for shift, waited in zip(SHIFTS, by_shift, strict=True))
        for by_shift in waits
    ]


def _wait(confirmed: Sequence[int], at: int) -> int | None:
    """Observations of the new regime seen at the first alarm in it; None where there was none."""
    return next((t - at + 1 for t in confirmed if t >= at), None)


def _delay(shift: float, waits: Sequence[int | None]) -> Delay:
    detected = sorted(wait for wait in waits if wait is not None)
    half = (len(waits) + 1) // 2
    median = float(detected[half - 1]) if len(detected) >= half else None
    mean = sum(detected) / len(detected) if detected else None
    return Delay(shift, median, mean, len(detected) / len(waits))


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
