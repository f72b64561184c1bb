"""What a stream tells without being changed: predictions, belief, changepoints, history."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service import views, wire
from service.api.forms import query
from service.api.http import (
    Context,
    context_of,
    json_response,
    outcome_response,
    read_form,
    stream_of,
)
from service.api.routes_streams import head_of
from service.api.store import from_store, without
from service.queries import HistoryQuery
from service.redis.store import CHUNK

_encode = msgspec.json.Encoder().encode


async def predict(request: Request) -> Response:
    """Predict the next label at each input."""
    context, stream = context_of(request), stream_of(request)
    command = await read_form(request, partial(context.asked.prediction, stream), required=False)
    return outcome_response(await context.gateway.submit(command))


async def act(request: Request) -> Response:
    """Choose among candidate inputs: Thompson sampling, optimistic or greedy."""
    context, stream = context_of(request), stream_of(request)
    command = await read_form(request, partial(context.asked.action, stream))
    return outcome_response(await context.gateway.submit(command))


async def what_if(request: Request) -> Response:
    """Rerun the retained history under other settings or another model; changes nothing."""
    context, stream = context_of(request), stream_of(request)
    command = await read_form(request, partial(context.asked.what_if, stream), required=False)
    return outcome_response(await context.gateway.submit(command))


async def run_length(request: Request) -> Response:
    """Return the whole run-length belief."""
    context, stream = context_of(request), stream_of(request)
    return outcome_response(await context.gateway.submit(wire.RunLength(stream)))


async def changepoints(request: Request) -> Response:
    """Return events so far and the best segmentation of what is retained."""
    context, stream = context_of(request), stream_of(request)
    head = await head_of(context, stream)
    partition = context.gateway.partition(stream)
    events, unreadable = await from_store(context.store.events(partition, stream))
    answer = {
        "stream": stream,
        "seq": head.seq,
        "model": head.settings.model,
        "events": [views.event(event) for event in events],
        "segmentation": views.segmentation(head, await _path(context, stream, head)),
    }
    return json_response(_encode(answer | without(unreadable, f"events of {stream!r}")))


async def history(request: Request) -> Response:
    """Return recent observations with their answers, oldest first, page by page."""
    context, stream = context_of(request), stream_of(request)
    form = query(HistoryQuery, request.query_params.multi_items())
    head = await head_of(context, stream)
    first = max(0, head.seq - head.settings.history)
    start = max(first, head.seq - form.limit if form.start is None else form.start)
    stop = min(head.seq, start + form.limit)
    records = await _records(context, stream, head, start, stop)
    changes, unreadable = await _changes(context, stream, start, stop)
    answer = {
        "stream": stream,
        "seq": head.seq,
        "model": head.settings.model,
        "first": first,
        "observations": [views.record(record) for record in records],
        "changes": [views.change(each) for each in changes],
        "next": stop if stop < head.seq else None,
    }
    return json_response(_encode(answer | without(unreadable, f"changes of {stream!r}")))


async def _changes(
    context: Context, stream: str, start: int, stop: int
) -> tuple[list[wire.Change], list[str]]:
    """Return what was changed before an observation of the page, or after the last one there is."""
    partition = context.gateway.partition(stream)
    return await from_store(context.store.changes(partition, stream, start, stop + 1))


async def _records(
    context: Context, stream: str, head: wire.Head, start: int, stop: int
) -> list[wire.Record]:
    partition = context.gateway.partition(stream)
    return await from_store(context.store.records(partition, stream, head, start, stop))


async def _path(context: Context, stream: str, head: wire.Head) -> list[wire.Record]:
    """Return the records that the segmentation needs: both ends, and where regimes start.

    A long history is not read whole: following the pointers takes one chunk for each regime.
    """
    oldest = max(0, head.seq - head.settings.history)
    first: list[wire.Record] = []
    for at in range(oldest, head.seq, CHUNK):
        first = await _records(context, stream, head, at, at + CHUNK)
        if first:
            break
    if not first:
        return []
    found = {first[0].seq: first[0]} | await _one(context, stream, head, head.seq - 1)
    place = head.best_start
    while place > first[0].seq:
        here = await _one(context, stream, head, place)
        if not here:
            break
        found |= here
        place = min(here[place].previous_start, place - 1)
    return [found[seq] for seq in sorted(found)]


async def _one(context: Context, stream: str, head: wire.Head, seq: int) -> dict[int, wire.Record]:
    return {record.seq: record for record in await _records(context, stream, head, seq, seq + 1)}
