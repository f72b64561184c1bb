"""The service itself: models, probes, metrics."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import ModelDetail, Models, ModelSummary, ModelVersion, Status
from moca_client.stream_settings import Hazard
from service.api.http import Context, ModelPath, context_of, json_response
from service.models import sensitivity_curves
from service.models.catalogue import Model
from service.observability import metrics
from service.problems import InternalError, NotFound, NotReady, UnknownModel
from service.schema.queries import ReadyQuery
from service.store.health import Health

NAMED = 10  # partitions named in a reason
_encode = msgspec.json.Encoder().encode
_MEMBERS = {each.name: each.type for each in msgspec.structs.fields(ModelVersion)}


async def list_models(request: Request) -> Response:
    """List the models that streams can use."""
    models = await asyncio.to_thread(context_of(request).catalogue.models)
    by_name: dict[str, list[Model]] = {}
    for model in models:
        by_name.setdefault(model.name, []).append(model)
    summaries = [
        ModelSummary(
            **_described(versions), versions=[each.version for each in versions if each.version]
        )
        for versions in by_name.values()
    ]
    return json_response(_encode(Models(summaries)))


async def get_model(request: Request, name: ModelPath) -> Response:
    """Return one model with all its versions and their training reports."""
    catalogue = context_of(request).catalogue
    try:
        versions = await asyncio.to_thread(catalogue.versions, name)
    except UnknownModel as error:
        raise NotFound(error.detail) from None
    reports = await asyncio.to_thread(lambda: [catalogue.report(version) for version in versions])
    models_dir = context_of(request).settings.models_dir
    curves = await asyncio.to_thread(
        lambda: [sensitivity_curves.of(models_dir, version.reference) for version in versions]
    )
    full = [
        _version({**msgspec.structs.asdict(version), "report": report, "sensitivity": curve})
        for version, report, curve in zip(versions, reports, curves, strict=True)
    ]
    return json_response(_encode(ModelDetail(**_described(versions), versions=full)))


def _version(stated: dict[str, Any]) -> ModelVersion:
    """Return a version without those parts of its files that are not as they are documented."""
    return ModelVersion(**{name: _of(_MEMBERS[name], value) for name, value in stated.items()})


def _of(kind: Any, value: Any) -> Any:
    """Return a value, with members that are not documented, or None if it is not of the kind."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return None
    return value


async def livez(request: Request) -> Response:
    """Liveness probe: the process runs and none of its tasks has ended."""
    context = context_of(request)
    failure = context.gateway.failure or context.event_hub.failure
    if failure is not None:
        raise InternalError(f"a task of this process ended: {failure!r}")
    return json_response(_encode(Status("alive")))


async def readyz(request: Request, query: Annotated[ReadyQuery, Query()]) -> Response:
    """Readiness probe: every stream can be served; else the reasons."""
    context = context_of(request)
    bearable = context.settings.partitions - 1 if query.partitions == "any" else 0
    reasons = _reasons(context, await context.monitor.look(), bearable)
    if reasons:
        raise NotReady("; ".join(reasons), reasons=reasons)
    return json_response(_encode(Status("ready")))


async def show_metrics(request: Request) -> Response:
    """Return the metrics of all processes of the service, in a format that Prometheus asks for."""
    accept = request.headers.get("accept", "")
    content, media_type = await asyncio.to_thread(metrics.exposition, accept)
    return Response(content, headers={"Content-Type": media_type})


def _reasons(context: Context, health: Health | None, bearable: int) -> list[str]:
    if health is None:
        return ["store unreachable"]
    reasons = []
    if len(health.unowned) > bearable:
        some = ", ".join(map(str, health.unowned[:NAMED]))
        more = ", ..." if len(health.unowned) > NAMED else ""
        total = context.settings.partitions
        reasons.append(f"{len(health.unowned)} of {total} partitions have no worker: {some}{more}")
    if not context.replies.subscribed.is_set():
        reasons.append("not subscribed to replies")
    if context.gateway.failure is not None:
        reasons.append(f"a task of this process ended: {context.gateway.failure!r}")
    return reasons


def _described(versions: list[Model]) -> dict[str, Any]:
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
        "hazard": _of(Hazard, model.hazard),
        "built_in": model.built_in,
        "error": None if usable else model.error,
    }
