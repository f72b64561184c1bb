"""The service itself: probes and metrics."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import Status
from service.api.http import Context, context_of, json_response
from service.observability import metrics
from service.problems import InternalError, NotReady
from service.schema.queries import ReadyQuery
from service.store.reads import Health

NAMED = 10  # partitions named in a reason


async def livez(request: Request) -> Response:
    """Liveness probe: the process runs and none of its tasks has ended."""
    context = context_of(request)
    failure = context.gateway.failure or context.event_hub.failure
    if failure is not None:
        raise InternalError(f"a task of this process ended: {failure!r}")
    return json_response(Status("alive"))


async def readyz(request: Request, query: Annotated[ReadyQuery, Query()]) -> Response:
    """Readiness probe: every stream can be served; else the reasons."""
    context = context_of(request)
    bearable = context.settings.partitions - 1 if query.partitions == "any" else 0
    reasons = _reasons(context, await context.monitor.look(), bearable)
    if reasons:
        raise NotReady("; ".join(reasons), reasons=reasons)
    return json_response(Status("ready"))


async def show_metrics(request: Request) -> Response:
    """Return the metrics of all processes of the service, in a format that Prometheus asks for."""
    accept = request.headers.get("accept", "")
    request.app.state.durations.write()
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
