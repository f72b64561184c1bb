"""The REST interface as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import PackageNotFoundError, version

import redis
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.api import openapi
from service.api.edge import Edge
from service.api.forms import Forms
from service.api.gateway import Gateway
from service.api.http import Context, checked_stream, problem
from service.api.hub import Hub
from service.api.lane import Access
from service.api.monitor import Monitor
from service.api.replies import Replies, bounded
from service.api.routes import add_routes
from service.errors import InternalError, MethodNotAllowed, NotFound, ServiceError
from service.models import Catalogue
from service.redis.append import Appender
from service.redis.connection import (
    UnusableServer,
    check_server,
    connect,
    connect_async,
    fix_partitions,
)
from service.redis.feed import Feeds
from service.redis.store import AsyncStore
from service.settings import Settings

log = logging.getLogger(__name__)

START_WAIT_S = 30.0
START_PAUSE_S = 0.25


def create_app(settings: Settings) -> FastAPI:
    """Return the application; it connects to `settings.redis_url` when it is started.

    A server it cannot run on ends the start; `app.state.refused` then has the reason.
    """
    if settings.redis_url is None:
        raise ValueError("redis_url is not set")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                app.state.context = await _start(settings, stack)
            except UnusableServer as error:
                app.state.refused = error
                raise
            yield

    app = FastAPI(
        title="MOCA service",
        version=_version(),
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _http_error,
            ServiceError: _service_error,
            Exception: _unexpected,
        },
    )
    app.state.refused = None
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    app.add_middleware(Edge)
    add_routes(app)
    return app


async def _start(settings: Settings, stack: AsyncExitStack) -> Context:
    """Connect, check the store, and start what runs beside the requests."""
    url = settings.redis_url or ""
    await asyncio.to_thread(_check_store, url, settings.partitions)
    appends, reads, listening = (connect_async(url) for _ in range(3))
    for client in (appends, reads, listening):
        stack.push_async_callback(client.aclose)
    incarnation = secrets.token_hex(8)
    store = AsyncStore(reads, settings.partitions)
    replies = Replies(listening, store, incarnation)
    monitor = Monitor(store, settings)
    appender = Appender(appends, incarnation, settings.max_pending)
    gateway = Gateway(Access(appender, incarnation, settings), replies, monitor)
    stack.push_async_callback(gateway.close)
    gateway.start()
    with suppress(TimeoutError):  # not fatal: outcomes are also read from the store
        await bounded(replies.subscribed.wait(), START_WAIT_S)
    catalogue = Catalogue(settings.models_dir)
    hub = _follow_events(settings, stack)
    return Context(settings, Forms(settings), gateway, replies, store, monitor, catalogue, hub)


def _follow_events(settings: Settings, stack: AsyncExitStack) -> Hub:
    """Start the reader of events, with connections of its own: it waits on one of them."""
    waiting, reading = (connect_async(settings.redis_url or "") for _ in range(2))
    for client in (waiting, reading):
        stack.push_async_callback(client.aclose)
    hub = Hub(Feeds(waiting, reading, settings.partitions), settings)
    stack.push_async_callback(hub.close)
    hub.start()
    return hub


def _check_store(url: str, partitions: int) -> None:
    """Check the store, waiting a while for one that is still starting."""
    give_up = time.monotonic() + START_WAIT_S
    client = connect(url)
    try:
        while True:
            try:
                check_server(client)
                fix_partitions(client, partitions)
                return
            except redis.RedisError as error:
                if time.monotonic() > give_up:
                    raise
                log.warning("waiting for the store: %s", error)
                time.sleep(START_PAUSE_S)
    finally:
        client.close()


def _version() -> str:
    try:
        return version("moca-service")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return problem(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what the router refuses."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 405:
        return problem(MethodNotAllowed(f"{request.method} is not for {path}"), error.headers)
    raw: bytes = request.scope.get("raw_path") or b""
    if raw.startswith(b"/v1/streams/") and b"%2f" in raw.lower():
        try:
            checked_stream("/")  # an encoded slash is part of an id, not of the path
        except ServiceError as bad_id:
            return problem(bad_id)
    return problem(NotFound(f"there is nothing at {path}"))


async def _unexpected(request: Request, error: Exception) -> Response:
    request_id: str = getattr(request.state, "request_id", "")
    log.error("request %s failed", request_id, exc_info=error)
    # Sent from outside the middleware that adds the id to every other answer.
    headers = {"X-Request-Id": request_id}
    return problem(InternalError("an unexpected error", request_id=request_id), headers)
