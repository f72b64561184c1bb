"""All calls of the REST interface, in one table, and their routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from moca_client import responses
from service import problems
from service.api.http import Bytes, Route
from service.api.openapi import document
from service.api.routes import (
    changes,
    console,
    health,
    models,
    observations,
    prometheus,
    reads,
    streams,
    subscriptions,
)
from service.api.routes.call import (
    CANARY,
    CHANGE,
    EVENTS,
    FEEDBACK,
    READ,
    STORED,
    STREAM,
    UNFIT,
    Call,
)
from service.api.sse.events import EventStream
from service.api_keys import OPEN
from service.models.canary import Canary
from service.schema.observations import ItemForm, ObservationForm
from service.schema.queries import ObserveQuery
from service.settings import Settings

CALLS = (
    Call(
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
        (document.STREAM, document.IDEMPOTENCY, *document.parameters(ObserveQuery)),
        document.body(document.one_or_list(ObservationForm)),
        "observations",
    ),
    Call(
        "POST",
        "/v1/observations",
        observations.observe_many,
        None,
        (problems.ApiBusy, problems.WaitTooLong),
        document.parameters(ObserveQuery),
        body=document.body(document.items_of(ItemForm), lines=True),
        tag="observations",
        described=document.ITEM_ANSWERS,
    ),
    Call(
        "GET",
        "/v1/streams",
        streams.list_streams,
        responses.StreamPage,
        (problems.InvalidField,),
    ),
    Call(
        "GET",
        "/v1/overview",
        streams.overview,
        responses.Overview,
        (problems.InvalidField,),
    ),
    Call(
        "PUT",
        STREAM,
        streams.put_stream,
        responses.StreamSummary,
        (*CHANGE, *UNFIT, problems.SettingsConflict),
        makes=True,
    ),
    Call("GET", STREAM, streams.get_stream, responses.StreamSummary, STORED),
    Call(
        "DELETE",
        STREAM,
        streams.delete_stream,
        None,
        (*CHANGE, problems.UnknownStream),
        status=204,
    ),
    Call(
        "POST",
        f"{STREAM}/predictions",
        reads.predict,
        responses.Predictions,
        (*READ, problems.DimensionMismatch, problems.UnfitModel, problems.WarmingUp),
        tag="reads",
        scope="read",
    ),
    Call(
        "GET",
        f"{STREAM}/run-length",
        reads.run_length,
        responses.RunLength,
        READ,
        tag="reads",
    ),
    Call(
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
    Call(
        "POST",
        f"{STREAM}/actions",
        reads.act,
        responses.Action,
        (*READ, problems.DimensionMismatch, problems.UnfitModel, problems.WarmingUp),
        tag="reads",
        scope="read",
    ),
    Call(
        "GET",
        f"{STREAM}/snapshot",
        streams.get_snapshot,
        None,
        STORED,
        response=Bytes,
        described=document.BLOB,
    ),
    Call(
        "PUT",
        f"{STREAM}/snapshot",
        streams.put_snapshot,
        responses.StreamSummary,
        (*CHANGE, problems.UnknownModel, problems.StreamExists, problems.UnfitSnapshot),
        body=document.BLOB_BODY,
        makes=True,
        scope="admin",
    ),
    Call(
        "POST",
        f"{STREAM}/model",
        streams.move_stream,
        responses.StreamSummary,
        (*CHANGE, *UNFIT, problems.UnknownStream),
    ),
    Call(
        "POST",
        f"{STREAM}/what-if",
        reads.what_if,
        responses.WhatIf,
        (*READ, *UNFIT),
        tag="reads",
        scope="read",
    ),
    Call(
        "POST",
        f"{STREAM}/changepoints",
        streams.report_change,
        responses.Verdict,
        FEEDBACK,
    ),
    Call(
        "PUT",
        f"{STREAM}/changepoints/{{event}}",
        streams.judge,
        responses.Verdict,
        (*FEEDBACK, problems.UnknownEvent),
    ),
    Call(
        "GET",
        f"{STREAM}/changepoints",
        reads.changepoints,
        responses.Changepoints,
        STORED,
        tag="reads",
    ),
    Call(
        "GET",
        f"{STREAM}/history",
        reads.history,
        responses.HistoryPage,
        STORED,
        tag="reads",
    ),
    Call(
        "GET",
        f"{STREAM}/observations/live",
        subscriptions.follow_observations,
        None,
        (*STORED, problems.TooManyEventStreams, problems.StreamReplaced),
        tag="reads",
        response=EventStream,
        described=document.EVENT_MESSAGES,
    ),
    Call(
        "GET",
        EVENTS,
        subscriptions.events,
        None,
        (problems.InvalidField, problems.TooManyEventStreams),
        tag="events",
        response=EventStream,
        described=document.EVENT_MESSAGES,
    ),
    Call(
        "GET",
        "/v1/changes",
        changes.list_changes,
        responses.ChangesPage,
        (problems.InvalidField,),
        tag="events",
        described=document.answer_or_table(responses.ChangesPage),
    ),
    Call(
        "POST",
        "/v1/prometheus/write",
        prometheus.write_samples,
        None,
        (problems.SamplesDeferred, problems.SamplesRejected),
        body=document.WRITE_BODY,
        tag="prometheus",
        status=204,
        described=document.WRITTEN,
    ),
    Call(
        "GET",
        "/v1/prometheus/results",
        prometheus.show_results,
        None,
        (problems.InvalidField,),
        tag="prometheus",
        response=PlainTextResponse,
        described=document.METRICS,
    ),
    Call("GET", "/v1/models", health.list_models, responses.Models, tag="models"),
    Call(
        "GET",
        "/v1/models/{name}",
        health.get_model,
        responses.ModelDetail,
        (problems.NotFound,),
        tag="models",
    ),
    Call(
        "GET",
        CANARY,
        models.get_canary,
        Canary,
        (problems.NotFound,),
        tag="models",
    ),
    Call(
        "PUT",
        CANARY,
        models.put_canary,
        Canary,
        (problems.NotFound, problems.UnknownModel),
        tag="models",
        scope="admin",
    ),
    Call(
        "DELETE",
        CANARY,
        models.delete_canary,
        None,
        (problems.NotFound,),
        tag="models",
        status=204,
        scope="admin",
    ),
    Call(
        "POST",
        "/v1/moves",
        models.move_streams,
        responses.Moves,
        (),
        tag="models",
        scope="admin",
    ),
    Call("GET", "/livez", health.livez, responses.Status, (), tag="service", scope=OPEN),
    Call(
        "GET",
        "/readyz",
        health.readyz,
        responses.Status,
        (problems.InvalidField, problems.NotReady),
        tag="service",
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
    if not settings.no_console:
        for path, endpoint in console.ROUTES:
            app.add_api_route(path, endpoint, include_in_schema=False)
            _guard(app, OPEN)  # the page has no data: it asks for a key, and calls with it


def _guard(app: FastAPI, needs: str) -> None:
    """Set the required scope of the route added last."""
    route = app.routes[-1]
    assert isinstance(route, Route)
    route.needs = needs


def _add(app: FastAPI, call: Call) -> None:
    text = (call.endpoint.__doc__ or "").strip()
    extra: dict[str, Any] = {}
    if call.parameters:
        extra["parameters"] = list(call.parameters)
    if call.body is not None:
        extra["requestBody"] = call.body
    answers = document.problem_responses(call.raises)
    if call.needs != OPEN:
        extra["security"] = document.security(call.needs)
    if call.answer is not None:
        answers[200] = document.answer(call.answer)
    if call.makes:
        answers[201] = document.answer(call.answer, "created")
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
