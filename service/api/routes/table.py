"""All calls of the REST interface in one table: what each raises, its documentation, its route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.responses import JSONResponse, PlainTextResponse, Response

from moca_client import responses
from service import problems
from service.api import openapi
from service.api.http import BinaryResponse, Route
from service.api.routes import (
    assistants,
    calendar,
    console,
    events,
    files,
    health,
    models,
    observations,
    prometheus,
    reads,
    streams,
)
from service.api.sse.connections import EventStream
from service.api_keys import OPEN
from service.models.catalogue import Canary
from service.schema.observations import ItemForm, ObservationForm
from service.schema.queries import ObserveQuery
from service.settings import Settings

Endpoint = Callable[..., Awaitable[Response]]
Errors = tuple[type[problems.ServiceError], ...]

# Every call that takes a key, and every call with a body, raises these; the rest is in the table.
GUARDED: Errors = (
    problems.Unauthorized,
    problems.MissingScope,
    problems.RateExceeded,
    problems.RedisUnavailable,
)
BODY: Errors = (
    problems.MalformedBody,
    problems.SlowBody,
    problems.BodyTooLarge,
    problems.UnsupportedMediaType,
    problems.UnsupportedEncoding,
    problems.InvalidField,
)
# A read of committed state.
STORED: Errors = (problems.UnknownStream, problems.InvalidField, problems.CorruptState)
# A command that goes through the log: one that changes the stream, or only reads it.
LOGGED: Errors = (
    problems.InvalidField,
    problems.PartitionFull,
    problems.TooManyWaiting,
    problems.WaitTooLong,
    problems.MemoryShort,
    problems.Quarantined,
    problems.CorruptState,
    problems.ModelChanged,
    problems.NotInstalled,
    problems.OutcomeUnknown,
)
CHANGE: Errors = (*LOGGED, problems.NoAnswer)
READ: Errors = (*LOGGED, problems.UnknownStream, problems.UnknownModel, problems.ReadTimeout)
# Observations or settings that do not fit the model.
UNFIT: Errors = (
    problems.UnknownModel,
    problems.UnfitSettings,
    problems.DimensionMismatch,
    problems.LabelOutOfRange,
)
# Feedback on events.
FEEDBACK: Errors = (
    *CHANGE,
    problems.UnknownStream,
    problems.UnknownModel,
    problems.WarmingUp,
    problems.NotRetained,
)


# Groups of calls in the reference whose modules have other names.
TAGS = {"calendar": "events", "files": "observations", "health": "service"}


class ApiCall(NamedTuple):
    """One call and how it is documented."""

    method: str
    path: str
    endpoint: Endpoint
    answer: Any
    errors: Errors = ()  # beside those of every guarded call and of every call with a body
    parameters: tuple[dict[str, Any], ...] = ()  # of an endpoint that reads them itself
    body: dict[str, Any] | None = None
    status: int = 200
    makes: bool = False  # whether it may answer 201
    scope: str = ""  # that a key must have; empty: read for GET, else write
    response: type[Response] = JSONResponse
    described: dict[str, Any] | None = None

    @property
    def tag(self) -> str:
        """Group of the call in the reference: that of the module of its endpoint."""
        module = self.endpoint.__module__.rpartition(".")[2]
        return TAGS.get(module, module)

    @property
    def needs(self) -> str:
        """The scope that a key must have, or `open`."""
        return self.scope or ("read" if self.method == "GET" else "write")

    @property
    def has_body(self) -> bool:
        """Whether the call takes a body."""
        return self.body is not None or "form" in signature(self.endpoint).parameters

    @property
    def raises(self) -> frozenset[type[problems.ServiceError]]:
        """All errors that the call can be answered with."""
        guarded = () if self.needs == OPEN else GUARDED
        body = BODY if self.has_body else ()
        return frozenset({problems.InternalError, *guarded, *body, *self.errors})


STREAM = "/v1/streams/{stream}"
EVENTS = "/v1/events"
CANARY = "/v1/models/{name}/canary"
WINDOW = "/v1/calendar/{window}"


CALLS = (
    ApiCall(
        "POST",
        f"{STREAM}/observations",
        observations.observe,
        responses.Answer | list[responses.Answer],
        (
            *CHANGE,
            *UNFIT,
            problems.ApiBusy,
            problems.KeyReused,
            problems.NumericalFault,
            problems.SeqConflict,
            problems.NotAwaited,
            problems.TimeBackwards,
        ),
        (openapi.STREAM, openapi.IDEMPOTENCY, *openapi.parameters(ObserveQuery)),
        openapi.body(openapi.one_or_list(ObservationForm)),
        described=openapi.answer_or_columns(responses.Answer | list[responses.Answer]),
    ),
    ApiCall(
        "POST",
        "/v1/observations",
        observations.observe_many,
        None,
        (problems.ApiBusy, problems.NotInstalled, problems.WaitTooLong),
        openapi.parameters(ObserveQuery),
        body=openapi.body(openapi.items_of(ItemForm), lines=True),
        described=openapi.ITEM_ANSWERS,
    ),
    ApiCall(
        "GET",
        "/v1/streams",
        streams.list_streams,
        responses.StreamPage,
        (problems.InvalidField,),
    ),
    ApiCall("GET", "/v1/overview", streams.overview, responses.Overview, (problems.InvalidField,)),
    ApiCall(
        "PUT",
        STREAM,
        streams.put_stream,
        responses.StreamSummary,
        (*CHANGE, *UNFIT, problems.SettingsConflict),
        makes=True,
    ),
    ApiCall("GET", STREAM, streams.get_stream, responses.StreamSummary, STORED),
    ApiCall(
        "DELETE",
        STREAM,
        streams.delete_stream,
        None,
        (*CHANGE, problems.UnknownStream),
        status=204,
    ),
    ApiCall(
        "POST",
        f"{STREAM}/predictions",
        reads.predict,
        responses.Predictions,
        (
            *READ,
            problems.DimensionMismatch,
            problems.LabelOutOfRange,
            problems.NumericalFault,
            problems.UnfitModel,
            problems.WarmingUp,
        ),
        scope="read",
    ),
    ApiCall("GET", f"{STREAM}/run-length", reads.run_length, responses.RunLength, READ),
    ApiCall(
        "PUT",
        f"{STREAM}/run-length",
        streams.put_run_length,
        responses.RunLength,
        (
            *CHANGE,
            problems.UnknownStream,
            problems.UnknownModel,
            problems.SeqConflict,
            problems.NotAwaited,
            problems.UnfitBelief,
            problems.WarmingUp,
        ),
    ),
    ApiCall("GET", f"{STREAM}/regimes", reads.regimes, responses.Regimes, READ),
    ApiCall(
        "PUT",
        f"{STREAM}/regimes/{{regime}}",
        streams.name_regime,
        responses.RememberedRegime,
        (*CHANGE, problems.UnknownStream, problems.UnknownModel, problems.UnknownRegime),
    ),
    ApiCall(
        "POST",
        f"{STREAM}/actions",
        reads.act,
        responses.Action,
        (
            *READ,
            problems.DimensionMismatch,
            problems.LabelOutOfRange,
            problems.UnfitModel,
            problems.WarmingUp,
        ),
        scope="read",
    ),
    ApiCall(
        "GET",
        f"{STREAM}/snapshot",
        streams.get_snapshot,
        None,
        STORED,
        response=BinaryResponse,
        described=openapi.BLOB,
    ),
    ApiCall(
        "PUT",
        f"{STREAM}/snapshot",
        streams.put_snapshot,
        responses.StreamSummary,
        (*CHANGE, problems.UnknownModel, problems.StreamExists, problems.UnfitSnapshot),
        body=openapi.BLOB_BODY,
        makes=True,
        scope="admin",
    ),
    ApiCall(
        "POST",
        f"{STREAM}/model",
        streams.move_stream,
        responses.StreamSummary,
        (*CHANGE, *UNFIT, problems.UnknownStream),
    ),
    ApiCall(
        "POST",
        f"{STREAM}/what-if",
        reads.what_if,
        responses.WhatIf,
        (*READ, *UNFIT),
        scope="read",
    ),
    ApiCall("POST", f"{STREAM}/changepoints", streams.report_change, responses.Verdict, FEEDBACK),
    ApiCall(
        "PUT",
        f"{STREAM}/changepoints/{{event}}",
        streams.judge,
        responses.Verdict,
        (*FEEDBACK, problems.UnknownEvent),
    ),
    ApiCall(
        "POST",
        f"{STREAM}/exclusions",
        streams.exclude,
        responses.Exclusion,
        (*FEEDBACK, problems.UnknownEvent),
    ),
    ApiCall("GET", f"{STREAM}/changepoints", reads.changepoints, responses.Changepoints, STORED),
    ApiCall("GET", f"{STREAM}/history", reads.history, responses.HistoryPage, STORED),
    ApiCall(
        "GET",
        f"{STREAM}/observations/live",
        events.follow_observations,
        None,
        (*STORED, problems.TooManyEventStreams, problems.StreamReplaced),
        response=EventStream,
        described=openapi.EVENT_MESSAGES,
    ),
    ApiCall(
        "GET",
        EVENTS,
        events.events,
        None,
        (problems.InvalidField, problems.TooManyEventStreams),
        response=EventStream,
        described=openapi.EVENT_MESSAGES,
    ),
    ApiCall(
        "GET",
        "/v1/changes",
        events.list_changes,
        responses.ChangesPage,
        (problems.InvalidField,),
        described=openapi.answer_or_table(responses.ChangesPage),
    ),
    ApiCall(
        "GET",
        "/v1/incidents",
        events.list_incidents,
        responses.IncidentsPage,
        (problems.InvalidField,),
        described=openapi.answer_or_table(responses.IncidentsPage),
    ),
    ApiCall(
        "GET",
        "/v1/incidents/{incident}",
        events.get_incident,
        responses.IncidentDetail,
        (problems.InvalidField, problems.NotFound),
    ),
    ApiCall(
        "POST",
        "/v1/incidents/{incident}/exclusions",
        events.exclude_incident,
        responses.IncidentExclusion,
        (problems.InvalidField, problems.NotFound),
    ),
    ApiCall("GET", "/v1/calendar", calendar.show_calendar, responses.Calendar, STORED),
    ApiCall(
        "GET",
        WINDOW,
        calendar.get_window,
        responses.Window,
        (problems.InvalidField, problems.NotFound),
    ),
    ApiCall("PUT", WINDOW, calendar.put_window, responses.Window),
    ApiCall(
        "DELETE",
        WINDOW,
        calendar.delete_window,
        None,
        (problems.InvalidField, problems.NotFound),
        status=204,
    ),
    ApiCall(
        "POST",
        "/v1/prometheus/write",
        prometheus.write_samples,
        None,
        (problems.SamplesDeferred, problems.SamplesRejected),
        body=openapi.WRITE_BODY,
        status=204,
        described=openapi.WRITTEN,
    ),
    ApiCall(
        "POST",
        "/v1/metrics",
        prometheus.write_metrics,
        None,
        (problems.SamplesDeferred,),
        body=openapi.METRICS_BODY,
        described=openapi.METRICS_TAKEN,
    ),
    ApiCall(
        "GET",
        "/v1/prometheus/results",
        prometheus.show_results,
        None,
        (problems.InvalidField,),
        response=PlainTextResponse,
        described=openapi.METRICS,
    ),
    ApiCall("POST", "/v1/files", files.read_file, responses.FileStreams, body=openapi.CSV_BODY),
    ApiCall("GET", "/v1/models", models.list_models, responses.Models),
    ApiCall(
        "GET",
        "/v1/models/{name}",
        models.get_model,
        responses.ModelDetail,
        (problems.NotFound,),
    ),
    ApiCall("GET", CANARY, models.get_canary, Canary, (problems.NotFound,)),
    ApiCall(
        "PUT",
        CANARY,
        models.put_canary,
        Canary,
        (problems.NotFound, problems.UnknownModel),
        scope="admin",
    ),
    ApiCall(
        "DELETE",
        CANARY,
        models.delete_canary,
        None,
        (problems.NotFound,),
        status=204,
        scope="admin",
    ),
    ApiCall("POST", "/v1/moves", models.move_streams, responses.Moves, (), scope="admin"),
    ApiCall("GET", "/livez", health.livez, responses.Status, (), scope=OPEN),
    ApiCall(
        "GET",
        "/readyz",
        health.readyz,
        responses.Status,
        (problems.InvalidField, problems.NotReady),
        scope=OPEN,
    ),
)


def add_routes(app: FastAPI, settings: Settings) -> None:
    """Add every call to the application."""
    app.router.route_class = Route
    for call in CALLS:
        _add(app, call)
        _guard(app, call.needs)
    app.add_api_route("/metrics", health.show_metrics, include_in_schema=False)
    _guard(app, "read" if settings.metrics_key_required else OPEN)
    app.add_api_route(assistants.PATH, assistants.assist, methods=["POST"], include_in_schema=False)
    _guard(app, "read")
    if not settings.no_console:
        for path, endpoint in console.ROUTES:
            app.add_api_route(path, endpoint, include_in_schema=False)
            _guard(app, OPEN)  # the page has no data: it asks for a key, and calls with it


def _guard(app: FastAPI, needs: str) -> None:
    """Set the required scope of the route added last."""
    route = app.routes[-1]
    assert isinstance(route, Route)
    route.needs = needs


def _add(app: FastAPI, call: ApiCall) -> None:
    text = (call.endpoint.__doc__ or "").strip()
    extra: dict[str, Any] = {}
    if call.parameters:
        extra["parameters"] = list(call.parameters)
    if call.body is not None:
        extra["requestBody"] = call.body
    answers = openapi.problem_responses(call.raises)
    if call.needs != OPEN:
        extra["security"] = openapi.security(call.needs)
    if call.answer is not None:
        answers[200] = openapi.answer(call.answer)
    if call.makes:
        answers[201] = openapi.answer(call.answer, "created")
    if call.described is not None:
        answers[call.status] = call.described
    app.add_api_route(
        call.path,
        call.endpoint,
        methods=[call.method],
        response_model=None,
        status_code=call.status,
        tags=[call.tag],
        summary=text.partition("\n")[0].rstrip("."),
        description=text,
        operation_id=call.endpoint.__name__,
        responses=answers,
        openapi_extra=extra,
        response_class=call.response,
    )
