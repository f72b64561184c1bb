"""Models: which there are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import ModelDetail, Models, ModelSummary, ModelVersion
from service.api.http import Context, ModelPath, context_of, json_response
from service.problems import NotFound, UnknownModel


async def list_models(request: Request) -> Response:
    """List the models that streams can use."""
    models = await asyncio.to_thread(context_of(request).catalogue.models)
    by_name: dict[str, list[ModelVersion]] = {}
    for model in models:
        by_name.setdefault(model.name, []).append(model)
    summaries = [
        ModelSummary(
            **_described(versions), versions=[model.version for model in versions if model.version]
        )
        for versions in by_name.values()
    ]
    return json_response(Models(summaries))


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
    return json_response(ModelDetail(**_described(versions), versions=full))


async def _versions(context: Context, name: str) -> list[ModelVersion]:
    """Return the versions of a model; raises NotFound without any."""
    try:
        return await asyncio.to_thread(context.catalogue.versions, name)
    except UnknownModel as error:
        raise NotFound(error.detail) from None


def _described(versions: list[ModelVersion]) -> dict[str, Any]:
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
