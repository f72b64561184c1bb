"""`POST /mcp`: the tools of assistants, by the Model Context Protocol over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moca_client import AsyncClient
from service.api.http import context_of, read_body
from service.problems import NotInstalled

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context, MCPServer

PATH = "/mcp"
INSTALL = "this needs mcp, which is not installed: pip install 'moca-service[mcp]'"


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


def _client(app: FastAPI, context: Context[Any, Any]) -> AsyncClient:
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
