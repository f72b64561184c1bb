"""The service itself: probes and metrics, the console's page, the tools of assistants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import httpx
from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from moca_client import AsyncClient
from moca_client.responses import Status
from service.api.http import context_of, json_response, read_body
from service.api.routes.calls import Calls
from service.api_keys import OPEN
from service.console.assets import ASKED_AGAIN, SAFETY, page
from service.observability import metrics
from service.problems import InternalError, InvalidField, NotInstalled, NotReady
from service.schema.queries import ReadyQuery

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context as McpContext
    from mcp.server.mcpserver import MCPServer

NAMED = 10  # partitions named in a reason
INSTALL = "this needs mcp, which is not installed: pip install 'moca-service[mcp]'"
calls = Calls("service")


# --- probes and metrics ---------------------------------------------------------------------------


@calls.declare("GET", "/livez", Status, scope=OPEN)
async def livez(request: Request) -> Response:
    """Liveness probe: the process runs and none of its tasks has ended."""
    failure = context_of(request).gateway.failure
    if failure is not None:
        raise InternalError(f"a task of this process ended: {failure!r}")
    return json_response(Status("alive"))


@calls.declare("GET", "/readyz", Status, (InvalidField, NotReady), scope=OPEN)
async def readyz(request: Request, query: Annotated[ReadyQuery, Query()]) -> Response:
    """Readiness probe: every stream can be served; else the reasons."""
    context = context_of(request)
    bearable = context.settings.partitions - 1 if query.partitions == "any" else 0
    health = await context.monitor.look()
    if health is None:
        raise NotReady("store unreachable", reasons=["store unreachable"])
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
    if reasons:
        raise NotReady("; ".join(reasons), reasons=reasons)
    return json_response(Status("ready"))


async def show_metrics(request: Request) -> Response:
    """Return the metrics of all processes of the service, in a format that Prometheus asks for."""
    accept = request.headers.get("accept", "")
    request.app.state.gathered.enter()
    content, media_type = await asyncio.to_thread(metrics.exposition, accept)
    return Response(content, headers={"Content-Type": media_type})


async def show_console(request: Request) -> Response:
    """Return the console's page. It has no data: it asks for a key, and calls with it."""
    return HTMLResponse(page(), headers={**SAFETY, "Cache-Control": ASKED_AGAIN})


# --- POST /mcp: the tools of assistants, by the Model Context Protocol over HTTP ------------------


async def assist(request: Request) -> Response:
    """Answer one message of an assistant; without a session, so that any process can answer it."""
    server = await asyncio.to_thread(_server, request.app)
    body = await read_body(
        request.scope, request.receive, context_of(request).settings.max_body_bytes
    )
    return AssistantAnswer(server, body)


def _server(app: FastAPI) -> MCPServer[Any]:
    """Return the application's server of tools, which the first request makes."""
    if app.state.assistant is None:
        try:
            from service.assistant import server
        except ModuleNotFoundError as error:
            raise NotInstalled(INSTALL) from error
        app.state.assistant = server(lambda context: _client(app, context))
    made: MCPServer[Any] = app.state.assistant
    return made


def _client(app: FastAPI, context: McpContext[Any, Any]) -> AsyncClient:
    """Return a client of this process, with the caller's key."""
    request = context.request_context.request
    assert isinstance(request, Request)
    _, _, key = request.headers.get("authorization", "").partition(" ")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    # A name that is always the service's own: the caller's was checked with the message.
    return AsyncClient("http://localhost", api_key=key.strip(), retry_for_s=5, transport=transport)


class AssistantAnswer(Response):
    """The answer to one message, which the SDK writes itself."""

    def __init__(self, server: MCPServer[Any], body: bytes) -> None:
        super().__init__()
        self._server = server
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the message."""
        # Whether this name is the service's own is checked already. A manager serves once.
        self._server.streamable_http_app(stateless_http=True, json_response=True, host="")
        manager = self._server.session_manager

        async def replayed() -> dict[str, Any]:
            return self._messages.pop() if self._messages else dict(await receive())

        async with manager.run():
            await manager.handle_request(scope, replayed, send)
