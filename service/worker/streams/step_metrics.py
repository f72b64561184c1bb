"""Metrics of what steps give, gathered and entered many at a time.

A histogram takes nearly as long for one number as for a hundred. A worker enters what was gathered
once a second, and when nothing waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_core.readout import Readout
from model_core.summary import Summary
from service.observability import metrics

Floats = NDArray[np.float64]
NUMBERS = ("changepoint_probability", "log_score", "pruned_mass", "map_run_length", "evidence")
MOST_STEPS = 4096  # that are gathered: they are entered then, though no second has passed
STEPPED = ("count", "binary")  # supports on which a distribution function has steps
_random = np.random.default_rng(1)  # of metrics alone: no answer depends on it


class Gathered:
    """Numbers of steps that are in no histogram yet, by model. Of one thread."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, list[Floats]] = defaultdict(list)
        self._pits: defaultdict[str, list[Floats]] = defaultdict(list)
        self._count = 0

    def add(self, model: str, numbers: Floats) -> None:
        """Gather what steps of one model gave: (n, 5) NUMBERS; log_score nan: without a label."""
        self._steps[model].append(numbers)
        self._count += len(numbers)
        if self._count > MOST_STEPS:
            self.enter()

    def add_readouts(self, model: str, lines: Sequence[Readout]) -> None:
        """Gather what was read off after steps of one model."""
        if lines:
            self.add(model, np.array([[getattr(own, name) for name in NUMBERS] for own in lines]))

    def add_pits(self, model: str, summary: Summary) -> None:
        """Gather the probability integral transform of each label, of each output alone.

        It is uniform where the predictives are calibrated. Classes have no order, hence none.
        """
        if summary.support == "class":
            return
        values = summary.cdf
        if summary.support in STEPPED:  # a random place within the step of the distribution
            below = summary.cdf_below
            values = below + _random.random(values.shape) * (values - below)
        self._pits[model].append(values.ravel())

    def enter(self) -> None:
        """Enter what was gathered into the histograms."""
        for model, parts in self._steps.items():
            # In order, each for itself: numpy is ten times as fast at it as who counts them.
            changepoint, score, pruned, run_length, evidence = np.sort(np.concatenate(parts).T)
            score = score[~np.isnan(score)]
            metrics.observe_all(metrics.CHANGEPOINT_PROBABILITY, changepoint.tolist())
            metrics.observe_all(metrics.LOG_SCORE.labels(model), score.tolist())
            metrics.SCORE_ABOVE.labels(model).inc(score[score > 0].sum())
            metrics.SCORE_BELOW.labels(model).inc(-score[score < 0].sum())
            metrics.observe_all(metrics.PRUNED_MASS.labels(model), pruned.tolist())
            metrics.observe_all(metrics.RUN_LENGTH.labels(model), run_length.tolist())
            metrics.observe_all(metrics.EVIDENCE.labels(model), evidence.tolist())
        for model, parts in self._pits.items():
            values = np.concatenate(parts)
            values = np.sort(values[np.isfinite(values)].clip(0.0, 1.0))
            metrics.observe_all(metrics.PIT.labels(model), values.tolist())
        self._steps.clear()
        self._pits.clear()
        self._count = 0


gathered = Gathered()
