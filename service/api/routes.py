"""Every call of the REST interface as a route of the application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.api import console, openapi, routes_service
from service.api.call import Call
from service.api.calls import CALLS
from service.api.http import RawRoute
from service.keys import OPEN
from service.settings import Settings


def add_routes(app: FastAPI, settings: Settings) -> None:
    """Add every call to the application."""
    app.router.route_class = RawRoute
    for call in CALLS:
        _add(app, call)
        _guard(app, call.needs)
    app.add_api_route("/metrics", routes_service.show_metrics, include_in_schema=False)
    _guard(app, "read" if settings.metrics_key_required else OPEN)
    if not settings.no_console:
        for path, endpoint in console.ROUTES:
            app.add_api_route(path, endpoint, include_in_schema=False)
            _guard(app, OPEN)  # the page has no data: it asks for a key, and calls with it


def _guard(app: FastAPI, needs: str) -> None:
    """Say what the route added last needs."""
    route = app.routes[-1]
    assert isinstance(route, RawRoute)
    route.needs = needs


def _add(app: FastAPI, call: Call) -> None:
    text = (call.endpoint.__doc__ or "").strip()
    extra: dict[str, Any] = {"parameters": openapi.parameters(*call.parameters, query=call.query)}
    if call.body is not None:
        extra["requestBody"] = call.body
    responses = openapi.problems(call.problems)
    if call.needs != OPEN:
        responses |= openapi.problems(openapi.GUARDED)
        extra["security"] = openapi.security(call.needs)
    if call.makes:
        responses[201] = {"description": "created", "model": call.answer}
    if call.described is not None:
        responses[200] = call.described
    app.add_api_route(
        call.path,
        call.endpoint,
        methods=[call.method],
        response_model=call.answer,
        status_code=call.status,
        tags=[call.tag],
        summary=text.partition("\n")[0].rstrip("."),
        description=text,
        operation_id=call.endpoint.__name__,
        responses=responses,
        openapi_extra=extra,
        response_class=call.response,
    )
