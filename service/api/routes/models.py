"""Models under way: canaries, and many streams moved at once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Moves
from service import wire
from service.api.gateway.reads import from_store
from service.api.http import Context, context_of, json_response, read_form
from service.models.canary import Canary
from service.problems import (
    CorruptState,
    FieldError,
    InvalidField,
    NotFound,
    ServiceError,
    UnknownModel,
)
from service.schema.commands import CanaryForm, MovesForm

AT_ONCE = 16  # concurrent reruns; a worker runs one at a time
_encode = msgspec.json.Encoder().encode
_canary = TypeAdapter(CanaryForm).validate_json
_moves = TypeAdapter(MovesForm).validate_json


async def get_canary(request: Request) -> Response:
    """Return the canary of a model."""
    context, name = _model(request)
    canaries, unreadable = await from_store(context.store.canaries())
    if name in unreadable:
        raise CorruptState(f"cannot read the canary of {name!r}: set it again")
    canary = canaries.get(name)
    if canary is None:
        raise NotFound(f"model {name!r} has no canary")
    return json_response(_encode(canary))


async def put_canary(request: Request) -> Response:
    """Set a model's canary: the share of new streams that are created with a given version."""
    context, name = _model(request)
    form = await read_form(request, partial(context.observation_parser.parsed, _canary))
    versions = context.catalogue.usable(name)
    if form.version not in versions:
        raise UnknownModel(f"no usable {name}@{form.version}; usable versions: {versions}")
    if len(versions) < 2:
        detail = "the model has no other usable version for the remaining streams"
        raise InvalidField([FieldError("body.version", detail)])
    canary = Canary(form.version, form.share)
    await from_store(context.store.put_canary(name, canary))
    await context.monitor.look_for_canaries()
    return json_response(_encode(canary))


async def delete_canary(request: Request) -> Response:
    """Remove a model's canary: its name alone means the highest version again."""
    context, name = _model(request)
    await from_store(context.store.put_canary(name, None))
    await context.monitor.look_for_canaries()
    return Response(status_code=204)


async def move_streams(request: Request) -> Response:
    """Move streams to another model, selected by id prefix, page by page."""
    context = context_of(request)
    form = await read_form(request, partial(context.observation_parser.parsed, _moves))
    names, cursor = await from_store(context.store.names(form.prefix, form.cursor, form.limit))
    room = asyncio.Semaphore(AT_ONCE)

    async def move(stream: str) -> dict[str, Any] | None:
        async with room:
            try:
                outcome = await context.gateway.submit(wire.Move(stream, form.model))
            except ServiceError as error:
                return error.document()
            return msgspec.json.decode(outcome.body[-1]) if outcome.status >= 400 else None

    problems = await asyncio.gather(*map(move, names))
    pairs = list(zip(names, problems, strict=True))
    moved = [name for name, problem in pairs if problem is None]
    failed: list[Any] = [{**refusal, "stream": name} for name, refusal in pairs if refusal]
    return json_response(_encode(Moves(moved, failed, cursor)))


def _model(request: Request) -> tuple[Context, str]:
    context, name = context_of(request), request.path_params["name"]
    try:
        context.catalogue.versions(name)
    except UnknownModel as error:
        raise NotFound(error.detail) from None
    return context, name
