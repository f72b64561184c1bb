"""Models: which there are, their canaries, and many streams moved to another at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moca_client import responses
from service import problems, wire
from service.api.context import Context
from service.api.http import ModelPath, context_of, json_response, submit_reruns
from service.api.routes.calls import Calls
from service.models.catalogue import Canary
from service.schema.commands import CanaryForm, MovesForm
from service.store.reads import from_store

CANARY = "/v1/models/{name}/canary"

calls = Calls("models")


@calls.declare("GET", "/v1/models", responses.Models)
async def list_models(request: Request) -> Response:
    """List the models that streams can use."""
    models = await asyncio.to_thread(context_of(request).catalogue.models)
    by_name: dict[str, list[responses.ModelVersion]] = {}
    for model in models:
        by_name.setdefault(model.name, []).append(model)
    summaries = [
        responses.ModelSummary(
            **_described(versions), versions=[model.version for model in versions if model.version]
        )
        for versions in by_name.values()
    ]
    return json_response(responses.Models(summaries))


@calls.declare("GET", "/v1/models/{name}", responses.ModelDetail, (problems.NotFound,))
async def get_model(request: Request, name: ModelPath) -> Response:
    """Return one model with all its versions and their training reports."""
    context = context_of(request)
    catalogue = context.catalogue
    versions = await _versions(context, name)
    reports = await asyncio.to_thread(lambda: [catalogue.report(version) for version in versions])
    full = [
        msgspec.structs.replace(version, report=report)
        for version, report in zip(versions, reports, strict=True)
    ]
    return json_response(responses.ModelDetail(**_described(versions), versions=full))


@calls.declare("GET", CANARY, Canary, (problems.NotFound,))
async def get_canary(request: Request, name: ModelPath) -> Response:
    """Return the canary of a model."""
    context = context_of(request)
    await _versions(context, name)
    canaries, unreadable = await from_store(context.store.canaries())
    if name in unreadable:
        raise problems.CorruptState(f"cannot read the canary of {name!r}: set it again")
    canary = canaries.get(name)
    if canary is None:
        raise problems.NotFound(f"model {name!r} has no canary")
    return json_response(canary)


@calls.declare("PUT", CANARY, Canary, (problems.NotFound, problems.UnknownModel), scope="admin")
async def put_canary(request: Request, name: ModelPath, form: CanaryForm) -> Response:
    """Set a model's canary: the share of new streams that are created with a given version."""
    context = context_of(request)
    await _versions(context, name)
    versions = context.catalogue.usable(name)
    if form.version not in versions:
        raise problems.UnknownModel(f"no usable {name}@{form.version}; usable versions: {versions}")
    if len(versions) < 2:
        detail = "the model has no other usable version for the remaining streams"
        raise problems.InvalidField.at("body.version", detail)
    canary = Canary(form.version, form.share)
    await from_store(context.store.put_canary(name, canary))
    await context.monitor.look_for_canaries()
    return json_response(canary)


@calls.declare("DELETE", CANARY, None, (problems.NotFound,), status=204, scope="admin")
async def delete_canary(request: Request, name: ModelPath) -> Response:
    """Remove a model's canary: its name alone means the highest version again."""
    context = context_of(request)
    await _versions(context, name)
    await from_store(context.store.put_canary(name, None))
    await context.monitor.look_for_canaries()
    return Response(status_code=204)


@calls.declare("POST", "/v1/moves", responses.Moves, (), scope="admin")
async def move_streams(request: Request, form: MovesForm) -> Response:
    """Move streams to another model, selected by id prefix, page by page."""
    context = context_of(request)
    names, cursor = await from_store(context.store.names(form.prefix, form.cursor, form.limit))
    reruns = await submit_reruns(context, [wire.Move(name, form.model) for name in names])
    pairs = zip(names, reruns, strict=True)
    moved = [name for name, rerun in pairs if isinstance(rerun, bytes)]
    failed: list[Any] = [rerun for rerun in reruns if not isinstance(rerun, bytes)]
    return json_response(responses.Moves(moved, failed, cursor))


async def _versions(context: Context, name: str) -> list[responses.ModelVersion]:
    """Return the versions of a model; raises NotFound without any."""
    try:
        return await asyncio.to_thread(context.catalogue.versions, name)
    except problems.UnknownModel as error:
        raise problems.NotFound(error.detail) from None


def _described(versions: list[responses.ModelVersion]) -> dict[str, Any]:
    """Return a model by its highest usable version."""
    usable = [model for model in versions if model.error is None]
    model = (usable or versions)[-1]
    return {
        "name": model.name,
        "default": model.reference if usable else None,
        "kind": model.kind,
        "description": model.description,
        "x_dim": model.x_dim,
        "y_dim": model.y_dim,
        "hazard": model.hazard,
        "built_in": model.built_in,
        "error": None if usable else model.error,
    }
