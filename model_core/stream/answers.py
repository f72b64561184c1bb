"""Answers of a detector, with the names that the REST interface has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from model_core.stream.events import Event
from model_core.stream.rows import Floats
from model_core.stream.series import Taken
from model_core.stream.state import KnownRegime
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel

Number = float | list[float]  # of labels that are vectors a list


class Predictive(NamedTuple):
    """Predictive distribution of a label. Numbers are floats of single labels, lists of vectors.

    mean, sd, quantiles: of numbers; a standard deviation that does not exist is inf. covariance:
    (d, d), of numbers. probabilities: of classes, zeros and ones among them.
    """

    mean: Number | None = None
    sd: Number | None = None
    quantiles: dict[float, Number] | None = None
    covariance: list[list[float]] | None = None
    probabilities: list[float] | None = None

    @property
    def interval(self) -> tuple[Number, Number] | None:
        """Lowest and highest of the quantiles: by default of 90 %; None of classes."""
        if not self.quantiles:
            return None
        levels = sorted(self.quantiles)
        return self.quantiles[levels[0]], self.quantiles[levels[-1]]

    def to_dict(self) -> dict[str, Any]:
        """As the REST interface has it: lists, and null for a variance that does not exist."""
        if self.probabilities is not None:
            return {"probabilities": self.probabilities}
        assert self.covariance is not None
        exists = all(math.isfinite(value) for row in self.covariance for value in row)
        return {
            "mean": _listed(self.mean),
            "variance": self.covariance if exists else None,
            "quantiles": {str(q): _listed(value) for q, value in (self.quantiles or {}).items()},
        }


def _listed(value: Number | None) -> list[float]:
    return value if isinstance(value, list) else [math.nan if value is None else value]


def predictive(model: UnderlyingModel, numbers: Floats, levels: Sequence[float]) -> Predictive:
    """Predictive of the numbers of a `Summary`."""
    predicted = Summary(numbers[None], model.y_dim, model.label)
    if model.label == "class":
        return Predictive(probabilities=predicted.mean[0].tolist())
    if model.label == "binary":
        p = float(predicted.mean[0, 0])
        return Predictive(probabilities=[1 - p, p])
    mean = predicted.mean[0].tolist()
    covariance = predicted.covariance[0]
    sd = np.sqrt(np.maximum(np.diagonal(covariance), 0.0)).tolist()
    quantiles = np.maximum.accumulate(predicted.quantiles[0], 0).tolist()
    alone = len(mean) == 1
    by_level = {q: value[0] if alone else value for q, value in zip(levels, quantiles, strict=True)}
    if alone:
        return Predictive(mean[0], sd[0], by_level, covariance.tolist())
    return Predictive(mean, sd, by_level, covariance.tolist())


class RunLength(NamedTuple):
    """Summary of the run-length belief: most probable and mean run length, and its size."""

    map: int
    mean: float
    hypotheses: int
    pruned_mass: float


class Answer:
    """Answer to one observation. Probabilities are None while warming up; a score without a label.

    seq: position of the observation. events: all that changed their state at it, anomalies too.
    """

    def __init__(
        self,
        taken: Taken,
        model: UnderlyingModel | None,
        name: str,
        levels: Sequence[float],
        names: Sequence[str | int] = (),
    ) -> None:
        self._taken = taken
        self._model = model
        self._levels = levels
        self._names = names  # of the outputs
        self.seq = taken.seq
        self.model = name

    @property
    def warming_up(self) -> bool:
        """Whether location and scale were not known yet."""
        return self._taken.readout is None

    @cached_property
    def predictive(self) -> Predictive | None:
        """Predictive distribution before the label was seen; None: of the first labels."""
        if self._model is None or not len(self._taken.numbers):
            return None
        return predictive(self._model, self._taken.numbers, self._levels)

    @property
    def log_score(self) -> float | None:
        """Log predictive density of the label."""
        return _known(self._taken.log_score)

    @property
    def anomaly(self) -> float | None:
        """How unusual the observation is for its series, from 0 to 1."""
        return _known(self._taken.anomaly)

    @property
    def changed_probability(self) -> float | None:
        """Probability that the regime has changed since the last confirmed change."""
        line = self._taken.readout
        return None if line is None else line.changed_probability

    @property
    def evidence(self) -> float | None:
        """Evidence of that, as a return period: one false alarm in so many observations."""
        line = self._taken.readout
        return None if line is None else line.evidence

    @property
    def changepoint_probability(self) -> float | None:
        """Probability that this observation starts a regime."""
        line = self._taken.readout
        return None if line is None or not self.seq else line.changepoint_probability

    @property
    def recent_change_probability(self) -> float | None:
        """Probability that the regime changed within the last five observations."""
        line = self._taken.readout
        return None if line is None else line.recent_change_probability

    @property
    def run_length(self) -> RunLength | None:
        """Summary of the run-length belief."""
        line = self._taken.readout
        if line is None:
            return None
        return RunLength(
            line.map_run_length, line.mean_run_length, line.hypotheses, line.pruned_mass
        )

    @property
    def regime(self) -> KnownRegime | None:
        """The regime that the stream is in, if it is a known one.

        The most probable of a model's typical regimes, or of those that the stream remembers.
        """
        line = self._taken.readout
        return None if line is None else line.regime

    @property
    def new_probability(self) -> float | None:
        """Probability of a change since the last confirmed one to a regime that is not remembered.

        Of series that remember some.
        """
        line = self._taken.readout
        return None if line is None else line.new_probability

    @property
    def return_evidence(self) -> float | None:
        """Evidence of a return since the last confirmed change, of series that remember regimes.

        `evidence` is then of a change to a new regime alone.
        """
        line = self._taken.readout
        return None if line is None else line.return_evidence

    @property
    def event(self) -> Event | None:
        """The change whose state this observation changed last."""
        event = self._taken.event
        return event and event.named(self._names)

    @property
    def events(self) -> list[Event]:
        """All events whose state this observation changed."""
        alarm = self._taken.alarm
        events = [moved.event.named(self._names) for moved in self._taken.moved]
        return events if alarm is None else [*events, alarm.named(self._names)]

    @property
    def season(self) -> list[int]:
        """Periods of the seasons that are known by now, in observations; empty: none."""
        return [] if self._taken.season is None else list(self._taken.season.periods)

    @property
    def drift_detected(self) -> bool:
        """Whether the observation confirmed a change."""
        return any(moved.new for moved in self._taken.moved)

    def to_dict(self) -> dict[str, Any]:
        """As the REST interface answers, without the name of a stream."""
        line = self.run_length
        event = self.event
        answer: dict[str, Any] = {
            "seq": self.seq,
            "model": self.model,
            "predictive": None if self.predictive is None else self.predictive.to_dict(),
            "log_score": self.log_score,
            "changed_probability": self.changed_probability,
            "evidence": self.evidence,
            "changepoint_probability": self.changepoint_probability,
            "recent_change_probability": self.recent_change_probability,
            "anomaly": self.anomaly,
            "run_length": None if line is None else line._asdict(),
            "event": None if event is None else event.to_dict(),
            "warming_up": self.warming_up,
        }
        if self.regime is not None:
            answer["regime"] = self.regime.to_dict()
        if self.new_probability is not None:
            answer["new_probability"] = self.new_probability
            answer["return_evidence"] = self.return_evidence
        return answer | ({"season": {"periods": self.season}} if self.season else {})

    def __repr__(self) -> str:
        if self.warming_up:
            return f"Answer(seq={self.seq}, warming_up=True)"
        changed = self.changed_probability
        anomaly = self.anomaly
        unusual = "" if anomaly is None else f", anomaly={anomaly:.3f}"
        state = "" if self.event is None else f", event={self.event.state} at {self.event.start}"
        shown = f"changed_probability={changed:.3f}, evidence={self.evidence:.4g}"
        return f"Answer(seq={self.seq}, {shown}{unusual}{state})"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class Answers:
    """Answers to one observation of each of several series: columns, and by index each answer.

    Numbers are arrays (n,), nan where there is none; None stands for series that were refused.
    """

    def __init__(self, answers: Sequence[Answer | None]) -> None:
        self._answers = list(answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, index: int) -> Answer | None:
        return self._answers[index]

    def __iter__(self) -> Iterator[Answer | None]:
        return iter(self._answers)

    def __repr__(self) -> str:
        changed = np.flatnonzero(self.drift_detected).tolist()
        return f"Answers({len(self)} series, drift_detected={changed}, refused={self.refused})"

    def _column(self, name: str) -> Floats:
        values = [None if answer is None else getattr(answer, name) for answer in self._answers]
        return np.array([math.nan if value is None else value for value in values], np.float64)

    @property
    def log_score(self) -> Floats:
        """Log predictive densities of the labels."""
        return self._column("log_score")

    @property
    def changed_probability(self) -> Floats:
        """Probabilities that regimes have changed since the last confirmed change."""
        return self._column("changed_probability")

    @property
    def evidence(self) -> Floats:
        """Evidence of these changes, as return periods."""
        return self._column("evidence")

    @property
    def anomaly(self) -> Floats:
        """How unusual the observations are for their series."""
        return self._column("anomaly")

    @property
    def drift_detected(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the observations confirmed a change."""
        return np.array([answer is not None and answer.drift_detected for answer in self._answers])

    @property
    def refused(self) -> list[int]:
        """Indices of observations that the filter could not take; these were not applied."""
        return [i for i, answer in enumerate(self._answers) if answer is None]
