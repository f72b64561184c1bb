"""Streams: create or change, look at, list, delete."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

from fastapi import Body, Query
from starlette.requests import Request
from starlette.responses import Response

from moca_client import responses
from service import problems, wire
from service.api import openapi
from service.api.context import Context
from service.api.gateway.pages import select
from service.api.gateway.reads import from_store, without
from service.api.http import (
    EventPath,
    RegimePath,
    Rendered,
    StreamPath,
    context_of,
    json_response,
    read_kind,
    submit,
)
from service.api.parsing.bodies import BYTES
from service.api.routes.calls import CHANGE, FEEDBACK, STORED, STREAM, UNFIT, Calls
from service.schema import commands as forms
from service.schema import rendering
from service.schema.observations import StreamForm
from service.schema.queries import OverviewQuery, SnapshotQuery, StreamsQuery
from service.wire import snapshot

calls = Calls("streams")


@calls.declare(
    "PUT", STREAM, responses.StreamSummary, (*CHANGE, *UNFIT, problems.SettingsConflict), makes=True
)
async def put_stream(
    request: Request,
    stream: StreamPath,
    form: Annotated[StreamForm, Body(default_factory=StreamForm)],
) -> Response:
    """Create a stream, or change some settings of an existing one."""
    settings = context_of(request).command_parser.settings(form, "body")
    return await submit(request, wire.Configure(stream, settings))


@calls.declare("DELETE", STREAM, None, (*CHANGE, problems.UnknownStream), status=204)
async def delete_stream(request: Request, stream: StreamPath) -> Response:
    """Delete a stream and all its data."""
    return await submit(request, wire.Delete(stream))


@calls.declare("GET", STREAM, responses.StreamSummary, STORED)
async def get_stream(request: Request, stream: StreamPath) -> Response:
    """Return a stream's state and settings, without the full run-length belief."""
    head = await head_of(context_of(request), stream)
    return json_response(rendering.summary(stream, head))


@calls.declare(
    "PUT",
    f"{STREAM}/run-length",
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
)
async def put_run_length(request: Request, stream: StreamPath, form: forms.BeliefForm) -> Response:
    """Override the run-length belief, or supervise the next observation."""
    return await submit(request, context_of(request).command_parser.belief(stream, form))


@calls.declare(
    "PUT",
    f"{STREAM}/regimes/{{regime}}",
    responses.RememberedRegime,
    (*CHANGE, problems.UnknownStream, problems.UnknownModel, problems.UnknownRegime),
)
async def name_regime(
    request: Request, stream: StreamPath, regime: RegimePath, form: forms.RegimeForm
) -> Response:
    """Give a remembered regime a name, or take it away.

    Answers and events from now on have it; those of before keep the name of then.
    """
    return await submit(request, wire.NameRegime(stream, regime, form.name))


@calls.declare(
    "POST", f"{STREAM}/model", responses.StreamSummary, (*CHANGE, *UNFIT, problems.UnknownStream)
)
async def move_stream(request: Request, stream: StreamPath, form: forms.ModelForm) -> Response:
    """Move a stream to another model by rerunning its retained history."""
    return await submit(request, wire.Move(stream, form.model))


@calls.declare(
    "PUT", f"{STREAM}/changepoints/{{event}}", responses.Verdict, (*FEEDBACK, problems.UnknownEvent)
)
async def judge(
    request: Request, stream: StreamPath, event: EventPath, form: forms.VerdictForm
) -> Response:
    """Give feedback on an event: confirm or reject a changepoint; the stream is rerun with it."""
    return await submit(request, wire.EventFeedback(stream, form.change, event))


@calls.declare("POST", f"{STREAM}/changepoints", responses.Verdict, FEEDBACK)
async def report_change(request: Request, stream: StreamPath, form: forms.ChangeForm) -> Response:
    """Report a missed changepoint; the stream is rerun with it."""
    return await submit(request, wire.EventFeedback(stream, True, start=form.start))


@calls.declare(
    "POST", f"{STREAM}/exclusions", responses.Exclusion, (*FEEDBACK, problems.UnknownEvent)
)
async def exclude(request: Request, stream: StreamPath, form: forms.ExclusionForm) -> Response:
    """Exclude observations from learning; the stream is rerun without them.

    The regime before them goes on after them, as if their labels were missing. Confirmed changes
    among them, or where they end, are marked `excluded`.
    """
    return await submit(request, context_of(request).command_parser.exclusion(stream, form))


@calls.declare("GET", f"{STREAM}/snapshot", None, STORED, described=openapi.BLOB)
async def get_snapshot(request: Request, stream: StreamPath) -> Response:
    """Export a stream's whole state and history, as of its last commit."""
    context = context_of(request)
    exported = await from_store(context.store.snapshot(stream))
    if exported is None:
        raise problems.UnknownStream(f"there is no stream {stream!r}")
    exported.model_digest = exported.model_digest or await asyncio.to_thread(
        context.catalogue.digest, exported.head.settings.model
    )
    blob = await asyncio.to_thread(snapshot.dump, exported)
    return Rendered(blob, 200, BYTES)


@calls.declare(
    "PUT",
    f"{STREAM}/snapshot",
    responses.StreamSummary,
    (*CHANGE, problems.UnknownModel, problems.StreamExists, problems.UnfitSnapshot),
    body=openapi.BLOB_BODY,
    makes=True,
    scope="admin",
)
async def put_snapshot(
    request: Request, stream: StreamPath, query: Annotated[SnapshotQuery, Query()]
) -> Response:
    """Create a stream from a snapshot."""
    context = context_of(request)
    blob = await read_kind(request, BYTES, context.settings.max_snapshot_bytes)
    try:
        await asyncio.to_thread(snapshot.check, blob)
    except snapshot.BadSnapshot as error:
        raise problems.UnfitSnapshot(str(error)) from error
    token = secrets.token_hex(16)
    await from_store(context.store.stage(stream, token, blob))
    return await submit(request, wire.Import(stream, token, query.replace))


@calls.declare("GET", "/v1/streams", responses.StreamPage, (problems.InvalidField,))
async def list_streams(request: Request, query: Annotated[StreamsQuery, Query()]) -> Response:
    """List stream ids in order with their tags, page by page; `match` selects by tags."""
    context = context_of(request)
    selected = await select(context.store, query.prefix, query.match, query.cursor, query.limit)
    rows = [responses.StreamName(row.stream, row.tags) for row in selected.rows]
    unreadable = without(selected.unreadable, "streams")
    return json_response(responses.StreamPage(rows, selected.cursor, unreadable))


async def head_of(context: Context, stream: str) -> wire.Head:
    """Return the head of a stream; raise UnknownStream without one."""
    head: wire.Head | None = await from_store(context.store.head(stream))
    if head is None:
        raise problems.UnknownStream(f"there is no stream {stream!r}")
    return head


@calls.declare("GET", "/v1/overview", responses.Overview, (problems.InvalidField,))
async def overview(request: Request, query: Annotated[OverviewQuery, Query()]) -> Response:
    """List streams page by page, with regime, last change and last labels of each.

    A page is not a consistent snapshot; streams deleted meanwhile are missing from it.
    """
    context = context_of(request)
    store = context.store
    if query.contains or query.sort != "id":
        names, total, cursor = await context.ranking.page(query)
    else:
        names, cursor = await from_store(store.names(query.prefix, query.cursor, query.limit))
        total = await from_store(store.count(query.prefix))
    heads = await from_store(store.heads(names))
    rows, unreadable = await from_store(store.recent(names, heads, query.labels))
    streams = [rendering.glance(*row) for row in rows]
    return json_response(
        responses.Overview(streams, total, cursor, without(unreadable, "overview"))
    )
