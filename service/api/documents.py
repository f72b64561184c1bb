"""What the REST interface answers, as models: for OpenAPI only, answers are rendered elsewhere."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.documents_sensitivity import Sensitivity

Numbers = list[float]


class Document(BaseModel):
    """Base of all answers."""


class Predictive(Document):
    """Predictive distribution of a label. Numeric labels have mean, variance and quantiles."""

    mean: Numbers | None = None
    variance: list[Numbers] | None = Field(None, description="null where it does not exist")
    quantiles: dict[str, Numbers] | None = None
    probabilities: Numbers | None = Field(None, description="of each class")


class Component(Document):
    """One component of a predictive mixture."""

    weight: float
    run_length: int | None
    mean: Numbers | None = None
    variance: list[float | None] | None = None
    probabilities: Numbers | None = Field(None, description="of each class")
    family: str | None = Field(None, description="of distributions, such as StudentT")
    parameters: dict[str, Any] | None = Field(None, description="of the family, by name")


class BeliefColumns(Document):
    """Run lengths that have a hypothesis, and their probabilities."""

    run_length: list[int]
    probability: Numbers


class RunLengthSummary(Document):
    """How long the current regime has lasted."""

    map: int
    mean: float
    hypotheses: int
    pruned_mass: float = Field(description="probability lost by pruning at this step")
    belief: BeliefColumns | None = Field(None, description="with `?belief=true`")


class Event(Document):
    """A changepoint's life; `start` and the `_at` fields are values of `seq`."""

    id: int
    state: Literal["suspected", "confirmed", "withdrawn"]
    start: int
    suspected_at: int
    confirmed_at: int | None
    delay: int = Field(description="suspected_at - start")
    probability: float
    direction: Literal["up", "down"] | None
    size: float | Numbers | None = Field(description="in standard deviations")
    time: str | None
    verdict: bool | None = Field(description="a person's word: whether it was a change")


class Answer(Document):
    """Answer to one observation."""

    stream: str
    seq: int = Field(description="this observation's position; the first has 0")
    model: str
    predictive: Predictive | None = Field(description="held before the label was seen")
    log_score: float | None = Field(description="log predictive density of the label")
    changed_probability: float | None = Field(
        description="mass on run starts after the last confirmed one: the number to alarm on"
    )
    changepoint_probability: float | None = Field(description="this observation starts a regime")
    recent_change_probability: float | None
    run_length: RunLengthSummary | None
    event: Event | None = Field(description="the changepoint that this observation moved on")
    duplicate: bool = Field(description="answered from memory: it had been applied before")
    warming_up: bool = Field(description="location and scale are not known yet")
    components: list[Component] | None = Field(None, description="with `?components=true`")
    time: str | None = None
    provisional: bool | None = Field(
        None, description="true: computed without labels before it that are to come"
    )


class ItemAnswer(Answer):
    """Answer to one item: an answer with `status` 200, or a problem document."""

    status: int


class StreamSummary(Document):
    """What is known of a stream."""

    stream: str
    model: str
    seq: int = Field(description="position of the next observation")
    awaited: list[int] = Field(description="positions whose label is to come")
    settings: dict[str, Any]
    sensitivity: Sensitivity | None = Field(description="null: `confirm_after` confirms")
    warming_up: bool
    x_dim: int | None
    y_dim: int | None
    created: str
    updated: str
    run_length: dict[str, int] | None
    regime_start: int | None
    changed_probability: float | None
    last: Numbers | None
    event: Event | None = Field(description="the change under suspicion")
    last_event: Event | None = Field(description="the last confirmed change")
    mean_log_score: float | None
    pruned_mass: float


class StreamName(Document):
    """An entry of the list of streams."""

    stream: str


class StreamPage(Document):
    """A page of stream ids, in order."""

    streams: list[StreamName]
    cursor: str | None = Field(description="to be given for the next page; null on the last")


class Segment(Document):
    """One regime: `start <= seq < end`."""

    start: int
    end: int


class Changepoints(Document):
    """Events so far, and the best segmentation of the retained history."""

    stream: str
    seq: int
    model: str
    events: list[Event]
    segmentation: list[Segment]
    unreadable: list[str] = Field([], description="ids of events that are damaged in the store")


class Change(Document):
    """Settings that were changed before the observation at `seq`; `model`: it was moved."""

    seq: int
    at: str
    settings: dict[str, Any]


class HistoryPage(Document):
    """A page of observations with their compact answers, oldest first."""

    stream: str
    seq: int
    model: str
    first: int = Field(description="the oldest `seq` that is kept")
    observations: list[dict[str, Any]]
    changes: list[Change]
    next: int | None = Field(description="`start` of the next page; null on the last")
    unreadable: list[str] = Field(
        [], description="changes of settings that are damaged in the store"
    )


class ModelSummary(Document):
    """A model by its highest usable version."""

    name: str
    default: str | None = Field(description="NAME@VERSION that NAME stands for")
    kind: str
    description: str
    x_dim: int | None = Field(description="null: any, the stream's first input decides")
    y_dim: int | None = Field(description="null: any, the stream's first label decides")
    hazard: float | list[float] | dict[str, float] | None = Field(
        description="a number, a table by run length, or the mean and shape of durations"
    )
    built_in: bool
    error: str | None
    versions: list[str]


class Models(Document):
    """All models."""

    models: list[ModelSummary]


class ModelDetail(ModelSummary):
    """A model with all its versions, from old to new."""

    versions: list[dict[str, Any]] = Field(  # type: ignore[assignment]
        description="each as its `model.json` says, with `training`, a summary, and `report`, the "
        "numbers of its training report, and `sensitivity`, its false alarms and delays by "
        "threshold; null: none"
    )


class Status(Document):
    """Answer of a probe."""

    status: str


class FieldProblem(Document):
    """What is wrong with one field."""

    loc: str
    detail: str


class Problem(Document):
    """RFC 9457 problem document; some types have further members."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "https://moca-service.dev/problems/invalid-field",
                    "title": "Invalid field",
                    "status": 422,
                    "detail": "body.y: expected a finite number",
                    "errors": [{"loc": "body.y", "detail": "expected a finite number"}],
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None
