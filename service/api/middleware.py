"""Around every request: its id, early refusals, duration metrics, access log and traces.

A request that this process has no room for is refused before its body is read.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection
from random import Random
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.gateway.load_shedding import Overload
from service.api.http import problem
from service.api.parsing.bodies import header
from service.observability import metrics
from service.observability.access_log import AccessLog, Traffic
from service.observability.tracing import Tracer
from service.problems import Overloaded, TooManyConnections

CLOSE = (b"connection", b"close")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
SPARE_CONNECTIONS = 128  # over the limit, of which each is closed once it has an answer
_observations = re.compile(r"/v1/(?:streams/([^/]+)/)?observations").fullmatch
_random_bits = Random().getrandbits  # ids are no secrets, and have to be cheap
_acceptable = re.compile(rb"[A-Za-z0-9._-]{1,64}").fullmatch


class Admission:
    """What one process has room for. The server sets its connections and their limit."""

    def __init__(self, overload: Overload) -> None:
        self.connections: Collection[Any] = ()
        self.max_connections: float = math.inf
        self.requests = 0  # in flight
        self.overload = overload


class RequestMiddleware:
    """Pure ASGI middleware: gives each request an id, admits and measures it.

    The client's X-Request-Id is kept if it is harmless; the answer carries it. Labels are route
    templates and known methods only, so that no client can make new series. With a log, each
    request gets a line there; with a tracer, some have a trace. `shortcut` is off where something
    between must see every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        log: AccessLog | None = None,
        shortcut: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        self._app = app
        self._admission = admission
        self._log = log
        self._shortcut = shortcut
        self._tracer = tracer
        self._routes: dict[str, Any] = {}
        self._measures: dict[tuple[str, str, int], Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        sent_id = header(scope, b"x-request-id")
        request_id = sent_id if sent_id and _acceptable(sent_id) else b"%016x" % _random_bits(64)
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        method: str = scope["method"] if scope["method"] in METHODS else "other"
        status = 500
        traffic = trace = None
        if self._tracer is not None:
            trace = self._tracer.request(method, header(scope, b"traceparent"))
        if self._log is not None:
            traffic = Traffic()
            receive, send = traffic.count(receive, send)

        admission = self._admission
        # A connection over the limit is closed once it has an answer.
        over = len(admission.connections) > admission.max_connections
        added = [(b"x-request-id", request_id), *([CLOSE] if over else [])]

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        app = self._next(scope)
        admission.requests += 1
        try:
            await app(scope, receive, answer)
        finally:
            admission.requests -= 1
            # Streaming responses are measured to the first byte.
            ended = scope["state"].get("answered_s") or time.perf_counter()
            seconds = ended - began
            route: str = getattr(scope.get("route"), "path", "unmatched")
            self._measure(route, method, status, seconds, "list" in scope["state"])
            if trace is not None:
                trace.end(route, status)
            if self._log is not None and traffic is not None:
                self._log.write(scope, status, seconds, traffic)

    def _next(self, scope: Scope) -> ASGIApp:
        """Return what answers a request: the application, or a refusal.

        Posted observations go straight to their route. The layers between cost a fifth of such a
        request: they find the route and handle errors that this one handles itself.
        """
        admission = self._admission
        if len(admission.connections) > admission.max_connections + SPARE_CONNECTIONS:
            return _refused(
                scope, TooManyConnections("connection limit of this API process reached")
            )
        match = _observations(scope["path"]) if scope["method"] == "POST" else None
        if match is None or not self._shortcut:
            return self._app
        if not self._routes:
            self._routes = {route.name: route for route in scope["app"].routes}
        stream = match[1]
        route = self._routes["observe_many" if stream is None else "observe"]
        scope["path_params"] = {} if stream is None else {"stream": stream}
        scope["route"] = route
        overloaded = admission.overload.early(admission.requests, time.monotonic())
        if overloaded is not None:
            return _refused(scope, overloaded)
        app: ASGIApp = route.app
        return app

    def _measure(self, route: str, method: str, status: int, seconds: float, is_list: bool) -> None:
        # A list takes as long as it has observations: it must not hide what a single one takes.
        key = (route + " (list)" if is_list else route, method, status)
        measure = self._measures.get(key)
        if measure is None:
            measure = metrics.REQUEST_DURATION.labels(*key[:2], str(status))
            self._measures[key] = measure
        measure.observe(seconds)


def _refused(scope: Scope, error: Overloaded | TooManyConnections) -> ASGIApp:
    metrics.LOAD_SHED.labels(error.reason).inc()
    # A client that waits for 100 Continue never sends its body: nothing more can be read.
    waits = header(scope, b"expect") is not None
    return problem(error, {"Connection": "close"} if waits else None)
