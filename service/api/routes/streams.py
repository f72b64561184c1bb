"""Streams: create or change, look at, list, delete; predictions, what-if, changepoints, history."""

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
from service.api.routes.calls import CHANGE, FEEDBACK, READ, STORED, STREAM, UNFIT, Calls
from service.schema import commands as forms
from service.schema import rendering
from service.schema.commands import ActionForm, PredictionForm, WhatIfForm
from service.schema.observations import StreamForm
from service.schema.queries import (
    STANDING,
    ChangepointsQuery,
    HistoryQuery,
    OverviewQuery,
    SnapshotQuery,
    StreamsQuery,
    kinds_of,
)
from service.store.reads import from_store, without
from service.wire import snapshot
from service.wire.event_entries import kind_of

OF_STREAM = frozenset({"change", "returned"})  # all changes of a stream page nobody
calls = Calls("streams")
reads = Calls("reads")


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


# --- calls that change nothing --------------------------------------------------------------------


@reads.declare(
    "POST",
    f"{STREAM}/predictions",
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
)
async def predict(
    request: Request,
    stream: StreamPath,
    form: Annotated[PredictionForm, Body(default_factory=PredictionForm)],
) -> Response:
    """Predict the next label at each input."""
    return await submit(request, context_of(request).command_parser.prediction(stream, form))


@reads.declare(
    "POST",
    f"{STREAM}/actions",
    responses.Action,
    (
        *READ,
        problems.DimensionMismatch,
        problems.LabelOutOfRange,
        problems.UnfitModel,
        problems.WarmingUp,
    ),
    scope="read",
)
async def act(request: Request, stream: StreamPath, form: ActionForm) -> Response:
    """Choose among candidate inputs: Thompson sampling, optimistic or greedy."""
    return await submit(request, context_of(request).command_parser.action(stream, form))


@reads.declare("POST", f"{STREAM}/what-if", responses.WhatIf, (*READ, *UNFIT), scope="read")
async def what_if(
    request: Request,
    stream: StreamPath,
    form: Annotated[WhatIfForm, Body(default_factory=WhatIfForm)],
) -> Response:
    """Rerun the retained history under other settings or another model; changes nothing."""
    return await submit(request, context_of(request).command_parser.what_if(stream, form))


@reads.declare("GET", f"{STREAM}/run-length", responses.RunLength, READ)
async def run_length(request: Request, stream: StreamPath) -> Response:
    """Return the full run-length belief (posterior)."""
    return await submit(request, wire.RunLength(stream))


@reads.declare("GET", f"{STREAM}/regimes", responses.Regimes, READ)
async def regimes(request: Request, stream: StreamPath) -> Response:
    """Return the regimes that a stream remembers, with what each says of the next label.

    They are those of the setting `regimes`. One is remembered with the first observation after the
    one that confirmed its end.
    """
    return await submit(request, wire.Regimes(stream))


@reads.declare("GET", f"{STREAM}/changepoints", responses.Changepoints, STORED)
async def changepoints(
    request: Request, stream: StreamPath, query: Annotated[ChangepointsQuery, Query()]
) -> Response:
    """Return the events, and a segmentation of the retained observations.

    Confirmed changes stay in it; the best path of the filter adds to them, and then hindsight, as
    far as that reaches. It is computed by a worker when there is none, or the stream has moved on
    by a tenth; the call waits for it up to a second, unless `wait` is false.
    """
    context = context_of(request)
    head = await head_of(context, stream)
    hindsight = await _hindsight(context, stream, head)
    status = "current"
    if not (head.warm and head.seq and head.settings.history):
        hindsight = None
        status = "none"
    elif hindsight is None or not hindsight.current(head):
        status = await context.hindsight.compute(stream, query.wait)
        head = await head_of(context, stream)
        hindsight = await _hindsight(context, stream, head)
    if hindsight is None and status == "current":
        status = "unavailable"  # of another generation
    kinds = kinds_of(query.kind, OF_STREAM)
    events = await from_store(context.store.events(stream, kinds | OF_STREAM))
    states = frozenset(query.state) or STANDING
    records = await _path(context, stream, head)
    answer = responses.Changepoints(
        stream=stream,
        seq=head.seq,
        model=head.settings.model,
        events=[
            rendering.event(event)
            for event in events
            if event.state in states and kind_of(event) in kinds
        ],
        segmentation=rendering.segmentation(head, records, events, hindsight),
        hindsight=rendering.hindsight(status, hindsight),
    )
    return json_response(answer)


async def _hindsight(context: Context, stream: str, head: wire.Head) -> wire.StoredHindsight | None:
    """Return the stored segmentation in hindsight; None where there is none of this stream."""
    hindsight = await from_store(context.store.hindsight(stream))
    return hindsight if hindsight is not None and hindsight.usable(head) else None


@reads.declare("GET", f"{STREAM}/history", responses.HistoryPage, STORED)
async def history(
    request: Request, stream: StreamPath, query: Annotated[HistoryQuery, Query()]
) -> Response:
    """Return recent observations with their answers, oldest first, page by page."""
    context = context_of(request)
    head = await head_of(context, stream)
    first = head.retained_from
    start = max(first, head.seq - query.limit if query.start is None else query.start)
    stop = min(head.seq, start + query.limit)
    records = await from_store(context.store.records(stream, head, start, stop))
    # Also those after the last observation.
    changes = await from_store(context.store.changes(stream, start, stop + 1))
    answer = responses.HistoryPage(
        stream=stream,
        seq=head.seq,
        model=head.settings.model,
        first=first,
        observations=[rendering.record(record, query.detail == "full") for record in records],
        changes=[rendering.change(change) for change in changes],
        next=stop if stop < head.seq else None,
    )
    return json_response(answer)


async def _path(context: Context, stream: str, head: wire.Head) -> list[wire.Record]:
    """Return the records that the segmentation needs: both ends, and where regimes start.

    A long history is not read whole: following the pointers takes one read for each regime.
    """
    store = context.store
    start = head.retained_from
    first = await from_store(store.records(stream, head, start, start + 1))
    if not first:
        return []
    last = await from_store(store.records(stream, head, head.seq - 1, head.seq))
    records = {record.seq: record for record in (first[0], *last)}
    place = head.best_start
    while place > first[0].seq:
        here = await from_store(store.records(stream, head, place, place + 1))
        if not here:  # trimmed since
            break
        records[place] = here[0]
        place = min(here[0].previous_start, place - 1)
    return [records[seq] for seq in sorted(records)]
