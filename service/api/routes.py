"""All calls of the REST interface, in one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.api import (
    documents,
    openapi,
    routes_events,
    routes_observations,
    routes_reads,
    routes_service,
)
from service.api import routes_streams as streams
from service.api.event_stream import EventStream
from service.api.http import RawRoute
from service.schemas import (
    EventsQuery,
    HistoryQuery,
    Item,
    NoQuery,
    Observation,
    ObserveQuery,
    PredictionForm,
    StreamForm,
    StreamsQuery,
)

Endpoint = Callable[[Request], Awaitable[Response]]
LOGGED = (422, 429, 500, 503, 504)  # what every call that goes through the log can answer
BODY = (400, 413, 415)


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
    response: type[Response] = JSONResponse
    described: dict[str, Any] | None = None


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
    ),
    Call("GET", STREAM, streams.get_stream, documents.StreamSummary, (404, 422, 503), _here),
    Call("DELETE", STREAM, streams.delete_stream, None, (404, *LOGGED), _here, status=204),
    Call(
        "POST",
        f"{STREAM}/predictions",
        routes_reads.predict,
        documents.Predictions,
        (*BODY, 404, *LOGGED),
        _here,
        body=openapi.body(openapi.ref(PredictionForm), required=False),
        tag="reads",
    ),
    Call(
        "GET",
        f"{STREAM}/run-length",
        routes_reads.run_length,
        documents.RunLength,
        (404, *LOGGED),
        _here,
        tag="reads",
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
    Call("GET", "/livez", routes_service.livez, documents.Status, (500,), tag="service"),
    Call("GET", "/readyz", routes_service.readyz, documents.Status, (503,), tag="service"),
)


def add_routes(app: FastAPI) -> None:
    """Add every call to the application."""
    app.router.route_class = RawRoute
    for call in CALLS:
        _add(app, call)
    app.add_api_route("/metrics", routes_service.show_metrics, include_in_schema=False)


def _add(app: FastAPI, call: Call) -> None:
    text = (call.endpoint.__doc__ or "").strip()
    extra: dict[str, Any] = {"parameters": openapi.parameters(*call.parameters, query=call.query)}
    if call.body is not None:
        extra["requestBody"] = call.body
    responses = openapi.problems(call.problems)
    if call.method == "PUT":
        responses[201] = {"description": "created", "model": call.answer}
    if call.described is not None:
        responses[200] = call.described
    app.add_api_route(
        call.path,
        call.endpoint,
        methods=[call.method],
        response_model=call.answer,
        status_code=call.status,
        tags=[call.tag],
        summary=text.partition("\n")[0].rstrip("."),
        description=text,
        operation_id=call.endpoint.__name__,
        responses=responses,
        openapi_extra=extra,
        response_class=call.response,
    )
