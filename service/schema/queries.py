"""Query parameters of the REST calls: shape only, as for bodies in `observations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from moca_client.times import period_s
from service.models.catalogue import REFERENCE
from service.schema.commands import LEVEL, MAX_QUANTILES, check_selector
from service.schema.observations import Form, StreamId
from service.wire import tags, timestamps
from service.wire.event_entries import CHANGES, KINDS, Filter


def _split(value: Any) -> Any:
    """Split repeated or comma-separated values."""
    if not isinstance(value, list):
        return value
    return [part for text in value for part in text.split(",") if part]


Match = Annotated[list[Annotated[str, AfterValidator(check_selector)]], Field(max_length=10)]
MATCH = (
    f"selector of streams by tags, such as `{tags.EXAMPLE}`; `stream` is the id, and regular "
    "expressions match whole values. Repeated: streams of any of them"
)
Models = Annotated[list[Annotated[str, Field(pattern=REFERENCE)]], Field(max_length=100)]
Prefixes = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)
]
Level = Annotated[float, LEVEL]
Least = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Prefix = Annotated[str, Field(max_length=200, description="only ids with this prefix")]
Contains = Annotated[
    str, Field(max_length=200, description="only ids with this text anywhere in them")
]
SortedCursor = Annotated[
    Annotated[str, Field(max_length=1000)] | None,
    Field(description="`cursor` of the previous page, with the same `sort`"),
]
Around = Annotated[
    int,
    Field(
        ge=0,
        le=100,
        description="adds `around`: the values of so many observations on both sides of a start",
    ),
]


class DetailQuery(Form):
    """Query of recorded observations."""

    detail: Literal["summary", "full"] = Field(
        "summary",
        description="`full`: observations also have `log_score`, the variance of `predictive`, "
        "`changepoint_probability`, `recent_change_probability`, `run_length`, `hazard` and "
        "`outlier_rate`",
    )


class ObserveQuery(Form):
    """Query of a post of observations."""

    detail: Literal["summary", "full"] = Field(
        "summary",
        description="`full`: answers also have `log_score`, the variance of `predictive`, "
        "`changepoint_probability`, `recent_change_probability` and `run_length`",
    )
    belief: bool = Field(False, description="whether answers include the full run-length belief")
    components: bool = Field(False, description="whether answers include the mixture components")
    quantiles: (
        Annotated[list[Level], BeforeValidator(_split), Field(max_length=MAX_QUANTILES)] | None
    ) = Field(
        None,
        description="quantile levels to return, repeated or comma-separated; default: 0.05, "
        "0.5 and 0.95",
    )
    format: Literal["objects", "columns", "arrow"] = Field(
        "objects",
        description="`columns`: one object with a list for each column, in place of a list of "
        "objects; `arrow`: the same as an Arrow IPC stream, where pyarrow is installed; neither "
        "has beliefs or components",
    )

    @model_validator(mode="after")
    def _flat(self) -> ObserveQuery:
        if self.format != "objects" and (self.belief or self.components):
            raise ValueError(f"expected neither belief nor components with format={self.format}")
        return self


class StreamsQuery(Form):
    """Query of the list of streams."""

    prefix: Prefix = ""
    cursor: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="`cursor` of the previous page"
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="ids per page")
    match: Match = Field([], description=f"{MATCH}. Pages may then be short, even empty")


class OverviewQuery(Form):
    """Query of the overview of streams."""

    prefix: Prefix = ""
    contains: Contains = ""
    sort: Literal["id", "changed_probability", "change"] = Field(
        "id",
        description="what comes first: ids in order, the largest `changed_probability` (up to 3 s "
        "old), the newest confirmed change that the event feed retains. With `contains` or a "
        "`sort` other than `id`: of at most 50,000 streams with the `prefix`",
    )
    cursor: SortedCursor = None
    limit: Annotated[int, Field(ge=1, le=100)] = Field(50, description="streams per page")
    labels: Annotated[int, Field(ge=0, le=64)] = Field(
        40, description="number of last labels to return for each stream"
    )


Kinds = list[Literal["change", "returned", "anomaly", "all"]]
OF_KIND = (
    "kinds of events: `change`, to a regime that is new, `returned`, to a remembered one, "
    "`anomaly`, `all`; default: {}"
)


def kinds_of(kinds: Sequence[str], default: frozenset[str] = CHANGES) -> frozenset[str]:
    """Return the kinds of events that a query is for."""
    return KINDS if "all" in kinds else frozenset(kinds) or default


ChangeKinds = list[Literal["change", "returned", "all"]]
OF_CHANGES = "`change`: to a regime that is new, `returned`: to a remembered one, `all`"
States = list[Literal["suspected", "confirmed", "withdrawn"]]
STATES = "states; default: `suspected` and `confirmed`"
STANDING = frozenset({"suspected", "confirmed"})


class ChangepointsQuery(Form):
    """Query of the changepoints of a stream; `kind` and `state` may be repeated."""

    kind: Kinds = Field([], description=OF_KIND.format("`change` and `returned`"))
    state: States = Field([], description=STATES)
    wait: bool = Field(
        True, description="whether to wait up to 1 s for a segmentation in hindsight"
    )


class HistoryQuery(DetailQuery):
    """Query of a page of history."""

    start: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="`seq` of the first record; default: the latest page"
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="records per page")


class LiveQuery(DetailQuery):
    """Query of the live observations of a stream."""

    after: str | None = Field(
        None,
        description="resume right after this message `id` or `seq`; -1: everything retained; "
        "default: new observations only. The header `Last-Event-ID` takes "
        "precedence",
    )
    state: bool = Field(False, description="whether to send the stream's summary as well")


class ReadyQuery(Form):
    """Query of the readiness probe."""

    partitions: Literal["all", "any"] = Field(
        "all",
        description="`any`: ready while at least one partition has a worker; for load "
        "balancers, where removing this process would not help the other "
        "partitions",
    )


class SnapshotQuery(Form):
    """Query of a snapshot import."""

    replace: bool = Field(False, description="whether to replace an existing stream")


WHEN = "RFC 3339 time, a date, or an age such as 30m, 24h or 7d"


def _check_when(text: str) -> str:
    if period_s(text) is None:
        text = timestamps.from_date(text)
        try:
            timestamps.parse(text)
        except ValueError:
            example = "2024-05-01T12:00:00Z"
            raise ValueError(f"expected an {WHEN} ({example}), got {text[:50]!r}") from None
    return text


def seconds_of(when: str | None, now_s: float) -> float | None:
    """Return a valid time, or an age before `now_s`, in seconds since 1970."""
    if when is None:
        return None
    age_s = period_s(when)
    return timestamps.seconds(when) if age_s is None else now_s - age_s


When = Annotated[str, AfterValidator(_check_when)]


class SelectionQuery(Form):
    """Base of queries by streams and kinds of changes; each filter may be repeated."""

    kind: ChangeKinds = Field([], description=f"{OF_CHANGES}; default: `change`")
    model: Models = Field([], description="NAME or NAME@VERSION")
    prefix: Prefixes = Field([], description="prefix of stream ids")
    match: Match = Field([], description=MATCH)

    def filter(
        self,
        kinds: frozenset[str],
        states: frozenset[str] = frozenset(),
        streams: frozenset[str] = frozenset(),
    ) -> Filter:
        """Return which entries of the event feed fit; kinds, states and streams as of `Filter`."""
        selectors = tuple(tags.parse(selector) for selector in self.match)
        return Filter(streams, tuple(self.prefix), frozenset(self.model), states, kinds, selectors)


class EventsQuery(SelectionQuery):
    """Query of the event stream; each filter may be repeated."""

    kind: Kinds = Field([], description=OF_KIND.format("`change`"))  # type: ignore[assignment]
    match: Match = Field([], description=f"{MATCH}. Tags are those when the event was raised")
    stream: Annotated[list[StreamId], Field(max_length=100)] = Field([], description="stream id")
    state: States = Field([], description="event states; default: all")
    incidents: bool = Field(
        False, description="whether the incidents of confirmed changes are sent, too"
    )
    after: str | None = Field(
        None,
        description="resume right after this message `id`; 0: everything retained; default: "
        "new events only. The header `Last-Event-ID` takes precedence",
    )


class FoundQuery(SelectionQuery):
    """Base of queries of changes, and of incidents with a change that fits.

    `kind`, `model`, `prefix` and `match` may be repeated.
    """

    since: When | None = Field(
        None, description=f"those from this time on: {WHEN}; default: everything retained"
    )
    until: When | None = Field(None, description=f"those before this time: {WHEN}")
    contains: Contains = ""
    min_size: Least | None = Field(
        None, description="smallest size, up or down, in standard deviations"
    )
    limit: Annotated[int, Field(ge=1, le=500)] = Field(100, description="rows per page")
    cursor: SortedCursor = None


class ChangesQuery(FoundQuery):
    """Query of the changes of all streams.

    `kind`, `state`, `model`, `prefix` and `match` may be repeated.
    """

    state: States = Field([], description=STATES)
    min_evidence: Least | None = Field(None, description="smallest `evidence`")
    sort: Literal["time", "size", "evidence"] = Field(
        "time", description="what comes first: the newest, the largest, the clearest"
    )
    bins: Annotated[int, Field(ge=0, le=200)] = Field(
        0, description="equal intervals of `timeline`, which counts changes over time; 0: none"
    )
    movers: bool = Field(
        False,
        description="adds `movers`: what the streams of all these changes share, of the streams "
        "that `prefix`, `contains`, `model` and `match` let through",
    )
    around: Around = 0
    format: Literal["json", "csv"] = Field(
        "json", description="`csv`: a table; the header `Link` leads to the next page"
    )


class IncidentsQuery(FoundQuery):
    """Query of incidents, by when they began: of those with a change that fits."""

    min_streams: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        2, description="smallest number of streams"
    )
    sort: Literal["time", "streams"] = Field(
        "time", description="what comes first: the latest start, or the most streams"
    )


class CalendarQuery(Form):
    """Query of the calendar."""

    since: When | None = Field(None, description=f"times that end after then: {WHEN}; default: now")
    until: When | None = Field(
        None,
        description=f"times that begin before then: {WHEN}; default: 7 days after `since`; at most "
        "400 days after it",
    )
    stream: StreamId | None = Field(None, description="only windows that are for this stream")


class FileQuery(Form):
    """Query of a file."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        "file", description="with which the ids of streams begin that are columns"
    )


class IncidentKindsQuery(Form):
    """Query of a call of one incident."""

    kind: ChangeKinds = Field(
        [], description=f"kinds of changes that are grouped; {OF_CHANGES}; default: `change`"
    )


class IncidentQuery(IncidentKindsQuery):
    """Query of one incident."""

    around: Around = 0


# Series of GET /v1/prometheus/results, with their help.
RESULT_SERIES = {
    "moca_forecast": "Forecast of the last label, before it came: the median of its distribution.",
    "moca_forecast_lower": "5 % quantile of that distribution.",
    "moca_forecast_upper": "95 % quantile of that distribution.",
    "moca_anomaly": "Rank of the last label's strangeness in the stream's past, from 0 to 1.",
    "moca_changed_probability": "Probability of a change since the last confirmed change.",
    "moca_evidence": "Evidence of that change: one false alarm in so many observations.",
}


class ResultsQuery(Form):
    """Query of results for Prometheus."""

    match: Match = Field([], description=f"{MATCH}; default: all streams")
