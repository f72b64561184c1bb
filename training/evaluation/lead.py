"""Held-out lead of a model in training over the best built-in one, for the progress bar."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from training.config import Config
from training.data.own import Opened
from training.data.windows import Series
from training.evaluation.own_data import BURN_IN, log_scores, untrained
from training.learners import Classifier, Learner

LENGTH = 120  # observations of a piece of a validation series
PIECES = 12
SHARE = 0.1  # of the time of training, for all measurements
FIRST_S = 1.0  # guess of what the first one takes


class Lead:
    """Nats an observation that the model as served is ahead on pieces of the validation series.

    Each piece is a stream of its own: its first observations are the warm-up, and the first
    `BURN_IN` are not scored. The built-in models are scored once, one after another. What would
    take more than `SHARE` of the training so far is put off to a later call.
    """

    def __init__(self, config: Config, data: Opened) -> None:
        self._pieces = pieces(data.validation)
        self._untrained = untrained(config, data.splits)
        self._best: float | None = None
        self._spent_s = 0.0
        self._last_s = FIRST_S

    def __call__(self, learner: Learner, elapsed_s: float) -> dict[str, float]:
        """The lead as `lead`; nothing where it was not measured.

        elapsed_s: time of training so far, these measurements included.
        """
        if not self._pieces or isinstance(learner, Classifier):
            return {}
        measured: dict[str, float] = {}
        while not measured and self._spent_s + self._last_s <= SHARE * elapsed_s:
            begun_s = time.process_time()
            measured = self._measured(learner)
            self._last_s = time.process_time() - begun_s
            self._spent_s += self._last_s
        return measured

    def _measured(self, learner: Learner) -> dict[str, float]:
        if self._untrained:
            _, model = self._untrained.popitem()
            score = _mean(log_scores(model, self._pieces))
            self._best = score if self._best is None else max(score, self._best)
            return {}
        assert self._best is not None
        served = copy.deepcopy(learner).to("cpu", torch.float64).eval().served()
        return {"lead": _mean(log_scores(served, self._pieces)) - self._best}


def pieces(series: Sequence[Series]) -> list[Series]:
    """At most `PIECES` pieces, evenly from those that have observations to score."""
    parts = [
        one.part(start, start + LENGTH)
        for one in series
        for start in range(0, len(one.y), LENGTH)
        if len(one.y) - start > BURN_IN
    ]
    known = [one for one in parts if bool((~one.y[BURN_IN:].isnan()).all(-1).any())]
    if len(known) <= PIECES:
        return known
    return [known[k * len(known) // PIECES] for k in range(PIECES)]


def _mean(scores: Sequence[Tensor]) -> float:
    scored = torch.cat([each[BURN_IN:] for each in scores])
    return float(scored[~scored.isnan()].mean())
