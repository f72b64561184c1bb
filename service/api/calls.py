"""All calls of the REST interface, in one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.api import (
    documents,
    documents_reads,
    openapi,
    routes_events,
    routes_observations,
    routes_reads,
    routes_service,
)
from service.api import routes_streams as streams
from service.api.event_stream import EventStream
from service.api.http import Bytes
from service.keys import OPEN
from service.questions import (
    ActionForm,
    BeliefForm,
    ChangeForm,
    ModelForm,
    PredictionForm,
    VerdictForm,
    WhatIfForm,
)
from service.schemas import (
    EventsQuery,
    HistoryQuery,
    Item,
    NoQuery,
    Observation,
    ObserveQuery,
    SnapshotQuery,
    StreamForm,
    StreamsQuery,
)

Endpoint = Callable[[Request], Awaitable[Response]]
LOGGED = (422, 429, 500, 503, 504)  # what every call that goes through the log can answer
BODY = (400, 408, 413, 415)


class Call(NamedTuple):
    """One call and how it is documented."""

    method: str
    path: str
    endpoint: Endpoint
    answer: Any
    problems: tuple[int, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    query: type[BaseModel] = NoQuery
    body: dict[str, Any] | None = None
    tag: str = "streams"
    status: int = 200
    makes: bool = False  # whether it may answer 201
    scope: str = ""  # that a key must have; empty: read for GET, else write
    response: type[Response] = JSONResponse
    described: dict[str, Any] | None = None

    @property
    def needs(self) -> str:
        """The scope that a key must have, or `open`."""
        return self.scope or ("read" if self.method == "GET" else "write")


STREAM = "/v1/streams/{stream}"
EVENTS = "/v1/events"
_here = (openapi.STREAM,)
CALLS = (
    Call(
        "POST",
        f"{STREAM}/observations",
        routes_observations.observe,
        documents.Answer | list[documents.Answer],
        (*BODY, 409, *LOGGED),
        (openapi.STREAM, openapi.IDEMPOTENCY),
        ObserveQuery,
        openapi.body(openapi.one_or_list(Observation)),
        "observations",
    ),
    Call(
        "POST",
        "/v1/observations",
        routes_observations.observe_many,
        list[documents.ItemAnswer | documents.Problem],
        (*BODY, 422),
        query=ObserveQuery,
        body=openapi.body(openapi.list_of(Item), lines=True),
        tag="observations",
        described=openapi.ANSWERED_LINES,
    ),
    Call(
        "GET",
        "/v1/streams",
        streams.list_streams,
        documents.StreamPage,
        (422, 503),
        query=StreamsQuery,
    ),
    Call(
        "PUT",
        STREAM,
        streams.put_stream,
        documents.StreamSummary,
        (*BODY, 409, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(StreamForm), required=False),
        makes=True,
    ),
    Call("GET", STREAM, streams.get_stream, documents.StreamSummary, (404, 422, 503), _here),
    Call("DELETE", STREAM, streams.delete_stream, None, (404, *LOGGED), _here, status=204),
    Call(
        "POST",
        f"{STREAM}/predictions",
        routes_reads.predict,
        documents_reads.Predictions,
        (*BODY, 404, 409, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(PredictionForm), required=False),
        tag="reads",
        scope="read",
    ),
    Call(
        "GET",
        f"{STREAM}/run-length",
        routes_reads.run_length,
        documents_reads.RunLength,
        (404, *LOGGED),
        _here,
        tag="reads",
    ),
    Call(
        "PUT",
        f"{STREAM}/run-length",
        streams.put_run_length,
        documents_reads.RunLength,
        (*BODY, 404, 409, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(BeliefForm)),
    ),
    Call(
        "POST",
        f"{STREAM}/actions",
        routes_reads.act,
        documents_reads.Action,
        (*BODY, 404, 409, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(ActionForm)),
        tag="reads",
        scope="read",
    ),
    Call(
        "GET",
        f"{STREAM}/snapshot",
        streams.get_snapshot,
        None,
        (404, 422, 500, 503),
        _here,
        response=Bytes,
        described=openapi.BLOB,
    ),
    Call(
        "PUT",
        f"{STREAM}/snapshot",
        streams.put_snapshot,
        documents.StreamSummary,
        (*BODY, 409, *LOGGED),
        _here,
        SnapshotQuery,
        openapi.BLOB_BODY,
        makes=True,
        scope="admin",
    ),
    Call(
        "POST",
        f"{STREAM}/model",
        streams.move_stream,
        documents.StreamSummary,
        (*BODY, 404, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(ModelForm)),
    ),
    Call(
        "POST",
        f"{STREAM}/what-if",
        routes_reads.what_if,
        documents_reads.WhatIf,
        (*BODY, 404, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(WhatIfForm), required=False),
        tag="reads",
        scope="read",
    ),
    Call(
        "POST",
        f"{STREAM}/changepoints",
        streams.report_change,
        documents_reads.Verdict,
        (*BODY, 404, 409, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(ChangeForm)),
    ),
    Call(
        "PUT",
        f"{STREAM}/changepoints/{{event}}",
        streams.judge,
        documents_reads.Verdict,
        (*BODY, 404, 409, *LOGGED),
        (openapi.STREAM, openapi.EVENT),
        body=openapi.body(openapi.ref(VerdictForm)),
    ),
    Call(
        "GET",
        f"{STREAM}/changepoints",
        routes_reads.changepoints,
        documents.Changepoints,
        (404, 422, 503),
        _here,
        tag="reads",
    ),
    Call(
        "GET",
        f"{STREAM}/history",
        routes_reads.history,
        documents.HistoryPage,
        (404, 422, 503),
        _here,
        HistoryQuery,
        tag="reads",
    ),
    Call(
        "GET",
        EVENTS,
        routes_events.events,
        None,
        (422, 429, 503),
        (openapi.LAST_EVENT_ID,),
        EventsQuery,
        tag="events",
        response=EventStream,
        described=openapi.EVENT_MESSAGES,
    ),
    Call("GET", "/v1/models", routes_service.list_models, documents.Models, tag="models"),
    Call(
        "GET",
        "/v1/models/{name}",
        routes_service.get_model,
        documents.ModelDetail,
        (404,),
        (openapi.MODEL,),
        tag="models",
    ),
    Call(
        "GET", "/livez", routes_service.livez, documents.Status, (500,), tag="service", scope=OPEN
    ),
    Call(
        "GET",
        "/readyz",
        routes_service.readyz,
        documents.Status,
        (500, 503),
        tag="service",
        scope=OPEN,
    ),
)
