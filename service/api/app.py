"""The REST interface as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import redis
import redis.asyncio
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match

from model_core.upm.builtin import BUILTIN
from model_core.wording import did_you_mean
from service import installed_version
from service.api import openapi
from service.api.auth import Authenticator, Rates
from service.api.gateway.changes import ChangePages, IncidentPages
from service.api.gateway.gateway import Gateway, Replies
from service.api.gateway.load_shedding import Overload
from service.api.gateway.own_commands import Expiry, HindsightRequests
from service.api.gateway.store_monitor import StoreMonitor
from service.api.gateway.stream_pages import Ranking
from service.api.http import (
    Admission,
    Context,
    RequestMiddleware,
    checked_stream,
    problem,
)
from service.api.parsing.commands import CommandParser
from service.api.parsing.observations import ObservationParser
from service.api.parsing.series import SeriesRules
from service.api.routes import CALLS, add_routes
from service.api.sse import EventHub, ObservationHub
from service.console.assets import SAFETY, missing
from service.models.catalogue import Catalogue
from service.observability import metrics
from service.observability.access_log import OFF, AccessLog
from service.observability.tracing import open_tracer
from service.problems import (
    MethodNotAllowed,
    NotFound,
    ServiceError,
    StartupError,
)
from service.runtime.access_policy import describe, keys_required
from service.settings import Settings
from service.store.api_keys import AsyncKeyring, Keyring
from service.store.connection import (
    START_TIMEOUT_S,
    START_WAIT_S,
    connect,
    connect_async,
    patiently,
)
from service.store.feed import ChangeFeed, Feeds, IncidentFeed
from service.store.health import check_server, fix_partitions
from service.store.log import Appender
from service.store.reads import AsyncStore
from service.tasks import bounded, happened

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 2.0
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
                app.state.context = await _start(settings, app.state, stack)
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
        exception_handlers={
            HTTPException: _http_error,
            ServiceError: _service_error,
            Exception: _unexpected,
        },
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


def _check_default_model(settings: Settings, catalogue: Catalogue) -> None:
    """Warn if the default model is not usable; it may still be published."""
    name, _, version = settings.default_model.partition("@")
    usable = catalogue.usable(name)
    there = version in usable if version else bool(usable) or name in BUILTIN
    if not there:
        log.warning(
            "--default-model: model %r is not usable; until it is, creating a stream "
            "requires an explicit `model`",
            settings.default_model,
        )


async def _start(settings: Settings, state: State, stack: AsyncExitStack) -> Context:
    """Connect, check the store, and start the background tasks."""
    url = settings.redis_url or ""
    required = keys_required(settings, await _checked(settings))
    log.info("%s", describe(settings, required))
    appends, reads, listening, counting = (connect_async(url) for _ in range(4))
    stack.push_async_callback(_disconnect, appends, reads, listening, counting)
    incarnation = secrets.token_hex(8)
    store = AsyncStore(reads, settings.partitions)
    overload: Overload = state.overload
    gathered: metrics.Gathered = state.gathered
    replies = Replies(listening, store, incarnation, settings.partitions, overload, gathered)
    monitor = StoreMonitor(store, settings)
    appender = Appender(appends, incarnation, settings.max_pending)
    catalogue = Catalogue(settings.models_dir)
    _check_default_model(settings, catalogue)
    gateway = Gateway(settings, appender, replies, monitor, catalogue, overload, gathered)
    authenticator = Authenticator(
        AsyncKeyring(reads), Rates(counting, settings.key_rate), settings, required
    )
    stack.push_async_callback(gateway.close)
    hindsight = HindsightRequests(gateway)
    stack.push_async_callback(hindsight.close)
    event_hub = EventHub(Feeds(reads, settings.partitions), settings)
    observation_hub = ObservationHub(store, settings)
    expiry = Expiry(store, gateway)
    await monitor.look_for_windows()  # in force from the first observation on
    gateway.start(
        authenticator.watch(),
        expiry.watch(),
        event_hub.watch(),
        observation_hub.watch(),
        overload.watch(),
    )
    if not await happened(replies.subscribed, START_WAIT_S):
        # Not fatal: outcomes are also read from the store.
        log.warning("replies: no subscription within %g s; starting without it", START_WAIT_S)
    thread = ThreadPoolExecutor(1, "bodies")
    stack.callback(thread.shutdown, wait=False, cancel_futures=True)
    ranker = ThreadPoolExecutor(1, "changes")
    stack.callback(ranker.shutdown, wait=False, cancel_futures=True)
    command_parser = CommandParser(settings)
    feed = ChangeFeed(event_hub.feeds)
    incidents = IncidentFeed(store, feed, ranker)
    changes = ChangePages(feed, store, incidents, not settings.no_console, ranker)
    return Context(
        settings=settings,
        observation_parser=ObservationParser(settings),
        command_parser=command_parser,
        gateway=gateway,
        replies=replies,
        hindsight=hindsight,
        store=store,
        monitor=monitor,
        catalogue=catalogue,
        authenticator=authenticator,
        event_hub=event_hub,
        changes=changes,
        incidents=IncidentPages(incidents, changes),
        ranking=Ranking(store, changes, ranker),
        observation_hub=observation_hub,
        series_rules=SeriesRules(settings.prometheus_rules, command_parser),
        thread=thread,
    )


async def _disconnect(*clients: redis.asyncio.Redis) -> None:
    """Close connections to the store, for at most CLOSE_WAIT_S."""
    closing = asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)
    try:
        failed = [error for error in await bounded(closing, CLOSE_WAIT_S) if error is not None]
    except TimeoutError as timeout:
        failed = [timeout]
    for error in failed:
        log.warning("could not close a connection to the store: %s", error)


async def _close_logs(app: FastAPI) -> None:
    app.state.gathered.enter()
    if app.state.access_log is not None:
        app.state.access_log.close()
    if app.state.tracer is not None:
        await asyncio.to_thread(app.state.tracer.close)


async def _checked(settings: Settings) -> bool:
    """Check the store in a thread, which a stop that comes meanwhile does not wait for long."""
    stopped = threading.Event()
    try:
        return await asyncio.to_thread(check_store, settings, stopped)
    finally:
        stopped.set()


def check_store(settings: Settings, stopped: threading.Event | None = None) -> bool:
    """Check the store, waiting a while for one that is still starting; whether it has keys.

    Raises StartupError, and RedisError when it cannot be reached.
    """

    def ask() -> bool:
        with connect(settings.redis_url or "", START_TIMEOUT_S) as client:
            check_server(client)
            fix_partitions(client, settings.partitions)
            return Keyring(client).any()

    return patiently(ask, START_WAIT_S, stopped)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return problem(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer requests that match no route or method."""
    assert isinstance(error, HTTPException)
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
    return "{" in word or word == part or bool(did_you_mean(part, [word]))


def _methods(request: Request) -> list[str]:
    """Methods of all routes at the request's path; the router knows those of one."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or {"GET", "HEAD"}  # of files
    return sorted(methods)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Leave a defect to `RequestMiddleware`."""
    raise error
