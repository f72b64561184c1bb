"""Answers of the REST interface, each defined once: rendered, documented and read as this struct.

The service encodes these structs, OpenAPI describes them, and the client decodes them, ignoring
members it does not know. The order of the members is that of the JSON.

A member with a plain default is left out while it has that default, and OpenAPI does not require
it. One with `sent` is always there; its default is what a client reads from an older service that
lacks it.
"""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, TypedDict, TypeVar

from msgspec import UNSET, Meta, Struct, field

from moca_client.stream_settings import Hazard, StreamSettings

T = TypeVar("T")
ABSENT: Any = UNSET  # leaves a member out, whatever its default


class Response(Struct, omit_defaults=True):
    """Base of the answers."""


def sent(default: T) -> T:
    """Return the default of a member that is sent even while it has it."""
    plain = default is None or isinstance(default, bool | int | float | str)
    # A factory's value is never omitted.
    return field(default_factory=(lambda: default) if plain else lambda: copy(default))


NULL: Any = sent(None)


def doc(description: str) -> Meta:
    """Description of a member."""
    return Meta(description=description)


def words(*values: str) -> Meta:
    """Values of a member; a client accepts others, of later versions."""
    return Meta(extra_json_schema={"enum": list(values)})


# Types of the messages about events, by the kinds of those.
MESSAGES = {"change": "changepoint", "anomaly": "anomaly"}
NextPage = Annotated[str | None, doc("pass it to get the next page; null on the last page")]
Unreadable = Annotated[
    list[str], doc("streams of the page whose state or history is damaged in the store")
]
Anomaly = Annotated[
    float | None,
    doc(
        "how unusual this observation is for this stream, from 0 to 1; 1 - anomaly is about the "
        "share of a quiet stream's observations that are as strange"
    ),
]
Evidence = Annotated[
    float | None,
    doc(
        "evidence of that change, as a return period: while nothing changes it gets as high once "
        "in so many observations; a change is confirmed at `false_alarm_every`"
    ),
]


DETAIL = "only with `?detail=full`"
LogScore = Annotated[float | None, doc(f"log predictive density of the label; {DETAIL}")]
StartProbability = Annotated[
    float | None, doc(f"probability that this observation starts a regime; {DETAIL}")
]
RecentChange = Annotated[
    float | None, doc(f"probability that one of the last 5 observations started one; {DETAIL}")
]


class Predictive(Struct, gc=False):
    """Predictive distribution of a label. Numeric labels have mean, variance and quantiles.

    The median, quantile 0.5, is the forecast.
    """

    # Defaults are sent, for a variance that is null: members of the other kind are ABSENT.
    mean: list[float | None] | None = None
    variance: Annotated[
        list[list[float | None]] | None,
        doc(f"null if it does not exist; of answers to observations {DETAIL}"),
    ] = None
    quantiles: dict[str, list[float | None]] | None = None
    probabilities: Annotated[list[float] | None, doc("by class")] = None


class Component(Response):
    """One component of a predictive mixture."""

    weight: float
    run_length: int | None = NULL
    mean: list[float] | None = None
    variance: list[float | None] | None = None
    probabilities: Annotated[list[float] | None, doc("by class")] = None
    family: Annotated[str | None, doc("distribution family, such as StudentT")] = None
    parameters: Annotated[
        dict[str, float | list[float | list[float | list[float]]]],
        doc(
            "parameters of the family, by name: numbers, vectors, matrices by row, or lists of them"
        ),
    ] = {}


class BeliefColumns(Response):
    """Run lengths that have a hypothesis, and their probabilities."""

    run_length: list[int] = sent([])
    probability: list[float] = sent([])


class RunLengthSummary(Response):
    """Summary of the run-length belief."""

    map: int
    mean: float
    quantiles: Annotated[dict[str, int] | None, doc("with the full belief")] = None
    hypotheses: int = sent(0)
    pruned_mass: Annotated[float, doc("probability mass pruned at this step")] = sent(0.0)
    belief: Annotated[BeliefColumns | None, doc("only with `?belief=true`")] = None


Numbers = float | list[float | None] | None


class RegimeStatistics(Response):
    """Labels on one side of a change: the last 200 before it, the first 100 after it at most."""

    count: Annotated[int, doc("labels")]
    mean: Annotated[Numbers, doc("of counts: the rate; null: of classes")] = NULL
    sd: Annotated[Numbers, doc("standard deviation; null: of classes, or of one label")] = NULL


class Explanation(Response):
    """What changed, by Bayes factors of models that share all parameters but one."""

    text: str
    kind: Annotated[
        Annotated[str, words("mean", "spread", "slope", "autocorrelation", "rate", "share")] | None,
        doc("null: no clear change of any"),
    ] = NULL
    before: Annotated[float | None, doc("the parameter of that kind before the change")] = NULL
    after: Annotated[float | None, doc("and after it")] = NULL
    probability: Annotated[
        float, doc("posterior probability of the kind, given that they all are as probable before")
    ] = sent(0.0)
    output: Annotated[
        int | None,
        doc("index of the output that changed most clearly, null: none; of a share: the class"),
    ] = NULL
    size: Annotated[
        float | None,
        doc(
            "of that change: of a mean of numbers in standard deviations, of a spread, rate or "
            "mean duration a ratio, else the difference; null: without spread, or from nothing"
        ),
    ] = NULL


class KnownRegime(Response):
    """Regime that the stream most probably is in: a typical one of its model, or a remembered one.

    See the setting `regimes`.
    """

    name: Annotated[
        str | None, doc("of a typical regime of the model; or as it was given to a remembered one")
    ] = NULL
    probability: Annotated[
        float, doc("that it is this one, over all run lengths; of an event: over its starts")
    ] = sent(0.0)
    id: Annotated[int | None, doc("of a remembered regime; none is used again")] = None
    seen: Annotated[int | None, doc("how often it was seen before")] = None
    last_seen: Annotated[
        int | None,
        doc("`seq` of the last observation in it, as of the last confirmed change"),
    ] = None


class EventMembers(Response, kw_only=True):
    """Members of an event, and of a change in a list; `start` and the `_at` fields are `seq`s."""

    id: Annotated[int, doc("of its stream and kind; of an anomaly: the `seq` of its observation")]
    state: Annotated[str, words("suspected", "confirmed", "withdrawn")]
    start: int
    earliest: Annotated[
        int | None,
        doc("of a confirmed change: the first `seq` at which it may have begun, see `coverage`"),
    ] = NULL
    latest: Annotated[int | None, doc("the last one")] = NULL
    coverage: Annotated[
        float | None,
        doc(
            "probability, given a change, of the fewest starts that hold 0.9 of it, which lie from "
            "`earliest` to `latest`"
        ),
    ] = NULL
    suspected_at: int
    confirmed_at: int | None = NULL
    start_time: Annotated[
        str | None,
        doc("of the first observation after it, as sent, else when that was accepted; RFC 3339"),
    ] = NULL
    start_arrived: Annotated[
        bool, doc("whether `start_time` is when the observation was accepted: it had no time")
    ] = sent(False)
    direction: Annotated[str, words("up", "down")] | None = NULL
    size: Annotated[
        Numbers,
        doc(
            "in standard deviations within the regimes; of an anomaly: of what was predicted, "
            "null where the output is missing"
        ),
    ] = NULL
    probability: Annotated[
        float,
        doc(
            "that the regime began exactly at `start`, when this state was entered; of an anomaly: "
            "its `anomaly`"
        ),
    ] = sent(0.0)
    verdict: Annotated[bool | None, doc("feedback: whether it was a change; null: none")] = NULL
    excluded: Annotated[
        bool, doc("whether it was excluded from learning: the regime before it goes on")
    ] = sent(False)
    evidence: Annotated[
        float | None,
        doc("evidence when this state was entered: one false alarm in so many observations"),
    ] = NULL
    sentence: Annotated[
        str, doc("what it is, in a few words: `text` of the explanation, where there is one")
    ] = sent("")
    before: Annotated[
        RegimeStatistics | None,
        doc("since the change confirmed before it; null: too few labels, or an anomaly"),
    ] = NULL
    after: RegimeStatistics | None = NULL
    explanation: Annotated[
        Explanation | None, doc("null: too few labels on a side so far, or an anomaly")
    ] = NULL
    returned: Annotated[
        KnownRegime | None,
        doc(
            "remembered regime that the change led back to, of streams with `regimes`; none: it is "
            "a new one"
        ),
    ] = None


class Event(EventMembers, kw_only=True):
    """An event, a change or an anomaly."""

    delay: Annotated[int, doc("suspected_at - start")] = sent(0)
    time: str | None = NULL
    kind: Annotated[str, words("change", "anomaly")] = sent("change")
    refined_at: Annotated[
        int | None,
        doc(
            "`seq` at which start and explanation were looked at once more, 10 observations after "
            "it and 100 after the start; no news"
        ),
    ] = NULL


class Season(Response):
    """Season that was found in the labels of a stream."""

    periods: Annotated[list[int], doc("in observations, shorter ones first")]


FoundSeason = Annotated[Season | None, doc("once a season was found; see the setting `seasonal`")]


Typical = Annotated[
    KnownRegime | None,
    doc(
        "the most probable of the model's typical regimes (see `regimes` of its version), or of "
        "those that the stream remembers (see the setting `regimes`)"
    ),
]


class Answer(Response, gc=False):
    """Answer to one observation."""

    stream: str
    seq: Annotated[int, doc("position of this observation; the first is 0")]
    model: str
    predictive: Annotated[
        Predictive | None, doc("predictive distribution before the label was seen")
    ] = NULL
    changed_probability: Annotated[
        float | None,
        doc("probability that the regime has changed since the last confirmed change"),
    ] = NULL
    evidence: Evidence = NULL
    new_probability: Annotated[
        float | None,
        doc(
            "probability of a change since the last confirmed one to a regime that is not "
            "remembered; of streams with `regimes`"
        ),
    ] = None
    return_evidence: Annotated[
        float | None,
        doc(
            "evidence of a return to a remembered regime since the last confirmed change; of "
            "streams with `regimes`, whose `evidence` is of a change to a new one"
        ),
    ] = None
    anomaly: Anomaly = NULL
    event: Annotated[
        Event | None, doc("the changepoint event whose state this observation changed")
    ] = NULL
    warming_up: Annotated[bool, doc("warm-up: location and scale are not calibrated yet")] = sent(
        False
    )
    duplicate: Annotated[
        bool, doc("the observation was already applied; this is its stored answer")
    ] = sent(False)
    components: Annotated[list[Component] | None, doc("only with `?components=true`")] = None
    time: str | None = None
    provisional: Annotated[bool, doc("true: computed before earlier pending labels arrived")] = (
        False
    )
    season: FoundSeason = None
    regime: Typical = None
    log_score: LogScore = None
    changepoint_probability: StartProbability = None
    recent_change_probability: RecentChange = None
    run_length: Annotated[RunLengthSummary | None, doc(f"{DETAIL} or `?belief=true`")] = None


class Ingested(Response):
    """What became of observations that were ingested: see `service.wire.Ingest`."""

    applied: int
    skipped: int
    rejected: int = 0  # labels that the model cannot produce
    reason: str = ""  # of the first of these


class ItemAnswer(Answer):
    """Answer to one item: an answer with `status` 200, or a problem document."""

    status: int = sent(200)


class MostProbable(Response):
    """The most probable run length."""

    map: int


class AlarmPeriod(Response):
    """When a stream may raise a false alarm, by the service's `false_alarms_per_day`."""

    observations_per_day: Annotated[float, doc("of this stream, by its `interval` or as counted")]
    false_alarm_every: Annotated[float, doc("in force, in observations; as in its settings")]
    days: Annotated[float, doc("the same in days")]


class StreamMembers(Response):
    """Members of a stream's summary, and of its row in the overview."""

    stream: str
    model: str
    seq: Annotated[int, doc("position of the next observation")]
    warming_up: bool = sent(False)
    updated: str = sent("")
    regime_start: Annotated[int | None, doc("most probable start of the current regime")] = NULL
    changed_probability: float | None = NULL
    evidence: Evidence = NULL
    event: Annotated[Event | None, doc("the suspected change")] = NULL
    last_event: Annotated[Event | None, doc("the last confirmed change")] = NULL
    alarm_period: Annotated[
        AlarmPeriod | None,
        doc(
            "only of streams whose `false_alarm_every` is by the service's "
            "`false_alarms_per_day`: from their first hour on"
        ),
    ] = None


class StreamSummary(StreamMembers):
    """State and settings of a stream."""

    awaited: Annotated[list[int], doc("positions of pending labels")] = sent([])
    settings: StreamSettings = sent(StreamSettings())
    x_dim: int | None = NULL
    y_dim: int | None = NULL
    created: str = sent("")
    run_length: MostProbable | None = NULL
    last: Annotated[
        list[float | None] | None, doc("last number of each output; null: it had none yet")
    ] = NULL
    last_anomaly: Annotated[
        int | None, doc("`seq` of the last anomaly event; null: none, or not known any more")
    ] = NULL
    mean_log_score: float | None = NULL
    pruned_mass: float = sent(0.0)
    season: FoundSeason = None
    regime: Typical = None


class StreamName(Response):
    """An entry of the list of streams."""

    stream: str
    tags: dict[str, str] = sent({})


class StreamPage(Response):
    """A page of stream ids, in order."""

    streams: list[StreamName]
    cursor: NextPage = NULL
    unreadable: Unreadable = sent([])


class Glance(StreamMembers):
    """Overview of one stream."""

    regime_length: Annotated[int | None, doc("length of the current regime in observations")] = NULL
    labels: Annotated[
        list[float | None],
        doc("last labels, oldest first; the first number of each; null: missing"),
    ] = sent([])


class Overview(Response):
    """A page of streams with an overview of each."""

    streams: list[Glance]
    total: Annotated[int, doc("number of streams that fit the query, on all pages")] = sent(0)
    cursor: NextPage = NULL
    unreadable: Unreadable = sent([])


class Prediction(Response):
    """Predictive distribution of the next label at one input."""

    x: list[float] | None = NULL
    ahead: Annotated[int | None, doc("forecast step, with a horizon; 1 is the next label")] = None
    predictive: Predictive | None = NULL
    components: list[Component] | None = None
    samples: list[list[float]] | None = None


class Predictions(Response, kw_only=True):
    """Predictive distributions of the next observation."""

    stream: str
    seq: int
    model: str
    warming_up: bool = sent(False)
    predictions: list[Prediction]


class Action(Response):
    """The chosen candidate; use it as `x` of the next observation."""

    stream: str
    seq: int
    model: str
    strategy: Annotated[str, words("thompson", "optimistic", "greedy")]
    chosen: Annotated[int, doc("index of the chosen candidate")]
    candidate: list[float]
    values: Annotated[list[float], doc("score of each candidate under the strategy")] = sent([])
    seed: Annotated[
        int | None, doc("seed that reproduces the samples; null: nothing was sampled")
    ] = NULL


class Hypothesis(Response):
    """One run length of the belief."""

    run_length: int
    start: int
    probability: float


class RunLength(Response):
    """The full run-length belief after the last observation."""

    stream: str
    seq: int | None
    model: str
    warming_up: bool = sent(False)
    run_length: RunLengthSummary | None = NULL
    changed_probability: float | None = NULL
    evidence: Evidence = NULL
    changepoint_probability: float | None = NULL
    recent_change_probability: float | None = NULL
    belief: list[Hypothesis] = sent([])


class RememberedRegime(Response):
    """A regime that the stream remembers."""

    id: Annotated[int, doc("none is used again")]
    name: Annotated[str | None, doc("that it was given")] = NULL
    probability: Annotated[float, doc("that it is on now, over all run lengths")] = sent(0.0)
    seen: Annotated[int, doc("how often it was seen before")] = sent(0)
    last_seen: Annotated[
        int, doc("`seq` of the last observation in it, as of the last confirmed change")
    ] = sent(0)
    predictive: Annotated[
        Predictive | None,
        doc("of the next label, if the stream is in this regime then; null: worker without torch"),
    ] = NULL


class Regimes(Response):
    """The regimes that a stream remembers, by id, after the last observation."""

    stream: str
    seq: int | None
    model: str
    warming_up: bool = sent(False)
    regimes: list[RememberedRegime] = sent([])


class Segment(Response):
    """One regime: `start <= seq < end`."""

    start: int
    end: int


class Hindsight(Response):
    """What a rerun with location and scale of all retained labels has added to a segmentation."""

    status: Annotated[
        str,
        doc(
            "`current`; `pending`: being computed, ask again; `unavailable`: could not be computed "
            "now; `none`: there is nothing to segment yet"
        ),
        words("current", "pending", "unavailable", "none"),
    ]
    first: Annotated[
        int | None, doc("the first observation that was rerun; null while none was")
    ] = NULL
    seq: Annotated[int | None, doc("position of the first observation after it")] = NULL
    computed: Annotated[str | None, doc("when it was computed, RFC 3339")] = NULL


class Changepoints(Response):
    """Events, and a segmentation of the retained history."""

    stream: str
    seq: int
    model: str = sent("")
    events: list[Event] = sent([])
    segmentation: Annotated[
        list[Segment],
        doc("confirmed changes, and what the filter's best path and then `hindsight` add to them"),
    ] = sent([])
    hindsight: Annotated[Hindsight | None, doc("null from an older service")] = NULL


class ValuesAround(Response):
    """Retained values on both sides of a start, one for each observation."""

    first: Annotated[int, doc("`seq` of the first value")]
    values: Annotated[
        list[float | None],
        doc("of the output that `explanation` is of, else of the first; null: missing"),
    ]
    times: Annotated[list[str | None], doc("as sent; empty: no observation had one")] = sent([])


class StreamChange(EventMembers):
    """A change of a stream in its last state; times are RFC 3339."""

    stream: str
    model: str = sent("")
    tags: Annotated[dict[str, str], doc("of the stream, when this state was entered")] = sent({})
    suspected_time: Annotated[
        str, doc("of the observation that raised it, as sent, or when it was accepted")
    ] = sent("")
    confirmed_time: Annotated[str | None, doc("likewise, of that which confirmed it")] = NULL
    link: Annotated[
        str | None,
        doc("page of the console; null: the stream is gone, or another has its name"),
    ] = NULL
    incident: Annotated[str | None, doc("id of the incident that it is part of")] = NULL
    around: Annotated[
        ValuesAround | None, doc("with `around` in the query; null: not retained any more")
    ] = None


class Timeline(Response):
    """Changes counted over time, in intervals of equal length."""

    since: Annotated[str, doc("beginning of the first interval")]
    until: Annotated[str, doc("end of the last interval")]
    confirmed: Annotated[list[int], doc("confirmed changes of each interval")]
    other: Annotated[list[int], doc("suspected and withdrawn changes of each interval")]


class Mover(Response):
    """A tag's value, or one in combination with others, that many of the changed streams have."""

    tag: str
    value: str
    changed: Annotated[int, doc("streams with it that changed")]
    streams: Annotated[int, doc("streams with it")]
    expected: Annotated[float, doc("of `changed`, if changes had nothing to do with tags")]
    probability: Annotated[
        float, doc("of so many or more then, times the number of values looked at")
    ]
    others: Annotated[
        dict[str, str], doc("of a combination the other tags, with the values that streams have")
    ] = sent({})

    @property
    def name(self) -> str:
        """The tags in words: `region=eu and service=pay`."""
        tags = {self.tag: self.value, **self.others}
        return " and ".join(f"{tag}={value}" for tag, value in tags.items())


class ChangesPage(Response):
    """A page of changes of all streams."""

    changes: list[StreamChange]
    total: Annotated[int, doc("changes that fit the query, on all pages")] = sent(0)
    streams: Annotated[int, doc("streams that these changes are of")] = sent(0)
    timeline: Annotated[
        Timeline | None, doc("with `bins`: changes of all pages; null: there are none")
    ] = None
    movers: Annotated[
        list[Mover] | None, doc("with `movers` in the query: of the streams of all pages")
    ] = None
    cursor: NextPage = NULL
    unreadable: Unreadable = sent([])


class ByChance(Response):
    """What independent streams would show of an incident."""

    expected: Annotated[float, doc("other changes that begin within its window")]
    per_day: Annotated[float, doc("incidents of as many streams in as short a window, a day")]


class Incident(Response, kw_only=True):
    """Changes of several streams that began together; times are RFC 3339."""

    id: Annotated[str, doc("stays while streams join; that of a part leads to the whole")]
    headline: Annotated[str, doc("how many streams changed when, and what they share")]
    streams: Annotated[int, doc("number of streams that changed")]
    fleet: Annotated[int, doc("number of all streams")]
    start_time: Annotated[str, doc("of the first observation after it, as estimated")]
    earliest_time: Annotated[str, doc("it began after this")] = sent("")
    latest_time: Annotated[str, doc("it began up to then")] = sent("")
    confirmed_time: Annotated[str, doc("of the first change that was confirmed")] = sent("")
    updated_time: Annotated[str, doc("of the last one")] = sent("")
    up: Annotated[int, doc("streams that went up")] = sent(0)
    down: Annotated[int, doc("streams that went down")] = sent(0)
    size: Annotated[float | None, doc("median, up or down, in standard deviations")] = NULL
    by_chance: ByChance
    movers: Annotated[
        list[Mover], doc("values of tags with an unlikely share of these streams")
    ] = sent([])
    names: Annotated[list[str], doc("streams of the largest changes, ten at most")] = sent([])


class Fleet(Response):
    """All streams, and how often their changes begin."""

    streams: int
    false_alarms_per_day: Annotated[
        float, doc("expected of all streams with `false_alarm_every`, at their present pace")
    ]
    beginnings_per_day: Annotated[
        float, doc("of incidents and single changes, false alarms included: what chance means")
    ]


class IncidentsPage(Response):
    """A page of incidents."""

    incidents: list[Incident]
    total: Annotated[int, doc("incidents that fit the query, on all pages")]
    fleet: Fleet
    cursor: NextPage = NULL
    unreadable: Unreadable = sent([])


class IncidentDetail(Incident, kw_only=True):
    """An incident with its changes, the largest first."""

    changes: list[StreamChange]
    unreadable: Unreadable = sent([])


class Verdict(Response):
    """The event that the feedback is on, in its new state."""

    stream: str
    seq: int
    event: Event


class Exclusion(Response):
    """Observations from `start` to before `end` that were excluded from learning, or included."""

    stream: str
    seq: int
    start: int
    end: int
    excluded: bool
    events: Annotated[list[Event], doc("confirmed changes that were marked, or are not any more")]


class Window(Response):
    """A window of the calendar, in which streams learn nothing and confirm nothing."""

    name: str
    start: Annotated[str, doc("local time of its first occurrence, or a date")]
    end: Annotated[str, doc("local time, which is not part of it")]
    time_zone: str = sent("UTC")
    repeat: Annotated[str, doc("rule of RFC 5545; empty: once")] = sent("")
    match: Annotated[list[str], doc("selectors, one of which has to fit; none: all streams")] = (
        sent([])
    )
    note: str = sent("")


class WindowTime(Response):
    """When a window is once."""

    window: str
    start: str
    end: str


class Calendar(Response):
    """Windows by name, and when they are, at most 100 times each."""

    windows: list[Window]
    times: list[WindowTime]


class FileStream(Response):
    """Observations of a stream in a file, by columns."""

    y: list[float | list[float | None] | None]
    x: Annotated[list[list[float]] | None, doc("null: the file has no inputs")] = NULL
    time: Annotated[list[str] | None, doc("null: the file has no times")] = NULL


class FileStreams(Response):
    """What a file has for streams, by id; nothing is posted."""

    streams: dict[str, FileStream]
    notices: Annotated[list[str], doc("what may be meant otherwise than it was read")] = sent([])


class IncidentExclusion(Response):
    """What became of each change of an incident; streams that failed are as they were."""

    incident: str
    excluded: bool
    streams: list[Exclusion]
    failed: list[Problem]


class RecordedExclusion(Response):
    """Why an observation was excluded from learning."""

    window: Annotated[str | None, doc("of the calendar that it was in; null: by a request")] = NULL


class RecordedSupervision(Response):
    """Supervision sent with an observation."""

    changepoint: float | None = NULL


class RunLengthProbability(TypedDict):
    """A run length and its probability."""

    run_length: int
    probability: float


class Recorded(Response):
    """One observation of the history as it was posted, with its compact answer."""

    seq: int
    y: Annotated[
        float | list[float | None] | None, doc("null: missing; in a list: a missing output")
    ] = NULL
    x: list[float] | None = NULL
    time: str | None = NULL
    elapsed: float = sent(1.0)
    supervision: RecordedSupervision | None = NULL
    belief: Annotated[
        list[RunLengthProbability] | None,
        doc("run lengths set just before it: `run_length` and `probability`"),
    ] = NULL
    predictive: Predictive | None = NULL
    changed_probability: float | None = NULL
    evidence: Evidence = NULL
    anomaly: Anomaly = NULL
    excluded: Annotated[RecordedExclusion | None, doc("from learning; null: it counted")] = NULL
    regime: Typical = None
    hazard: Annotated[Hazard, doc(f"of the step; absent: learned; {DETAIL}")] = None
    outlier_rate: Annotated[float | None, doc(f"of the step; {DETAIL}")] = None
    log_score: LogScore = None
    changepoint_probability: StartProbability = None
    recent_change_probability: RecentChange = None
    run_length: Annotated[MostProbable | None, doc(DETAIL)] = None


class Change(Response):
    """Settings changed before the observation at `seq`; `model`: the stream was moved."""

    seq: int
    at: str
    settings: StreamSettings


class HistoryPage(Response):
    """A page of observations with their compact answers, oldest first."""

    stream: str
    seq: int
    model: str
    first: Annotated[int, doc("oldest retained `seq`")]
    observations: list[Recorded]
    changes: list[Change] = sent([])
    next: Annotated[int | None, doc("`start` of the next page; null on the last page")] = NULL


class BeliefAfter(Response):
    """The run-length belief after an observation."""

    seq: int
    run_length: list[int]
    probability: list[float]


class WhatIf(Response):
    """Result of rerunning the retained history; event ids are its own."""

    stream: str
    seq: int
    first: Annotated[int, doc("`seq` of the first rerun observation")]
    model: str
    settings: StreamSettings
    warming_up: bool
    compared: Annotated[int, doc("observations that have a log score in both runs")]
    mean_log_score: float | None
    present_mean_log_score: Annotated[
        float | None, doc("mean log score of the stream's actual answers")
    ]
    events: list[Event]
    segmentation: list[Segment]
    log_score: Annotated[list[float | None] | None, doc("only with `series`")] = None
    changed_probability: Annotated[list[float | None] | None, doc("only with `series`")] = None
    evidence: Annotated[list[float | None] | None, doc("only with `series`")] = None
    beliefs: Annotated[
        list[BeliefAfter] | None,
        doc(
            "only with `beliefs`: for each of the last observations the 64 most probable run "
            "lengths, without those below 0.0001; none during the warm-up"
        ),
    ] = None


# --- models: parts of their `model.json` and `report.json`, which may lack members, and have others

Json = str | float | bool | list[Any] | dict[str, Any] | None  # of an experiment's settings


class Encoder(TypedDict, total=False):
    """Features of the inputs; which members there are depends on `type`."""

    type: str
    layers: list[int]
    activation: str
    output_activation: str
    channels: int
    height: int
    width: int
    blocks: list[int]
    periods: list[float]
    trend: bool


class Estimate(TypedDict, total=False):
    """Mean of a measure with its 95 % interval, over `count` sequences."""

    mean: float | None
    low: float | None
    high: float | None
    count: int


class TrainingMetric(Estimate, total=False):
    """The first metric of a training report."""

    name: str
    unit: str


class TrainingSummary(TypedDict, total=False):
    """Summary of a training."""

    experiment: str
    mode: str
    iterations: int
    best_iteration: int
    metric: TrainingMetric
    data_digest: str
    versions: dict[str, str]
    report: str
    date: str


class ModelRegime(TypedDict, total=False):
    """A typical regime of a model, and how probable it is in a series."""

    name: str
    probability: float


class Environment(TypedDict, total=False):
    """Environment and duration of a training."""

    torch: str
    device: str
    seed: int
    wall_time_s: float | None


class ReportMetric(TypedDict, total=False):
    """A measured metric with its unit."""

    name: str
    estimate: Estimate
    unit: str


class Comparison(TypedDict, total=False):
    """Another method on the same sequences; `difference`: the model less the method, paired."""

    method: str
    metric: str
    estimate: Estimate
    difference: Estimate | None


class ReportCalibration(TypedDict, total=False):
    """Calibration; null where a measure does not apply."""

    pit_distance: Annotated[float | None, doc("of the PITs from uniform (Kolmogorov-Smirnov)")]
    coverage: Annotated[
        list[list[float | None]], doc("level of a central interval, and the share inside")
    ]
    class_error: Annotated[float | None, doc("expected calibration error of a classifier")]


class Figure(TypedDict, total=False):
    """Texts of a figure of the report's page."""

    title: str
    description: str


class TrainingReport(TypedDict, total=False):
    """Numbers of a training report."""

    version: int
    name: str
    kind: str
    data_digest: str
    configuration: dict[str, Json]
    environment: Environment
    metrics: list[ReportMetric]
    comparisons: list[Comparison]
    untrained: Annotated[
        list[Comparison], doc("built-in models on the held-out part, by log score")
    ]
    calibration: ReportCalibration | None
    figures: list[Figure]
    history: Annotated[list[dict[str, float | None]], doc("a record for each validation")]


class ModelMembers(Response, kw_only=True):
    """Members of a model, and of each of its versions."""

    name: str
    kind: str
    description: str = sent("")
    x_dim: Annotated[int | None, doc("null: any; set by the stream's first input")] = NULL
    y_dim: Annotated[int | None, doc("null: any; set by the stream's first label")] = NULL
    hazard: Hazard = NULL
    built_in: bool = sent(False)
    error: Annotated[str | None, doc("why it cannot be served")] = NULL


class ModelSummary(ModelMembers, kw_only=True):
    """A model, described by its highest usable version."""

    default: Annotated[
        str | None, doc("model that the name stands for; with its version, unless built in")
    ] = NULL
    versions: list[str] = sent([])


class Models(Response):
    """All models."""

    models: list[ModelSummary]


class ModelVersion(ModelMembers, kw_only=True):
    """A version of a model, as its `model.json` describes it; null: not stated there."""

    version: Annotated[str | None, doc("null: built in")]
    feature_dim: int | None = NULL
    encoder: Encoder | None = NULL
    training: TrainingSummary | None = NULL
    regimes: Annotated[list[ModelRegime] | None, doc("typical regimes")] = NULL
    report: Annotated[TrainingReport | None, doc("numbers of its training report")] = NULL

    @property
    def reference(self) -> str:
        """Return NAME@VERSION, of a built-in model its name."""
        return self.name if self.version is None else f"{self.name}@{self.version}"


class ModelDetail(ModelSummary, kw_only=True):
    """A model with all its versions, oldest first."""

    versions: list[ModelVersion] = sent([])  # type: ignore[assignment]


class Status(Response):
    """Answer of a probe."""

    status: str


class FieldError(Response):
    """One invalid part of a request; `loc` such as `body[3].y` or `query.limit`."""

    loc: str
    detail: str


class Problem(Response):
    """RFC 9457 problem document; some types have further members."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] | None = None


class Moves(Response):
    """Result for one page of streams; failed streams are unchanged."""

    moved: list[str]
    failed: list[Problem]
    cursor: NextPage


class StreamEvent(Response, kw_only=True):
    """An event as it is raised. `cursor` resumes after it; `at` is the service's clock."""

    stream: str
    model: str = sent("")
    event: Event
    time: str | None = NULL
    at: str = sent("")
    cursor: str = ""


class LostEvents(TypedDict):
    """Events of one partition that are not kept any more: accepted after `after`, up to `until`."""

    partition: int
    after: str | None
    until: str


class GapPlaces(TypedDict, total=False):
    """Where events are lost."""

    partitions: list[LostEvents]


class Gap(Struct):
    """Some events before `cursor` are not kept any more; `known` is what the service says."""

    known: GapPlaces
    cursor: str = ""


class Snapshot(Struct):
    """A stream's whole state, for this service to read: bytes of a content type."""

    content: bytes
    content_type: str = "application/octet-stream"
