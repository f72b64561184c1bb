"""Models under way: canaries, and many streams moved at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Moves
from service import wire
from service.api.gateway.reads import from_store
from service.api.http import Context, ModelPath, context_of, json_response
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


async def get_canary(request: Request, name: ModelPath) -> Response:
    """Return the canary of a model."""
    context = context_of(request)
    _check_model(context, name)
    canaries, unreadable = await from_store(context.store.canaries())
    if name in unreadable:
        raise CorruptState(f"cannot read the canary of {name!r}: set it again")
    canary = canaries.get(name)
    if canary is None:
        raise NotFound(f"model {name!r} has no canary")
    return json_response(_encode(canary))


async def put_canary(request: Request, name: ModelPath, form: CanaryForm) -> Response:
    """Set a model's canary: the share of new streams that are created with a given version."""
    context = context_of(request)
    _check_model(context, name)
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


async def delete_canary(request: Request, name: ModelPath) -> Response:
    """Remove a model's canary: its name alone means the highest version again."""
    context = context_of(request)
    _check_model(context, name)
    await from_store(context.store.put_canary(name, None))
    await context.monitor.look_for_canaries()
    return Response(status_code=204)


async def move_streams(request: Request, form: MovesForm) -> Response:
    """Move streams to another model, selected by id prefix, page by page."""
    context = context_of(request)
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


def _check_model(context: Context, name: str) -> None:
    try:
        context.catalogue.versions(name)
    except UnknownModel as error:
        raise NotFound(error.detail) from None
