"""The HTTP server, which ends connections that have no end of their own before it drains."""

from __future__ import annotations

import asyncio
import gc
import socket

import uvicorn
from fastapi import FastAPI

from service.api.http import Context


class Server(uvicorn.Server):
    """Uvicorn, waiting for requests at its stop but not for those who follow."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; what is loaded by now stays, and is not looked through for garbage again.

        It is most of what there is: a full collection would hold the event loop for 0.1 s.
        """
        gc.collect()
        gc.freeze()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End event streams, then stop as usual."""
        context: Context | None = getattr(self._app.state, "context", None)
        if context is not None:
            await asyncio.gather(context.hub.drain(), context.live.drain())
        for connection in list(self.server_state.connections):
            # What is left of them belongs to consumers that take nothing, and would be waited for.
            scope, transport = getattr(connection, "scope", None), connection.transport
            held = transport.get_write_buffer_size() if transport is not None else 0
            if held and scope is not None and "answered_s" in scope.get("state", {}):
                transport.abort()
        await super().shutdown(sockets)
