"""Streams: create or change, look at, list, delete."""

from __future__ import annotations

from typing import Any

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
    read_json,
    stream_of,
)
from service.api.store import from_store
from service.errors import UnknownStream
from service.schemas import StreamsQuery

_encode = msgspec.json.Encoder().encode


async def put_stream(request: Request) -> Response:
    """Create a stream, or change the named settings of one."""
    context, stream = context_of(request), stream_of(request)
    settings = context.forms.settings(await read_json(request, required=False))
    return outcome_response(await context.gateway.submit(wire.Configure(stream, settings)))


async def delete_stream(request: Request) -> Response:
    """Delete a stream with everything kept of it."""
    context, stream = context_of(request), stream_of(request)
    return outcome_response(await context.gateway.submit(wire.Delete(stream)))


async def get_stream(request: Request) -> Response:
    """Return what is known of a stream without its whole belief."""
    context, stream = context_of(request), stream_of(request)
    head = await head_of(context, stream)
    return json_response(_encode(views.summary(stream, head)))


async def list_streams(request: Request) -> Response:
    """List stream ids in order, page by page."""
    context = context_of(request)
    form = query(StreamsQuery, request.query_params.multi_items())
    names, cursor = await from_store(context.store.names(form.prefix, form.cursor, form.limit))
    page: dict[str, Any] = {"streams": [{"stream": name} for name in names], "cursor": cursor}
    return json_response(_encode(page))


async def head_of(context: Context, stream: str) -> wire.Head:
    """Return the head of a stream; UnknownStream when there is none."""
    read = context.store.head(context.gateway.partition(stream), stream)
    head: wire.Head | None = await from_store(read)
    if head is None:
        raise UnknownStream(f"there is no stream {stream!r}")
    return head
