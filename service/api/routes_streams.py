"""Streams: create or change, look at, list, delete."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service import models, snapshot, views, wire
from service.api.forms import query
from service.api.http import (
    Bytes,
    Context,
    context_of,
    json_response,
    outcome_response,
    read_form,
    read_snapshot,
    stream_of,
)
from service.api.store import from_store
from service.errors import UnknownStream
from service.queries import SnapshotQuery, StreamsQuery
from service.unfit import UnfitSnapshot

_encode = msgspec.json.Encoder().encode


async def put_stream(request: Request) -> Response:
    """Create a stream, or change the named settings of one."""
    context, stream = context_of(request), stream_of(request)
    settings = await read_form(request, context.forms.settings, required=False)
    if settings.get("pinned"):
        await from_store(context.pinned.admit(stream))
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


async def put_run_length(request: Request) -> Response:
    """Override the run-length belief, or say what is known of the observation to come."""
    context, stream = context_of(request), stream_of(request)
    command = await read_form(request, partial(context.asked.belief, stream))
    return outcome_response(await context.gateway.submit(command))


async def move_stream(request: Request) -> Response:
    """Have a stream go on under another model, as if it had been there for all that is retained."""
    context, stream = context_of(request), stream_of(request)
    command = await read_form(request, partial(context.asked.move, stream))
    return outcome_response(await context.gateway.submit(command))


async def judge(request: Request) -> Response:
    """Say of an event whether it was a change; the belief is corrected by a rerun."""
    context, stream = context_of(request), stream_of(request)
    event = request.scope["path_params"]["event"]
    command = await read_form(request, partial(context.asked.verdict, stream, event))
    return outcome_response(await context.gateway.submit(command))


async def report_change(request: Request) -> Response:
    """Report a change that no event was raised for; the belief is corrected by a rerun."""
    context, stream = context_of(request), stream_of(request)
    command = await read_form(request, partial(context.asked.change, stream))
    return outcome_response(await context.gateway.submit(command))


async def get_snapshot(request: Request) -> Response:
    """Export a stream's whole state, with its history, as of its last commit."""
    context, stream = context_of(request), stream_of(request)
    parts = await from_store(context.store.parts(context.gateway.partition(stream), stream))
    if parts is None:
        raise UnknownStream(f"there is no stream {stream!r}")
    place = context.settings.models_dir, parts.head.settings.model
    digest = parts.head.digest or await asyncio.to_thread(models.digest, *place)
    found = snapshot.Snapshot(stream, time.time_ns() // 1_000_000, digest, *parts)
    blob = await asyncio.to_thread(snapshot.dump, found)
    return Bytes(blob)


async def put_snapshot(request: Request) -> Response:
    """Make a stream what a snapshot says; it goes on as the exported one would."""
    context, stream = context_of(request), stream_of(request)
    form = query(SnapshotQuery, request.query_params.multi_items())
    blob = await read_snapshot(request)
    try:
        await asyncio.to_thread(snapshot.check, blob)
    except snapshot.BadSnapshot as error:
        raise UnfitSnapshot(str(error)) from error
    token, partition = secrets.token_hex(16), context.gateway.partition(stream)
    await from_store(context.store.stage(partition, token, blob))
    outcome = await context.gateway.submit(wire.Import(stream, token, form.replace))
    return outcome_response(outcome)


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
