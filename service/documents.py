"""The JSON documents of the REST interface as a client reads them; unknown fields are ignored."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from service.wire import Event


class Belief(Struct):
    """Run lengths with a hypothesis of their own, and their probabilities."""

    run_length: list[int] = []
    probability: list[float] = []


class RunLengthSummary(Struct):
    """Summary of the run-length belief in an observation's answer."""

    map: int
    mean: float
    hypotheses: int = 0
    pruned_mass: float = 0.0
    belief: Belief | None = None


class Predictive(Struct):
    """Predictive distribution held before the label was seen."""

    mean: list[float | None] | None = None
    variance: list[list[float | None]] | None = None
    quantiles: dict[str, list[float | None]] | None = None
    probabilities: list[float] | None = None


class Answer(Struct):
    """The service's answer to one observation."""

    stream: str
    seq: int
    model: str
    predictive: Predictive | None = None
    log_score: float | None = None
    changed_probability: float | None = None
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    run_length: RunLengthSummary | None = None
    event: Event | None = None
    duplicate: bool = False
    warming_up: bool = False
    time: str | None = None


class Segment(Struct):
    """One regime: `start <= seq < end`."""

    start: int
    end: int


class Changepoints(Struct):
    """Events so far and the retrospective segmentation of the retained history."""

    stream: str
    seq: int
    model: str = ""
    events: list[Event] = []
    segmentation: list[Segment] = []


class StreamState(Struct):
    """Summary of one stream."""

    stream: str
    model: str
    seq: int
    settings: dict[str, Any] = {}
    warming_up: bool = False
    x_dim: int | None = None
    y_dim: int | None = None
    changed_probability: float | None = None


class Hypothesis(Struct):
    """One run length in the belief."""

    run_length: int
    start: int
    probability: float


class RunLength(Struct):
    """The whole run-length belief of a stream."""

    stream: str
    seq: int | None
    model: str
    warming_up: bool = False
    changed_probability: float | None = None
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    belief: list[Hypothesis] | None = None


class StreamPage(Struct):
    """One page of the list of streams; `cursor` leads to the next."""

    streams: list[Any]
    cursor: str | None = None
