"""What is answered to questions about a stream, as models: for OpenAPI only."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.api.documents import (
    BeliefColumns,
    Component,
    Document,
    Event,
    Numbers,
    Predictive,
    Problem,
    Segment,
)


class Prediction(Document):
    """Predictive distribution of the next label at one input."""

    x: Numbers | None
    predictive: Predictive | None
    ahead: int | None = Field(None, description="with a horizon: 1 is the next label")
    components: list[Component] | None = None
    samples: list[Numbers] | None = None


class Predictions(Document):
    """Predictive distributions of the observation to come."""

    stream: str
    seq: int
    model: str
    warming_up: bool
    predictions: list[Prediction]


class Action(Document):
    """The candidate that was chosen; it is the `x` of the observation to be posted."""

    stream: str
    seq: int
    model: str
    strategy: Literal["thompson", "optimistic", "greedy"]
    chosen: int = Field(description="index among the candidates")
    candidate: Numbers
    values: Numbers = Field(description="of each candidate, what the chosen one was the best of")
    seed: int | None = Field(description="the same one draws the same again; null: nothing drawn")


class Hypothesis(Document):
    """One run length of the belief."""

    run_length: int
    start: int
    probability: float


class RunLength(Document):
    """The whole run-length belief after the last observation."""

    stream: str
    seq: int | None
    model: str
    warming_up: bool
    run_length: dict[str, Any] | None
    changed_probability: float | None
    changepoint_probability: float | None
    recent_change_probability: float | None
    belief: list[Hypothesis]


class Verdict(Document):
    """The event that a verdict is on, as it is now."""

    stream: str
    seq: int
    event: Event


class BeliefAfter(BeliefColumns):
    """The run-length belief after an observation."""

    seq: int


class WhatIf(Document):
    """What the retained history would have come to; ids of events are its own."""

    stream: str
    seq: int
    first: int = Field(description="`seq` of the first observation that was rerun")
    model: str
    settings: dict[str, Any]
    warming_up: bool
    compared: int = Field(description="observations that both have a log score for")
    mean_log_score: float | None
    present_mean_log_score: float | None = Field(description="as the stream was answered")
    events: list[Event]
    segmentation: list[Segment]
    log_score: list[float | None] | None = Field(None, description="with `series`")
    changed_probability: list[float | None] | None = Field(None, description="with `series`")
    beliefs: list[BeliefAfter] | None = Field(
        None,
        description="with `beliefs`: of each of the last observations the 64 most probable run "
        "lengths, without those below 0.0001; none in the warm-up",
    )


class Canary(Document):
    """A share of a model's new streams is made with this version."""

    version: str
    share: float


class Moves(Document):
    """What became of a page of streams; those that failed stay as they were."""

    moved: list[str]
    failed: list[Problem]
    cursor: str | None = Field(description="to be given for the next page; null on the last")
