"""Queries as the REST interface takes them: form only, as for bodies in `service.schemas`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from service.models import REFERENCE
from service.questions import MAX_QUANTILES
from service.schemas import Form, StreamId


def _split(given: Any) -> Any:
    """Values given several times, or separated by commas."""
    if not isinstance(given, list):
        return given
    return [part for text in given for part in text.split(",") if part]


Level = Annotated[float, Field(gt=0, lt=1)]


class ObserveQuery(Form):
    """Query of a post of observations."""

    several: ClassVar[frozenset[str]] = frozenset(("quantiles",))

    belief: bool = Field(False, description="whether answers carry the whole run-length belief")
    components: bool = Field(False, description="whether answers carry the mixture itself")
    quantiles: (
        Annotated[list[Level], BeforeValidator(_split), Field(max_length=MAX_QUANTILES)] | None
    ) = Field(
        None,
        description="levels of the quantiles to answer, several times or comma-separated; "
        "default: 0.05, 0.5 and 0.95",
    )


class StreamsQuery(Form):
    """Query of the list of streams."""

    prefix: Annotated[str, Field(max_length=200)] = Field(
        "", description="only ids that start with it"
    )
    cursor: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="`cursor` of the page before"
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="ids in a page")


class HistoryQuery(Form):
    """Query of a page of history."""

    start: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="`seq` of the first record; default: such that the page is the latest"
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="records in a page")


class LiveQuery(Form):
    """Query of the observations as they come."""

    after: str | None = Field(
        None,
        description="`id` of a message, or a `seq`: go on right after it; -1: everything "
        "retained; default: only what comes. The header `Last-Event-ID` wins",
    )
    state: bool = Field(False, description="whether the stream's summary comes, too")


class ReadyQuery(Form):
    """Query of the readiness."""

    partitions: Literal["all", "any"] = Field(
        "all",
        description="`any`: ready as long as one partition has a worker, for a load balancer, which"
        " cannot help the others by taking this process out",
    )


class SnapshotQuery(Form):
    """Query of an import."""

    replace: bool = Field(False, description="whether to put it in place of a stream there is")


class EventsQuery(Form):
    """Query of the events; each filter may be given several times."""

    several: ClassVar[frozenset[str]] = frozenset(("stream", "prefix", "model", "state"))

    stream: Annotated[list[StreamId], Field(max_length=100)] = Field([], description="stream id")
    prefix: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)
    ] = Field([], description="what stream ids start with")
    model: Annotated[list[Annotated[str, Field(pattern=REFERENCE)]], Field(max_length=100)] = Field(
        [], description="NAME or NAME@VERSION"
    )
    state: list[Literal["suspected", "confirmed", "withdrawn"]] = Field(
        [], description="states that events enter"
    )
    after: str | None = Field(
        None,
        description="`id` of a message: go on right after it; 0: everything retained; default: "
        "only what comes. The header `Last-Event-ID` wins",
    )


class NoQuery(Form):
    """Query of a call that takes none."""
