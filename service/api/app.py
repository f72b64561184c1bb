"""The REST interface as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import redis
import redis.asyncio
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match

from model_core.wording import did_you_mean
from service import installed_version
from service.api import openapi
from service.api.context import begin
from service.api.gateway.load_shedding import Overload
from service.api.http import Admission, RequestMiddleware, checked_stream, problem
from service.api.routes import CALLS, add_routes
from service.console.assets import SAFETY, missing
from service.observability import metrics
from service.observability.access_log import OFF, AccessLog
from service.observability.tracing import open_tracer
from service.problems import (
    MethodNotAllowed,
    NotFound,
    ServiceError,
    StartupError,
)
from service.settings import Settings

log = logging.getLogger(__name__)

CORS_REQUEST_HEADERS = [
    "Authorization",
    "Content-Encoding",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "X-Request-Id",
]
CORS_RESPONSE_HEADERS = [
    "Link",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "WWW-Authenticate",
    "X-Request-Id",
]


def create_app(settings: Settings) -> FastAPI:
    """Return the application; it connects to `settings.redis_url` when it is started.

    Startup fails if the store is unreachable or unusable; `app.state.refused` has the reason.
    """
    if settings.redis_url is None:
        raise ValueError("redis_url is not set")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_close_logs, app)
            app.state.starting = asyncio.current_task()
            try:
                overload = app.state.overload
                app.state.context = await begin(settings, overload, app.state.gathered, stack)
            except (StartupError, redis.RedisError) as error:
                app.state.refused = error
                raise
            finally:
                app.state.starting = None
            yield

    app = FastAPIOffline(  # /docs and /redoc need no other server
        static_url="/docs/static",
        title="MOCA service",
        version=installed_version(),
        lifespan=lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # the service has its own
        exception_handlers=dict.fromkeys((HTTPException, ServiceError, Exception), _error),
    )
    app.state.settings = settings
    app.state.refused = None
    app.state.starting = None  # the startup task, cancelled by a stop that comes during it
    app.state.context = None  # until it is started
    app.state.overload = Overload(settings)
    app.state.admission = Admission(app.state.overload)
    app.state.gathered = metrics.Gathered()
    app.state.assistant = None  # until one calls
    logged = settings.access_log not in {"", OFF}
    app.state.access_log = AccessLog(settings.access_log) if logged else None
    app.state.tracer = open_tracer(settings, "api")
    kinds = [call.answer for call in CALLS if call.answer is not None]
    app.openapi = lambda: openapi.document(app, kinds)  # type: ignore[method-assign]
    add_routes(app, settings)
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=CORS_REQUEST_HEADERS,
            expose_headers=CORS_RESPONSE_HEADERS,
        )
    app.middleware_stack = RequestMiddleware(app)
    return app


async def _close_logs(app: FastAPI) -> None:
    app.state.gathered.enter()
    if app.state.access_log is not None:
        app.state.access_log.close()
    if app.state.tracer is not None:
        await asyncio.to_thread(app.state.tracer.close)


async def _error(request: Request, error: Exception) -> Response:
    """Answer a problem, also of requests that match no route or method."""
    if isinstance(error, ServiceError):
        return problem(error)
    if not isinstance(error, HTTPException):
        raise error  # a defect is left to `RequestMiddleware`
    path = request.scope["path"]
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        detail = f"method {request.method} is not allowed for {path}; allowed: {allowed}"
        return problem(MethodNotAllowed(detail), {"Allow": allowed})
    raw: bytes = request.scope.get("raw_path") or b""
    if raw.startswith(b"/v1/streams/") and b"%2f" in raw.lower():
        try:
            checked_stream("/")  # an encoded slash is part of an id, not of the path
        except ServiceError as bad_id:
            return problem(bad_id)
    reads_pages = "text/html" in request.headers.get("accept", "")
    if reads_pages and not request.app.state.settings.no_console:
        return HTMLResponse(missing(path), 404, SAFETY)
    return problem(NotFound(f"no resource at {path}{_meant(request.app, path)}"))


def _meant(app: FastAPI, path: str) -> str:
    """Return a question about the path of a call that may have been meant; empty: none is like it.

    Names in a path stay as they are; `/v1` may be missing.
    """
    near = []
    for parts in (path.split("/"), f"/v1{path}".split("/")):
        for route in app.routes:
            own = getattr(route, "path", "").split("/")
            if len(own) == len(parts) and all(map(_is_like, own, parts)):
                pairs = zip(own, parts, strict=True)
                near.append("/".join(part if "{" in word else word for word, part in pairs))
    return did_you_mean(path, near)


def _is_like(word: str, part: str) -> bool:
    """Whether a part of a path may be a word of a call's path, or stands for a name in it."""
    if "{" in word:
        return bool(part)
    return word == part or bool(did_you_mean(part, [word]))


def _methods(request: Request) -> list[str]:
    """Methods of all routes at the request's path; the router knows those of one."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or {"GET", "HEAD"}  # of files
    return sorted(methods)
