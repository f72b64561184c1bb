"""All calls of the REST interface, by group, and their routes."""

from __future__ import annotations

from fastapi import FastAPI

from service.api.http import Route
from service.api.routes import (
    calendar,
    events,
    files,
    models,
    observations,
    prometheus,
    service,
    streams,
)
from service.api.routes.calls import add_route
from service.api_keys import OPEN
from service.console.assets import ConsoleFiles
from service.settings import Settings

CALLS = (
    *observations.calls,
    *files.calls,
    *streams.calls,
    *streams.reads,
    *events.calls,
    *calendar.calls,
    *prometheus.calls,
    *models.calls,
    *service.calls,
)


def add_routes(app: FastAPI, settings: Settings) -> None:
    """Add every call to the application."""
    app.router.route_class = Route
    for call in CALLS:
        call.add_to(app)
    scope = "read" if settings.metrics_key_required else OPEN
    add_route(app, "/metrics", service.show_metrics, scope, include_in_schema=False)
    add_route(app, "/mcp", service.assist, "read", methods=["POST"], include_in_schema=False)
    if not settings.no_console:
        add_route(app, "/", service.show_console, OPEN, include_in_schema=False)
        app.mount("/console", ConsoleFiles())
