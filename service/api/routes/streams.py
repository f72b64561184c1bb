"""Streams: create or change, look at, list, delete."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Overview, StreamName, StreamPage
from service import wire
from service.api.gateway.reads import from_store, without
from service.api.gateway.selection import select
from service.api.http import (
    Bytes,
    Context,
    context_of,
    json_response,
    read_form,
    read_query,
    read_snapshot,
    stream_of,
    submit,
    submit_body,
)
from service.api.parsing.commands import CommandParser
from service.models import catalogue
from service.problems import UnfitSnapshot, UnknownStream
from service.schema import rendering
from service.schema.commands import OverviewQuery
from service.schema.queries import SnapshotQuery, StreamsQuery
from service.wire import snapshot

_encode = msgspec.json.Encoder().encode


async def put_stream(request: Request) -> Response:
    """Create a stream, or change some settings of an existing one."""
    context, stream = context_of(request), stream_of(request)
    settings = await read_form(request, context.observation_parser.settings, required=False)
    return await submit(request, wire.Configure(stream, settings))


async def delete_stream(request: Request) -> Response:
    """Delete a stream and all its data."""
    return await submit(request, wire.Delete(stream_of(request)))


async def get_stream(request: Request) -> Response:
    """Return a stream's state and settings, without the full run-length belief."""
    context, stream = context_of(request), stream_of(request)
    head = await head_of(context, stream)
    return json_response(_encode(rendering.summary(stream, head)))


async def put_run_length(request: Request) -> Response:
    """Override the run-length belief, or supervise the next observation."""
    return await submit_body(request, CommandParser.belief)


async def move_stream(request: Request) -> Response:
    """Move a stream to another model by rerunning its retained history."""
    return await submit_body(request, CommandParser.move)


async def judge(request: Request) -> Response:
    """Give feedback on an event: confirm or reject a changepoint; the stream is rerun with it."""
    event = request.scope["path_params"]["event"]
    return await submit_body(request, partial(CommandParser.feedback, event=event))


async def report_change(request: Request) -> Response:
    """Report a missed changepoint; the stream is rerun with it."""
    return await submit_body(request, CommandParser.change)


async def get_snapshot(request: Request) -> Response:
    """Export a stream's whole state and history, as of its last commit."""
    context, stream = context_of(request), stream_of(request)
    parts = await from_store(context.store.parts(context.gateway.partition(stream), stream))
    if parts is None:
        raise UnknownStream(f"there is no stream {stream!r}")
    place = context.settings.models_dir, parts.head.settings.model
    digest = parts.head.digest or await asyncio.to_thread(catalogue.digest, *place)
    exported = snapshot.Snapshot(stream, time.time_ns() // 1_000_000, digest, *parts)
    blob = await asyncio.to_thread(snapshot.dump, exported)
    return Bytes(blob)


async def put_snapshot(request: Request) -> Response:
    """Create a stream from a snapshot."""
    context, stream = context_of(request), stream_of(request)
    form = read_query(request, SnapshotQuery)
    blob = await read_snapshot(request)
    try:
        await asyncio.to_thread(snapshot.check, blob)
    except snapshot.BadSnapshot as error:
        raise UnfitSnapshot(str(error)) from error
    token, partition = secrets.token_hex(16), context.gateway.partition(stream)
    await from_store(context.store.stage(partition, token, blob))
    return await submit(request, wire.Import(stream, token, form.replace))


async def list_streams(request: Request) -> Response:
    """List stream ids in order with their tags, page by page; `match` selects by tags."""
    context = context_of(request)
    form = read_query(request, StreamsQuery)
    selected = await select(
        context.store, context.gateway, form.prefix, form.match, form.cursor, form.limit
    )
    rows = [StreamName(row.stream, row.tags) for row in selected.rows]
    page = StreamPage(rows, selected.cursor, without(selected.unreadable, "streams"))
    return json_response(_encode(page))


async def head_of(context: Context, stream: str) -> wire.Head:
    """Return the head of a stream; raise UnknownStream without one."""
    read = context.store.head(context.gateway.partition(stream), stream)
    head: wire.Head | None = await from_store(read)
    if head is None:
        raise UnknownStream(f"there is no stream {stream!r}")
    return head


async def overview(request: Request) -> Response:
    """List streams page by page, with regime, last change and last labels of each.

    A page is not a consistent snapshot; streams deleted meanwhile are missing from it.
    """
    context = context_of(request)
    form = read_query(request, OverviewQuery)
    store = context.store
    if form.contains or form.sort != "id":
        names, total, cursor = await context.ranking.page(form)
    else:
        names, cursor = await from_store(store.names(form.prefix, form.cursor, form.limit))
        total = await from_store(store.count(form.prefix))
    pairs = [(context.gateway.partition(name), name) for name in names]
    rows, unreadable = await from_store(store.overview(pairs, form.labels))
    streams = [rendering.glance(row.stream, row.head, row.labels) for row in rows]
    answer = Overview(streams, total, cursor, without(unreadable, "overview"))
    return json_response(_encode(answer))
