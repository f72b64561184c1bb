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
    quantiles: dict[str, int] | None = None


class Predictive(Struct):
    """Predictive distribution held before the label was seen."""

    mean: list[float | None] | None = None
    variance: list[list[float | None]] | None = None
    quantiles: dict[str, list[float | None]] | None = None
    probabilities: list[float] | None = None


class Component(Struct):
    """One component of a predictive mixture."""

    weight: float
    run_length: int | None = None
    mean: list[float] | None = None
    variance: list[float | None] | None = None
    probabilities: list[float] | None = None
    family: str | None = None
    parameters: dict[str, Any] = {}


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
    components: list[Component] | None = None
    time: str | None = None
    provisional: bool = False  # computed without labels before it that are to come


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
    unreadable: list[str] = []  # ids of events that are damaged in the store


class Verdict(Struct):
    """The event that a verdict is on, as it is now."""

    stream: str
    seq: int
    event: Event


class MostProbable(Struct):
    """What the history and a stream's summary keep of a run-length belief."""

    map: int


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
    created: str | None = None
    updated: str | None = None
    run_length: MostProbable | None = None
    regime_start: int | None = None
    last: list[float] | None = None
    event: Event | None = None
    last_event: Event | None = None
    mean_log_score: float | None = None
    pruned_mass: float = 0.0
    awaited: list[int] = []  # positions whose label is to come
    sensitivity: dict[str, Any] | None = None


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
    run_length: RunLengthSummary | None = None
    changed_probability: float | None = None
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    belief: list[Hypothesis] | None = None


class StreamPage(Struct):
    """One page of the list of streams; `cursor` leads to the next."""

    streams: list[Any]
    cursor: str | None = None


class Glance(Struct):
    """One stream at a glance; `labels`: the first number of each of the last ones."""

    stream: str
    model: str
    seq: int
    warming_up: bool = False
    updated: str | None = None
    regime_start: int | None = None
    regime_length: int | None = None
    changed_probability: float | None = None
    event: Event | None = None
    last_event: Event | None = None
    labels: list[float | None] = []


class Overview(Struct):
    """A page of streams at a glance, and how many there are in all."""

    streams: list[Glance]
    total: int = 0
    cursor: str | None = None
    unreadable: list[str] = []  # streams of the page that are damaged in the store


class Prediction(Struct):
    """Predictive distribution of a label to come."""

    x: list[float] | None = None
    predictive: Predictive | None = None
    ahead: int | None = None  # with a horizon: 1 is the next label
    components: list[Component] | None = None
    samples: list[list[float]] | None = None


class Predictions(Struct):
    """Predictive distributions of what comes next."""

    stream: str
    seq: int
    model: str
    predictions: list[Prediction]
    warming_up: bool = False


class Action(Struct):
    """The candidate chosen among several inputs, and what each was worth."""

    stream: str
    seq: int
    model: str
    strategy: str
    chosen: int
    candidate: list[float]
    values: list[float] = []
    seed: int | None = None


class Supervision(Struct):
    """What a client said of a switch just before an observation."""

    changepoint: float | None = None


class Recorded(Struct):
    """One observation of the history, as it was posted, with its compact answer."""

    seq: int
    y: float | list[float] | None = None
    x: list[float] | None = None
    time: str | None = None
    elapsed: float = 1.0
    supervision: Supervision | None = None
    hazard: Any = None
    outlier_rate: float | None = None
    predictive: Predictive | None = None
    log_score: float | None = None
    changed_probability: float | None = None
    changepoint_probability: float | None = None
    recent_change_probability: float | None = None
    run_length: MostProbable | None = None


class HistoryPage(Struct):
    """A page of the history, oldest first; `next` is the start of the next one, if any."""

    stream: str
    seq: int
    model: str
    first: int
    observations: list[Recorded]
    next: int | None = None
    unreadable: list[str] = []  # changes of settings that are damaged in the store


class ModelInfo(Struct):
    """A model that streams can use. `versions` are names, of one model whole descriptions."""

    name: str
    kind: str
    default: str | None = None
    description: str = ""
    x_dim: int | None = None
    y_dim: int | None = None
    hazard: Any = None
    built_in: bool = False
    error: str | None = None
    versions: list[Any] = []


class Models(Struct):
    """All models."""

    models: list[ModelInfo]


class Snapshot(Struct):
    """A stream's whole state, for this service to read: bytes of a content type."""

    content: bytes
    content_type: str = "application/octet-stream"


class StreamEvent(Struct):
    """A changepoint as it is raised. `cursor` resumes after it; `at` is the service's clock."""

    stream: str
    event: Event
    model: str = ""
    time: str | None = None
    at: Any = None
    cursor: str = ""


class Gap(Struct):
    """Some events before `cursor` are not kept any more; `known` is what the service says."""

    known: dict[str, Any]
    cursor: str = ""
