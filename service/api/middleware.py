"""Request ids, duration metrics by route, access log and traces of every request."""

from __future__ import annotations

import re
import time
from random import Random
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.parsing.bodies import header
from service.errors.base import Overloaded
from service.observability import metrics
from service.observability.access_log import AccessLog, Traffic
from service.observability.tracing import Tracer

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_observations = re.compile(r"/v1/streams/([^/]+)/observations").fullmatch
_random_bits = Random().getrandbits  # ids are no secrets, and have to be cheap
_acceptable = re.compile(rb"[A-Za-z0-9._-]{1,64}").fullmatch


class RequestMiddleware:
    """Pure ASGI middleware: gives each request an id and measures it.

    The client's X-Request-Id is kept if it is harmless; the answer carries it. Labels are route
    templates and known methods only, so that no client can make new series. With a log, each
    request gets a line there; with a tracer, some have a trace. `shortcut` is off where something
    between must see every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        log: AccessLog | None = None,
        shortcut: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        self._app, self._log, self._shortcut, self._tracer = app, log, shortcut, tracer
        self._observe: Any = None  # the route of the hot path
        self._measures: dict[tuple[str, str, int], Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _identify(scope)
        status = 500
        traffic = trace = None
        if self._tracer is not None:
            trace = self._tracer.request(_method(scope), header(scope, b"traceparent"))
        if self._log is not None:
            traffic = Traffic()
            receive, send = traffic.count(receive, send)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._next(scope)(scope, receive, answer)
        finally:
            # Streaming responses are measured to the first byte.
            ended = scope["state"].get("answered_s") or time.perf_counter()
            seconds = ended - began
            self._measure(scope, status, seconds)
            if trace is not None:
                trace.end(_route(scope), status)
            if self._log is not None and traffic is not None:
                self._log.write(scope, status, seconds, traffic)

    def _next(self, scope: Scope) -> ASGIApp:
        """Take posted observations straight to their route.

        The layers between cost a fifth of such a request: they find the route and handle errors
        that this one handles itself.
        """
        if scope["method"] != "POST" or not self._shortcut:
            return self._app
        match = _observations(scope["path"])
        if match is None:
            return self._app
        if self._observe is None:
            (self._observe,) = (r for r in scope["app"].routes if r.name == "observe")
        scope["path_params"], scope["route"] = {"stream": match[1]}, self._observe
        route: ASGIApp = self._observe.app
        return route

    def _measure(self, scope: Scope, status: int, seconds: float) -> None:
        # A list takes as long as it has observations: it must not hide what a single one takes.
        route = _route(scope) + (" (list)" if scope["state"].get("list") else "")
        method = _method(scope)
        key = (route, method, status)
        measure = self._measures.get(key)
        if measure is None:
            measure = metrics.REQUEST_DURATION.labels(route, method, str(status))
            self._measures[key] = measure
        measure.observe(seconds)


class Refusals:
    """Measures and logs requests refused before they reach the application."""

    def __init__(self, app: FastAPI) -> None:
        self._routes = {route.name: route for route in app.routes if hasattr(route, "name")}
        self._log: AccessLog | None = app.state.access_log

    def note(self, scope: Scope, name: str, error: Overloaded) -> bytes:
        """Count, measure and log a refusal of the route of that name; return the request's id."""
        request_id = _identify(scope)
        scope["route"] = self._routes[name]
        metrics.LOAD_SHED.labels(error.reason).inc()
        metrics.REQUEST_DURATION.labels(_route(scope), "POST", str(error.status)).observe(0.0)
        if self._log is not None:
            self._log.write(scope, error.status, 0.0, Traffic())
        return request_id


def _identify(scope: Scope) -> bytes:
    """Set and return the id of a request."""
    sent_id = header(scope, b"x-request-id")
    request_id = sent_id if sent_id and _acceptable(sent_id) else b"%016x" % _random_bits(64)
    scope.setdefault("state", {})["request_id"] = request_id.decode()
    return request_id


def _route(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path", "unmatched")
    return path


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in METHODS else "other"
