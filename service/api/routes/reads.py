"""Read-only calls on one stream: predictions, actions, what-if, belief, changepoints, history."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query
from starlette.requests import Request
from starlette.responses import Response

from moca_client import responses
from service import problems, wire
from service.api.context import Context
from service.api.gateway.reads import from_store
from service.api.http import StreamPath, context_of, json_response, submit
from service.api.routes.calls import READ, STORED, STREAM, UNFIT, Calls
from service.api.routes.streams import head_of
from service.schema import rendering
from service.schema.commands import ActionForm, PredictionForm, WhatIfForm
from service.schema.queries import STANDING, ChangepointsQuery, HistoryQuery, kinds_of
from service.store.streams import CHUNK
from service.wire.event_entries import kind_of

OF_STREAM = frozenset({"change", "returned"})  # all changes of a stream page nobody
calls = Calls("reads")


@calls.declare(
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


@calls.declare(
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


@calls.declare("POST", f"{STREAM}/what-if", responses.WhatIf, (*READ, *UNFIT), scope="read")
async def what_if(
    request: Request,
    stream: StreamPath,
    form: Annotated[WhatIfForm, Body(default_factory=WhatIfForm)],
) -> Response:
    """Rerun the retained history under other settings or another model; changes nothing."""
    return await submit(request, context_of(request).command_parser.what_if(stream, form))


@calls.declare("GET", f"{STREAM}/run-length", responses.RunLength, READ)
async def run_length(request: Request, stream: StreamPath) -> Response:
    """Return the full run-length belief (posterior)."""
    return await submit(request, wire.RunLength(stream))


@calls.declare("GET", f"{STREAM}/regimes", responses.Regimes, READ)
async def regimes(request: Request, stream: StreamPath) -> Response:
    """Return the regimes that a stream remembers, with what each says of the next label.

    They are those of the setting `regimes`. One is remembered with the first observation after the
    one that confirmed its end.
    """
    return await submit(request, wire.Regimes(stream))


@calls.declare("GET", f"{STREAM}/changepoints", responses.Changepoints, STORED)
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


@calls.declare("GET", f"{STREAM}/history", responses.HistoryPage, STORED)
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

    A long history is not read whole: following the pointers takes one chunk for each regime.
    """
    store = context.store
    first: list[wire.Record] = []
    for at in range(head.retained_from, head.seq, CHUNK):
        first = await from_store(store.records(stream, head, at, at + CHUNK))
        if first:
            break
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
